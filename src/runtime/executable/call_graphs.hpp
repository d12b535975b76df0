// Calls with many parts as one launch of a graph of ours. Addresses are in the nodes, and giving all nodes others costs about as
// much as enqueueing the parts; so a graph is kept for each set of addresses that has come twice, as they do where torch's
// allocator gives back what was freed, and a call with new ones is enqueued singly.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::runtime {

class OwnedStream;  // runtime/cuda/driver/cuda_handles.hpp

class CallGraphs {
public:
    explicit CallGraphs(FusedOp& op);
    ~CallGraphs();
    CallGraphs(const CallGraphs&) = delete;
    CallGraphs& operator=(const CallGraphs&) = delete;

    /// Whether a call of the op is to be a graph at all.
    [[nodiscard]] bool worth(GraphUse use) const;
    /// One call with these tensors, whose places the op has been told. Whether it was a graph.
    Result<bool> call(std::span<const CallTensor> tensors, std::size_t form,
                      std::span<const FusedOp::StageLaunch> launches, CudaStream stream);

private:
    struct Graph;
    /// The graph of the call in hand, now the one used last; null: its addresses have come for the first time.
    Graph* find();
    Result<bool> launch(Graph& graph, bool counted, CudaStream stream);
    /// A call of the op into the graph. False: it was counted, but the driver makes no graph of it, for want of memory or
    /// because another thread captures.
    Result<bool> capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches);
    Result<bool> singly(std::span<const FusedOp::StageLaunch> launches, CudaStream stream);

    FusedOp& op_;
    std::unique_ptr<OwnedStream> stream_;  ///< that graphs are captured from
    std::list<Graph> graphs_;              ///< used last first
    std::vector<std::uint64_t> key_;
    bool refused_ = false;  ///< the driver did not make one
};

}  // namespace syncopate::runtime

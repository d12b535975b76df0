// Calls with many parts as one launch of a graph of ours. Addresses are in the nodes, and giving all nodes others costs about as
// much as enqueueing the parts; so a graph is kept for each set of addresses that has come twice, as they do where torch's
// allocator gives back what was freed, and a call with new ones is enqueued singly.
#pragma once

#include <array>
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
    void add();
    /// False: the driver makes none, for want of memory, say.
    bool capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches, bool high_priority);
    /// Whether the driver launched it; an error where the op cannot be called.
    Result<bool> launch(Graph& graph, CudaStream stream);
    Result<bool> singly(std::span<const FusedOp::StageLaunch> launches, CudaStream stream);

    FusedOp& op_;
    std::array<std::unique_ptr<OwnedStream>, 2> streams_;  ///< that graphs are captured from, by priority
    std::list<Graph> graphs_;                              ///< used last first
    std::vector<std::uint64_t> key_;
    std::uint32_t often_ = 1;  ///< a graph is made where addresses have come so many times before
    bool refused_ = false;     ///< the driver did not make one
};

}  // namespace syncopate::runtime

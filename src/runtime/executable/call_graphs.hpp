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
    Result<bool> launch(Graph& graph, bool counted, CudaStream stream);
    Status capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches);

    FusedOp& op_;
    std::list<Graph> graphs_;  ///< used last first
    std::vector<std::uint64_t> key_;
};

}  // namespace syncopate::runtime

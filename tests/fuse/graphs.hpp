// Graphs of programs, as fuse makes them on its way.
#pragma once

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/build.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/place.hpp"

namespace syncopate::fuse::sample {

struct Placed {
    Lowered lowered;
    Backends backends;
    Graph graph;
    Placement placement;
};

/// Without reductions or parts of sums.
inline Result<Placed> graph_of(const StagedProgram& program, Device device) {
    Placed result{.lowered = {.plan = program.plan}};
    auto backends = assign(program.plan, device);
    if (!backends) return backends.error();
    result.backends = *std::move(backends);
    auto graph = build(program, result.lowered, result.backends);
    if (!graph) return graph.error();
    result.graph = *std::move(graph);
    auto placement = place(result.graph, result.lowered, result.backends);
    if (!placement) return placement.error();
    result.placement = *std::move(placement);
    return result;
}
inline Result<Placed> graph_of(const Program& program, Device device) {
    return graph_of(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, device);
}
/// Of a plan without a kernel.
inline Result<Placed> graph_of(const plan::Plan& plan, Device device) {
    return graph_of(StagedProgram{{}, plan}, device);
}

}  // namespace syncopate::fuse::sample

// The work graph for people: as text, a line a node, and as a picture of small ones.
#pragma once

#include <iosfwd>
#include <string>

#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Nodes that graph_svg draws at most.
inline constexpr std::size_t kMostDrawnNodes = 300;

/// By rank, each node with its number, what it does, its lane, and the nodes that must be complete before it;
/// an edge into a loop names the iteration, one of the call before is marked with an apostrophe.
/// Written as it is made: of many ranks it is longer than memory should hold.
void write_graph(std::ostream& out, const StagedProgram& program, const Decisions& decisions);

/// An SVG: a row of boxes for each rank, from left to right as they can run; edges of the call before are
/// dashed. Fails where the graph has more than kMostDrawnNodes.
[[nodiscard]] Result<std::string> graph_svg(const StagedProgram& program, const Decisions& decisions);

}  // namespace syncopate::fuse

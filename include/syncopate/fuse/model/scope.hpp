// Scope: of which ranks fuse makes the schedule: of all, or of those of one node.
//
// What a rank does it has to know of itself; of the ranks whose memory it maps, what their signals are and what they move.
// Of other nodes it needs what crosses, and lower, build and place have said that for all.
#pragma once

#include <cstdint>
#include <limits>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

struct Scope {
    std::int32_t first = 0;
    std::int32_t end = std::numeric_limits<std::int32_t>::max();  ///< behind the last one

    [[nodiscard]] static Scope node_of(const plan::Mesh& mesh, std::int32_t rank) {
        const std::int32_t size = mesh.ranks_of_node(), first = mesh.node_of(rank) * size;
        return {first, first + size};
    }
    bool operator==(const Scope&) const = default;
    [[nodiscard]] bool contains(std::int32_t rank) const { return first <= rank && rank < end; }
    /// The same of a plan of `ranks` ranks: it ends with them.
    [[nodiscard]] Scope within(std::int32_t ranks) const { return {first, end < ranks ? end : ranks}; }
};

}  // namespace syncopate::fuse

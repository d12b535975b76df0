// Handover between two overlapping stages: which tiles of the later stage can run during the earlier stage's
// last round.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/passes/head_start.hpp"
#include "syncopate/fuse/passes/order.hpp"

namespace syncopate::fuse {

/// Whether a chunk is complete before the last round of its stage's tiles, which run in this order.
[[nodiscard]] bool is_complete_early(const Made& made, const std::vector<std::int64_t>& tiles,
                                     std::size_t round);

class Handover {
public:
    /// `before`: the order of the stage before `stage`, whose tiles run `round` at once. Of programs whose
    /// stages overlap, which have one rank.
    Handover(const StagedProgram& program, const Graph& graph, std::size_t stage, const StageOrder& before,
             std::size_t round, const Costs& costs);

    /// The order of the tiles before: as it is, or with what makes the last chunks in the last round, where
    /// by the estimate that ends both stages clearly sooner. Neighbours that load the same operand are worth
    /// 2 to 4 %, as measured.
    [[nodiscard]] const std::vector<std::int64_t>& order_before() const { return order_; }
    [[nodiscard]] const HeadStart& head_start() const { return head_; }

private:
    [[nodiscard]] std::vector<std::int64_t> chunks_last() const;
    [[nodiscard]] std::int64_t ready(const std::vector<std::int64_t>& order) const;
    [[nodiscard]] bool is_before(const Made& made) const {
        return made.stage + 1 == static_cast<std::int32_t>(stage_);
    }

    const Graph& graph_;
    std::size_t stage_;
    Rounds before_, own_;
    std::vector<std::int64_t> order_;
    HeadStart head_;
};

}  // namespace syncopate::fuse

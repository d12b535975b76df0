#include "fuse/passes/run_tiles.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// What is made of one tensor, by rank.
struct MadeTensor {
    std::string param;  ///< through which the kernel writes it
    std::vector<std::vector<Region>> by_rank;
};

bool touches(const std::vector<Region>& made, std::span<const Region> written) {
    return std::ranges::any_of(written, [&](const Region& box) {
        return std::ranges::any_of(made, [&](const Region& region) { return overlaps(region, box); });
    });
}

/// Whether some other rank makes all of what is written.
bool made_elsewhere(const MadeTensor& made, std::size_t rank, std::span<const Region> written) {
    for (std::size_t other = 0; other < made.by_rank.size(); ++other) {
        if (other == rank) continue;
        std::vector<Region> missing(written.begin(), written.end());
        for (const Region& region : made.by_rank[other]) take(missing, region);
        if (missing.empty()) return true;
    }
    return false;
}

}  // namespace

Status find_runs(const BoundKernel& program, std::size_t stage, Graph& graph) {
    const plan::Plan& plan = program.plan;
    const auto num_ranks = static_cast<std::size_t>(plan.num_ranks());
    std::vector<MadeTensor> all;
    for (const auto& [name, tensor] : program.bindings) {
        const kernel::Param* param = program.kernel.find_param(name);
        if (param == nullptr || !param->written) continue;
        MadeTensor made{name, std::vector<std::vector<Region>>(num_ranks)};
        for (const plan::Holding& holding : plan.produced) {
            if (holding.chunk.tensor == *plan.find_tensor(tensor))
                made.by_rank[at(holding.rank)].push_back(holding.chunk.region);
        }
        // A rank that makes nothing of it is not asked what it makes of it.
        if (std::ranges::none_of(made.by_rank, &std::vector<Region>::empty)) all.push_back(std::move(made));
    }
    if (all.empty()) return Done{};
    const std::vector<kernel::Tile>& tiles = program.kernel.tiles;
    std::vector<std::vector<bool>> runs(num_ranks, std::vector<bool>(tiles.size(), true));
    bool some_left_out = false;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        for (const MadeTensor& made : all) {
            const std::span<const Region> written = kernel::boxes_written(tiles[t], made.param);
            if (written.empty()) continue;
            for (std::size_t rank = 0; rank < num_ranks; ++rank) {
                if (!runs[rank][t] || touches(made.by_rank[rank], written) ||
                    !made_elsewhere(made, rank, written))
                    continue;
                runs[rank][t] = false;
                some_left_out = true;
            }
        }
    }
    if (!some_left_out) return Done{};
    const auto run_by = [&](std::size_t rank) { return std::ranges::count(runs[rank], true); };
    for (std::size_t rank = 1; rank < num_ranks && graph.stages.size() > 1; ++rank) {
        if (run_by(rank) == run_by(0)) continue;
        return Error{"ranks run different numbers of tiles of " + program.kernel.name +
                     ", which only a program of one stage can do: make it a program of its own"};
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        if (std::ranges::find(runs[rank], true) == runs[rank].end())
            return plan::error_at({static_cast<std::int32_t>(rank), -1},
                                  "no tile of " + program.kernel.name + " is left for this rank to run");
    }
    graph.stages[stage].runs = std::move(runs);
    return Done{};
}

}  // namespace syncopate::fuse

#include "fuse/passes/run_tiles.hpp"

#include <algorithm>
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

/// What ranks that make nothing of a tensor have of the plan's tensors: initially, or once their ops have ended.
class Held {
public:
    explicit Held(const BoundKernel& program) : program_(program) {}

    /// Whether `rank` has all that the tile reads.
    [[nodiscard]] bool covers(std::size_t rank, const kernel::Tile& tile) {
        return std::ranges::all_of(program_.bindings, [&](const auto& bound) {
            const std::span<const Region> read = kernel::boxes_read(tile, bound.first);
            std::vector<Region> missing(read.begin(), read.end());
            for (const Region& region : of(rank, *program_.plan.find_tensor(bound.second)))
                take(missing, region);
            return missing.empty();
        });
    }

    /// Whether it has, from the start or by an op, some of what a tile writes.
    [[nodiscard]] bool gets(std::size_t rank, const std::string& param, std::span<const Region> written) {
        return touches(of(rank, *program_.plan.find_tensor(program_.bindings.at(param))), written);
    }

private:
    const std::vector<Region>& of(std::size_t rank, std::int32_t tensor) {
        if (by_rank_.empty()) find_all();
        return by_rank_[rank][at(tensor)];
    }

    /// Of all ranks at once: each op is looked at once, of however many ranks.
    void find_all() {
        const plan::Plan& plan = program_.plan;
        by_rank_.assign(plan.ranks.size(), std::vector<std::vector<Region>>(plan.tensors.size()));
        for (const plan::Holding& holding : plan.initial)
            by_rank_[at(holding.rank)][at(holding.chunk.tensor)].push_back(holding.chunk.region);
        for (std::int32_t owner = 0; owner < plan.num_ranks(); ++owner) {
            for (const plan::Op& op : plan.ranks[at(owner)])
                by_rank_[at(op.destination_rank(owner))][at(op.dst.tensor)].push_back(op.dst.region);
        }
    }

    const BoundKernel& program_;
    std::vector<std::vector<std::vector<Region>>> by_rank_;  ///< by rank and tensor; empty: nobody has asked
};

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
        if (!std::ranges::all_of(made.by_rank, &std::vector<Region>::empty)) all.push_back(std::move(made));
    }
    if (all.empty()) return Done{};
    const std::vector<kernel::Tile>& tiles = program.kernel.tiles;
    std::vector<std::vector<bool>> runs(num_ranks, std::vector<bool>(tiles.size(), true));
    bool some_left_out = false;
    Held held(program);
    // Else what the tile makes for the caller, or for the next stage, would be missing.
    const bool all_is_moved = graph.stages.size() == 1 &&
                              std::ranges::all_of(program.kernel.params, [&](const kernel::Param& param) {
                                  return !param.written || program.bindings.contains(param.name);
                              });
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        for (const MadeTensor& made : all) {
            const std::span<const Region> written = kernel::boxes_written(tiles[t], made.param);
            if (written.empty()) continue;
            for (std::size_t rank = 0; rank < num_ranks; ++rank) {
                if (!runs[rank][t] || touches(made.by_rank[rank], written) ||
                    !made_elsewhere(made, rank, written))
                    continue;
                // A rank that makes nothing of it, by the plan, runs what it can, unless an op brings it what the tile makes.
                if (made.by_rank[rank].empty() &&
                    (!all_is_moved || (held.covers(rank, tiles[t]) && !held.gets(rank, made.param, written))))
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
    graph.stages[stage].runs = std::move(runs);
    return Done{};
}

Status require_tiles(const StagedProgram& program, const Graph& graph, Device device) {
    if (device != Device::cuda) return Done{};
    for (std::size_t stage = 0; stage < graph.stages.size(); ++stage) {
        const auto& runs = graph.stages[stage].runs;
        for (std::size_t rank = 0; rank < runs.size(); ++rank) {
            if (std::ranges::find(runs[rank], true) == runs[rank].end())
                return plan::error_at({static_cast<std::int32_t>(rank), -1},
                                      "no tile of " + program.stages[stage].kernel.name +
                                          " is left for this rank to run, as only device host can have it");
        }
    }
    return Done{};
}

}  // namespace syncopate::fuse

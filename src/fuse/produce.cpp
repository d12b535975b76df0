#include "syncopate/fuse/produce.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/plan/model/chunk_key.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// The tiles that write into a region, and what of it none of them writes.
struct Makers {
    std::vector<std::int64_t> tiles;
    std::vector<Region> missing;
};

class Producing {
public:
    Producing(const Program& program, const Lowered& lowered, const Precedence& precedence)
        : program_(program), lowered_(lowered), precedence_(precedence) {}

    Result<Production> run() {
        const plan::Plan& plan = program_.plan;
        result_.chunks.resize(plan.ranks.size());
        result_.makers.resize(plan.ranks.size());
        result_.needs.resize(precedence_.ops.size());
        for (const auto& [name, tensor_name] : program_.bindings) {
            const kernel::Param* param = program_.kernel.find_param(name);
            if (param == nullptr || !param->written) continue;
            const std::int32_t tensor = *plan.find_tensor(tensor_name);
            if (!params_.emplace(tensor, name).second) {
                return Error{"two parameters that kernel " + program_.kernel.name + " writes are bound to " +
                             tensor_name};
            }
        }
        if (params_.empty()) return std::move(result_);
        for (const plan::Holding& holding : plan.produced)
            produced_[{holding.rank, holding.chunk.tensor}].push_back(holding.chunk.region);
        for (const auto& [tensor, param] : params_) {
            if (Status status = check_written(tensor, param); !status) return status.error();
        }
        for (const std::int32_t id : precedence_.sorted) {
            if (Status status = add_op(id); !status) return status.error();
        }
        for (std::int32_t id = 0; id < precedence_.num_ops(); ++id) {
            if (Status status = check_overwritten(id); !status) return status.error();
        }
        drop_what_is_known();
        return std::move(result_);
    }

private:
    [[nodiscard]] std::string name_of_chunk(std::int32_t tensor, const Region& region) const {
        return program_.plan.tensors[static_cast<std::size_t>(tensor)].name + to_string(region);
    }

    /// Whatever moves a tensor that the kernel writes, every rank must say that it makes all of it.
    Status check_written(std::int32_t tensor, const std::string& param) const {
        const std::string& name = program_.plan.tensors[static_cast<std::size_t>(tensor)].name;
        for (const plan::OpRef ref : precedence_.ops) {
            const plan::Op& op = program_.plan.op(ref);
            if (op.src.tensor != tensor && op.dst.tensor != tensor) continue;
            const bool produces =
                std::any_of(program_.plan.produced.begin(), program_.plan.produced.end(),
                            [&](const plan::Holding& h) { return h.chunk.tensor == tensor; });
            if (produces) break;
            return error_at(ref, "the op moves tensor " + name + ", which the kernel writes through " +
                                     param +
                                     ", but the plan does not say that it is made: list it in \"produced\"");
        }
        for (std::int32_t rank = 0; rank < program_.plan.num_ranks(); ++rank) {
            const auto made = produced_.find({rank, tensor});
            if (made == produced_.end()) continue;
            for (const kernel::Tile& tile : program_.kernel.tiles) {
                for (const Region& box : kernel::boxes_written(tile, param)) {
                    std::vector<Region> missing{box};
                    for (const Region& region : made->second) take(missing, region);
                    if (missing.empty()) continue;
                    return plan::error_at(
                        {rank, -1}, "tile " + std::to_string(tile.id) + " of " + program_.kernel.name +
                                        " writes " + name_of_chunk(tensor, missing.front()) + " through " +
                                        param + ", which the plan does not list as produced on rank " +
                                        std::to_string(rank));
                }
            }
        }
        return Done{};
    }

    const Makers& makers_of(const plan::Chunk& chunk) {
        const auto [found, is_new] = makers_.try_emplace(plan::key_of(chunk));
        if (!is_new) return found->second;
        Makers& makers = found->second;
        makers.missing = {chunk.region};
        const std::string& param = params_.at(chunk.tensor);
        for (const kernel::Tile& tile : program_.kernel.tiles) {
            bool makes = false;
            for (const Region& box : kernel::boxes_written(tile, param)) {
                if (!overlaps(box, chunk.region)) continue;
                makes = true;
                take(makers.missing, box);
            }
            if (makes) makers.tiles.push_back(tile.id);
        }
        return makers;
    }

    /// What op `id` reads of what a kernel makes: its source, and for a sum what the destination holds
    /// itself.
    Status add_op(std::int32_t id) {
        const plan::OpRef ref = precedence_.ops[id];
        const plan::Op& op = program_.plan.op(ref);
        if (Status status = need(id, op.source_rank(ref.rank), op.src); !status) return status;
        const auto own = lowered_.own.find(ref);
        if (own == lowered_.own.end() || own->second < 0) return Done{};
        return need(id, ref.rank, op.dst);
    }

    Status need(std::int32_t id, std::int32_t rank, const plan::Chunk& chunk) {
        if (!params_.contains(chunk.tensor) || is_empty(chunk.region)) return Done{};
        const auto made = produced_.find({rank, chunk.tensor});
        if (made == produced_.end()) return Done{};
        std::vector<Region> parts;  // of the chunk, that are made there
        for (const Region& region : made->second) {
            if (auto part = intersect(region, chunk.region)) parts.push_back(std::move(*part));
        }
        if (parts.empty()) return Done{};
        const Makers& makers = makers_of(chunk);
        for (const Region& hole : makers.missing) {
            for (const Region& part : parts) {
                if (!overlaps(hole, part)) continue;
                const plan::OpRef ref = precedence_.ops[id];
                return error_at(ref, "no tile of " + program_.kernel.name + " writes " +
                                         name_of_chunk(chunk.tensor, *intersect(hole, part)) +
                                         ", which the plan lists as produced on rank " +
                                         std::to_string(rank));
            }
        }
        auto& chunks = result_.chunks[static_cast<std::size_t>(rank)];
        const auto known = std::find(chunks.begin(), chunks.end(), chunk);
        const auto index = static_cast<std::int32_t>(known - chunks.begin());
        if (known == chunks.end()) {
            chunks.push_back(chunk);
            result_.makers[static_cast<std::size_t>(rank)].push_back(makers.tiles);
        }
        result_.needs[static_cast<std::size_t>(id)].push_back({rank, index});
        return Done{};
    }

    /// An op that overwrites what the destination's kernel makes must come after something that waited for
    /// it.
    Status check_overwritten(std::int32_t id) const {
        const plan::OpRef ref = precedence_.ops[id];
        if (lowered_.done_with.contains(ref)) return Done{};  // it is its sum that writes
        const plan::Op& op = program_.plan.op(ref);
        const std::int32_t rank = op.destination_rank(ref.rank);
        const auto made = produced_.find({rank, op.dst.tensor});
        if (made == produced_.end() || !params_.contains(op.dst.tensor)) return Done{};
        std::vector<Region> missing;
        for (const Region& region : made->second) {
            if (auto part = intersect(region, op.dst.region)) missing.push_back(std::move(*part));
        }
        if (missing.empty()) return Done{};
        const std::vector<bool> earlier = completed_with(precedence_, {id});
        for (std::int32_t other = 0; other < precedence_.num_ops(); ++other) {
            if (!earlier[static_cast<std::size_t>(other)]) continue;
            for (const MadeRef& need : result_.needs[static_cast<std::size_t>(other)]) {
                const plan::Chunk& chunk =
                    result_.chunks[static_cast<std::size_t>(need.rank)][static_cast<std::size_t>(need.index)];
                if (need.rank == rank && chunk.tensor == op.dst.tensor) take(missing, chunk.region);
            }
        }
        if (missing.empty()) return Done{};
        return error_at(ref,
                        "the op writes " + name_of_chunk(op.dst.tensor, missing.front()) + " on rank " +
                            std::to_string(rank) +
                            ", where that rank's kernel writes too, and waits for nothing that would tell "
                            "when it has: write elsewhere, or after an op that reads it");
    }

    /// An op need not wait for tiles that one of the same rank before it has waited for.
    void drop_what_is_known() {
        using Tiles = std::vector<bool>;
        std::vector<Tiles> known(precedence_.ops.size());  // by op id: tiles of its rank
        const std::size_t num_tiles = program_.kernel.tiles.size();
        for (const std::int32_t id : precedence_.sorted) {
            const auto at = static_cast<std::size_t>(id);
            const std::int32_t rank = precedence_.ops[at].rank;
            Tiles& tiles = known[at];
            for (const std::int32_t before : precedence_.before[at]) {
                const Tiles& theirs = known[static_cast<std::size_t>(before)];
                if (precedence_.ops[static_cast<std::size_t>(before)].rank != rank || theirs.empty())
                    continue;
                if (tiles.empty()) tiles.resize(num_tiles, false);
                for (std::size_t tile = 0; tile < num_tiles; ++tile)
                    tiles[tile] = tiles[tile] || theirs[tile];
            }
            std::erase_if(result_.needs[at], [&](const MadeRef& need) {
                if (need.rank != rank) return false;
                const std::vector<std::int64_t>& makers =
                    result_.makers[static_cast<std::size_t>(rank)][static_cast<std::size_t>(need.index)];
                if (tiles.empty()) tiles.resize(num_tiles, false);
                bool all = true;
                for (const std::int64_t tile : makers) {
                    all = all && tiles[static_cast<std::size_t>(tile)];
                    tiles[static_cast<std::size_t>(tile)] = true;
                }
                return all;
            });
        }
    }

    const Program& program_;
    const Lowered& lowered_;
    const Precedence& precedence_;
    std::map<std::int32_t, std::string> params_;  ///< by tensor: the parameter through which it is written
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Region>> produced_;  ///< by rank and tensor
    std::map<std::vector<std::int64_t>, Makers> makers_;
    Production result_;
};

}  // namespace

bool Production::any() const {
    return std::any_of(chunks.begin(), chunks.end(), [](const auto& of_rank) { return !of_rank.empty(); });
}

Result<Production> produce(const Program& program, const Lowered& lowered, const Precedence& precedence) {
    return Producing(program, lowered, precedence).run();
}

}  // namespace syncopate::fuse

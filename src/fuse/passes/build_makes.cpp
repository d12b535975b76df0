#include "fuse/passes/build_makes.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/plan/model/chunk_key.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// The tiles that write into a region, and what of it none of them writes.
struct OfChunk {
    Makers tiles;
    std::vector<Region> missing;
    std::vector<std::int32_t> classes;  ///< of these tiles, rising
    std::vector<NodeId> nodes;          ///< by rank, or of the one rank whose they are: its chunk
};

class Makes {
public:
    Makes(const BoundKernel& program, std::size_t stage, const Lowered& lowered, Scope scope, Graph& graph)
        : program_(program),
          plan_(program.plan),
          lowered_(lowered),
          scope_(scope),
          graph_(graph),
          stage_(stage) {}

    Status run() {
        for (const auto& [name, tensor_name] : program_.bindings) {
            const kernel::Param* param = program_.kernel.find_param(name);
            if (param == nullptr || !param->written) continue;
            if (!params_.emplace(*plan_.find_tensor(tensor_name), name).second) {
                return Error{"two parameters that kernel " + program_.kernel.name + " writes are bound to " +
                             tensor_name};
            }
        }
        if (params_.empty()) return Done{};
        for (const auto& [tensor, param] : params_) graph_.written[at(tensor)] = true;
        for (const plan::Holding& holding : plan_.produced)
            produced_[{holding.rank, holding.chunk.tensor}].push_back(holding.chunk.region);
        for (const auto& [tensor, param] : params_) {
            if (Status status = check_moved(tensor, param); !status) return status;
            if (Status status = check_written(tensor, param); !status) return status;
            if (Status status = check_received(tensor, param); !status) return status;
        }
        few_ = scope_ != Scope{}.within(plan_.num_ranks()) && orders_nothing() && sends_some();
        for (const NodeId op : graph_.sorted) {
            if (Status status = add_op(op); !status) return status;
        }
        return Done{};
    }

private:
    /// Whether no op comes after another by way of the stage's tiles, and these store for none.
    [[nodiscard]] bool orders_nothing() const {
        const Graph::StageNodes& nodes = graph_.stages[stage_];
        const auto is_empty = [](const auto& list) { return list.empty(); };
        for (const NodeId first : nodes.first) {
            for (NodeId tiles = first; tiles < first + nodes.num_classes; ++tiles) {
                if (!graph_.in[at(tiles)].empty()) return false;
            }
        }
        return std::ranges::all_of(nodes.loads, is_empty) && std::ranges::all_of(nodes.uses, is_empty) &&
               std::ranges::find(graph_.carriers, Carrier::tile_stores) == graph_.carriers.end();
    }
    /// Whether some op in the scope sends what the stage makes, after no other: what tiles make is then due when it is sent
    /// (deadlines.cpp), whatever ops of other nodes do.
    [[nodiscard]] bool sends_some() const {
        for (NodeId id = graph_.first_op[at(scope_.first)]; id < graph_.first_op[at(scope_.end)]; ++id) {
            const plan::OpRef ref = graph_.ref(id);
            const plan::Op& op = plan_.op(ref);
            if (graph_[id].kind != Node::Kind::copy || graph_.carrier(id) != Carrier::own ||
                !op.after.empty() || op.source_rank(ref.rank) != ref.rank || !params_.contains(op.src.tensor))
                continue;
            const auto produced = produced_.find({ref.rank, op.src.tensor});
            if (produced != produced_.end() && std::ranges::any_of(produced->second, [&](const Region& made) {
                    return overlaps(made, op.src.region);
                }))
                return true;
        }
        return false;
    }

    [[nodiscard]] std::string name_of_chunk(std::int32_t tensor, const Region& region) const {
        return plan_.tensors[at(tensor)].name + to_string(region);
    }

    /// Whoever moves a tensor that the kernel writes must say that it is made.
    [[nodiscard]] Status check_moved(std::int32_t tensor, const std::string& param) const {
        const bool produces = std::ranges::any_of(
            plan_.produced, [&](const plan::Holding& held) { return held.chunk.tensor == tensor; });
        if (produces) return Done{};
        for (NodeId node = 0; node < graph_.num_ops(); ++node) {
            const plan::OpRef ref = graph_.ref(node);
            const plan::Op& op = plan_.op(ref);
            if (op.src.tensor != tensor && op.dst.tensor != tensor) continue;
            return error_at(ref, "the op moves tensor " + plan_.tensors[at(tensor)].name +
                                     ", which the kernel writes through " + param +
                                     ", but the plan does not say that it is made: list it in \"produced\"");
        }
        return Done{};
    }

    /// A rank that makes some of the tensor must say that it makes all that its tiles write.
    [[nodiscard]] Status check_written(std::int32_t tensor, const std::string& param) const {
        const std::vector<Region>* right = nullptr;  // what a rank makes that is all its tiles write
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto made = produced_.find({rank, tensor});
            if (made == produced_.end()) continue;
            if (graph_.stages[stage_].runs.empty() && right != nullptr && *right == made->second) continue;
            right = &made->second;
            for (const kernel::Tile& tile : program_.kernel.tiles) {
                if (!graph_.runs(stage_, rank, tile.id)) continue;
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

    /// A rank that makes none of the tensor must not receive what its tiles write all the same: either could
    /// come last.
    [[nodiscard]] Status check_received(std::int32_t tensor, const std::string& param) const {
        for (NodeId node = 0; node < graph_.num_ops(); ++node) {
            const plan::OpRef ref = graph_.ref(node);
            const plan::Op& op = plan_.op(ref);
            const std::int32_t rank = op.destination_rank(ref.rank);
            if (op.dst.tensor != tensor || produced_.contains({rank, tensor})) continue;
            for (const kernel::Tile& tile : program_.kernel.tiles) {
                if (!graph_.runs(stage_, rank, tile.id)) continue;
                for (const Region& box : kernel::boxes_written(tile, param)) {
                    if (!overlaps(box, op.dst.region)) continue;
                    const std::string here = std::to_string(rank);
                    return plan::error_at(
                        ref, "the op writes " + name_of_chunk(tensor, op.dst.region) + " on rank " + here +
                                 ", where tile " + std::to_string(tile.id) + " of " + program_.kernel.name +
                                 " writes, too, through " + param + ": the plan lists nothing of " +
                                 plan_.tensors[at(tensor)].name + " as produced on rank " + here +
                                 "; cut it so that every rank makes a part, or over fewer ranks");
                }
            }
        }
        return Done{};
    }

    OfChunk& makers_of(std::int32_t rank, const plan::Chunk& chunk) {
        // Where all ranks run all tiles, these are the same on each.
        const std::int32_t whose = graph_.stages[stage_].runs.empty() ? 0 : rank;
        const auto [found, is_new] = makers_.try_emplace(std::pair(whose, plan::key_of(chunk)));
        OfChunk& makers = found->second;
        if (!is_new) return makers;
        makers.nodes.assign(graph_.stages[stage_].runs.empty() ? graph_.made.size() : 1, kNoNode);
        makers.missing = {chunk.region};
        const std::string& param = params_.at(chunk.tensor);
        std::vector<std::int64_t> tiles;
        for (const kernel::Tile& tile : program_.kernel.tiles) {
            if (!graph_.runs(stage_, whose, tile.id)) continue;
            bool makes = false;
            for (const Region& box : kernel::boxes_written(tile, param)) {
                if (!overlaps(box, chunk.region)) continue;
                makes = true;
                take(makers.missing, box);
            }
            if (makes) tiles.push_back(tile.id);
        }
        makers.tiles = Makers(std::move(tiles));
        for (const std::int64_t tile : makers.tiles)
            makers.classes.push_back(graph_.stages[stage_].class_of[at(tile)]);
        std::ranges::sort(makers.classes);
        const auto rest = std::ranges::unique(makers.classes);
        makers.classes.erase(rest.begin(), rest.end());
        return makers;
    }

    /// What an op reads of what a kernel makes: its source, and for a sum what the destination holds itself.
    Status add_op(NodeId node) {
        const plan::OpRef ref = graph_.ref(node);
        const plan::Op& op = plan_.op(ref);
        if (Status status = need(node, op.source_rank(ref.rank), op.src); !status) return status;
        if (op.reduce == plan::Reduce::none) return Done{};
        const auto own = lowered_.own.find(ref);
        if (own == lowered_.own.end() || own->second < 0) return Done{};
        return need(node, ref.rank, op.dst);
    }

    Status need(NodeId op, std::int32_t rank, const plan::Chunk& chunk) {
        if (!params_.contains(chunk.tensor) || is_empty(chunk.region)) return Done{};
        const auto produced = produced_.find({rank, chunk.tensor});
        if (produced == produced_.end()) return Done{};
        const auto is_made = [&](const Region& region) { return overlaps(region, chunk.region); };
        if (std::ranges::none_of(produced->second, is_made)) return Done{};
        if (few_ && !scope_.contains(rank)) {
            graph_.elsewhere.push_back({op, static_cast<std::int32_t>(stage_), rank});
            return Done{};
        }
        std::vector<Region> parts;  // of the chunk, that are made there
        for (const Region& region : produced->second) {
            if (auto part = intersect(region, chunk.region)) parts.push_back(std::move(*part));
        }
        OfChunk& makers = makers_of(rank, chunk);
        for (const Region& hole : makers.missing) {
            for (const Region& part : parts) {
                if (!overlaps(hole, part)) continue;
                return error_at(graph_.ref(op), "no tile of " + program_.kernel.name + " writes " +
                                                    name_of_chunk(chunk.tensor, *intersect(hole, part)) +
                                                    ", which the plan lists as produced on rank " +
                                                    std::to_string(rank));
            }
        }
        std::vector<Made>& made = graph_.made[at(rank)];
        const auto stage = static_cast<std::int32_t>(stage_);
        NodeId& node = makers.nodes[makers.nodes.size() > 1 ? at(rank) : 0];
        if (node == kNoNode) {
            node = static_cast<NodeId>(graph_.nodes.size());
            graph_.nodes.push_back({Node::Kind::chunk, rank, stage, static_cast<std::int32_t>(made.size())});
            made.push_back({node, stage, chunk, makers.tiles});
            Edges& from = graph_.in.emplace_back();
            from.reserve(makers.classes.size());
            for (const std::int32_t c : makers.classes)
                from.push_back({0, graph_.stages[stage_].first[at(rank)] + c});
        }
        graph_.in[at(op)].push_back({0, node});
        return Done{};
    }

    BoundKernel program_;
    const plan::Plan& plan_;
    const Lowered& lowered_;
    Scope scope_;
    Graph& graph_;
    std::size_t stage_;
    bool few_ = false;                            ///< chunks of ranks outside of the scope have no nodes
    std::map<std::int32_t, std::string> params_;  ///< by tensor: the parameter through which it is written
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Region>> produced_;  ///< by rank and tensor
    std::map<std::pair<std::int32_t, plan::ChunkKey>, OfChunk> makers_;
};

}  // namespace

Status add_chunks(const BoundKernel& program, std::size_t stage, const Lowered& lowered, Scope scope,
                  Graph& graph) {
    return Makes(program, stage, lowered, scope, graph).run();
}

}  // namespace syncopate::fuse

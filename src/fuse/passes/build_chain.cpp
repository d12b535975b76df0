#include "fuse/passes/build_chain.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// The boxes of one tensor that each tile of a stage touches, by tile; empty where the stage does not touch
/// it.
using TileBoxes = std::vector<std::vector<Region>>;

bool any_overlap(const std::vector<Region>& a, const std::vector<Region>& b) {
    return std::ranges::any_of(a, [&](const Region& one) {
        return std::ranges::any_of(b, [&](const Region& other) { return overlaps(one, other); });
    });
}

class Chains {
public:
    Chains(const StagedProgram& program, const plan::Plan& plan, Graph& graph)
        : program_(program), plan_(plan), graph_(graph), needed_by_(program.stages.size()) {
        for (const Stage& stage : program.stages) {
            std::map<std::int32_t, TileBoxes>& reads = reads_.emplace_back();
            std::map<std::int32_t, TileBoxes>& writes = writes_.emplace_back();
            for (const auto& [name, tensor] : stage.bindings) {
                const kernel::Param* param = stage.kernel.find_param(name);
                if (param == nullptr) continue;
                const std::int32_t number = *plan.find_tensor(tensor);
                if (param->read) add(stage, name, true, reads[number]);
                if (param->written) add(stage, name, false, writes[number]);
            }
        }
    }

    void run() {
        for (std::size_t stage = 0; stage < program_.stages.size(); ++stage) {
            needed_by_[stage].resize(program_.stages[stage].kernel.tiles.size());
            for (std::size_t before = 0; before < stage; ++before) find_needs(stage, before);
        }
        for (std::size_t stage = 0; stage < program_.stages.size(); ++stage) add_chunks(stage);
        find_overlapping();
    }

    void run_beside(std::size_t stage) {
        graph_.overlapping.resize(program_.stages.size(), false);
        if (graph_.overlapping[stage - 1] || !reads_what_is_sent(stage) || overwrites(stage, stage - 1))
            return;
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) add_own(rank, stage);
        graph_.overlapping[stage] = true;
    }

private:
    [[nodiscard]] bool reads_what_is_sent(std::size_t stage) const {
        const Stage& before = program_.stages[stage - 1];
        return std::ranges::any_of(before.bindings, [&](const auto& binding) {
            const kernel::Param* param = before.kernel.find_param(binding.first);
            return param != nullptr && param->sent &&
                   reads_[stage].contains(*plan_.find_tensor(binding.second));
        });
    }

    /// A chunk for each tile of the stage before that makes something for tiles of the rank itself.
    void add_own(std::int32_t rank, std::size_t stage) {
        const std::size_t before = stage - 1;
        const Graph::StageNodes& nodes = graph_.stages[stage];
        const auto tiles = static_cast<std::int64_t>(program_.stages[before].kernel.tiles.size());
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
            if (!graph_.runs(before, rank, tile)) continue;
            Needs needs;
            for (std::size_t later = 0; later < nodes.class_of.size(); ++later) {
                if (graph_.runs(stage, rank, static_cast<std::int64_t>(later)) &&
                    is_read(stage, later, before, at(tile)))
                    needs.emplace_back(stage, nodes.class_of[later]);
            }
            std::ranges::sort(needs);
            const auto repeated = std::ranges::unique(needs);
            needs.erase(repeated.begin(), repeated.end());
            if (!needs.empty()) add_chunk(rank, before, needs, {tile});
        }
    }

    /// Whether the tile reads what one of an earlier stage writes.
    [[nodiscard]] bool is_read(std::size_t stage, std::size_t tile, std::size_t before,
                               std::size_t other) const {
        return std::ranges::any_of(reads_[stage], [&](const auto& read) {
            const auto written = writes_[before].find(read.first);
            return written != writes_[before].end() && any_overlap(read.second[tile], written->second[other]);
        });
    }

    static void add(const Stage& stage, const std::string& param, bool read, TileBoxes& boxes) {
        boxes.resize(stage.kernel.tiles.size());
        for (const kernel::Tile& tile : stage.kernel.tiles) {
            for (const Region& box :
                 read ? kernel::boxes_read(tile, param) : kernel::boxes_written(tile, param))
                boxes[at(tile.id)].push_back(box);
        }
    }

    /// Which tiles of `before` the classes of tiles of `stage` need.
    void find_needs(std::size_t stage, std::size_t before) {
        const std::vector<std::int32_t>& class_of = graph_.stages[stage].class_of;
        std::vector<bool> seen(static_cast<std::size_t>(graph_.stages[stage].num_classes), false);
        for (std::size_t tile = 0; tile < class_of.size(); ++tile) {
            const auto c = static_cast<std::size_t>(class_of[tile]);
            if (seen[c]) continue;
            seen[c] = true;
            for (const auto& [tensor, reads] : reads_[stage]) {
                const auto written = writes_[before].find(tensor);
                if (written == writes_[before].end()) continue;
                for (std::size_t other = 0; other < written->second.size(); ++other) {
                    if (!any_overlap(reads[tile], written->second[other])) continue;
                    Needs& needs = needed_by_[before][other];
                    const std::pair need(stage, class_of[tile]);
                    if (needs.empty() || needs.back() != need) needs.push_back(need);
                }
            }
        }
    }

    /// What the tiles of `stage` make for later ones.
    void add_chunks(std::size_t stage) {
        std::map<Needs, std::vector<std::int64_t>> groups;
        for (std::size_t tile = 0; tile < needed_by_[stage].size(); ++tile) {
            Needs& needs = needed_by_[stage][tile];
            std::ranges::sort(needs);
            const auto repeated = std::ranges::unique(needs);
            needs.erase(repeated.begin(), repeated.end());
            if (!needs.empty()) groups[needs].push_back(static_cast<std::int64_t>(tile));
        }
        std::vector<Group> sorted(groups.begin(), groups.end());
        std::ranges::sort(sorted, {}, [](const Group& group) { return group.second.front(); });
        while (most_awaited(sorted) > kMostAwaited) sorted = joined(sorted);
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            for (const Group& group : sorted) add_chunk(rank, stage, group.first, group.second);
        }
    }

    using Needs =
        std::vector<std::pair<std::size_t, std::int32_t>>;      ///< later stages and classes of their tiles
    using Group = std::pair<Needs, std::vector<std::int64_t>>;  ///< tiles that these need

    /// Each chunk that a tile awaits costs it a poll, of about half a microsecond, before it starts.
    static constexpr std::size_t kMostAwaited = 4;

    /// By how many groups some tile of a later stage is needed, at most.
    static std::size_t most_awaited(const std::vector<Group>& groups) {
        std::map<Needs::value_type, std::size_t> awaited;
        std::size_t most = 0;
        for (const Group& group : groups) {
            for (const auto& need : group.first) most = std::max(most, ++awaited[need]);
        }
        return most;
    }

    /// Every two neighbours as one group, whose tiles follow each other in the kernel's own traversal.
    static std::vector<Group> joined(const std::vector<Group>& groups) {
        std::vector<Group> halves;
        for (std::size_t i = 0; i < groups.size(); ++i) {
            if (i % 2 == 0) {
                halves.push_back(groups[i]);
                continue;
            }
            Group& to = halves.back();
            Needs both;
            std::ranges::set_union(to.first, groups[i].first, std::back_inserter(both));
            to.first = std::move(both);
            to.second.insert(to.second.end(), groups[i].second.begin(), groups[i].second.end());
            std::ranges::sort(to.second);
        }
        return halves;
    }

    void add_chunk(std::int32_t rank, std::size_t stage, const Needs& needs,
                   const std::vector<std::int64_t>& tiles) {
        std::vector<Made>& made = graph_.made[at(rank)];
        const auto node = static_cast<NodeId>(graph_.nodes.size());
        graph_.nodes.push_back({Node::Kind::chunk, rank, static_cast<std::int32_t>(stage),
                                static_cast<std::int32_t>(made.size())});
        Edges& from = graph_.in.emplace_back();
        for (const std::int64_t tile : tiles) from.push_back({0, graph_.tiles(stage, rank, tile)});
        std::ranges::sort(from);
        const auto repeated = std::ranges::unique(from);
        from.erase(repeated.begin(), repeated.end());
        made.push_back({node, static_cast<std::int32_t>(stage), chunk_of(stage, tiles), Makers(tiles)});
        for (const auto& [later, c] : needs) {
            Graph::StageNodes& nodes = graph_.stages[later];
            const NodeId waiting = nodes.first[at(rank)] + c;
            nodes.awaits[at(waiting - nodes.first.front())].push_back(node);
        }
    }

    /// What the tiles write, for messages: the bounding box in the first tensor of which a later stage needs
    /// them.
    [[nodiscard]] plan::Chunk chunk_of(std::size_t stage, const std::vector<std::int64_t>& tiles) const {
        for (const auto& [tensor, boxes] : writes_[stage]) {
            const bool read =
                std::ranges::any_of(reads_, [&](const auto& of) { return of.contains(tensor); });
            std::optional<Region> whole;
            for (const std::int64_t tile : tiles) {
                for (const Region& box : boxes[at(tile)])
                    whole = whole ? plan::bounding_box(*whole, box) : box;
            }
            if (read && whole) return {tensor, *whole};
        }
        return {};
    }

    void find_overlapping() {
        graph_.overlapping.assign(program_.stages.size(), false);
        std::size_t running = 0;  // the first stage that may still run
        for (std::size_t stage = 1; stage < program_.stages.size(); ++stage) {
            bool free = true;
            for (std::size_t before = running; before < stage; ++before)
                free = free && !overwrites(stage, before);
            graph_.overlapping[stage] = free;
            if (!free) running = stage;
        }
    }

    /// Whether `stage` writes what `before` touches.
    [[nodiscard]] bool overwrites(std::size_t stage, std::size_t before) const {
        for (const auto& [tensor, written] : writes_[stage]) {
            for (const auto* touched : {&reads_[before], &writes_[before]}) {
                const auto found = touched->find(tensor);
                if (found == touched->end()) continue;
                for (const std::vector<Region>& mine : written) {
                    if (std::ranges::any_of(found->second,
                                            [&](const auto& other) { return any_overlap(mine, other); }))
                        return true;
                }
            }
        }
        return false;
    }

    const StagedProgram& program_;
    const plan::Plan& plan_;
    Graph& graph_;
    std::vector<std::map<std::int32_t, TileBoxes>> reads_, writes_;  ///< by stage and tensor
    std::vector<std::vector<Needs>> needed_by_;                      ///< by stage and tile
};

}  // namespace

void add_chain(const StagedProgram& program, const plan::Plan& plan, Graph& graph) {
    if (program.stages.size() > 1 && graph.num_ops() == 0) Chains(program, plan, graph).run();
}

void add_beside(const StagedProgram& program, const plan::Plan& plan, std::size_t stage, Graph& graph) {
    if (stage == 0 || program.stages[stage].kernel.most_slots == 0) return;
    const kernel::Kernel& before = program.stages[stage - 1].kernel;
    if (before.starts_next && before.most_slots > 0) Chains(program, plan, graph).run_beside(stage);
}

}  // namespace syncopate::fuse

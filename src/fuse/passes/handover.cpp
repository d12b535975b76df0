#include "fuse/passes/handover.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/cost.hpp"

namespace syncopate::fuse {
namespace {

/// Another order has to end by so much sooner.
constexpr double kWorth = 0.04;

Rounds rounds_of(const kernel::Kernel& kernel, std::size_t round, const Costs& costs) {
    return {static_cast<std::int64_t>(kernel.tiles.size()), static_cast<std::int64_t>(round),
            estimate_tile_times(kernel, costs).front()};
}

}  // namespace

bool is_complete_early(const Made& made, const std::vector<std::int64_t>& tiles, std::size_t round) {
    for (std::size_t place = (tiles.size() - 1) / round * round; place < tiles.size(); ++place) {
        if (std::ranges::binary_search(made.makers, tiles[place])) return false;  // they are sorted
    }
    return true;
}

Handover::Handover(const StagedProgram& program, const Graph& graph, std::size_t stage,
                   const StageOrder& before, std::size_t round, const Costs& costs)
    : graph_(graph),
      stage_(stage),
      before_(rounds_of(program.stages[stage - 1].kernel, before.round, costs)),
      own_(rounds_of(program.stages[stage].kernel, round, costs)),
      order_(before.tiles.front()) {
    if (before.head_start.rounds > 0) return;  // its programs end at several times
    head_ = fuse::head_start(before_, own_, ready(order_));
    if (differ(estimate_tile_times(program.stages[stage - 1].kernel, costs))) return;  // they are packed
    std::vector<std::int64_t> other = chunks_last();
    const HeadStart head = fuse::head_start(before_, own_, ready(other));
    if (end_us(before_, own_, head) > (1 - kWorth) * end_us(before_, own_, head_)) return;
    order_ = std::move(other);
    head_ = head;
}

std::vector<std::int64_t> Handover::chunks_last() const {
    std::vector<const Made*> chunk_of(order_.size(), nullptr);  // by tile; null: nobody waits for it
    for (const Made& made : graph_.made.front()) {
        if (!is_before(made)) continue;
        for (const std::int64_t tile : made.makers) chunk_of[at(tile)] = &made;
    }
    std::vector<const Made*> last{nullptr};
    std::int64_t tiles = std::ranges::count(chunk_of, nullptr);
    for (auto place = order_.rbegin(); place != order_.rend() && tiles < before_.in_last(); ++place) {
        const Made* const chunk = chunk_of[at(*place)];
        if (std::ranges::find(last, chunk) != last.end()) continue;
        last.push_back(chunk);
        tiles += static_cast<std::int64_t>(chunk->makers.size());
    }
    std::vector<std::int64_t> order = order_;
    std::ranges::stable_partition(
        order, [&](std::int64_t tile) { return std::ranges::find(last, chunk_of[at(tile)]) == last.end(); });
    return order;
}

std::int64_t Handover::ready(const std::vector<std::int64_t>& order) const {
    const Graph::StageNodes& nodes = graph_.stages[stage_];
    std::vector<bool> late;  // by class
    for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
        late.push_back(
            std::ranges::any_of(graph_.awaited_by(stage_, nodes.first.front() + c), [&](NodeId chunk) {
                const Made& made = graph_.made_at(chunk);
                return is_before(made) &&
                       !is_complete_early(made, order, static_cast<std::size_t>(before_.programs));
            }));
    }
    return std::ranges::count_if(nodes.class_of, [&](std::int32_t c) { return !late[at(c)]; });
}

}  // namespace syncopate::fuse

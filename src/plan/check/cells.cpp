#include "plan/check/cells.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {

Cells::Cells(const Plan& plan, const EventGraph& graph, const std::vector<std::size_t>& key_axes,
             Budget& budget)
    : axes_(key_axes) {
    const auto count = at(graph.num_events());
    transfers_.resize(count);
    std::vector<std::int32_t> sources(count, -1);  // places
    std::vector<std::int32_t> destinations(count, -1);
    std::vector<std::size_t> begin(1, 0);  // of each place's uses
    const auto place_used = [&](std::int32_t rank, std::int32_t tensor) {
        const std::int32_t used = place(rank, tensor);
        if (begin.size() <= places_.size()) begin.resize(places_.size() + 1, 0);
        ++begin[at(used) + 1];
        return used;
    };
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        for (const OpRef ref : graph.members(event)) {
            const Op& op = plan.op(ref);
            Transfer& transfer = transfers_[at(event)];
            if (op.kind == OpKind::collective) {
                transfer.is_collective = true;
                places_[at(place(ref.rank, op.src.tensor))].even = false;
                places_[at(place(ref.rank, op.dst.tensor))].even = false;
                continue;
            }
            transfer.source_rank = static_cast<std::int16_t>(op.source_rank(ref.rank));
            transfer.destination_rank = static_cast<std::int16_t>(op.destination_rank(ref.rank));
            transfer.stays = op.src.region == op.dst.region;
            transfer.reduce = op.reduce;
            sources[at(event)] = place_used(transfer.source_rank, op.src.tensor);
            destinations[at(event)] = place_used(transfer.destination_rank, op.dst.tensor);
        }
    }
    begin.resize(places_.size() + 1, 0);
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<Use> uses(begin.back());
    std::vector<std::size_t> fill(begin.begin(), begin.end() - 1);
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        if (sources[at(event)] < 0) continue;
        const Op& op = plan.op(graph.members(event).front());
        for (const bool writes : {false, true}) {
            const std::int32_t used = (writes ? destinations : sources)[at(event)];
            uses[fill[at(used)]++] = use(places_[at(used)], (writes ? op.dst : op.src).region, event, writes);
        }
    }
    for (std::size_t i = 0; i < places_.size(); ++i)
        number(places_[i], std::span(uses).subspan(begin[i], begin[i + 1] - begin[i]));
    look_at_holdings(plan.initial, budget);
    look_at_holdings(plan.produced, budget);
    spread_unevenness(sources, destinations);
    for (std::size_t event = 0; event < count; ++event) {
        if (sources[event] < 0) continue;
        if (!places_[at(sources[event])].even) transfers_[event].source = kNone;
        if (!places_[at(destinations[event])].even) transfers_[event].destination = kNone;
    }
}

std::int32_t Cells::place(std::int32_t rank, std::int32_t tensor) {
    const auto [found, fresh] =
        place_of_.try_emplace(key(rank, tensor), static_cast<std::int32_t>(places_.size()));
    if (fresh) places_.push_back({.cells = {}, .axis = axes_[at(tensor)]});
    return found->second;
}

Cells::Use Cells::use(Memory& place, const Region& box, std::int32_t event, bool writes) const {
    if (place.first_box == nullptr) place.first_box = &box;
    for (std::size_t axis = 0; axis < box.size() && place.differ_along_axis_only; ++axis)
        place.differ_along_axis_only = axis == place.axis || box[axis] == (*place.first_box)[axis];
    return {box[place.axis], &box, event, writes};
}

/// The first axis along which the boxes differ, the key axis first; -1 if they are equal.
std::ptrdiff_t Cells::first_difference(const Memory& place, const Use& a, const Use& b) {
    if (!(a.key == b.key)) return static_cast<std::ptrdiff_t>(place.axis);
    if (place.differ_along_axis_only || a.box == b.box) return -1;
    for (std::size_t axis = 0; axis < a.box->size(); ++axis) {
        if (!((*a.box)[axis] == (*b.box)[axis])) return static_cast<std::ptrdiff_t>(axis);
    }
    return -1;
}

/// Gives each different box of a place a cell, unless some of them overlap. In this order, boxes that differ
/// along an axis first stand together with all that are like them up to there; so where neighbours do not
/// overlap, none do.
void Cells::number(Memory& place, std::span<Use> uses) {
    if (!place.even) return;
    std::sort(uses.begin(), uses.end(), [&](const Use& a, const Use& b) {
        if (a.key.begin != b.key.begin) return a.key.begin < b.key.begin;
        const std::ptrdiff_t axis = first_difference(place, a, b);
        if (axis < 0) return false;
        const Interval& left = (*a.box)[at(axis)];
        const Interval& right = (*b.box)[at(axis)];
        return left.begin != right.begin ? left.begin < right.begin : left.end < right.end;
    });
    place.cells.first = static_cast<Cell>(boxes_.size());
    const Use* last = nullptr;
    for (const Use& use : uses) {
        const std::ptrdiff_t axis = last == nullptr ? 0 : first_difference(place, *last, use);
        if (last != nullptr && axis >= 0 && (*use.box)[at(axis)].begin < (*last->box)[at(axis)].end) {
            place.even = false;
            boxes_.resize(at(place.cells.first));
            place.cells = {};
            return;
        }
        if (axis >= 0) boxes_.push_back(use.box);
        last = &use;
        Transfer& transfer = transfers_[at(use.event)];
        (use.writes ? transfer.destination : transfer.source) = static_cast<Cell>(boxes_.size() - 1);
    }
    place.cells.last = static_cast<Cell>(boxes_.size());
}

void Cells::look_at_holdings(const std::vector<Holding>& holdings, Budget& budget) {
    for (const Holding& holding : holdings) {
        if (budget.exhausted()) return;
        const auto found = place_of_.find(key(holding.rank, holding.chunk.tensor));
        if (found == place_of_.end()) continue;
        Memory& place = places_[at(found->second)];
        const Range cells = near(place.cells, holding.chunk.tensor, holding.chunk.region);
        for (Cell cell = cells.first; cell < cells.last && place.even; ++cell) {
            budget.spend();
            place.even =
                !overlaps(box(cell), holding.chunk.region) || contains(holding.chunk.region, box(cell));
        }
    }
}

void Cells::spread_unevenness(std::span<const std::int32_t> sources,
                              std::span<const std::int32_t> destinations) {
    std::vector<std::int32_t> uneven;
    for (std::size_t i = 0; i < places_.size(); ++i) {
        if (!places_[i].even) uneven.push_back(static_cast<std::int32_t>(i));
    }
    if (uneven.empty()) return;
    std::vector<std::size_t> begin(places_.size() + 1, 0);  // of the events that read each place
    for (const std::int32_t source : sources) {
        if (source >= 0) ++begin[at(source) + 1];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<std::int32_t> reached(begin.back());
    std::vector<std::size_t> fill(begin.begin(), begin.end() - 1);
    for (std::size_t event = 0; event < sources.size(); ++event) {
        if (sources[event] >= 0) reached[fill[at(sources[event])]++] = destinations[event];
    }
    while (!uneven.empty()) {
        const std::size_t place = at(uneven.back());
        uneven.pop_back();
        places_[place].cells = {};
        for (std::size_t i = begin[place]; i < begin[place + 1]; ++i) {
            Memory& next = places_[at(reached[i])];
            if (std::exchange(next.even, false)) uneven.push_back(reached[i]);
        }
    }
}

Cells::Range Cells::of(std::int32_t rank, std::int32_t tensor) const {
    const auto found = place_of_.find(key(rank, tensor));
    return found == place_of_.end() ? Range{} : places_[at(found->second)].cells;
}

Cells::Range Cells::near(Range cells, std::int32_t tensor, const Region& region) const {
    const std::size_t axis = axes_[at(tensor)];
    const auto first = boxes_.begin() + cells.first;
    const auto last = boxes_.begin() + cells.last;
    // Along the key axis cells are equal or disjoint, so their ends rise as their begins do.
    const auto from = std::partition_point(
        first, last, [&](const Region* box) { return (*box)[axis].end <= region[axis].begin; });
    const auto to = std::partition_point(
        from, last, [&](const Region* box) { return (*box)[axis].begin < region[axis].end; });
    return {static_cast<Cell>(from - boxes_.begin()), static_cast<Cell>(to - boxes_.begin())};
}

}  // namespace syncopate::plan

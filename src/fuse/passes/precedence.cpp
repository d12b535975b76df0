#include "syncopate/fuse/passes/precedence.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::fuse {

Precedence::Precedence(const Graph& graph, const Placement& placement)
    : graph_(graph),
      placement_(placement),
      marked_(placement.before.size(), 0),
      sought_(placement.before.size(), 0),
      place_(placement.before.size(), 0) {}

template <typename Visit>
void Precedence::each_before(NodeId op, const Visit& visit) const {
    for (const NodeId other : placement_.before[at(op)]) {
        const bool is_its_send = graph_.round(op) >= 0 && graph_.round(op) == graph_.round(other) &&
                                 graph_[other].rank != graph_[op].rank;
        if (!is_its_send) visit(other);
    }
}

std::int32_t Precedence::earliest(const std::vector<NodeId>& ops) const {
    std::int32_t first = std::numeric_limits<std::int32_t>::max();
    for (const NodeId op : ops) first = std::min(first, placement_.position[at(op)]);
    return first;
}

bool Precedence::mark(NodeId op) {
    if (marked_[at(op)] == search_) return false;
    marked_[at(op)] = search_;
    return true;
}

template <typename Begin>
std::vector<NodeId> Precedence::without_met(std::vector<NodeId> ops, std::size_t free, const Begin& begin) {
    ++search_;
    const std::int32_t first = earliest(ops);
    for (const NodeId op : ops) sought_[at(op)] = search_;
    std::size_t left = ops.size() - std::min(free, ops.size());
    std::vector<NodeId> open;
    const auto visit = [&](NodeId op) {
        if (placement_.position[at(op)] < first || !mark(op)) return;
        open.push_back(op);
        if (sought_[at(op)] == search_) --left;
    };
    begin(ops, visit);
    while (!open.empty() && left > 0) {
        const NodeId op = open.back();
        open.pop_back();
        each_before(op, visit);
    }
    std::erase_if(ops, [&](NodeId op) { return marked_[at(op)] == search_; });
    return ops;
}

std::vector<NodeId> Precedence::last_of(std::vector<NodeId> ops) {
    std::ranges::sort(ops);
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    if (ops.size() < 2) return ops;
    // The last of them in the order of all ops precedes none.
    return without_met(std::move(ops), 1, [&](const std::vector<NodeId>& all, const auto& visit) {
        for (const NodeId op : all) each_before(op, visit);
    });
}

std::vector<NodeId> Precedence::not_seen(std::vector<NodeId> ops, const std::vector<NodeId>& seen) {
    return without_met(std::move(ops), 0, [&](const std::vector<NodeId>&, const auto& visit) {
        for (const NodeId op : seen) visit(op);
    });
}

std::vector<Bits> Precedence::shown_by(const std::vector<NodeId>& ops) {
    ++search_;
    const std::int32_t first = earliest(ops);
    std::vector<NodeId> met;
    const auto visit = [&](NodeId op) {
        if (placement_.position[at(op)] >= first && mark(op)) met.push_back(op);
    };
    for (const NodeId op : ops) visit(op);
    for (std::size_t next = 0; next < met.size(); ++next) each_before(met[next], visit);
    std::ranges::sort(met, {}, [&](NodeId op) { return placement_.position[at(op)]; });
    for (std::size_t i = 0; i < met.size(); ++i) place_[at(met[i])] = static_cast<std::int32_t>(i);

    constexpr std::size_t kBits = 64;
    std::vector<Bits> shown(met.size(), Bits((ops.size() + kBits - 1) / kBits, 0));
    for (std::size_t i = 0; i < ops.size(); ++i)
        shown[at(place_[at(ops[i])])][i / kBits] |= std::uint64_t{1} << (i % kBits);
    for (std::size_t i = 0; i < met.size(); ++i) {
        each_before(met[i], [&](NodeId other) {
            if (placement_.position[at(other)] < first) return;
            const Bits& before = shown[at(place_[at(other)])];
            for (std::size_t word = 0; word < before.size(); ++word) shown[i][word] |= before[word];
        });
    }
    std::vector<Bits> of_ops;
    for (const NodeId op : ops) of_ops.push_back(std::move(shown[at(place_[at(op)])]));
    return of_ops;
}

}  // namespace syncopate::fuse

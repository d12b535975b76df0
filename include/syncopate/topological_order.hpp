// Nodes in an order that edges allow: each after all that come before it. Nodes are numbered from 0.
//
//     const Followers followers(count, [&](auto&& edge) {
//         for (const Edge& e : edges) edge(e.before, e.after);
//     });
//     const std::vector<std::int32_t> order = topological_order(followers);
//     const bool circle = order.size() < count;
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace syncopate {

/// For each node the nodes that come after it, in the order in which their edges were given.
class Followers {
public:
    /// `edges(edge)` calls edge(before, after) for each edge; it is called twice, and must give the same
    /// edges each time. An edge given twice is two edges.
    template <typename Edges>
    Followers(std::size_t nodes, const Edges& edges) : begin_(nodes + 1, 0) {
        edges([&](std::int32_t before, std::int32_t) { ++begin_[static_cast<std::size_t>(before) + 1]; });
        for (std::size_t node = 0; node < nodes; ++node) begin_[node + 1] += begin_[node];
        followers_.resize(begin_.back());
        std::vector<std::size_t> fill(begin_.begin(), begin_.end() - 1);
        edges([&](std::int32_t before, std::int32_t after) {
            followers_[fill[static_cast<std::size_t>(before)]++] = after;
        });
    }

    [[nodiscard]] std::size_t num_nodes() const { return begin_.size() - 1; }
    [[nodiscard]] std::span<const std::int32_t> operator()(std::int32_t node) const {
        const auto at = static_cast<std::size_t>(node);
        return std::span<const std::int32_t>(followers_).subspan(begin_[at], begin_[at + 1] - begin_[at]);
    }
    /// For each node how many edges lead to it.
    [[nodiscard]] std::vector<std::int32_t> num_before() const {
        std::vector<std::int32_t> count(num_nodes(), 0);
        for (const std::int32_t after : followers_) ++count[static_cast<std::size_t>(after)];
        return count;
    }

private:
    std::vector<std::size_t> begin_;
    std::vector<std::int32_t> followers_;
};

/// All nodes, each after those before it (Kahn, "Topological sorting of large networks", CACM 1962): in
/// waves, within a wave as their last edge comes. Nodes on a circle, or after one, are missing. O(nodes +
/// edges).
[[nodiscard]] std::vector<std::int32_t> topological_order(const Followers& followers);

/// The same, and of the nodes that may come next always the one that is first in `sequence`, which has each node once.
/// O(edges + nodes).
[[nodiscard]] std::vector<std::int32_t> topological_order_in(const Followers& followers,
                                                             std::span<const std::int32_t> sequence);

/// Nodes in rising order of `key(node)`, a std::size_t, and of equal keys as they are numbered. O(nodes + largest key).
template <typename Key>
[[nodiscard]] std::vector<std::int32_t> in_order_of(std::size_t nodes, const Key& key) {
    std::vector<std::size_t> next(1, 0);  // by key: where its next node goes
    for (std::size_t node = 0; node < nodes; ++node) {
        const std::size_t behind = key(static_cast<std::int32_t>(node)) + 1;
        if (next.size() <= behind) next.resize(behind + 1, 0);
        ++next[behind];
    }
    for (std::size_t of = 1; of < next.size(); ++of) next[of] += next[of - 1];
    std::vector<std::int32_t> sequence(nodes);
    for (std::size_t node = 0; node < nodes; ++node)
        sequence[next[key(static_cast<std::int32_t>(node))]++] = static_cast<std::int32_t>(node);
    return sequence;
}

}  // namespace syncopate

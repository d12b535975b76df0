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
#include <functional>
#include <queue>
#include <span>
#include <utility>
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

/// The same, and of the nodes that may come next always the one of the smallest `key`, a std::uint64_t; of equal keys the
/// smallest node. O(edges + nodes · log nodes).
template <typename Key>
[[nodiscard]] std::vector<std::int32_t> topological_order(const Followers& followers, const Key& key) {
    using Keyed = std::pair<std::uint64_t, std::int32_t>;
    std::vector<std::int32_t> missing = followers.num_before();
    std::priority_queue<Keyed, std::vector<Keyed>, std::greater<>> ready;
    for (std::size_t node = 0; node < missing.size(); ++node) {
        const auto number = static_cast<std::int32_t>(node);
        if (missing[node] == 0) ready.emplace(key(number), number);
    }
    std::vector<std::int32_t> order;
    order.reserve(missing.size());
    while (!ready.empty()) {
        order.push_back(ready.top().second);
        ready.pop();
        for (const std::int32_t after : followers(order.back())) {
            if (--missing[static_cast<std::size_t>(after)] == 0) ready.emplace(key(after), after);
        }
    }
    return order;
}

/// The same, and of the nodes that may come next always the one that is first in `sequence`, which has each node once.
/// O(edges + nodes).
[[nodiscard]] std::vector<std::int32_t> topological_order_in(const Followers& followers,
                                                             std::span<const std::int32_t> sequence);

}  // namespace syncopate

#include "fuse/passes/circle.hpp"

#include <algorithm>
#include <cstddef>

#include "syncopate/at.hpp"

namespace syncopate::fuse {

std::vector<std::int32_t> circle_of(const Followers& followers, const std::vector<std::int32_t>& sorted) {
    std::vector<bool> open(followers.num_nodes(), true);
    for (const std::int32_t node : sorted) open[at(node)] = false;
    std::vector<std::int32_t> before(open.size(), -1);  // one of those that a node waits for
    for (std::size_t node = 0; node < open.size(); ++node) {
        if (!open[node]) continue;
        for (const std::int32_t after : followers(static_cast<std::int32_t>(node)))
            before[at(after)] = static_cast<std::int32_t>(node);
    }
    const auto first = std::ranges::find(open, true);
    if (first == open.end()) return {};
    std::vector<std::int32_t> path;
    std::vector<std::ptrdiff_t> at(open.size(), -1);
    for (auto node = static_cast<std::int32_t>(first - open.begin()); node >= 0;
         node = before[static_cast<std::size_t>(node)]) {
        std::ptrdiff_t& place = at[static_cast<std::size_t>(node)];
        if (place >= 0) return {path.begin() + place, path.end()};
        place = std::ssize(path);
        path.push_back(node);
    }
    return path;
}

}  // namespace syncopate::fuse

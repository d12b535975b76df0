#include "syncopate/topological_order.hpp"

namespace syncopate {

std::vector<std::int32_t> topological_order(const Followers& followers) {
    std::vector<std::int32_t> missing = followers.num_before();
    std::vector<std::int32_t> order;
    order.reserve(missing.size());
    for (std::size_t node = 0; node < missing.size(); ++node) {
        if (missing[node] == 0) order.push_back(static_cast<std::int32_t>(node));
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
        for (const std::int32_t after : followers(order[next])) {
            if (--missing[static_cast<std::size_t>(after)] == 0) order.push_back(after);
        }
    }
    return order;
}

}  // namespace syncopate

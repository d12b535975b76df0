#include "syncopate/topological_order.hpp"

#include <bit>

namespace syncopate {
namespace {

/// Numbers below a bound, of which the smallest is found at once: bits, and above 64 of them a bit that says whether some
/// is set.
class SmallestFirst {
public:
    explicit SmallestFirst(std::size_t bound) {
        do {
            bound = (bound + kBits - 1) / kBits;
            levels_.emplace_back(bound, 0);
        } while (bound > 1);
    }
    [[nodiscard]] bool empty() const { return levels_.back().empty() || levels_.back().front() == 0; }
    void add(std::size_t number) {
        for (std::vector<std::uint64_t>& level : levels_) {
            level[number / kBits] |= std::uint64_t{1} << (number % kBits);
            number /= kBits;
        }
    }
    /// Not where it is empty.
    std::size_t take() {
        std::size_t number = 0;
        for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
            number = number * kBits + static_cast<std::size_t>(std::countr_zero((*level)[number]));
        std::size_t at = number;
        for (std::vector<std::uint64_t>& level : levels_) {
            std::uint64_t& word = level[at / kBits];
            word &= ~(std::uint64_t{1} << (at % kBits));
            if (word != 0) break;
            at /= kBits;
        }
        return number;
    }

private:
    static constexpr std::size_t kBits = 64;
    std::vector<std::vector<std::uint64_t>> levels_;  ///< the bits first; the last one has one word
};

}  // namespace

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

std::vector<std::int32_t> topological_order_in(const Followers& followers,
                                               std::span<const std::int32_t> sequence) {
    std::vector<std::int32_t> missing = followers.num_before();
    std::vector<std::size_t> place(missing.size());
    for (std::size_t at = 0; at < sequence.size(); ++at) place[static_cast<std::size_t>(sequence[at])] = at;
    SmallestFirst ready(missing.size());
    for (std::size_t node = 0; node < missing.size(); ++node) {
        if (missing[node] == 0) ready.add(place[node]);
    }
    std::vector<std::int32_t> order;
    order.reserve(missing.size());
    while (!ready.empty()) {
        order.push_back(sequence[ready.take()]);
        for (const std::int32_t after : followers(order.back())) {
            if (--missing[static_cast<std::size_t>(after)] == 0)
                ready.add(place[static_cast<std::size_t>(after)]);
        }
    }
    return order;
}

}  // namespace syncopate

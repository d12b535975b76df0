// A budget for what may grow faster than its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// Counts steps: boxes looked at, edges walked. Plans that people and compilers write need a few for each op;
/// one made to be hard could need the square. Whoever spends stops once the budget is gone, and check() says
/// so.
class Budget {
public:
    explicit Budget(std::int64_t steps) : left_(steps) {}

    void spend(std::int64_t steps = 1) { left_ -= steps; }
    [[nodiscard]] bool exhausted() const { return left_ < 0; }

private:
    std::int64_t left_;
};

/// What a plan's analyses grow with: ops, `after` edges, participants, holdings.
[[nodiscard]] inline std::size_t entries_of(const Plan& plan) {
    std::size_t entries = plan.initial.size() + plan.produced.size() + plan.final.size();
    for (const std::vector<Op>& list : plan.ranks) {
        for (const Op& op : list) entries += 1 + op.after.size() + op.ranks->size();
    }
    return entries;
}

/// Of one check(): plans as they are written need 50 to 200 steps for each entry.
[[nodiscard]] constexpr std::int64_t steps_to_check(std::size_t entries) {
    return (std::int64_t{1} << 25) + 1024 * static_cast<std::int64_t>(entries);
}

}  // namespace syncopate::plan

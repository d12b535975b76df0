// Small random plans: right ones by construction, and ones with something changed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan::test {

/// The same seed gives the same plans on every machine.
class RandomPlans {
public:
    explicit RandomPlans(std::uint64_t seed) : random_(seed) {}

    /// A plan of at most 3 ranks and `max_ops` ops (at least 2). About half are meant to be right. All are
    /// well-formed but for collectives that not every participant may join.
    Plan next(std::size_t max_ops);

    /// What made the last plan: "ring all-gather, drop a wait".
    [[nodiscard]] const std::string& story() const { return story_; }

private:
    std::int64_t below(std::int64_t bound) {
        return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
    }
    bool chance(int percent) { return below(100) < percent; }

    Plan from_template();
    Plan random_dag(std::size_t max_ops);
    void add_random_op(Plan& plan, std::vector<OpRef>& order);
    void ask_for_what_comes_out(Plan& plan, const std::vector<OpRef>& order);
    Region random_region(const Tensor& tensor);
    bool mutate(Plan& plan);

    std::mt19937_64 random_;
    std::string story_;
};

/// Regions inside their tensors, peers and afters that exist, equal extents, and no copy onto itself.
[[nodiscard]] bool is_well_formed(const Plan& plan);

}  // namespace syncopate::plan::test

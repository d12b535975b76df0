// Every template with every algorithm, on every number of ranks from 1 to 64: sound by check(), and right by
// an executor that knows nothing of it.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/executor.hpp"
#include "plan/plans.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

using test::lines;

struct Case {
    const Template* of = nullptr;
    Mesh mesh;
    Tensor tensor;
    TemplateOptions options;

    std::string describe() const {
        std::string axes;
        for (const Mesh::Axis& axis : mesh.axes) axes += fmt::format("{}={} ", axis.name, axis.size);
        return fmt::format("{} {} mesh {}shape {} axis {} split {} inner {} root {} steps {}{}", of->name,
                           name_of(options.algorithm), axes, to_string(tensor.whole()), options.axis,
                           options.split, options.inner, options.root, options.steps,
                           options.pull ? " pull" : "");
    }
};

std::size_t num_ops(const Plan& plan) {
    std::size_t ops = 0;
    for (const std::vector<Op>& list : plan.ranks) ops += list.size();
    return ops;
}

void expect_right(const Case& one, std::uint32_t seed) {
    SCOPED_TRACE(one.describe());
    const Result<Plan> made = one.of->make(one.mesh, one.tensor, one.options);
    ASSERT_TRUE(made) << made.error().to_string();
    const Plan& plan = *made;
    ASSERT_EQ(lines(check(plan)), std::vector<std::string>{});
    ASSERT_EQ(test::compare(plan, test::execute(plan, test::small_integer, seed), test::small_integer), "");
    if (num_ops(plan) <= 700) {
        ASSERT_EQ(test::race(plan), "");
    }
}

std::vector<std::int32_t> divisors(std::int32_t n) {
    std::vector<std::int32_t> found;
    for (std::int32_t d = 1; d <= n; ++d) {
        if (n % d == 0) found.push_back(d);
    }
    return found;
}

bool two_levels(Algorithm algorithm) {
    return algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring;
}

class TemplateMatrix : public ::testing::TestWithParam<std::int32_t> {};

/// All options for few ranks; for more ranks a rotating choice, so that every combination comes up for some.
TEST_P(TemplateMatrix, EndsWithWhatItPromisesInAnyOrder) {
    const std::int32_t ranks = GetParam();
    const bool every = ranks <= 6;
    const std::uint32_t count = every ? 8 * 2 * 2 * 2 : ranks <= 16 ? 16 : ranks <= 32 ? 4 : 2;
    std::uint32_t turn = 0;
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : of.algorithms) {
            for (std::uint32_t n = 0; n < count; ++n, ++turn) {
                const std::uint32_t choice = every ? n : turn * 7 + static_cast<std::uint32_t>(ranks) * 5;
                Case one{&of, test::ring_of(ranks), {"A", {4, 6}, DType::fp32}, {}};
                one.options.algorithm = algorithm;
                one.options.split = static_cast<std::int32_t>(choice % 8) + 1;
                one.options.pull = choice / 8 % 2 == 1;
                one.options.axis = static_cast<std::int32_t>(choice / 16 % 2);
                // Longer than the ranks and not divisible; or so short that some have nothing.
                const auto axis = static_cast<std::size_t>(one.options.axis);
                one.tensor.shape[axis] = choice / 32 % 2 == 0 ? ranks * 3 + 2 : std::max(1, ranks - 2);
                one.tensor.shape[1 - axis] = of.name == "all_to_all" ? ranks + 1 : 3;
                if ((of.uses & Template::kRoot) != 0)
                    one.options.root = static_cast<std::int32_t>(choice * 3) % ranks;
                if ((of.uses & Template::kSteps) != 0)
                    one.options.steps =
                        static_cast<std::int32_t>(choice % static_cast<std::uint32_t>(ranks + 1)) - 1;
                if (!two_levels(algorithm)) {
                    expect_right(one, turn);
                    continue;
                }
                const std::vector<std::int32_t> levels = divisors(ranks);
                for (std::size_t i = 0; i < levels.size(); ++i) {
                    if (!every && i != choice % levels.size()) continue;
                    if (choice % 2 == 0) {
                        one.options.inner = levels[i];
                    } else {
                        one.mesh = {{{"node", ranks / levels[i]}, {"gpu", levels[i]}}};
                    }
                    expect_right(one, turn);
                    one.options.inner = 0;
                }
            }
            if (HasFatalFailure()) return;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TemplateMatrix, ::testing::Values(1, 2, 3, 4, 8, 12, 31));
INSTANTIATE_TEST_SUITE_P(Sweep, TemplateMatrix, ::testing::Range(5, 65));

}  // namespace
}  // namespace syncopate::plan

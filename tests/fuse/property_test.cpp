// The property that fusing has to keep: whatever the plan, kernels, cuts and backends, and whoever is late,
// each tile reads what the plan gives its rank in this call, and each rank ends with what the plan promises,
// in every call.
//
// Random programs are fused and played for all ranks by the simulator, several calls in a row; the reference
// is the plan's own executor, which knows nothing of schedules.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "fuse/random_programs.hpp"
#include "fuse/simulator.hpp"
#include "plan/executor.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::fuse {
namespace {

/// So many random programs from a seed.
struct Sample {
    std::uint64_t seed = 0;
    int programs = 0;
};
void PrintTo(const Sample& sample, std::ostream* out) {
    *out << sample.programs << " programs, seed " << sample.seed;
}

std::vector<Sample> samples(std::uint64_t first, std::uint64_t seeds, int programs) {
    std::vector<Sample> made;
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) made.push_back({seed, programs});
    return made;
}

/// Fuses. An op whose backend is refused, which the error has to say of it, is left open instead.
Result<Schedule> settled(test::RandomProgram& drawn) {
    for (;;) {
        auto schedule = fuse(drawn.program, drawn.options);
        if (schedule) return schedule;
        const Location& where = schedule.error().location;
        auto& ranks = drawn.program.plan.ranks;
        if (where.rank < 0 || where.op < 0 || static_cast<std::size_t>(where.rank) >= ranks.size())
            return schedule;
        auto& list = ranks[static_cast<std::size_t>(where.rank)];
        if (static_cast<std::size_t>(where.op) >= list.size()) return schedule;
        plan::Op& op = list[static_cast<std::size_t>(where.op)];
        if (op.backend == plan::Backend::automatic) return schedule;
        op.backend = plan::Backend::automatic;
    }
}

/// Draws, fuses and plays so many programs.
void expect_right(test::RandomPrograms programs, int count) {
    int fused = 0;
    std::string refused;
    for (int n = 0; n < count; ++n) {
        test::RandomProgram drawn = programs.next();
        SCOPED_TRACE("program " + std::to_string(n) + ": " + drawn.story);
        ASSERT_TRUE(plan::check(drawn.program.plan).empty());
        const auto schedule = settled(drawn);
        if (!schedule) {
            ASSERT_FALSE(schedule.error().message.empty());
            refused += drawn.story + ": " + schedule.error().to_string() + '\n';
            continue;
        }
        ++fused;
        const auto values = plan::test::execute(drawn.program.plan, plan::test::small_integer, 1);
        for (std::uint64_t run = 0; run < 6; ++run) {
            SimulatorOptions options{.calls = 3, .seed = run, .values = &values};
            if (run % 3 != 0)
                options.straggler = static_cast<std::int32_t>(run) % drawn.program.plan.num_ranks();
            const auto fault = simulate(drawn.program, *schedule, drawn.program_of, options);
            ASSERT_FALSE(fault.has_value()) << "timing " << run << ": " << *fault << '\n'
                                            << plan::to_json(drawn.program.plan);
        }
    }
    EXPECT_GT(fused, count * 3 / 4) << "too many programs are refused to test much:\n" << refused;
}

class RandomlyFused : public ::testing::TestWithParam<Sample> {};

TEST_P(RandomlyFused, ProgramsGiveWhatTheirPlansSayWhateverTheTiming) {
    expect_right(test::RandomPrograms(20261123 + GetParam().seed), GetParam().programs);
}

class RandomlyFusedOverNodes : public ::testing::TestWithParam<Sample> {};

TEST_P(RandomlyFusedOverNodes, ProgramsGiveWhatTheirPlansSayAndEachSendMeetsItsReceive) {
    expect_right(test::RandomPrograms(20261128 + GetParam().seed, true), GetParam().programs);
}

TEST(RandomlyFusedReference, IsWhatProgramsAreHeldAgainst) {
    test::RandomPrograms programs(20261123);
    int fused = 0, noticed = 0;
    for (int n = 0; n < 60; ++n) {
        test::RandomProgram drawn = programs.next();
        const auto schedule = settled(drawn);
        if (!schedule) continue;
        ++fused;
        auto values = plan::test::execute(drawn.program.plan, plan::test::small_integer, 1);
        for (auto& rank : values) {
            for (auto& tensor : rank) {
                for (float& value : tensor) value += 1;
            }
        }
        noticed +=
            simulate(drawn.program, *schedule, drawn.program_of, {.calls = 1, .values = &values}) ? 1 : 0;
    }
    EXPECT_GT(noticed, fused * 3 / 4) << "of " << fused;
}

INSTANTIATE_TEST_SUITE_P(OfSeed, RandomlyFused, ::testing::ValuesIn(samples(0, 4, 75)));
INSTANTIATE_TEST_SUITE_P(Sweep, RandomlyFused, ::testing::ValuesIn(samples(100, 20, 250)));
INSTANTIATE_TEST_SUITE_P(OfSeed, RandomlyFusedOverNodes, ::testing::ValuesIn(samples(0, 2, 60)));
INSTANTIATE_TEST_SUITE_P(Sweep, RandomlyFusedOverNodes, ::testing::ValuesIn(samples(100, 20, 200)));

}  // namespace
}  // namespace syncopate::fuse

// The part of one node's ranks, made alone.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fuse/part_of_whole.hpp"
#include "fuse/random_programs.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

class RandomParts : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomParts, AreWhatTheWholeHasOfTheirRanks) {
    test::RandomPrograms programs(20261129 + GetParam(), true);
    int fused = 0;
    constexpr int kCount = 60;
    for (int n = 0; n < kCount; ++n) {
        const test::RandomProgram drawn = programs.next();
        SCOPED_TRACE("program " + std::to_string(n) + ": " + drawn.story);
        const auto whole = fuse(drawn.program, drawn.options);
        if (!whole) continue;
        ++fused;
        test::expect_parts(drawn.program, drawn.options, *whole);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(fused, kCount / 3);
}

INSTANTIATE_TEST_SUITE_P(OfSeed, RandomParts, ::testing::Range<std::uint64_t>(0, 3));
INSTANTIATE_TEST_SUITE_P(Sweep, RandomParts, ::testing::Range<std::uint64_t>(100, 130));

StagedProgram reduction(std::int64_t rows) {
    const plan::Mesh mesh{{{"node", 2}, {"gpu", 2}}, "node"};
    const plan::Tensor c{"C", {rows, 8}, plan::DType::bf16};
    const kernel::Kernel kernel = sample::gemm({rows, 8, 8, 4, 4, 4, 3});
    return {{{kernel, {{"c_ptr", "C"}}}}, plan::push_reduce(mesh, c, {.split = 2}).value()};
}

TEST(Part, SaysOfWhatItWasMadeSoThatRanksOfOtherProgramsOrOptionsAreTold) {
    std::set<std::string> made_of;
    const auto add = [&](const StagedProgram& program, const Options& options) {
        const auto part = fuse_part(program, options, 3);
        ASSERT_TRUE(part) << part.error().to_string();
        made_of.insert(part->part->made_of);
    };
    const StagedProgram program = reduction(48);
    Options other;
    other.costs.last_store_mib += 1;
    StagedProgram later = program;  // an op waits for one more
    for (plan::Op& op : later.plan.ranks[2]) {
        if (&op != later.plan.ranks[2].data() && op.after.empty()) op.after.push_back({2, 0});
    }
    add(program, {});
    add(program, {});
    EXPECT_EQ(made_of.size(), 1U);
    add(program, {.engine_blocks = 4});
    add(program, other);
    add(later, {});
    add(reduction(96), {});
    EXPECT_EQ(made_of.size(), 5U);
}

TEST(Part, OfOneNodeIsTheWhole) {
    const plan::Tensor c{"C", {48, 8}, plan::DType::bf16};
    const StagedProgram program{{{sample::gemm({48, 8, 8, 4, 4, 4, 3}), {{"c_ptr", "C"}}}},
                                plan::push_reduce({{{"gpu", 2}}}, c, {}).value()};
    const auto part = fuse_part(program, {}, 1);
    ASSERT_TRUE(part);
    EXPECT_FALSE(part->part);
    EXPECT_EQ(to_json(*part), to_json(fuse(program).value()));
}

TEST(Part, IsNotReadFromAFile) {
    const auto part = fuse_part(reduction(48), {}, 3);
    ASSERT_TRUE(part);
    const auto again = schedule_from_json(to_json(*part), "schedule.json");
    ASSERT_FALSE(again);
    EXPECT_NE(again.error().message.find("only one node's ranks"), std::string::npos)
        << again.error().message;
}

TEST(Part, WhoseRoundsGoBackIsRefused) {
    auto part = fuse_part(reduction(48), {}, 1);
    ASSERT_TRUE(part);
    EXPECT_EQ(channel_objection(*part), "");
    int turned = 0;
    for (RankSchedule& rank : part->ranks) {
        for (Transfer& transfer : rank.transfers) {
            auto* const side = std::get_if<Channel>(&transfer.work);
            if (side != nullptr && side->round == 0 && turned++ == 0) side->round = 100;
        }
    }
    ASSERT_GT(turned, 0);
    EXPECT_NE(channel_objection(*part), "");
}

}  // namespace
}  // namespace syncopate::fuse

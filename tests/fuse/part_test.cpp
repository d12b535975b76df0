// The part of one node's ranks, made alone.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fuse/part_of_whole.hpp"
#include "fuse/random_programs.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/plan/check/check.hpp"
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

TEST(Part, OfOneNodeIsTheWhole) {
    const plan::Tensor c{"C", {48, 8}, plan::DType::bf16};
    const StagedProgram program{{{sample::gemm({48, 8, 8, 4, 4, 4, 3}), {{"c_ptr", "C"}}}},
                                plan::push_reduce({{{"gpu", 2}}}, c, {}).value()};
    const auto part = fuse_part(program, {}, 1);
    ASSERT_TRUE(part);
    EXPECT_FALSE(part->part);
    EXPECT_EQ(to_json(*part), to_json(fuse(program).value()));
}

TEST(Part, OfARankThatIsNotThereIsRefused) {
    for (const std::int32_t rank : {-1, 4}) EXPECT_FALSE(fuse_part(reduction(48), {}, rank)) << rank;
}

TEST(Part, OfStagesThatWaitForEarlierOnesIsTheWhole) {
    StagedProgram program;
    program.plan.mesh = {{{"node", 2}, {"gpu", 2}}, "node"};
    program.plan.ranks.resize(4);
    for (const auto& [name, columns] : {std::pair{"X", 4}, {"H", 8}, {"Y", 4}}) {
        program.plan.tensors.push_back({name, {16, columns}, plan::DType::bf16});
        for (std::int32_t rank = 0; rank < 4; ++rank)
            program.plan.initial.push_back({rank,
                                            {static_cast<std::int32_t>(program.plan.tensors.size()) - 1,
                                             program.plan.tensors.back().whole()}});
    }
    program.stages = {{sample::gemm({16, 8, 4, 4, 4, 4, 0}), {{"a_ptr", "X"}, {"c_ptr", "H"}}},
                      {sample::gemm({16, 4, 8, 4, 4, 4, 0}), {{"a_ptr", "H"}, {"c_ptr", "Y"}}}};
    const auto whole = fuse(program);
    ASSERT_TRUE(whole) << whole.error().to_string();
    ASSERT_TRUE(whole->stages[1].overlaps);
    const auto part = fuse_part(program, {}, 3);
    ASSERT_TRUE(part) << part.error().to_string();
    EXPECT_FALSE(part->part);
    EXPECT_EQ(to_json(*part), to_json(*whole));
}

TEST(Part, OfAPlanWithCollectivesOfALibraryIsTheWhole) {
    StagedProgram program = reduction(48);
    plan::Plan& plan = program.plan;
    plan.tensors.push_back({"Z", {8, 8}, plan::DType::bf16});
    const std::int32_t z = static_cast<std::int32_t>(plan.tensors.size()) - 1;
    for (const std::int32_t rank : {2, 3}) {
        plan::Op op;
        op.kind = plan::OpKind::collective;
        op.collective = plan::CollectiveKind::all_gather;
        op.backend = plan::Backend::nccl;
        op.ranks = std::vector{2, 3};
        op.src = {z, {{4 * (rank - 2), 4 * (rank - 1)}, {0, 8}}};
        op.dst = {z, plan.tensors.back().whole()};
        plan.initial.push_back({rank, op.src});
        plan.ranks[static_cast<std::size_t>(rank)].push_back(op);
    }
    const Options options{.device = Device::cuda};
    const auto whole = fuse(program, options);
    ASSERT_TRUE(whole) << whole.error().to_string();
    const auto part = fuse_part(program, options, 0);
    ASSERT_TRUE(part) << part.error().to_string();
    EXPECT_FALSE(part->part);
    EXPECT_EQ(to_json(*part), to_json(*whole));
}

/// Rank 2 adds to X of rank 0 after Y has come from there, which is sent after rank 1's addition: summed in the order of ranks, rank 0's
/// own sum is one more op.
TEST(Nodes, OpsThatWaitInACircleOnceSumsAreOpsAreRefused) {
    for (const bool nodes : {false, true}) {
        StagedProgram program;
        plan::Plan& plan = program.plan;
        plan.mesh = nodes ? plan::Mesh{{{"node", 2}, {"gpu", 3}}, "node"} : plan::Mesh{{{"gpu", 6}}};
        plan.ranks.resize(6);
        plan.tensors = {{"A", {16, 4}, plan::DType::bf16},
                        {"X", {8, 8}, plan::DType::bf16},
                        {"Y", {8, 8}, plan::DType::bf16}};
        const auto whole = [&](std::int32_t tensor) {
            return plan::Chunk{tensor, plan.tensors[static_cast<std::size_t>(tensor)].whole()};
        };
        const plan::Chunk upper{2, {{0, 4}, {0, 8}}}, lower{2, {{4, 8}, {0, 8}}};
        for (std::int32_t rank = 0; rank < 6; ++rank) plan.initial.push_back({rank, whole(0)});
        for (const std::int32_t rank : {0, 1, 2}) {
            plan::Holding held{rank, whole(1)};
            held.partial = true;
            plan.initial.push_back(held);
        }
        plan.initial.push_back({0, lower});
        plan.initial.push_back({4, upper});
        plan::Holding sum{0, whole(1)};
        sum.of = {0, 1, 2};
        plan.final.push_back(sum);
        const auto push = [&](std::int32_t rank, std::int32_t peer, const plan::Chunk& chunk,
                              std::vector<plan::OpRef> after, bool sums) {
            plan::Op op;
            op.kind = plan::OpKind::push;
            op.peer = peer;
            op.src = op.dst = chunk;
            op.after = std::move(after);
            if (sums) op.reduce = plan::Reduce::sum;
            plan.ranks[static_cast<std::size_t>(rank)].push_back(op);
        };
        push(1, 0, whole(1), {}, true);
        push(0, 2, lower, {{1, 0}}, false);
        push(2, 0, whole(1), {{0, 0}}, true);
        push(4, 0, upper, {}, false);
        program.stages = {{sample::gemm({16, 8, 4, 4, 4, 4, 0}), {{"a_ptr", "A"}}}};
        EXPECT_TRUE(plan::check(plan).empty());
        const auto fused = fuse(program);
        ASSERT_FALSE(fused) << nodes;
        EXPECT_NE(fused.error().message.find("circle"), std::string::npos) << fused.error().message;
    }
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

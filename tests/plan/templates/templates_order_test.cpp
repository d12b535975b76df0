// The drawings in the templates' headers, and what follows from the order of ops: rotation, and sums whose
// bits do not depend on timing.
#include <algorithm>
#include <cstring>
#include <set>
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
using test::ring_of;
using Lines = std::vector<std::string>;

/// "R -> P" for each push of a rank, R the shard moved: its first element, where shards are of one element.
Lines pushes(const Plan& plan, std::int32_t rank) {
    Lines text;
    for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
        if (op.kind == OpKind::push) text.push_back(fmt::format("{} -> {}", op.src.region[0].begin, op.peer));
    }
    return text;
}

Plan make(std::string_view name, std::int32_t ranks, const TemplateOptions& options = {}) {
    return *make_plan(name, ring_of(ranks), {"A", {ranks}, DType::fp32}, options);
}

TEST(TemplateDrawing, RingPassesOnWhatCameLast) {
    const Plan plan = make("all_gather", 4, {.algorithm = Algorithm::ring});
    EXPECT_EQ(pushes(plan, 0), (Lines{"0 -> 1", "3 -> 1", "2 -> 1"}));
    EXPECT_EQ(pushes(plan, 3), (Lines{"3 -> 0", "2 -> 0", "1 -> 0"}));
    EXPECT_EQ(plan.ranks[0][1].after, (std::vector<OpRef>{{3, 0}}));
    EXPECT_EQ(plan, [] {
        Plan shifts = make("ring", 4);
        shifts.final = make("all_gather", 4).final;
        return shifts;
    }());
}

TEST(TemplateDrawing, BidirectionalGoesBothWays) {
    const Plan plan = make("all_gather", 5, {.algorithm = Algorithm::bidirectional});
    EXPECT_EQ(pushes(plan, 0), (Lines{"0 -> 1", "0 -> 4", "4 -> 1", "1 -> 4"}));
    EXPECT_EQ(pushes(plan, 1), (Lines{"1 -> 2", "1 -> 0", "0 -> 2", "2 -> 0"}));
}

TEST(TemplateDrawing, DoubleRingMovesBetweenNodesWhileItGoesRoundInside) {
    const Plan plan = make("double_ring", 6, {.inner = 3});
    EXPECT_EQ(pushes(plan, 0), (Lines{"0 -> 3", "0 -> 1", "2 -> 1", "3 -> 1", "5 -> 1"}));
    EXPECT_EQ(pushes(plan, 4), (Lines{"4 -> 1", "4 -> 5", "3 -> 5", "1 -> 5", "0 -> 5"}));
    EXPECT_EQ(plan.ranks[0][3].after, (std::vector<OpRef>{{3, 0}}));
}

TEST(TemplateDrawing, HierarchicalHandsOutInsideWhatCameAcross) {
    const Plan plan = make("all_gather", 6, {.algorithm = Algorithm::hierarchical, .inner = 3});
    EXPECT_EQ(pushes(plan, 0), (Lines{"0 -> 3", "0 -> 1", "0 -> 2", "3 -> 1", "3 -> 2"}));
    EXPECT_EQ(pushes(plan, 2), (Lines{"2 -> 5", "2 -> 0", "2 -> 1", "5 -> 0", "5 -> 1"}));
    EXPECT_EQ(plan.ranks[0][2].after, (std::vector<OpRef>{}));
    EXPECT_EQ(plan.ranks[0][3].after, (std::vector<OpRef>{{3, 0}}));
}

TEST(TemplateDrawing, RingReduceScatterAddsUpOnTheWayHome) {
    const Plan plan = make("reduce_scatter", 4, {.algorithm = Algorithm::ring});
    EXPECT_EQ(pushes(plan, 0), (Lines{"3 -> 1", "2 -> 1", "1 -> 1"}));
    EXPECT_EQ(pushes(plan, 2), (Lines{"1 -> 3", "0 -> 3", "3 -> 3"}));
    EXPECT_EQ(plan.tensors.size(), 1U);
}

TEST(TemplateDrawing, HierarchicalReduceScatterCollectsForTheNextNodeBeforeItReduces) {
    const Plan plan = make("reduce_scatter", 6, {.algorithm = Algorithm::hierarchical, .inner = 3});
    EXPECT_EQ(pushes(plan, 0), (Lines{"4 -> 1", "5 -> 2", "1 -> 1", "2 -> 2", "3 -> 3"}));
}

TEST(TemplateDrawing, HierarchicalAllToAllCrossesInOneMessage) {
    TemplateOptions options{.algorithm = Algorithm::hierarchical, .inner = 3};
    const Plan plan = *all_to_all(ring_of(6), {"A", {6, 6}, DType::fp32}, options);
    Lines text;
    for (const Op& op : plan.ranks[0])
        text.push_back(fmt::format("{} -> {}", to_string(op.src.region), op.peer));
    EXPECT_EQ(text, (Lines{"[0:1, 4:5] -> 1", "[0:1, 5:6] -> 2", "[0:1, 1:2] -> 1", "[0:1, 2:3] -> 2",
                           "[0:3, 3:4] -> 3"}));
    EXPECT_EQ(plan.ranks[0][4].after, (std::vector<OpRef>{{1, 1}, {2, 0}}));
}

TEST(TemplateDrawing, ABroadcastByChainKeepsAllItsLinksBusy) {
    TemplateOptions options{.split = 3, .algorithm = Algorithm::chain};
    const Plan plan = *broadcast(ring_of(4), {"A", {3}, DType::fp32}, options);
    for (std::int32_t rank = 0; rank < 3; ++rank) {
        const std::string to = std::to_string(rank + 1);
        EXPECT_EQ(pushes(plan, rank), (Lines{"0 -> " + to, "1 -> " + to, "2 -> " + to}));
    }
    EXPECT_EQ(plan.ranks[1][1].after, (std::vector<OpRef>{{0, 1}}));
}

TEST(TemplateDrawing, ABroadcastByTreeDoublesThoseWhoHaveIt) {
    const Plan plan = *broadcast(ring_of(6), {"A", {1}, DType::fp32}, {.algorithm = Algorithm::tree});
    EXPECT_EQ(pushes(plan, 0), (Lines{"0 -> 1", "0 -> 2", "0 -> 4"}));
    EXPECT_EQ(pushes(plan, 1), (Lines{"0 -> 3", "0 -> 5"}));
    EXPECT_EQ(pushes(plan, 2), Lines{});
}

/// The ranks that a rank's ops reach inside and outside of its node alternate as the drawings have it; what
/// must hold for speed is that no op of one level waits behind the other level's last one.
TEST(TwoLevels, BothAreBusyFromTheStart) {
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : {Algorithm::hierarchical, Algorithm::double_ring}) {
            if (std::find(of.algorithms.begin(), of.algorithms.end(), algorithm) == of.algorithms.end())
                continue;
            SCOPED_TRACE(of.name);
            const Plan plan =
                *of.make({{{"node", 4}, {"gpu", 4}}}, {"A", {16, 16}, DType::fp32}, {.algorithm = algorithm});
            for (const std::vector<Op>& list : plan.ranks) {
                std::ptrdiff_t last_inside = -1;
                std::ptrdiff_t first_across = -1;
                const auto rank = &list - plan.ranks.data();
                for (std::size_t i = 0; i < list.size(); ++i) {
                    if (list[i].kind == OpKind::local) continue;
                    const bool across = list[i].peer / 4 != rank / 4;
                    if (!across) last_inside = static_cast<std::ptrdiff_t>(i);
                    if (across && first_across < 0) first_across = static_cast<std::ptrdiff_t>(i);
                }
                EXPECT_LT(first_across, last_inside);
            }
        }
    }
}

TEST(PeerOrder, AtEachStepNoTwoRanksAimAtTheSamePeer) {
    for (const char* name : {"all_gather", "reduce_scatter", "all_to_all"}) {
        for (const bool pull : {false, true}) {
            TemplateOptions options{.pull = pull, .algorithm = Algorithm::direct};
            const Plan plan = *make_plan(name, ring_of(7), {"A", {7, 7}, DType::fp32}, options);
            for (std::size_t step = 0; step < 6; ++step) {
                std::set<std::int32_t> aimed;
                for (const std::vector<Op>& list : plan.ranks) aimed.insert(list[step].peer);
                EXPECT_EQ(aimed.size(), 7U) << name;
            }
        }
    }
}

TEST(PeerOrder, AfterReducingARankIsSentToByOneAtATime) {
    for (const bool pull : {false, true}) {
        TemplateOptions options{.pull = pull, .algorithm = Algorithm::two_shot};
        const Plan plan = *all_reduce(ring_of(5), {"A", {5}, DType::fp32}, options);
        // Of each list the last four ops are shot 2; that of offset d has the partner of the one of offset d
        // - 1 of the rank after it.
        for (std::int32_t rank = 0; rank < 5; ++rank) {
            const std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
            const auto shot = static_cast<std::int32_t>(list.size()) - 4;
            for (std::int32_t offset = 1; offset < 4; ++offset) {
                const OpRefs& after = list[static_cast<std::size_t>(shot + offset)].after;
                const std::int32_t next = (rank + 1) % 5;
                const auto next_shot =
                    static_cast<std::int32_t>(plan.ranks[static_cast<std::size_t>(next)].size()) - 4;
                EXPECT_NE(std::find(after.begin(), after.end(), OpRef{next, next_shot + offset - 1}),
                          after.end());
            }
        }
    }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Determinism, SumsHaveTheSameBitsOnEveryRunAndOnEveryRank) {
    for (const char* name : {"reduce_scatter", "all_reduce"}) {
        for (const Algorithm algorithm : find_template(name)->algorithms) {
            for (const bool pull : {false, true}) {
                SCOPED_TRACE(fmt::format("{} {}", name, name_of(algorithm)));
                TemplateOptions options{.split = 2, .pull = pull, .algorithm = algorithm};
                if (algorithm == Algorithm::hierarchical) options.inner = 3;
                const Plan plan = *make_plan(name, ring_of(6), {"A", {40}, DType::fp32}, options);
                const test::Memory first = test::execute(plan, test::rough_number, 0);
                for (std::uint32_t seed = 1; seed < 10; ++seed) {
                    const test::Memory again = test::execute(plan, test::rough_number, seed);
                    for (std::size_t rank = 0; rank < 6; ++rank)
                        ASSERT_TRUE(same_bits(first[rank][0], again[rank][0]));
                }
                for (std::size_t rank = 1; rank < 6 && std::string_view(name) == "all_reduce"; ++rank)
                    ASSERT_TRUE(same_bits(first[0][0], first[rank][0]));
            }
        }
    }
}

TEST(Determinism, DirectSumsAreThoseOfTheOrderOfRanks) {
    // compare() sums in the order of ranks, and these numbers tell orders apart: the ring's order fails.
    const Tensor tensor{"A", {40}, DType::fp32};
    const auto wrong = [&](const char* name, Algorithm algorithm) {
        const Plan plan = *make_plan(name, ring_of(6), tensor, {.split = 2, .algorithm = algorithm});
        return test::compare(plan, test::execute(plan, test::rough_number, 3), test::rough_number);
    };
    EXPECT_EQ(wrong("reduce_scatter", Algorithm::direct), "");
    EXPECT_EQ(wrong("all_reduce", Algorithm::two_shot), "");
    EXPECT_EQ(wrong("all_reduce", Algorithm::one_shot), "");
    EXPECT_NE(wrong("all_reduce", Algorithm::ring), "");
}

}  // namespace
}  // namespace syncopate::plan

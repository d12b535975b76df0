#include "syncopate/plan/lower/lower.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/executor.hpp"
#include "plan/plans.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

using test::box;
using test::lines;
using test::ring_of;
using Lines = std::vector<std::string>;

std::int32_t num_collectives(const Plan& plan) {
    std::int32_t count = 0;
    for (const std::vector<Op>& list : plan.ranks) {
        count += static_cast<std::int32_t>(std::count_if(
            list.begin(), list.end(), [](const Op& op) { return op.kind == OpKind::collective; }));
    }
    return count;
}

/// In a broadcast everyone holds something, but what the root holds wins.
void let_everyone_hold_something(Plan& plan) {
    const std::int32_t root = plan.initial.front().rank;
    plan.initial.clear();
    for (Holding& wanted : plan.final) {
        plan.initial.push_back({wanted.rank, wanted.chunk, true});
        wanted.of = {root};
    }
}

struct Case {
    const Template* of;
    Algorithm algorithm;
    bool pull;
    std::int32_t split;
    std::int32_t ranks;
};

void expect_right(const Case& one, Mesh mesh, const TemplateOptions& options, std::int32_t inner) {
    SCOPED_TRACE(fmt::format("{} {} ranks {} split {} inner {}{}", one.of->name, name_of(one.algorithm),
                             one.ranks, one.split, inner, one.pull ? " pull" : ""));
    const Tensor tensor{"A", {one.ranks * 2 + 1, one.ranks + 1}, DType::fp32};
    Plan plan = *make_collective(one.of->name, mesh, tensor, options);
    if (one.of->name == "broadcast") let_everyone_hold_something(plan);
    ASSERT_EQ(num_collectives(plan), one.ranks);
    ASSERT_EQ(lines(check(plan)), Lines{});
    ASSERT_EQ(test::compare(plan, test::execute(plan, test::small_integer, 1), test::small_integer), "");
    const Result<Plan> lowered = lower_collectives(plan, {.with = Lowering::templated,
                                                          .algorithm = one.algorithm,
                                                          .split = one.split,
                                                          .pull = one.pull,
                                                          .inner = inner});
    ASSERT_TRUE(lowered) << lowered.error().to_string();
    ASSERT_EQ(num_collectives(*lowered), 0);
    ASSERT_EQ(lines(check(*lowered)), Lines{});
    ASSERT_EQ(test::compare(*lowered, test::execute(*lowered, test::small_integer, 2), test::small_integer),
              "");
    ASSERT_EQ(test::race(*lowered), "");
}

class LowerTemplate : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(LowerTemplate, GivesWhatTheCollectiveGives) {
    const std::int32_t ranks = GetParam();
    for (const Template& of : templates()) {
        if (!of.collective) continue;
        for (const Algorithm algorithm : of.algorithms) {
            for (const std::int32_t split : {1, 3}) {
                for (const bool pull : {false, true}) {
                    const Case one{&of, algorithm, pull, split, ranks};
                    TemplateOptions options;
                    options.axis = split == 1 ? 0 : 1;
                    if (of.name == "broadcast") options.root = ranks / 2;
                    if (algorithm != Algorithm::hierarchical && algorithm != Algorithm::double_ring) {
                        expect_right(one, ring_of(ranks), options, 0);
                        continue;
                    }
                    for (std::int32_t inner = 1; inner <= ranks; ++inner) {
                        if (ranks % inner != 0) continue;
                        expect_right(one, ring_of(ranks), options, inner);
                        expect_right(one, {{{"node", ranks / inner}, {"gpu", inner}}}, options, 0);
                    }
                }
            }
        }
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LowerTemplate, ::testing::Values(1, 2, 3, 4, 6));
INSTANTIATE_TEST_SUITE_P(Sweep, LowerTemplate, ::testing::Values(5, 7, 8, 12));

/// Plans of transfers and collectives at random over 4 ranks and two tensors, whose every element all ranks
/// hold at the start, each with a value of its own.
class RandomPlan {
public:
    explicit RandomPlan(std::uint32_t seed) : random_(seed * 2 + 1) {
        plan_.mesh = ring_of(kRanks);
        plan_.tensors = {{"A", {kSize}, DType::fp32}, {"B", {kSize}, DType::fp32}};
        plan_.ranks.resize(kRanks);
        for (std::int32_t rank = 0; rank < kRanks; ++rank) {
            for (std::int32_t tensor = 0; tensor < 2; ++tensor)
                plan_.initial.push_back({rank, box({{0, kSize}}, tensor), true});
        }
    }

    /// A chain of events, and then fewer edges, as long as there is no race.
    Plan make() {
        const std::int32_t count = 3 + below(4);
        for (std::int32_t event = 0; event < count; ++event) {
            std::vector<OpRef> members = below(2) == 0 ? add_transfer() : add_collective();
            for (const OpRef member : members) op(member).after = last_;
            last_ = std::move(members);
        }
        for (std::int32_t attempt = 0; attempt < 30; ++attempt) {
            const std::int32_t rank = below(kRanks);
            std::vector<Op>& list = plan_.ranks[static_cast<std::size_t>(rank)];
            if (list.empty()) continue;
            Op& chosen = list[static_cast<std::size_t>(below(static_cast<std::int32_t>(list.size())))];
            if (chosen.after.empty()) continue;
            const OpRefs before = chosen.after;
            const OpRef dropped =
                chosen.after[static_cast<std::size_t>(below(static_cast<std::int32_t>(before.size())))];
            erase_if(chosen.after, [&](OpRef ref) { return ref == dropped; });
            // What it waited for through the dropped one it may still need.
            if (below(2) == 0) {
                for (const OpRef earlier : op(dropped).after) chosen.after.push_back(earlier);
            }
            if (!test::race(plan_).empty()) chosen.after = before;
        }
        return plan_;
    }

private:
    static constexpr std::int32_t kRanks = 4;
    static constexpr std::int64_t kSize = 24;

    std::int32_t below(std::int32_t n) {
        return static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(n));
    }
    Op& op(OpRef ref) {
        return plan_.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    }
    OpRef append(std::int32_t rank, Op op) {
        std::vector<Op>& list = plan_.ranks[static_cast<std::size_t>(rank)];
        list.push_back(std::move(op));
        return {rank, static_cast<std::int32_t>(list.size()) - 1};
    }
    Chunk any(std::int64_t size, std::int32_t tensor) {
        const std::int64_t begin = below(static_cast<std::int32_t>(kSize - size + 1));
        return box({{begin, begin + size}}, tensor);
    }

    std::vector<OpRef> add_transfer() {
        const std::int32_t rank = below(kRanks);
        const std::int32_t peer = below(kRanks);
        const std::int64_t size = 1 + below(10);
        const std::int32_t from = below(2);
        const std::int32_t to = rank == peer ? 1 - from : below(2);
        const OpKind kind = rank == peer ? OpKind::local : below(2) == 0 ? OpKind::push : OpKind::pull;
        return {append(rank, test::transfer(kind, rank == peer ? -1 : peer, any(size, from), any(size, to),
                                            {}, below(3) == 0 ? Reduce::max : Reduce::none))};
    }

    std::vector<OpRef> add_collective() {
        std::vector<std::int32_t> ranks{0, 1, 2, 3};
        std::shuffle(ranks.begin(), ranks.end(), random_);
        ranks.resize(1 + static_cast<std::size_t>(below(kRanks)));
        const auto n = static_cast<std::int64_t>(ranks.size());
        const auto kind = static_cast<CollectiveKind>(below(5));
        const bool in_place = below(2) == 0;
        const std::int64_t unit = 1 + below(3);
        const Chunk whole = any(in_place ? unit * n + below(2) : unit * n, 0);
        const std::vector<Interval> parts =
            split_evenly(whole.region[0].begin, whole.region[0].end, static_cast<std::int32_t>(n));
        std::vector<OpRef> members;
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            Op op;
            op.kind = OpKind::collective;
            op.collective = kind;
            op.ranks = ranks;
            const Chunk part = box({parts[i]});
            const Chunk other = box({parts[ranks.size() - 1 - i]});
            switch (kind) {
                case CollectiveKind::all_gather:
                    op.src = in_place ? part : any(unit, 0);
                    op.dst = in_place ? whole : any(unit * n, 1);
                    break;
                case CollectiveKind::reduce_scatter:
                    op.src = in_place ? whole : any(unit * n, 0);
                    op.dst = in_place ? part : any(unit, 1);
                    op.reduce = Reduce::max;
                    break;
                case CollectiveKind::all_to_all:
                    op.src = in_place ? part : any(unit * n, 0);
                    op.dst = in_place ? other : any(unit * n, 1);
                    break;
                default:
                    op.src = in_place ? whole : any(unit * n, 0);
                    op.dst = in_place ? whole : any(unit * n, 1);
                    if (kind == CollectiveKind::all_reduce) op.reduce = Reduce::max;
                    break;
            }
            members.push_back(append(ranks[i], std::move(op)));
        }
        return members;
    }

    std::minstd_rand random_;
    Plan plan_;
    std::vector<OpRef> last_;
};

/// The memory of the first tensors, with NaN made comparable.
std::vector<std::vector<float>> seen(const test::Memory& memory, std::size_t tensors) {
    std::vector<std::vector<float>> arrays;
    for (const auto& rank : memory) {
        for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
            arrays.push_back(rank[tensor]);
            for (float& value : arrays.back()) value = std::isnan(value) ? -1 : value;
        }
    }
    return arrays;
}

TEST(LowerRandomPlans, NobodyCanTellTheDifference) {
    std::int32_t lowered_ones = 0;
    std::int32_t kept = 0;
    for (std::uint32_t seed = 0; seed < 1500; ++seed) {
        SCOPED_TRACE(seed);
        const Plan plan = RandomPlan(seed).make();
        if (num_collectives(plan) == 0) continue;
        ASSERT_EQ(test::race(plan), "");
        ASSERT_EQ(lines(check(plan)), Lines{});
        LowerOptions options;
        options.split = 1 + static_cast<std::int32_t>(seed % 2);
        options.pull = seed / 2 % 2 == 0;
        options.inner = 1;
        const std::vector<Algorithm> choices{Algorithm::automatic, Algorithm::ring, Algorithm::hierarchical};
        options.algorithm = choices[seed % choices.size()];
        if (seed % 5 == 0) {  // some synthesised, some by a template, some left as they are
            const auto any = [&](std::uint32_t n) { return static_cast<CollectiveKind>((seed / 5 + n) % 5); };
            options = {.with = Lowering::synthesised, .topology = switch_topology(4), .seed = seed};
            if (seed % 2 == 0) options.rules = {{.kind = any(0), .with = Lowering::direct}, {.kind = any(2)}};
        }
        const Result<Plan> lowered = lower_collectives(plan, options);
        if (!lowered && lowered.error().error_class == ErrorClass::usage) continue;  // only a broadcast in it
        ASSERT_TRUE(lowered) << lowered.error().to_string();
        ++lowered_ones;
        if (options.rules.empty()) {
            ASSERT_EQ(num_collectives(*lowered), 0);
        }
        kept += num_collectives(*lowered);
        ASSERT_EQ(test::race(*lowered), "");
        ASSERT_EQ(lines(check(*lowered)), Lines{});
        ASSERT_EQ(seen(test::execute(plan, test::small_integer, seed), 2),
                  seen(test::execute(*lowered, test::small_integer, seed + 7), 2));
    }
    EXPECT_GT(lowered_ones, 800);
    EXPECT_GT(kept, 50);
}

/// Rank 1 gets A[0:4] from rank 0, all three gather, rank 2 sends on what it has.
Plan sandwich() {
    Plan plan = *make_collective("all_gather", ring_of(3), {"A", {12}, DType::fp32});
    plan.tensors.push_back({"B", {12}, DType::fp32});
    plan.initial.push_back({0, box({{4, 8}})});
    std::erase_if(plan.initial, [](const Holding& holding) { return holding.rank == 1; });
    plan.ranks[0].push_back(test::push(1, box({{4, 8}})));
    plan.ranks[1][0].after = {{0, 1}};
    plan.ranks[2].push_back(test::transfer(OpKind::push, 0, box({{0, 12}}), box({{0, 12}}, 1), {{2, 0}}));
    return plan;
}

TEST(LowerSplice, TransfersStandWhereTheCollectiveStood) {
    Plan plan = sandwich();
    std::swap(plan.ranks[0][0], plan.ranks[0][1]);  // the push first
    plan.ranks[1][0].after = {{0, 0}};
    const Plan lowered = *lower_collectives(plan);
    ASSERT_EQ(lines(check(lowered)), Lines{});
    ASSERT_EQ(lowered.ranks[0].size(), 3U);
    EXPECT_EQ(lowered.ranks[0][0].src, box({{4, 8}}));
    EXPECT_EQ(lowered.ranks[0][1].src, box({{0, 4}}));
    EXPECT_EQ(lowered.ranks[2].back().dst.tensor, 1);
}

TEST(LowerSplice, ARankWaitsOnlyForWhatItsOwnPartNeeds) {
    const Plan lowered = *lower_collectives(sandwich());
    ASSERT_EQ(lines(check(lowered)), Lines{});
    // Rank 0's shard goes to rank 2 at once; to rank 1 only when that rank has come to the collective.
    EXPECT_EQ(lowered.ranks[0][0].peer, 1);
    EXPECT_EQ(lowered.ranks[0][0].after, (std::vector<OpRef>{{0, 2}}));
    EXPECT_EQ(lowered.ranks[0][1].peer, 2);
    EXPECT_EQ(lowered.ranks[0][1].after, (std::vector<OpRef>{}));
    // Rank 2 sends on what came to it.
    EXPECT_EQ(lowered.ranks[2].back().after, (std::vector<OpRef>{{0, 1}, {1, 0}}));
}

TEST(LowerSplice, WhoGetsNothingPassesOnWhatItWaitedFor) {
    Plan plan = *make_collective("broadcast", ring_of(3), {"A", {4}, DType::fp32});
    let_everyone_hold_something(plan);
    plan.tensors.push_back({"B", {4}, DType::fp32});
    plan.initial.push_back({2, box({{0, 4}}, 1)});
    plan.ranks[2].push_back(test::push(1, box({{0, 2}}, 1)));
    plan.ranks[0][0].after = {{2, 1}};
    plan.ranks[2].push_back(test::push(0, box({{2, 4}}, 1), {{0, 0}}));
    const Plan lowered = *lower_collectives(plan);
    ASSERT_EQ(lines(check(lowered)), Lines{});
    EXPECT_EQ(lowered.ranks[2][1].after, (std::vector<OpRef>{{2, 0}}));
}

TEST(LowerSplice, DirectLeavesThePlanAsItIs) {
    EXPECT_EQ(*lower_collectives(sandwich(), {.with = Lowering::direct}), sandwich());
}

TEST(LowerSplice, CollectivesOfDifferentGroupsAreLoweredEach) {
    TemplateOptions options;
    options.over = {"gpu"};
    const Plan plan =
        *make_collective("all_reduce", {{{"node", 2}, {"gpu", 3}}}, {"A", {8}, DType::fp32}, options);
    const Plan lowered = *lower_collectives(plan, {.algorithm = Algorithm::ring});
    EXPECT_EQ(lines(check(lowered)), Lines{});
    for (const Op& op : lowered.ranks[4]) EXPECT_EQ(op.peer, 5);
}

std::string message(const Plan& plan, const LowerOptions& options = {}) {
    const Result<Plan> lowered = lower_collectives(plan, options);
    return lowered ? "no error" : lowered.error().to_string();
}

TEST(LowerArguments, AnAlgorithmThatNoCollectiveHasIsRefused) {
    EXPECT_EQ(message(sandwich(), {.algorithm = Algorithm::two_shot}),
              "no collective of the plan that a template lowers has the algorithm \"two_shot\"; there are: "
              "all_gather");
    EXPECT_EQ(message(sandwich(), {.split = 0}), "split is 0; expected at least 1");
}

TEST(LowerArguments, APlanWithAFindingIsRefusedAtItsRankAndOp) {
    Plan plan = sandwich();
    plan.ranks[1][0].after.clear();
    EXPECT_EQ(message(plan).substr(0, 37), "rank 1 op 0: early_read: reads A[4:8]");
}

TEST(LowerArguments, PiecesThatLieOverOneAnotherAreRefused) {
    Plan plan = sandwich();
    plan.ranks[2][0].src = box({{7, 12}});
    plan.initial.push_back({2, box({{7, 8}})});
    EXPECT_EQ(message(plan), "rank 2 op 0: its source [7:12] lies over that of rank 1; leave it direct");
}

TEST(LowerArguments, LevelsThatDoNotFitAreRefused) {
    EXPECT_EQ(message(sandwich(), {.algorithm = Algorithm::hierarchical, .inner = 2}),
              "inner is 2, which does not divide the 3 ranks of a group");
}

TEST(MakeCollective, AnEmptyShardIsRefused) {
    EXPECT_EQ(
        make_collective("all_gather", ring_of(4), {"A", {3}, DType::fp32}).error().to_string(),
        "all_gather: rank 3 would have nothing, and an op has to move something; lower it by the template");
    EXPECT_EQ(make_collective("ring", ring_of(4), {"A", {4}, DType::fp32}).error().to_string(),
              "ring: no library has it; lower it by the template");
    EXPECT_EQ(
        make_collective("all_reduce", ring_of(4), {"A", {4}, DType::fp32}, {.split = 2}).error().to_string(),
        "all_reduce: a library executes the op in its own way; of the options only axis, over, group, "
        "produced, to_axis, root and reduce fit it");
}

}  // namespace
}  // namespace syncopate::plan

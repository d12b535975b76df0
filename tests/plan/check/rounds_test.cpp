#include "syncopate/plan/check/rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/check/taken_rounds.hpp"
#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::plan {
namespace {

Mesh nodes_of(std::int32_t nodes, std::int32_t places) {
    return {{{"node", nodes}, {"gpu", places}}, "node"};
}

bool crosses(const Plan& plan, OpRef ref) {
    const Op& op = plan.op(ref);
    return (op.kind == OpKind::push || op.kind == OpKind::pull) &&
           plan.mesh.node_of(ref.rank) != plan.mesh.node_of(op.peer);
}

std::vector<OpRef> ops_of(const Plan& plan) {
    std::vector<OpRef> all;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (std::size_t op = 0; op < plan.ranks[static_cast<std::size_t>(rank)].size(); ++op)
            all.push_back({rank, static_cast<std::int32_t>(op)});
    }
    return all;
}

/// Each rank does its sides round after round, and blocks in each until all of it is done. Who would wait for
/// ever; "" where all end.
std::string blocked(const Plan& plan, const std::vector<std::vector<std::int32_t>>& rounds) {
    std::set<OpRef> open;
    for (const OpRef ref : ops_of(plan)) open.insert(ref);
    const auto round_of = [&](OpRef ref) {
        return rounds[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    };
    while (!open.empty()) {
        std::vector<std::int32_t> at(plan.ranks.size(), 1 << 30);  // by rank: its lowest round that is open
        for (const OpRef ref : open) {
            if (!crosses(plan, ref)) continue;
            for (const std::int32_t rank : {ref.rank, plan.op(ref).peer}) {
                auto& lowest = at[static_cast<std::size_t>(rank)];
                lowest = std::min(lowest, round_of(ref));
            }
        }
        std::vector<OpRef> done;
        for (const OpRef ref : open) {
            const Op& op = plan.op(ref);
            if (std::ranges::any_of(op.after, [&](OpRef before) { return open.contains(before); })) continue;
            if (crosses(plan, ref) && (at[static_cast<std::size_t>(ref.rank)] != round_of(ref) ||
                                       at[static_cast<std::size_t>(op.peer)] != round_of(ref)))
                continue;
            done.push_back(ref);
        }
        if (done.empty()) return fmt::format("op {} of rank {}", open.begin()->index, open.begin()->rank);
        for (const OpRef ref : done) open.erase(ref);
    }
    return {};
}

/// What is wrong with rounds; "" where nothing is.
std::string fault(const Plan& plan) {
    const auto rounds = rounds_between_nodes(plan);
    std::set<std::tuple<bool, std::int32_t, std::int32_t>> taken;
    for (const OpRef ref : ops_of(plan)) {
        const std::int32_t round =
            rounds[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
        if (crosses(plan, ref) != (round >= 0))
            return fmt::format("{}:{} is of round {}", ref.rank, ref.index, round);
        if (round < 0) continue;
        const Op& op = plan.op(ref);
        if (!taken.insert({true, round, op.source_rank(ref.rank)}).second) return "a second send in a round";
        if (!taken.insert({false, round, op.destination_rank(ref.rank)}).second)
            return "a second receive in a round";
    }
    return blocked(plan, rounds);
}

TEST(Rounds, OfTheTemplatesLetEverySendMeetItsReceive) {
    for (const auto& [nodes, places] : {std::pair{2, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 4}, {8, 2}}) {
        const Mesh mesh = nodes_of(nodes, places);
        const std::int64_t ranks = nodes * places;
        TemplateOptions hierarchical;
        hierarchical.algorithm = Algorithm::hierarchical;
        for (const bool all : {false, true}) {
            const Plan plan = push_reduce(mesh, {"C", {ranks * 2, 4}, DType::bf16}, {.all = all}).value();
            EXPECT_EQ(fault(plan), "") << nodes << " x " << places;
        }
        const Tensor x{"X", {ranks * 2, 4}, DType::bf16};
        EXPECT_EQ(fault(all_gather(mesh, x).value()), "") << nodes << " x " << places;
        EXPECT_EQ(fault(all_gather(mesh, x, hierarchical).value()), "") << nodes << " x " << places;
    }
}

/// Ops that are after any others, earlier and later ones, in lists of any order.
Plan random_plan(std::mt19937_64& random) {
    const auto below = [&](std::int32_t count) {
        return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(count));
    };
    Plan plan;
    plan.mesh = nodes_of(2 + below(3), 1 + below(3));
    const std::int32_t ranks = plan.mesh.num_ranks();
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    const std::int32_t count = 3 + below(20);
    plan.tensors.push_back({"T", {count + 1}, DType::fp32});
    std::vector<OpRef> all;
    for (std::int32_t number = 0; number < count; ++number) {
        const std::int32_t rank = below(ranks);
        Op op;
        op.src = {0, {{0, 1}}};
        op.dst = {0, {{number + 1, number + 2}}};
        op.peer = below(ranks);
        op.kind = op.peer == rank ? OpKind::local : below(2) == 0 ? OpKind::push : OpKind::pull;
        if (op.kind == OpKind::local) op.peer = -1;
        auto& list = plan.ranks[static_cast<std::size_t>(rank)];
        all.push_back({rank, static_cast<std::int32_t>(list.size())});
        list.push_back(std::move(op));
    }
    for (std::size_t number = 0; number < all.size(); ++number) {
        Op& op = plan.ranks[static_cast<std::size_t>(all[number].rank)]
                           [static_cast<std::size_t>(all[number].index)];
        for (std::size_t other = 0; other < all.size(); ++other) {
            const bool back = other > number;
            if (other != number && below(back ? 120 : 6) == 0) op.after.push_back(all[other]);
        }
    }
    for (std::int32_t rank = 0; rank < ranks; ++rank) plan.initial.push_back({rank, {0, {{0, 1}}}});
    return plan;
}

TEST(Rounds, AnyOpsThatWaitInNoCircleMeetAndOthersAreFoundByCheck) {
    std::mt19937_64 random(20261129);
    int circles = 0, sound = 0;
    for (int n = 0; n < 600; ++n) {
        const Plan plan = random_plan(random);
        const std::vector<Finding> findings = check(plan);
        const bool circle =
            std::ranges::find(findings, Finding::Kind::cycle, &Finding::kind) != findings.end();
        EXPECT_EQ(fault(plan).empty(), !circle) << n;
        (circle ? circles : sound) += 1;
    }
    EXPECT_GT(circles, 50);
    EXPECT_GT(sound, 50);
}

TEST(TakenRounds, GiveTheFirstThatIsFreeForBoth) {
    std::mt19937 random(7);
    std::vector<TakenRounds> ranks(4);
    std::vector<std::set<std::int32_t>> taken(4);
    for (int i = 0; i < 2'000; ++i) {
        const std::size_t from = random() % 2, to = 2 + random() % 2;
        const auto least = static_cast<std::int32_t>(random() % 900);
        std::int32_t first = least;
        while (taken[from].contains(first) || taken[to].contains(first)) ++first;
        EXPECT_EQ(take_first(ranks[from], ranks[to], least), first);
        taken[from].insert(first);
        taken[to].insert(first);
    }
}

TEST(Rounds, ACircleByWayOfTwoNodesIsFoundWithItsOps) {
    Plan plan;
    plan.mesh = nodes_of(2, 2);
    plan.ranks.resize(4);
    plan.tensors.push_back({"T", {4}, DType::fp32});
    for (const std::int32_t rank : {0, 2}) {
        Op op;
        op.kind = OpKind::push;
        op.peer = 2 - rank;
        op.src = {0, {{0, 1}}};
        op.dst = {0, {{1 + rank, 2 + rank}}};
        op.after = {{2 - rank, 0}};
        plan.ranks[static_cast<std::size_t>(rank)].push_back(op);
        plan.initial.push_back({rank, {0, {{0, 1}}}});
    }
    const std::vector<Finding> findings = check(plan);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings.front().kind, Finding::Kind::cycle);
    EXPECT_NE(findings.front().message.find("0:0 -> 2:0 -> 0:0"), std::string::npos)
        << findings.front().message;
    EXPECT_EQ(rounds_between_nodes(plan)[0][0], -1) << "it never begins";
}

TEST(Rounds, WithoutNodesThereAreNone) {
    const Plan plan = all_gather({{{"gpu", 4}}}, {"X", {8, 4}, DType::bf16}).value();
    for (const auto& list : rounds_between_nodes(plan))
        EXPECT_TRUE(std::ranges::all_of(list, [](std::int32_t round) { return round < 0; }));
}

TEST(Rounds, ABackendThatReachesNoOtherNodeIsMalformedThereAndChannelIsWithinOne) {
    const auto found = [](std::int32_t peer, Backend backend, OpKind kind) {
        Plan plan;
        plan.mesh = nodes_of(2, 2);
        plan.ranks.resize(4);
        plan.tensors.push_back({"T", {4}, DType::fp32});
        plan.initial = {{0, {0, {{0, 1}}}}, {peer, {0, {{0, 1}}}}};
        if (peer == 0) plan.initial.pop_back();
        Op op;
        op.kind = kind;
        op.peer = kind == OpKind::local ? -1 : peer;
        op.src = {0, {{0, 1}}};
        op.dst = {0, {{1, 2}}};
        op.backend = backend;
        plan.ranks[0].push_back(op);
        const std::vector<Finding> findings = check(plan);
        return findings.empty() ? std::string() : findings.front().to_string();
    };
    for (const OpKind kind : {OpKind::push, OpKind::pull}) {
        for (const Backend backend :
             {Backend::copy_engine, Backend::tma_dedicated, Backend::ldst_dedicated, Backend::tma_inline,
              Backend::ldst_inline, Backend::nccl, Backend::host}) {
            EXPECT_NE(found(2, backend, kind).find("reaches only what ranks of one node map"),
                      std::string::npos);
            EXPECT_NE(found(3, backend, kind).find("rank 0 op 0: malformed: "), std::string::npos);
            EXPECT_EQ(found(1, backend, kind), "");
        }
        EXPECT_EQ(found(2, Backend::channel, kind), "");
        EXPECT_EQ(found(2, Backend::automatic, kind), "");
        EXPECT_NE(found(1, Backend::channel, kind).find("stays within one"), std::string::npos);
    }
    EXPECT_NE(found(0, Backend::channel, OpKind::local).find("stays within one"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::plan

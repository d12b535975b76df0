#include "syncopate/fuse/passes/channel.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "fuse/simulator.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::int64_t kRows = 48, kColumns = 8;

plan::Mesh mesh_of(std::int32_t nodes, std::int32_t places) {
    return {{{"node", nodes}, {"gpu", places}}, "node"};
}

/// The programs of the operators, over so many nodes.
std::map<std::string, Program> operators(std::int32_t nodes, std::int32_t places) {
    const plan::Mesh mesh = mesh_of(nodes, places);
    const kernel::Kernel kernel = sample::gemm({kRows, kColumns, kColumns, 4, 4, 4, 3});
    const plan::Tensor a{"A", {kRows, kColumns}, plan::DType::bf16};
    const plan::Tensor c{"C", a.shape, a.dtype};
    plan::AllGatherOptions gather{.split = 2};
    gather.algorithm = plan::Algorithm::hierarchical;
    return {
        {"all_gather", {kernel, plan::all_gather(mesh, a, gather).value(), {{"a_ptr", "A"}}}},
        {"all_gather, direct", {kernel, plan::all_gather(mesh, a, {.split = 2}).value(), {{"a_ptr", "A"}}}},
        {"reduce_scatter", {kernel, plan::push_reduce(mesh, c, {.split = 2}).value(), {{"c_ptr", "C"}}}},
        {"all_reduce", {kernel, plan::push_reduce(mesh, c, {.all = true}).value(), {{"c_ptr", "C"}}}},
        {"all_to_all", {kernel, plan::push_exchange(mesh, c, "D").value(), {{"c_ptr", "C"}}}},
    };
}

Schedule fused(const Program& program, Device device = Device::cuda) {
    auto schedule = fuse(program, {.device = device});
    EXPECT_TRUE(schedule) << schedule.error().to_string();
    return std::move(schedule).value();
}

std::vector<std::pair<std::size_t, std::size_t>> sides_of(const Schedule& schedule) {
    std::vector<std::pair<std::size_t, std::size_t>> sides;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        for (std::size_t index = 0; index < schedule.ranks[rank].transfers.size(); ++index) {
            if (schedule.ranks[rank].transfers[index].channel() != nullptr) sides.emplace_back(rank, index);
        }
    }
    return sides;
}

TEST(Channel, OperatorsMeetOnAnyNodesAndARankSendsAndReceivesOnceARound) {
    for (const auto& [nodes, places] : {std::pair(2, 1), std::pair(2, 2), std::pair(3, 2), std::pair(2, 4)}) {
        for (const auto& [name, program] : operators(nodes, places)) {
            SCOPED_TRACE(name + " on " + std::to_string(nodes) + " nodes of " + std::to_string(places));
            for (const Device device : {Device::host, Device::cuda}) {
                const Schedule schedule = fused(program, device);
                EXPECT_EQ(channel_objection(schedule), "");
                std::map<std::tuple<std::size_t, bool, std::int32_t>, int> count;
                for (const auto& [rank, index] : sides_of(schedule)) {
                    const Transfer& side = schedule.ranks[rank].transfers[index];
                    ++count[{rank, side.channel()->sends, side.channel()->round}];
                    EXPECT_EQ(side.step.launch, Launch::late);
                }
                EXPECT_FALSE(count.empty());
                for (const auto& [key, times] : count) EXPECT_EQ(times, 1);
            }
        }
    }
}

TEST(Channel, ShardsCrossToEachOtherNodeOnceWhereTheTemplateIsHierarchical) {
    const auto programs = operators(2, 4);
    for (const char* name : {"all_gather", "reduce_scatter", "all_to_all"}) {
        std::int64_t elements = 0;
        const Schedule schedule = fused(programs.at(name));
        for (const auto& [rank, index] : sides_of(schedule)) {
            const Transfer& side = schedule.ranks[rank].transfers[index];
            if (side.channel()->sends) elements += plan::num_elements(side.src.region);
            EXPECT_EQ(side.src_rank % 4, side.dst_rank % 4) << "crosses by its rail";
        }
        // Each shard, to one other node; of an exchange half of what each of eight ranks has.
        EXPECT_EQ(elements, kRows * kColumns * (name == std::string("all_to_all") ? 4 : 1)) << name;
    }
}

/// Changes that leave no schedule whose sides meet.
TEST(Channel, ASideThatIsLostMovedOrTurnedIsRefusedInEveryOperatorsSchedule) {
    const std::vector<std::pair<std::string, std::function<void(RankSchedule&, std::size_t)>>> mutations{
        {"lost",
         [](RankSchedule& rank, std::size_t index) {
             rank.transfers.erase(rank.transfers.begin() + static_cast<std::ptrdiff_t>(index));
         }},
        {"of a later round",
         [](RankSchedule& rank, std::size_t index) {
             std::get<Channel>(rank.transfers[index].work).round += 1;
         }},
        {"turned",
         [](RankSchedule& rank, std::size_t index) {
             Channel& side = std::get<Channel>(rank.transfers[index].work);
             side.sends = !side.sends;
         }},
        {"to another rank",
         [](RankSchedule& rank, std::size_t index) {
             Transfer& side = rank.transfers[index];
             (side.channel()->sends ? side.dst_rank : side.src_rank) ^= 1;
         }},
        {"of another number",
         [](RankSchedule& rank, std::size_t index) {
             std::get<Channel>(rank.transfers[index].work).number += 1;
         }},
        {"of another size",
         [](RankSchedule& rank, std::size_t index) {
             Transfer& side = rank.transfers[index];
             plan::Chunk& own = side.channel()->sends ? side.src : side.dst;
             own.region[0].end -= 1;
         }},
    };
    for (const auto& [name, program] : operators(2, 2)) {
        const Schedule schedule = fused(program);
        for (const auto& [rank, index] : sides_of(schedule)) {
            for (const auto& [what, change] : mutations) {
                Schedule changed = schedule;
                change(changed.ranks[rank], index);
                EXPECT_NE(channel_objection(changed), "")
                    << name << ": transfer " << index << " of rank " << rank << " is " << what;
            }
        }
    }
}

TEST(Channel, SidesThatComeInAnotherOrderOnOneRankAreRefused) {
    for (const auto& [name, program] : operators(2, 2)) {
        const Schedule schedule = fused(program);
        for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
            Schedule changed = schedule;
            std::vector<Transfer*> sides;
            for (Transfer& transfer : changed.ranks[rank].transfers)
                if (transfer.channel() != nullptr) sides.push_back(&transfer);
            if (sides.size() < 2 || sides.front()->channel()->round == sides.back()->channel()->round)
                continue;
            std::swap(*sides.front(), *sides.back());
            EXPECT_NE(channel_objection(changed).find("behind one of round"), std::string::npos) << name;
        }
    }
}

/// A send that waits for what its own rank receives in the same round, or later, never starts.
TEST(Channel, ASendThatWaitsForALaterReceiveIsRefusedWithTheCircle) {
    int seen = 0;
    for (const auto& [name, program] : operators(2, 2)) {
        const Schedule schedule = fused(program);
        for (const auto& [rank, index] : sides_of(schedule)) {
            const Transfer& send = schedule.ranks[rank].transfers[index];
            if (!send.channel()->sends) continue;
            for (const auto& [other, at] : sides_of(schedule)) {
                const Transfer& receive = schedule.ranks[other].transfers[at];
                if (other != rank || receive.channel()->sends ||
                    receive.channel()->round <= send.channel()->round)
                    continue;
                Schedule changed = schedule;
                RankSchedule& own = changed.ranks[rank];
                const auto signal = static_cast<std::int32_t>(own.signals.size());
                own.signals.push_back({SignalMeaning::Kind::arrived, receive.op});
                own.transfers[at].posts.push_back({static_cast<std::int32_t>(rank), signal});
                own.transfers[index].waits.push_back({signal, 0});
                const std::string why = channel_objection(changed);
                EXPECT_NE(why.find("would never start"), std::string::npos) << name << ": " << why;
                EXPECT_NE(why.find(" awaits "), std::string::npos) << why;
                ++seen;
            }
        }
    }
    EXPECT_GT(seen, 4);
}

TEST(Channel, APostToARankOfAnotherNodeIsRefused) {
    Schedule schedule = fused(operators(2, 2).at("reduce_scatter"));
    schedule.ranks[0].end_posts.push_back({2, 0});
    EXPECT_NE(channel_objection(schedule).find("another node"), std::string::npos);
}

TEST(Channel, WhatReachesOnlyMemoryOfTheNodeIsRefusedBetweenNodesWithTheReason) {
    for (const plan::Backend backend : {plan::Backend::tma_inline, plan::Backend::ldst_inline,
                                        plan::Backend::copy_engine, plan::Backend::tma_dedicated}) {
        Program program = operators(2, 2).at("reduce_scatter");
        for (std::int32_t rank = 0; rank < 4; ++rank) {
            for (plan::Op& op : program.plan.ranks[static_cast<std::size_t>(rank)]) {
                if (op.kind == plan::OpKind::push && op.peer / 2 != rank / 2) op.backend = backend;
            }
        }
        const auto schedule = fuse(program, {.device = Device::cuda});
        ASSERT_FALSE(schedule);
        EXPECT_NE(schedule.error().message.find("reaches only what ranks of one node map"),
                  std::string::npos);
        EXPECT_GE(schedule.error().location.op, 0);
    }
}

TEST(Channel, CarriesNothingWithinANode) {
    Program program = operators(2, 2).at("all_gather");
    for (plan::Op& op : program.plan.ranks[0]) {
        if (op.peer == 1) op.backend = plan::Backend::channel;
    }
    const auto schedule = fuse(program, {.device = Device::cuda});
    ASSERT_FALSE(schedule);
    EXPECT_NE(schedule.error().message.find("stays within one"), std::string::npos);
}

/// Rank 2's copy is after rank 0's, of the other node, and nothing that it reads comes from there.
TEST(Channel, AWordTellsOfWhatNoDataBringsToANode) {
    Program program = operators(2, 2).at("all_gather");
    plan::Plan& plan = program.plan;
    plan.tensors.push_back({"S", {4, 8}, plan::DType::bf16});
    plan.tensors.push_back({"T", {4, 8}, plan::DType::bf16});
    const auto copy = [&](std::int32_t rank) {
        const auto s = static_cast<std::int32_t>(plan.tensors.size()) - 2;
        plan.initial.push_back({.rank = rank, .chunk = {s, {{0, 4}, {0, 8}}}});
        plan::Op op;
        op.src = {s, {{0, 4}, {0, 8}}};
        op.dst = {s + 1, {{0, 4}, {0, 8}}};
        auto& list = plan.ranks[static_cast<std::size_t>(rank)];
        list.push_back(op);
        return plan::OpRef{rank, static_cast<std::int32_t>(list.size()) - 1};
    };
    const plan::OpRef first = copy(0);
    const plan::OpRef second = copy(2);
    plan.ranks[2][static_cast<std::size_t>(second.index)].after = {first};
    const Schedule schedule = fused(program);
    int words = 0;
    for (const auto& [rank, index] : sides_of(schedule)) {
        const Transfer& side = schedule.ranks[rank].transfers[index];
        words += schedule.tensors[static_cast<std::size_t>(side.src.tensor)].name == "words.channel" ? 1 : 0;
    }
    EXPECT_EQ(words, 2);
}

/// An op of a plan in few letters: "0>2" rank 0 pushes to rank 2, "3<2" rank 3 pulls from rank 2, "1" a copy of rank
/// 1; behind it the numbers of the ops that it is after.
std::vector<plan::OpRef> add_ops(plan::Plan& plan, const std::vector<std::string>& ops) {
    std::vector<plan::OpRef> refs;
    const auto tensor = static_cast<std::int32_t>(plan.tensors.size());
    plan.tensors.push_back({"T", {static_cast<std::int64_t>(ops.size()) + 1}, plan::DType::fp32});
    for (const std::string& text : ops) {
        std::istringstream words(text);
        std::string head;
        words >> head;
        const auto number = static_cast<std::int64_t>(refs.size());
        plan::Op op;
        op.src = {tensor, {{0, 1}}};
        op.dst = {tensor, {{number + 1, number + 2}}};
        const std::int32_t rank = head[0] - '0';
        if (head.size() > 1) {
            op.kind = head[1] == '>' ? plan::OpKind::push : plan::OpKind::pull;
            op.peer = head[2] - '0';
        } else {
            op.kind = plan::OpKind::local;
        }
        for (std::size_t before = 0; words >> before;) op.after.push_back(refs.at(before));
        auto& list = plan.ranks[static_cast<std::size_t>(rank)];
        refs.push_back({rank, static_cast<std::int32_t>(list.size())});
        list.push_back(std::move(op));
    }
    return refs;
}

/// All that each op of a plan comes after.
std::map<plan::OpRef, std::set<plan::OpRef>> closure(const plan::Plan& plan) {
    std::map<plan::OpRef, std::set<plan::OpRef>> all;
    const std::function<const std::set<plan::OpRef>&(plan::OpRef)> of =
        [&](plan::OpRef ref) -> const std::set<plan::OpRef>& {
        const auto [found, is_new] = all.try_emplace(ref);
        if (!is_new) return found->second;
        std::set<plan::OpRef> before;
        for (const plan::OpRef direct : plan.op(ref).after) {
            before.insert(direct);
            before.insert(of(direct).begin(), of(direct).end());
        }
        return all[ref] = std::move(before);
    };
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (std::size_t op = 0; op < plan.ranks[static_cast<std::size_t>(rank)].size(); ++op)
            of({rank, static_cast<std::int32_t>(op)});
    }
    return all;
}

std::string text_of(plan::OpRef ref) { return std::to_string(ref.rank) + ":" + std::to_string(ref.index); }

/// What an op comes after in the plan, and no longer does in its node: "" where all order is kept.
std::string lost_order(Lowered lowered) {
    const plan::Plan given = lowered.plan;
    const auto before = closure(given);
    EXPECT_TRUE(split_between_nodes(lowered));
    const auto after = closure(lowered.plan);
    const auto parts = [&](plan::OpRef ref) {
        std::vector<plan::OpRef> made{ref};
        if (const auto side = lowered.channel.find(ref); side != lowered.channel.end())
            made.push_back(side->second.other);
        return made;
    };
    for (const auto& [ref, earlier] : before) {
        for (const plan::OpRef part : parts(ref)) {
            for (const plan::OpRef other : earlier) {
                for (const plan::OpRef needed : parts(other)) {
                    if (given.mesh.node_of(needed.rank) != given.mesh.node_of(part.rank)) continue;
                    if (!after.at(part).contains(needed))
                        return text_of(part) + " of " + text_of(ref) + " does not await " + text_of(needed) +
                               " of " + text_of(other);
                }
            }
        }
    }
    for (const auto& [ref, side] : lowered.channel) {
        for (const plan::OpRef other : lowered.plan.op(ref).after) {
            const bool crosses = given.mesh.node_of(other.rank) != given.mesh.node_of(ref.rank);
            if (crosses && (side.sends || other != side.other)) return text_of(ref) + " awaits another node";
        }
    }
    return {};
}

plan::Plan empty_plan(std::int32_t nodes, std::int32_t places) {
    plan::Plan plan;
    plan.mesh = mesh_of(nodes, places);
    plan.ranks.resize(static_cast<std::size_t>(nodes * places));
    return plan;
}

TEST(Channel, WhatAnOpComesAfterByWayOfAnotherNodeItAwaitsInItsOwn) {
    const std::vector<std::pair<const char*, std::vector<std::string>>> plans{
        {"a push back to the node that was pushed to", {"0>2", "0>1 0", "3<2 1"}},
        {"through two ops of the other node", {"0>2", "0>1 0", "1>0 1", "3<2 2"}},
        {"through a copy of the other node", {"0>2", "0 0", "3 1"}},
        {"through two other nodes", {"0>2", "0>4 0", "4>5 1", "3<2 2"}},
        {"through a chain of nodes that comes back", {"0>2", "0>4 0", "4>6 1", "6>3 2"}},
        {"back to the first node", {"2>0", "2>3 0", "1 1"}},
        {"a pull from the other node", {"2<0", "1<0 0", "3 1"}},
        {"a pull of the node that was pushed to", {"0>2", "1 0", "2<1 1"}},
        {"a push that only its receive orders", {"2", "0>2 0", "1 1", "3 2"}},
        {"a word out and a word back", {"2", "0 0", "3 1"}},
        {"a word behind a send", {"0>2", "0>1 0", "4 1", "3 2"}},
        {"what a receive awaits, at the third node", {"4", "2 0", "0>2 1", "1 2", "5 3"}},
        {"what the source comes after in the other node", {"0", "2 0", "0>2 1"}},
        {"a send that waits for what was told", {"2>4", "0 0", "4>0 1", "5 2"}},
        {"a late send's follower", {"2", "4 0", "2>4 1", "0>2 2", "3 3"}},
        {"two that come in, one after the other", {"0>2", "1>3 0", "0>1 1", "2 2"}},
        {"two ways that meet", {"0>2", "0>4 0", "1 0", "4>1 1", "3 2 3"}},
    };
    for (const auto& [name, ops] : plans) {
        plan::Plan plan = empty_plan(4, 2);
        add_ops(plan, ops);
        EXPECT_EQ(lost_order({.plan = plan}), "") << name;
    }
}

/// Rank 2 pushes to rank 0, then to rank 3; only then rank 1 adds to rank 0. Rank 3 copies after the sum.
TEST(Channel, ASumAwaitsWhatItComesAfterByWayOfAnotherNode) {
    plan::Plan plan = empty_plan(2, 2);
    const auto refs = add_ops(plan, {"2>0", "2>3 0", "1>0 1", "3 2"});
    const auto tensor = static_cast<std::int32_t>(plan.tensors.size());
    plan.tensors.push_back({"S", {4}, plan::DType::fp32});
    for (const std::int32_t rank : {0, 1}) plan.initial.push_back({rank, {tensor, {{0, 4}}}, true});
    plan::Op& added = plan.ranks[1][static_cast<std::size_t>(refs[2].index)];
    added.src = added.dst = {tensor, {{0, 4}}};
    added.reduce = plan::Reduce::sum;
    const auto lowered = lower(plan);
    ASSERT_TRUE(lowered) << lowered.error().to_string();
    const auto after = closure(lowered->plan);
    const plan::OpRef received = lowered->channel.at(refs[0]).other;
    int sums = 0;
    for (const auto& [ref, before] : after) {
        if (lowered->plan.op(ref).reduce == plan::Reduce::none) continue;
        ++sums;
        EXPECT_TRUE(before.contains(received));
        EXPECT_TRUE(after.at(refs[3]).contains(ref)) << "a word tells of the sum";
    }
    EXPECT_EQ(sums, 1);
}

TEST(Channel, RandomOpsKeepTheirOrderInEachNode) {
    std::mt19937_64 random(20261128);
    for (int n = 0; n < 400; ++n) {
        const auto nodes = static_cast<std::int32_t>(2 + random() % 3);
        const auto places = static_cast<std::int32_t>(1 + random() % 2);
        std::vector<std::string> ops;
        std::string story;
        const std::size_t count = 3 + random() % 14;
        for (std::size_t op = 0; op < count; ++op) {
            const auto rank = [&] {
                return std::to_string(random() % static_cast<std::uint64_t>(nodes * places));
            };
            std::string text = rank();
            const std::string peer = rank();
            if (peer != text) text += (random() % 2 == 0 ? ">" : "<") + peer;
            for (std::size_t before = op > 5 ? op - 5 : 0; before < op; ++before)
                if (random() % 4 == 0) text += " " + std::to_string(before);
            story += "\"" + text + "\", ";
            ops.push_back(std::move(text));
        }
        plan::Plan plan = empty_plan(nodes, places);
        add_ops(plan, ops);
        ASSERT_EQ(lost_order({.plan = plan}), "") << nodes << " nodes of " << places << ": " << story;
    }
}

/// Rank 0 sends A to rank 2, and then B to rank 1; only then rank 3 reads A at rank 2. The send of A ends before A
/// is there.
TEST(Channel, DataThatAnOpOfAnotherNodeSentOnIsThereBeforeItIsRead) {
    Program program = operators(2, 2).at("all_gather");
    plan::Plan& plan = program.plan;
    const auto a = static_cast<std::int32_t>(plan.tensors.size());
    plan.tensors.push_back({"X", {8}, plan::DType::bf16});
    plan.tensors.push_back({"Y", {8}, plan::DType::bf16});
    const auto add = [&](std::int32_t rank, plan::OpKind kind, std::int32_t peer, std::int32_t tensor,
                         std::vector<plan::OpRef> after) {
        plan::Op op;
        op.kind = kind;
        op.peer = peer;
        op.src = op.dst = {tensor, {{0, 8}}};
        op.after = std::move(after);
        auto& list = plan.ranks[static_cast<std::size_t>(rank)];
        list.push_back(std::move(op));
        return plan::OpRef{rank, static_cast<std::int32_t>(list.size()) - 1};
    };
    for (const std::int32_t tensor : {a, a + 1}) plan.initial.push_back({0, {tensor, {{0, 8}}}});
    const plan::OpRef there = add(0, plan::OpKind::push, 2, a, {});
    const plan::OpRef near = add(0, plan::OpKind::push, 1, a + 1, {there});
    add(3, plan::OpKind::pull, 2, a, {near});
    plan.final.push_back({3, {a, {{0, 8}}}});
    ASSERT_TRUE(plan::check(plan).empty());
    const auto values = plan::test::execute(plan, plan::test::small_integer, 1);
    std::vector<std::int64_t> program_of;
    for (const kernel::Tile& tile : program.kernel.tiles) program_of.push_back(tile.program);
    for (const Device device : {Device::host, Device::cuda}) {
        const Schedule schedule = fused(program, device);
        for (std::uint64_t run = 0; run < 60; ++run) {
            const SimulatorOptions options{
                .calls = 3, .seed = run, .straggler = static_cast<std::int32_t>(run % 4), .values = &values};
            const auto fault = simulate(program, schedule, program_of, options);
            ASSERT_FALSE(fault) << "timing " << run << ": " << *fault;
        }
    }
}

/// Rank 1 sums what its own and rank 0's second stage make, and sends it. Rank 0's first stage waits for what comes
/// from the other node: that comes in an earlier round, though rank 1's waits for nothing.
TEST(Channel, AnOpThatFollowsSeveralRanksStagesIsSentBehindWhatEachOfThemAwaits) {
    constexpr plan::DType kType = plan::DType::fp32;
    StagedProgram program;
    for (const auto& [from, to] : {std::pair("A", "H"), std::pair("H", "C")}) {
        kernel::Kernel kernel = sample::gemm({8, 8, 8, 4, 4, 4, 3});
        for (auto& [name, tensor] : kernel.arguments.tensors) tensor.dtype = kType;
        program.stages.push_back({std::move(kernel), {{"a_ptr", from}, {"c_ptr", to}}});
    }
    plan::Plan& plan = program.plan = empty_plan(2, 2);
    for (const char* name : {"A", "H", "C", "D"}) plan.tensors.push_back({name, {8, 8}, kType});
    const auto whole = [](std::int32_t tensor) { return plan::Chunk{tensor, {{0, 8}, {0, 8}}}; };
    for (const std::int32_t rank : {1, 2, 3}) plan.initial.push_back({rank, whole(0)});
    for (const std::int32_t rank : {0, 1}) plan.produced.push_back({rank, whole(2), true});
    plan::Op a, sum, sent;
    a.kind = sent.kind = plan::OpKind::push;
    a.peer = 0;
    a.src = a.dst = whole(0);
    sum.kind = plan::OpKind::pull;
    sum.peer = 0;
    sum.src = sum.dst = whole(2);
    sum.reduce = plan::Reduce::sum;
    sum.backend = plan::Backend::ldst_inline;
    sent.peer = 2;
    sent.src = whole(2);
    sent.dst = whole(3);
    sent.after = {{1, 0}};
    plan.ranks[2] = {a};
    plan.ranks[1] = {sum, sent};
    ASSERT_TRUE(plan::check(plan).empty()) << plan::check(plan).front().message;
    const auto schedule = fuse(program, {.device = Device::cuda});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    std::map<bool, std::int32_t> round;  // of what rank 0 receives, and rank 1 sends
    for (const auto& [rank, index] : sides_of(*schedule)) {
        const Channel& side = *schedule->ranks[rank].transfers[index].channel();
        if (rank < 2) round[side.sends] = side.round;
    }
    EXPECT_LT(round.at(false), round.at(true));
}

TEST(Channel, ThePlansNodesAreKeptInJsonAndAreItsFirstAxis) {
    const plan::Plan plan = operators(2, 2).at("all_reduce").plan;
    const std::string text = plan::to_json(plan);
    const auto read = plan::from_json(text);
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(*read, plan);
    std::string wrong = text;
    wrong.replace(wrong.find("\"nodes\": \"node\""), 15, "\"nodes\": \"gpu\"");
    const auto refused = plan::from_json(wrong);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("first one"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace syncopate::fuse

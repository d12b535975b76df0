#include "syncopate/fuse/passes/channel.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
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
    for (const char* name : {"all_gather", "reduce_scatter"}) {
        std::int64_t elements = 0;
        const Schedule schedule = fused(programs.at(name));
        for (const auto& [rank, index] : sides_of(schedule)) {
            const Transfer& side = schedule.ranks[rank].transfers[index];
            if (side.channel()->sends) elements += plan::num_elements(side.src.region);
            EXPECT_EQ(side.src_rank % 4, side.dst_rank % 4) << "crosses by its rail";
        }
        EXPECT_EQ(elements, kRows * kColumns) << name;  // each shard, to one other node
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

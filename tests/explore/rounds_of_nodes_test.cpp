// What blocks between nodes [P40, P41], changed on purpose: sides that do not wait for each other, a rank that takes its rounds
// in another order, or receives before its call has begun. Some order of the steps then shows it, and of orders of rounds
// the compiler refuses each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "explore/cases.hpp"
#include "explore/explorer.hpp"
#include "explore/implied.hpp"
#include "syncopate/fuse/passes/channel.hpp"

namespace syncopate::explore {
namespace {

using Kind = Step::Kind;

constexpr std::string_view kWord = "channel word ";

/// The number of the pair of sides whose word it is.
std::optional<int> pair_of(const Model& model, const Step& step) {
    if (step.kind == Kind::move || step.kind == Kind::clear) return std::nullopt;
    const std::string& name = model.word_names[step.word];
    if (!name.starts_with(kWord)) return std::nullopt;
    return std::stoi(name.substr(kWord.size())) / 8;
}

std::vector<Case> those_that_send(std::vector<Case> cases) {
    std::erase_if(cases, [](const Case& one) {
        return one.name.find("from arrays") != std::string::npos || one.arrays;
    });
    return cases;
}

/// Each wait of the channel is left out in all calls: the message of another call is found, or overwritten.
void expect_both_sides_needed(const std::vector<Case>& cases) {
    int waits = 0, caught = 0;
    for (const Case& one : those_that_send(cases)) {
        Result<Model> model = record(one);
        ASSERT_TRUE(model) << model.error().to_string();
        ASSERT_EQ(explore(*model, {.most_states = 2'000}).violation, "") << one.name;
        std::set<std::uint32_t> tried;
        for (const Agent& agent : model->agents) {
            for (const Step& step : agent.steps) {
                if (step.kind != Kind::wait || !pair_of(*model, step) || !tried.insert(step.word).second)
                    continue;
                Model changed = *model;
                std::vector<AgentStep> places;
                for (std::uint32_t at = 0; at < changed.agents.size(); ++at) {
                    for (std::uint32_t n = 0; n < changed.agents[at].steps.size(); ++n) {
                        Step& other = changed.agents[at].steps[n];
                        if (other.kind != Kind::wait || other.word != step.word) continue;
                        other.left_out = true;
                        places.emplace_back(at, n);
                    }
                }
                ++waits;
                if (!explore(changed, {.most_states = 20'000}).violation.empty()) {
                    ++caught;
                    continue;
                }
                EXPECT_NE(implied_by(changed, places), "")
                    << one.name << ": nobody needs to wait for " << changed.word_names[step.word];
            }
        }
    }
    std::printf("%d waits, %d are implied\n", waits, waits - caught);
    EXPECT_GT(caught, 10);
}

TEST(RoundsOfNodes, BothSidesWaitForEachOther) {
    expect_both_sides_needed(node_cases(2, 1));
    expect_both_sides_needed(operator_node_cases(2, 1));
}
TEST(RoundsOfNodesSweep, BothSidesWaitForEachOther) { expect_both_sides_needed(node_cases(2, 2)); }

/// The pair of which a rank sends, and that of which it receives.
using Sides = std::map<bool, int>;

/// By rank and round.
std::map<std::int32_t, std::map<std::int32_t, Sides>> rounds_of(const fuse::Schedule& schedule) {
    std::map<std::int32_t, std::map<std::int32_t, Sides>> rounds;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        for (const fuse::Transfer& transfer : schedule.ranks[rank].transfers) {
            if (const fuse::Channel* const side = transfer.channel())
                rounds[static_cast<std::int32_t>(rank)][side->round][side->sends] = side->number;
        }
    }
    return rounds;
}

/// The model in which `rank` does pairs `a` where it did `b`, and the other way round.
Model swapped(Model model, int rank, const Sides& a, const Sides& b) {
    std::map<std::string, std::uint32_t> words;
    for (std::uint32_t word = 0; word < model.word_names.size(); ++word) words[model.word_names[word]] = word;
    std::map<int, int> other;
    for (const auto& [sends, pair] : a) {
        other[pair] = b.at(sends);
        other[b.at(sends)] = pair;
    }
    for (Agent& agent : model.agents) {
        if (agent.rank != rank) continue;
        for (Step& step : agent.steps) {
            const std::optional<int> pair = pair_of(model, step);
            if (!pair || !other.contains(*pair)) continue;
            const int word = std::stoi(model.word_names[step.word].substr(kWord.size()));
            step.word = words.at(std::string(kWord) + std::to_string(8 * other[*pair] + word % 8));
        }
    }
    return model;
}

/// Where each rank has its rounds with one rank alone, two in another order on one of them wait for ever.
void expect_order_needed(const std::vector<Case>& cases) {
    int orders = 0;
    for (const Case& one : those_that_send(cases)) {
        const auto schedule = fuse::fuse(one.program, one.options);
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        const Result<Model> model = record(one, 1);
        ASSERT_TRUE(model) << model.error().to_string();
        for (const auto& [rank, rounds] : rounds_of(*schedule)) {
            for (auto round = rounds.begin(); round != rounds.end(); ++round) {
                const auto next = std::next(round);
                if (next == rounds.end() ||
                    !std::ranges::equal(
                        round->second, next->second, {}, [](const auto& side) { return side.first; },
                        [](const auto& side) { return side.first; }))
                    continue;
                fuse::Schedule changed = *schedule;
                std::set<std::int32_t> peers;
                for (fuse::Transfer& transfer : changed.ranks[static_cast<std::size_t>(rank)].transfers) {
                    auto* const side = std::get_if<fuse::Channel>(&transfer.work);
                    if (side == nullptr || (side->round != round->first && side->round != next->first))
                        continue;
                    peers.insert(side->sends ? transfer.dst_rank : transfer.src_rank);
                    side->round = side->round == round->first ? next->first : round->first;
                }
                EXPECT_NE(fuse::channel_objection(changed), "")
                    << one.name << ": rank " << rank << " takes round " << next->first << " first";
                if (peers.size() != 1) continue;
                ++orders;
                const Explored found = explore(swapped(*model, rank, round->second, next->second));
                EXPECT_NE(found.violation.find("nobody can go on"), std::string::npos)
                    << one.name << ": rank " << rank << " takes round " << next->first
                    << " first: " << found.violation;
            }
        }
    }
    std::printf("%d orders\n", orders);
    EXPECT_GT(orders, 5);
}

TEST(RoundsOfNodes, InAnotherOrderAreRefusedAndWouldHang) {
    expect_order_needed(node_cases(2, 2));
    expect_order_needed(operator_node_cases(2, 2));
}

/// A receive of a call that has not begun writes where the one before may still read.
TEST(RoundsOfNodes, BeforeTheirCallHasBegunAreNoticed) {
    int agents = 0, noticed = 0;
    for (const Case& one : those_that_send(node_cases(2, 1))) {
        const Result<Model> model = record(one);
        ASSERT_TRUE(model) << model.error().to_string();
        for (std::size_t at = 0; at < model->agents.size(); ++at) {
            const Agent& agent = model->agents[at];
            const bool receives = std::ranges::any_of(agent.steps, [&](const Step& step) {
                return step.kind == Kind::store && pair_of(*model, step);
            });
            if (!receives || agent.call < 2 || agent.steps.front().own) continue;
            Model changed = *model;
            changed.agents[at].steps.front().left_out = true;
            ++agents;
            if (!explore(changed, {.most_states = 20'000}).violation.empty()) ++noticed;
        }
    }
    std::printf("%d of %d\n", noticed, agents);
    EXPECT_GT(agents, 3);
    EXPECT_GT(noticed, 0);
}

}  // namespace
}  // namespace syncopate::explore

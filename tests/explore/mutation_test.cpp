// The explorer sees what is wrong: each wait of each schedule and table is taken away in turn, or ends one too early, and
// each count is one short. What is not noticed must be implied: by which other waits is computed (implied.hpp).
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "explore/cases.hpp"
#include "explore/explorer.hpp"
#include "explore/implied.hpp"

namespace syncopate::explore {
namespace {

enum class Mutation { removed, one_too_early, one_short };

struct Count {
    int mutants = 0;
    int caught = 0;
    int implied = 0;
};
struct Tally {
    std::map<Mutation, Count> of;
    std::vector<std::string> unexplained;
};

/// The step, and the same one of the same agents of other calls; of a count, of all that count there.
std::vector<AgentStep> same_steps(const Model& model, std::size_t agent, std::size_t step) {
    const Step& first = model.agents[agent].steps[step];
    std::vector<AgentStep> all;
    if (first.kind == Step::Kind::count) {
        for (const AgentStep& place : model.record) {
            if (model.at(place).kind == Step::Kind::count && model.at(place).word == first.word)
                all.push_back(place);
        }
        return all;
    }
    for (std::uint32_t other = 0; other < model.agents.size(); ++other) {
        if (model.agents[other].role == model.agents[agent].role) all.emplace_back(other, step);
    }
    return all;
}

/// By how much a wait, or a target, must be less to be over earlier.
std::uint32_t least_added(const Model& model, const Step& step) {
    std::uint32_t least = 0;
    for (const AgentStep& place : model.record) {
        const Step& other = model.at(place);
        const bool adds = other.kind == Step::Kind::add && other.word == step.word;
        if (adds && (least == 0 || other.value < least)) least = other.value;
    }
    return least == 0 ? 1 : least;
}

void try_one(Model& model, std::size_t agent, std::size_t at, Mutation mutation, Tally& tally) {
    const std::vector<AgentStep> places = same_steps(model, agent, at);
    std::vector<Step> kept;
    for (const auto& [other, step] : places) {
        Step& of = model.agents[other].steps[step];
        kept.push_back(of);
        if (mutation == Mutation::removed)
            of.left_out = true;
        else
            of.value -= least_added(model, of);
    }
    Count& count = tally.of[mutation];
    ++count.mutants;
    if (const Explored found = explore(model); !found.violation.empty()) {
        ++count.caught;
    } else {
        ++count.implied;
        // Who waits for less does so for nothing where the whole wait is implied.
        for (const auto& [other, step] : places) model.agents[other].steps[step].left_out = true;
        const std::string why =
            kept.front().kind == Step::Kind::wait ? implied_by(model, places) : std::string();
        const std::string what = model.name + ": " + model.describe(agent, at);
        if (why.empty())
            tally.unexplained.push_back(what);
        else if (mutation == Mutation::removed)
            std::printf("implied: %s\n      by %s\n", what.c_str(), why.c_str());
    }
    for (std::size_t i = 0; i < places.size(); ++i)
        model.agents[places[i].first].steps[places[i].second] = kept[i];
}

void mutate(const std::vector<Case>& cases, Tally& tally) {
    for (const Case& one : cases) {
        Result<Model> model = record(one);
        ASSERT_TRUE(model) << one.name << ": " << model.error().to_string();
        EXPECT_EQ(race(*model), "") << one.name;
        std::set<std::pair<std::string, std::size_t>> tried;
        for (std::size_t agent = 0; agent < model->agents.size(); ++agent) {
            for (std::size_t at = 0; at < model->agents[agent].steps.size(); ++at) {
                const Step& step = model->agents[agent].steps[at];
                if (!step.own || (step.kind != Step::Kind::wait && step.kind != Step::Kind::count)) continue;
                if (step.kind == Step::Kind::count && step.posts.empty()) continue;
                const bool counts = step.kind == Step::Kind::count;
                if (!tried.insert({counts ? "" : model->agents[agent].role, counts ? step.word : at}).second)
                    continue;
                if (counts) {
                    try_one(*model, agent, at, Mutation::one_short, tally);
                } else {
                    try_one(*model, agent, at, Mutation::removed, tally);
                    if (!step.any) try_one(*model, agent, at, Mutation::one_too_early, tally);
                }
            }
        }
    }
}

/// `most_implied`: in per cent of all.
void expect_caught(const std::vector<Case>& cases, double most_implied = 12.5) {
    Tally tally;
    mutate(cases, tally);
    static constexpr const char* kNames[] = {"waits removed", "waits for one less", "counts one short"};
    for (const auto& [mutation, count] : tally.of) {
        // Those that are implied are listed, each with the words by whose waits it is.
        const int bare = count.mutants - count.implied;
        std::printf("%s: %d, of which %d are implied by other waits; of %d others %d caught (%.1f %%)\n",
                    kNames[static_cast<int>(mutation)], count.mutants, count.implied, bare, count.caught,
                    100.0 * count.caught / bare);
        EXPECT_GE(100 * count.caught, 99 * (bare + static_cast<int>(tally.unexplained.size())));
        // Tiles that exchange heads in the kernel's own order wait for more than they need: a tenth of all.
        EXPECT_LE(100.0 * count.implied, most_implied * count.mutants);
    }
    for (const std::string& what : tally.unexplained) ADD_FAILURE() << "neither caught nor implied: " << what;
    EXPECT_FALSE(tally.of.empty());
}

/// Both ways of going through the orders, of each wait that is taken away.
TEST(Mutations, AreCaughtWithTheReductionWhereTheyAreWithout) {
    int compared = 0;
    for (const Case& one : plan_cases(2)) {
        Result<Model> model = record(one, 2);
        ASSERT_TRUE(model) << model.error().to_string();
        for (std::size_t agent = 0; agent < model->agents.size(); ++agent) {
            for (std::size_t at = 0; at < model->agents[agent].steps.size(); ++at) {
                Step& step = model->agents[agent].steps[at];
                if (!step.own || step.kind != Step::Kind::wait) continue;
                step.left_out = true;
                const Explored all = explore(*model, {.reduce = false, .most_states = 20'000});
                const Explored some = explore(*model);
                step.left_out = false;
                if (!all.complete) continue;
                EXPECT_EQ(all.violation.empty(), some.violation.empty()) << model->describe(agent, at);
                ++compared;
            }
        }
    }
    EXPECT_GT(compared, 500);
}

/// Which signals are counted, and how often in a call, all ranks must have alike [P6]: one that takes a counted signal for a
/// plain one, where it posts or where it waits, is caught.
TEST(Mutations, OfWhatIsDecidedBeforeAreCaught) {
    int posts = 0, waits = 0;
    for (const Case& one : plan_cases(2)) {
        const Result<Model> right = record(one);
        ASSERT_TRUE(right) << one.name << ": " << right.error().to_string();
        std::set<std::uint32_t> counted;
        for (const AgentStep& place : right->record) {
            const Step& step = right->at(place);
            if (step.kind == Step::Kind::wait && step.own && !step.any && right->monotonic[step.word] &&
                step.value > static_cast<std::uint32_t>(right->agents[place.first].call))
                counted.insert(step.word);
        }
        for (const std::uint32_t word : counted) {
            for (const auto kind : {Step::Kind::add, Step::Kind::wait}) {
                Model model = *right;
                int changed = 0;
                for (Agent& agent : model.agents) {
                    for (Step& step : agent.steps) {
                        if (step.word != word || step.kind != kind) continue;
                        if (kind == Step::Kind::add) step.kind = Step::Kind::store;
                        step.value = static_cast<std::uint32_t>(agent.call);
                        ++changed;
                    }
                }
                if (changed == 0) continue;
                ++(kind == Step::Kind::add ? posts : waits);
                EXPECT_NE(explore(model).violation, "")
                    << one.name << ": " << (kind == Step::Kind::add ? "posts to " : "waits for ")
                    << model.word_names[word];
            }
        }
    }
    std::printf("%d posts, %d waits\n", posts, waits);
    EXPECT_GT(posts, 3);
    EXPECT_GT(waits, 3);
}

TEST(Mutations, OfSmallPlansAreCaughtOrImplied) { expect_caught(plan_cases(2)); }
TEST(Mutations, OfOperatorsAreCaughtOrImplied) { expect_caught(operator_cases(2)); }
TEST(Mutations, OverNodesAreCaughtOrImplied) { expect_caught(node_cases(2, 1)); }
TEST(MutationsSweep, OverNodesAreCaughtOrImplied) {
    expect_caught(node_cases(2, 2));
    expect_caught(operator_node_cases(2, 2), 15);  // more of them are attention's
}
TEST(MutationsSweep, OfSmallPlansOfThreeRanksAreCaughtOrImplied) { expect_caught(plan_cases(3)); }
TEST(MutationsSweep, OfOperatorsOfThreeRanksAreCaughtOrImplied) { expect_caught(operator_cases(3)); }

}  // namespace
}  // namespace syncopate::explore

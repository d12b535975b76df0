// No order around a fault is wrong (fault_explorer.hpp): small schedules of every operator, backend and kind of guard, each
// wait of which gives up, and each rank of which stops. What the ranks must do for that is taken away in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "explore/cases.hpp"
#include "explore/fault_explorer.hpp"

namespace syncopate::explore {
namespace {

using AgentStep = std::pair<std::uint32_t, std::uint32_t>;
using Kind = Step::Kind;

constexpr int kCalls = 2;  // before the reset: a wait of lag 1 awaits the call before

/// Waits of call `call` that may give up.
std::vector<AgentStep> waits_of(const Model& model, int call) {
    std::vector<AgentStep> waits;
    for (const AgentStep& place : model.record) {
        if (model.can_fail(model.at(place)) && model.agents[place.first].call == call) waits.push_back(place);
    }
    return waits;
}

/// How far to look.
struct Extent {
    int first_call = kCalls;  ///< in which waits give up, to the last before the reset
    Looked looked{.most_states = 40'000};
    bool all = true;  ///< none may have more states than are looked at
};

void expect_right(const Model& model, const Extent& extent) {
    std::uint64_t states = 0, faults = 0, in_all_orders = 0;
    const auto look = [&](const Fault& fault, const std::string& what) {
        Looked looked = extent.looked;
        looked.seed = ++faults;
        const Explored found = explore_fault(model, fault, looked);
        EXPECT_EQ(found.violation, "") << model.name << ", " << what;
        EXPECT_TRUE(found.complete || !extent.all)
            << model.name << ", " << what << ": more than " << found.states << " states";
        states += found.states;
        in_all_orders += found.complete ? 1 : 0;
    };
    for (int call = extent.first_call; call <= kCalls; ++call) {
        const std::vector<AgentStep> waits = waits_of(model, call);
        EXPECT_FALSE(waits.empty()) << model.name;
        for (const AgentStep& wait : waits)
            look({.late = wait}, model.describe(wait.first, wait.second) + " gives up");
    }
    for (int rank = 0; rank < static_cast<int>(model.fault_words.size()); ++rank) {
        look({.stopped = rank}, "rank " + std::to_string(rank) + " stops");
        look({.leaves = rank}, "rank " + std::to_string(rank) + " goes on at once");
    }
    std::printf("%8llu states, %3llu faults, of %3llu all orders: %s\n",
                static_cast<unsigned long long>(states), static_cast<unsigned long long>(faults),
                static_cast<unsigned long long>(in_all_orders), model.name.c_str());
}

/// Resets and recoveries by turns.
void expect_right(const std::vector<Case>& cases, const Extent& extent = {}) {
    GoesOn how = GoesOn::recover;
    for (const Case& one : cases) {
        how = how == GoesOn::reset ? GoesOn::recover : GoesOn::reset;
        const Result<Model> model = record_with_faults(one, kCalls, how);
        ASSERT_TRUE(model) << model.error().to_string();
        expect_right(*model, extent);
    }
}

std::vector<Case> those(std::vector<Case> cases, const std::function<bool(std::string_view)>& which) {
    std::erase_if(cases, [&](const Case& one) { return !which(one.name); });
    return cases;
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

/// Those of which all orders can be gone through; others like them are left out.
bool ends(std::string_view name) {
    for (const char* part : {"in two", "from arrays", "in the kernel", "by ldst_dedicated"}) {
        if (has(name, part)) return false;
    }
    return !(has(name, "reduce of") && has(name, "copy_engine")) && !has(name, "scatter of 2 by copy_engine");
}
/// And soon.
bool ends_soon(std::string_view name) {
    if (has(name, "reduce") || has(name, "direct") || has(name, "ring")) return false;
    return ends(name) && (!has(name, "is made") || has(name, "on host") || has(name, "ldst_inline"));
}

/// Few of all orders, and such as are drawn.
Extent drawn(std::uint64_t states) {
    return {.looked = {.most_states = 50, .of_walks = states}, .all = false};
}

TEST(Faults, OfSmallPlansLeaveNothingWrong) { expect_right(those(plan_cases(2), ends_soon)); }
TEST(Faults, OfOtherPlansLeaveNothingWrongInOrdersThatAreDrawn) {
    const auto others = [](std::string_view name) {
        return !ends_soon(name) && !has(name, "from arrays") && !has(name, "ldst_dedicated");
    };
    expect_right(those(plan_cases(2), others), drawn(200));
}
TEST(Faults, OfOperatorsLeaveNothingWrongInOrdersThatAreDrawn) {
    expect_right(operator_cases(2), drawn(300));
}
TEST(Faults, OfThreeRanksLeaveNothingWrongInOrdersThatAreDrawn) {
    expect_right(
        those(plan_cases(3), [](std::string_view name) { return ends(name) && name.starts_with("push"); }),
        drawn(500));
}

bool on_host_by_copies(std::string_view name) { return has(name, "on host") && !has(name, "from arrays"); }
/// Whose ranks gather, and reduce: between nodes and within them.
bool few_over_nodes(std::string_view name) {
    return on_host_by_copies(name) && (name.starts_with("all-gather") || name.starts_with("reduce-scatter"));
}

TEST(Faults, OverNodesLeaveNothingWrong) {
    expect_right(those(node_cases(2, 1), few_over_nodes),
                 {.looked = {.most_states = 500, .of_walks = 40}, .all = false});
    expect_right(those(node_cases(2, 2), few_over_nodes),
                 {.looked = {.most_states = 20, .of_walks = 3}, .all = false});
}
TEST(FaultsSweep, OverNodesLeaveNothingWrong) {
    expect_right(those(node_cases(2, 1), on_host_by_copies),
                 {.looked = {.most_states = 1'000, .of_walks = 100}, .all = false});
    expect_right(those(node_cases(2, 2), on_host_by_copies), drawn(10));
    expect_right(operator_node_cases(2, 1), drawn(20));
}

struct Mutation {
    const char* name;
    std::function<void(Model&)> make;
    Fault fault{};
    double least = 1;  ///< of all waits: the share that must be noticed
};

/// A fault word of a rank that is not the agent's, or what tells a rank of another node.
bool tells_another(const Model& model, std::size_t agent, const Step& step) {
    if (step.kind == Kind::store && model.told[step.word] >= 0) return true;
    for (std::size_t rank = 0; rank < model.fault_words.size(); ++rank) {
        if (step.kind == Kind::store && step.word == model.fault_words[rank] &&
            model.agents[agent].rank != static_cast<int>(rank))
            return true;
    }
    return false;
}

void each_step(Model& model, const std::function<void(std::size_t agent, Step&)>& visit) {
    for (std::size_t agent = 0; agent < model.agents.size(); ++agent) {
        for (Step& step : model.agents[agent].steps) {
            visit(agent, step);
            for (Detour* detour : {&step.found_fault, &step.told_fault}) {
                for (Step& after : detour->steps) visit(agent, after);
            }
        }
    }
}

/// Waits of resets before their words are cleared, or behind that.
void leave_out_meetings(Model& model, bool before) {
    for (Agent& agent : model.agents) {
        if (agent.call != model.calls + 1) continue;
        bool cleared = false;
        for (Step& step : agent.steps) {
            cleared = cleared || step.kind == Kind::clear;
            if (step.kind == Kind::wait && cleared != before &&
                model.word_names[step.word].starts_with("word"))
                step.left_out = true;
        }
    }
}

/// Those of the agents' steps are done by threads for which nobody waits.
void do_beside(Model& model, const std::function<bool(const Agent&, const Step&)>& which) {
    const std::size_t count = model.agents.size();
    for (std::size_t agent = 0; agent < count; ++agent) {
        const auto word = static_cast<std::uint32_t>(model.num_words);
        Agent& of = model.agents[agent];
        Agent beside{.rank = of.rank,
                     .call = of.call,
                     .steps = {{.kind = Kind::wait, .word = word, .value = 1, .own = false}}};
        for (Step& step : of.steps) {
            if (!which(of, step)) continue;
            beside.steps.push_back(step);
            step.left_out = true;
            if (beside.steps.size() == 2)
                step = {.kind = Kind::store, .word = word, .value = 1, .own = false};
        }
        if (beside.steps.size() == 1) continue;
        ++model.num_words;
        model.word_names.emplace_back("start of a thread");
        model.monotonic.push_back(true);
        model.owners.push_back(-1);
        model.tells.push_back(-1);
        model.told.push_back(-1);
        model.agents.push_back(std::move(beside));
    }
}

/// A signal of another rank.
bool posts(const Model& model, const Agent& agent, const Step& step) {
    const auto is_anothers = [&](std::uint32_t word) {
        return model.owners[word] >= 0 && model.owners[word] != agent.rank;
    };
    if (step.kind == Kind::count) return std::ranges::any_of(step.posts, is_anothers);
    return (step.kind == Kind::store || step.kind == Kind::add) && is_anothers(step.word);
}

const std::vector<Mutation>& mutations() {
    static const std::vector<Mutation> all{
        {"nobody is told of a fault",
         [](Model& model) {
             each_step(model, [&](std::size_t agent, Step& step) {
                 step.left_out = step.left_out || tells_another(model, agent, step);
             });
         }},
        {"nobody is told of a fault, and nobody resets",
         [](Model& model) {
             each_step(model, [&](std::size_t agent, Step& step) {
                 step.left_out = step.left_out || tells_another(model, agent, step);
             });
         },
         {.goes_on = false},
         0.01},
        {"signals are not cleared",
         [](Model& model) {
             each_step(model,
                       [](std::size_t, Step& step) { step.any = step.any || step.kind == Kind::clear; });
         }},
        {"the fault is not cleared",
         [](Model& model) {
             each_step(model, [](std::size_t, Step& step) {
                 step.left_out = step.left_out || step.kind == Kind::clear;
             });
         }},
        {"a call that fails does not wait for its threads",
         [](Model& model) {
             each_step(model, [&](std::size_t agent, Step& step) {
                 const bool joins = step.kind == Kind::wait && !step.own &&
                                    model.agents[agent].call <= model.calls &&
                                    model.word_names[step.word].starts_with("end of");
                 const bool is_first = &step == &model.agents[agent].steps.front();
                 step.left_out = step.left_out || (joins && !is_first);
             });
         }},
        {"words are cleared before all have come", [](Model& model) { leave_out_meetings(model, true); }},
        {"calls begin before all have cleared", [](Model& model) { leave_out_meetings(model, false); }},
        {"nobody waits for who posts",
         [](Model& model) {
             do_beside(model, [&](const Agent& agent, const Step& step) {
                 return agent.call <= model.calls && posts(model, agent, step);
             });
         }},
        {"nobody waits for who tells of a fault",
         [](Model& model) {
             do_beside(model, [&](const Agent& agent, const Step& step) {
                 return agent.call == model.calls + 1 && posts(model, agent, step);
             });
         }},
    };
    return all;
}

/// What ranks of different nodes do for each other.
const std::vector<Mutation>& mutations_over_nodes() {
    const auto leave_out = [](Model& model, const auto& which) {
        each_step(model, [&](std::size_t, Step& step) {
            step.left_out = step.left_out || (step.kind == Kind::store && which(step));
        });
    };
    static const std::vector<Mutation> all{
        {"nobody tells another node of a fault",
         [=](Model& model) {
             leave_out(model,
                       [&](const Step& step) { return model.told[step.word] >= 0 && step.value != 0; });
         },
         {},
         0.6},  // the other rank may have ended its calls
        {"messages of before the fault stay",
         [=](Model& model) {
             leave_out(model, [&](const Step& step) {
                 return model.is_of_channel(step.word) && model.told[step.word] < 0 && step.value == 0;
             });
         }},
    };
    return all;
}

/// Of each case and mutation, the waits that give up by which it is noticed.
void expect_noticed(const std::vector<Case>& cases, const std::vector<Mutation>& mutations,
                    const Looked& looked = {}) {
    GoesOn how = GoesOn::recover;
    for (const Case& one : cases) {
        for (const Mutation& mutation : mutations) {
            how = how == GoesOn::reset ? GoesOn::recover : GoesOn::reset;
            Result<Model> model = record_with_faults(one, kCalls, how);
            ASSERT_TRUE(model) << model.error().to_string();
            mutation.make(*model);
            int caught = 0, waits = 0;
            for (const AgentStep& wait : waits_of(*model, kCalls)) {
                Fault fault = mutation.fault;
                fault.late = wait;
                ++waits;
                caught += explore_fault(*model, fault, looked).violation.empty() ? 0 : 1;
            }
            EXPECT_GT(waits, 0) << one.name;
            EXPECT_GE(caught, mutation.least * waits)
                << one.name << ": " << mutation.name << ", of " << waits;
            std::printf("%d of %d: %s, %s\n", caught, waits, one.name.c_str(), mutation.name);
        }
    }
}

TEST(Faults, AreNoticedWhereRanksDoNotDoWhatTheyMust) {
    const std::vector<Case> few = those(plan_cases(2), [](std::string_view name) {
        return ends(name) && (name.starts_with("push along") || name.starts_with("fetched") ||
                              name.starts_with("direct all_gather") || has(name, "made of 2 by ldst_inline"));
    });
    EXPECT_GE(few.size(), 6U);
    expect_noticed(few, mutations());
}
TEST(Faults, OverNodesAreNoticedWhereRanksDoNotDoWhatTheyMust) {
    const std::vector<Case> few = those(node_cases(2, 1), few_over_nodes);
    EXPECT_GE(few.size(), 2U);
    expect_noticed(few, mutations_over_nodes(), {.most_states = 1'000, .of_walks = 30});
}

}  // namespace
}  // namespace syncopate::explore

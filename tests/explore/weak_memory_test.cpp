// The protocol's pairs of publish and observe (docs/protocol.md) on weak memory: right in every execution, and with any
// order, scope or fence weaker than it is, wrong in some.
#include "explore/weak_memory.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace syncopate::explore {
namespace {

using Kind = MemoryOp::Kind;

constexpr int kData = 0, kMore = 1, kSignal = 2, kBack = 3, kCounter = 4, kOther = 5;

MemoryOp write(int place, int value = 1) { return {.kind = Kind::write, .place = place, .value = value}; }
MemoryOp read(int place, int into = 0) { return {.kind = Kind::read, .place = place, .into = into}; }
MemoryOp tma_read(int place, int into = 0) { return {.kind = Kind::tma_read, .place = place, .into = into}; }
MemoryOp post(int place, int value = 1) {
    return {.kind = Kind::write, .place = place, .value = value, .order = Order::release};
}
MemoryOp wait(int place, int value = 1) {
    return {.kind = Kind::await, .place = place, .value = value, .order = Order::acquire, .into = 3};
}
MemoryOp fence() { return {.kind = Kind::fence}; }
MemoryOp proxy_fence() { return {.kind = Kind::proxy_fence}; }
MemoryOp add(int place, Order order, Scope scope) {
    return {.kind = Kind::add, .place = place, .order = order, .scope = scope, .into = 1};
}
MemoryOp when_last(MemoryOp op, int before) {
    op.into = 1;
    op.only_if = before;
    return op;
}

std::vector<Litmus> pairs() {
    const auto first_is = [](std::size_t thread, int value) {
        return [=](const Registers& registers) { return registers[thread][0] == value; };
    };
    const auto two_are_new = [](std::size_t thread) {
        return [=](const Registers& registers) {
            return registers[thread][0] == 1 && registers[thread][2] == 1;
        };
    };
    std::vector<Litmus> made;
    // Arrived, made, mirror: data, then the word.
    made.push_back({"P3, P17, P19: a post, and a wait on another rank",
                    {{0, 0, {write(kData), post(kSignal)}}, {1, 0, {wait(kSignal), read(kData)}}},
                    first_is(1, 1)});
    made.push_back({"P17: a fence, and relaxed stores to two ranks",
                    {{0, 0, {write(kData), fence(), write(kSignal), write(kBack)}},
                     {1, 0, {wait(kSignal), read(kData)}},
                     {2, 0, {wait(kBack), read(kData)}}},
                    [](const Registers& registers) { return registers[1][0] == 1 && registers[2][0] == 1; }});
    made.push_back({"P19: relaxed polls, then a fence",
                    {{0, 0, {write(kData), post(kSignal)}},
                     {1, 0, {{.kind = Kind::await, .place = kSignal, .into = 3}, fence(), read(kData)}}},
                    first_is(1, 1)});
    made.push_back({"P9, P31: the words of a fault, then the mirror",
                    {{0, 0, {write(kData), write(kMore), post(kSignal)}},
                     {0, 9, {wait(kSignal), read(kData), read(kMore, 2)}}},
                    two_are_new(1)});
    made.back().threads[1].rank = 7;  // the host
    // What is read must have been read before it is overwritten.
    made.push_back({"P10, P12: read, consumed, overwritten",
                    {{1, 0, {read(kData), post(kBack)}}, {0, 0, {wait(kBack), write(kData, 2)}}},
                    first_is(0, 0)});
    made.push_back({"P4, P10: two calls of one place",
                    {{0, 0, {write(kData), post(kSignal), wait(kBack), write(kData, 2), post(kSignal, 2)}},
                     {1, 0, {wait(kSignal), read(kData), post(kBack), wait(kSignal, 2), read(kData, 2)}}},
                    [](const Registers& registers) { return registers[1][0] == 1 && registers[1][2] == 2; }});
    made.push_back({"P11: ready, then a pull",
                    {{0, 0, {write(kData), post(kSignal)}},
                     {1, 0, {wait(kSignal), read(kData), post(kBack)}},
                     {0, 0, {wait(kBack), write(kData, 2)}}},
                    first_is(1, 1)});
    made.push_back({"P16: who stores for the call after next has ended the next",
                    {{0, 0, {read(kData), post(kSignal)}},
                     {1, 0, {wait(kSignal), post(kBack)}},
                     {2, 0, {wait(kBack), write(kData, 2)}}},
                    first_is(0, 0)});
    made.push_back({"P13: a wait covers what came before what it awaits, on a third rank",
                    {{0, 0, {write(kData), post(kSignal)}},
                     {1, 0, {wait(kSignal), write(kMore), post(kBack)}},
                     {2, 0, {wait(kBack), read(kData), read(kMore, 2)}}},
                    two_are_new(2)});
    // Several who store, one who posts.
    made.push_back(
        {"P7, P17: programs count at GPU scope, the last posts",
         {{0, 0, {write(kData), add(kCounter, Order::both, Scope::gpu), when_last(post(kSignal), 1)}},
          {0, 1, {write(kMore), add(kCounter, Order::both, Scope::gpu), when_last(post(kSignal), 1)}},
          {1, 0, {wait(kSignal), read(kData), read(kMore, 2)}}},
         two_are_new(2)});
    made.push_back({"P5: ranks add to one word",
                    {{0, 0, {write(kData), add(kSignal, Order::release, Scope::system)}},
                     {1, 0, {write(kMore), add(kSignal, Order::release, Scope::system)}},
                     {2, 0, {wait(kSignal, 2), read(kData), read(kMore, 2)}}},
                    two_are_new(2)});
    made.push_back(
        {"P15: programs say that they have loaded, the last tells the rank that overwrites",
         {{1, 0, {read(kData), add(kCounter, Order::both, Scope::gpu), when_last(post(kBack), 1)}},
          {1, 1, {read(kData, 2), add(kCounter, Order::both, Scope::gpu), when_last(post(kBack), 1)}},
          {0, 0, {wait(kBack), write(kData, 2)}}},
         [](const Registers& registers) { return registers[0][0] == 0 && registers[1][2] == 0; }});
    made.push_back({"P22: tiles add to a gate, and a stream goes on",
                    {{0, 0, {write(kData), add(kCounter, Order::release, Scope::gpu)}},
                     {0, 1, {write(kMore), add(kCounter, Order::release, Scope::gpu)}},
                     {0, 9, {wait(kCounter, 2), read(kData), read(kMore, 2)}}},
                    two_are_new(2)});
    made.back().threads[2].ops[0].scope = Scope::gpu;
    made.push_back(
        {"P30: who leaves a call takes its number back, then opens the gate of a copy that posts it",
         {{0, 0, {write(kData), post(kOther)}},
          {0, 0, {wait(kOther), add(kCounter, Order::release, Scope::gpu)}},
          {0, 9, {wait(kCounter), read(kData)}}},
         first_is(2, 1)});
    made.back().threads[0].ops[1].scope = made.back().threads[1].ops[0].scope = Scope::block;
    made.back().threads[2].ops[0].scope = Scope::gpu;
    made.push_back({"P29: the words of a fault, the fault, and who tells them to the host",
                    {{0, 0, {write(kData), fence(), write(kSignal)}},
                     {0, 1, {wait(kSignal), read(kData), write(kMore), post(kBack)}},
                     {7, 9, {wait(kBack), read(kMore)}}},
                    [](const Registers& registers) { return registers[1][0] == 1 && registers[2][0] == 1; }});
    made.back().threads[0].ops[1].scope = made.back().threads[1].ops[0].scope = Scope::gpu;
    made.push_back({"P19: a warp polls, and a barrier hands on what it acquired",
                    {{0, 0, {write(kData), post(kSignal)}},
                     {1, 0, {wait(kSignal), post(kOther)}},
                     {1, 0, {wait(kOther), read(kData)}}},
                    first_is(2, 1)});
    made.back().threads[1].ops[1].scope = made.back().threads[2].ops[0].scope = Scope::block;
    made.push_back({"P23: a relay waits for a rank, and opens a gate of its own",
                    {{0, 0, {write(kData), post(kSignal)}},
                     {1, 0, {wait(kSignal), post(kOther)}},
                     {1, 9, {wait(kOther), read(kData)}}},
                    first_is(2, 1)});
    made.back().threads[1].ops[1].scope = made.back().threads[2].ops[0].scope = Scope::gpu;
    // Other proxies.
    made.push_back(
        {"P20: a proxy fence between a wait and a load by TMA",
         {{0, 0, {write(kData), post(kSignal)}}, {1, 0, {wait(kSignal), proxy_fence(), tma_read(kData)}}},
         first_is(1, 1)});
    made.push_back(
        {"P18: a bulk store is written before it is posted",
         {{0, 0, {{.kind = Kind::bulk_write, .place = kData}, {.kind = Kind::bulk_wait}, post(kSignal)}},
          {1, 0, {wait(kSignal), read(kData)}}},
         first_is(1, 1)});
    return made;
}

std::string name_of(std::size_t thread, std::size_t at, const char* weaker) {
    return std::string(weaker) + " in op " + std::to_string(at) + " of thread " + std::to_string(thread);
}

/// Each op weaker in each way in which it can be.
std::vector<std::pair<std::string, MemoryOp>> weaker(const MemoryOp& op, std::size_t thread, std::size_t at) {
    std::vector<std::pair<std::string, MemoryOp>> made;
    const auto add = [&](const char* name, MemoryOp other) {
        made.emplace_back(name_of(thread, at, name), other);
    };
    MemoryOp other = op;
    if (op.order == Order::both) {
        other.order = Order::acquire;
        add("no release", other);
        other.order = Order::release;
        add("no acquire", other);
    } else if (op.order != Order::relaxed) {
        other.order = Order::relaxed;
        add("relaxed", other);
    }
    other = op;
    if (op.kind == Kind::fence || op.kind == Kind::proxy_fence || op.kind == Kind::bulk_wait) {
        other.kind = Kind::bulk_wait;
        other.value = 0;
        add(op.kind == Kind::bulk_wait ? "only read" : "no fence", other);
    }
    other = op;
    if ((op.order != Order::relaxed || op.kind == Kind::fence) && op.scope != Scope::block) {
        other.scope = static_cast<Scope>(static_cast<int>(op.scope) - 1);
        add("a smaller scope", other);
    }
    return made;
}

TEST(WeakMemory, KeepsThePairsOfTheProtocolInEveryExecution) {
    for (const Litmus& pair : pairs()) {
        const LitmusResult found = run(pair);
        EXPECT_TRUE(found.right) << pair.name;
        EXPECT_TRUE(found.ends) << pair.name;
        std::printf("%8llu states: %s\n", static_cast<unsigned long long>(found.states), pair.name.c_str());
    }
}

TEST(WeakMemory, BreaksEachPairWhoseOrderIsWeaker) {
    int mutants = 0;
    for (const Litmus& pair : pairs()) {
        for (std::size_t thread = 0; thread < pair.threads.size(); ++thread) {
            for (std::size_t at = 0; at < pair.threads[thread].ops.size(); ++at) {
                for (const auto& [name, op] : weaker(pair.threads[thread].ops[at], thread, at)) {
                    Litmus other = pair;
                    other.threads[thread].ops[at] = op;
                    EXPECT_FALSE(run(other).right) << pair.name << ": " << name << " is not noticed";
                    ++mutants;
                }
            }
        }
    }
    std::printf("%d weaker orders\n", mutants);
}

}  // namespace
}  // namespace syncopate::explore

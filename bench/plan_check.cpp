// How long plan::check takes as plans grow: kinds that people and compilers write, and kinds made to be hard.
//
//   cmake --preset release -DSYNCOPATE_BENCHMARKS=ON && cmake --build build --target bench_plan_check
//   build/bin/bench_plan_check --benchmark_out=FILE.json
//
// The argument of each is the number of ops asked for; "ops" what it came to. Each reports ops/s, the number
// of findings (0 where the plan is right), and the peak of the process's memory so far. Traversal is the
// yardstick: it looks at the boxes of each op once, in the order in which check takes them, so that what it
// grows by beyond the number of ops is what caches and page tables cost.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace {

using namespace syncopate::plan;

Plan blank(std::int32_t ranks, std::int64_t rows) {
    Plan plan;
    plan.mesh = {{{"gpu", ranks}}};
    plan.tensors = {{"A", {rows, 64}, DType::bf16}, {"S", {rows, 64}, DType::bf16}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    return plan;
}

Chunk rows(std::int64_t begin, std::int64_t end, std::int32_t tensor = 0) {
    return {tensor, {{begin, end}, {0, 64}}};
}

Op move(OpKind kind, std::int32_t peer, Chunk src, Chunk dst, std::vector<OpRef> after = {},
        Reduce reduce = Reduce::none) {
    Op op;
    op.kind = kind;
    op.peer = peer;
    op.src = std::move(src);
    op.dst = std::move(dst);
    op.after = std::move(after);
    op.reduce = reduce;
    return op;
}

std::int32_t ranks_for(std::int64_t ops, double ops_per_pair) {
    return static_cast<std::int32_t>(
        std::clamp(std::sqrt(static_cast<double>(ops) / ops_per_pair), 2.0, 1024.0));
}

Plan direct_all_gather(std::int64_t ops) {
    const std::int32_t ranks = ranks_for(ops, 1);
    return *all_gather({{{"gpu", ranks}}}, {"A", {ranks, 64}, DType::bf16});
}

/// Nodes of 16 ranks.
Plan hierarchical_all_gather(std::int64_t ops) {
    const std::int32_t nodes = std::max(2, ranks_for(ops, 1) / 16);
    return *all_gather({{{"node", nodes}, {"gpu", 16}}}, {"A", {nodes * 16, 64}, DType::bf16},
                       {.algorithm = Algorithm::hierarchical});
}

Plan two_shot_all_reduce(std::int64_t ops) {
    const std::int32_t ranks = ranks_for(ops, 3);  // to staging, into the sum, to all
    return *all_reduce({{{"gpu", ranks}}}, {"A", {ranks, 64}, DType::bf16});
}

Plan tree_broadcast(std::int64_t ops) {
    const std::int32_t ranks = ranks_for(ops, 1);
    return *broadcast({{{"gpu", ranks}}}, {"A", {ranks, 64}, DType::bf16},
                      {.split = ranks, .algorithm = Algorithm::tree});
}

Plan ring_all_gather(std::int64_t ops) {
    const std::int32_t ranks = ranks_for(ops, 1);
    Plan plan = blank(ranks, ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        plan.initial.push_back({rank, rows(rank, rank + 1)});
        plan.final.push_back({rank, rows(0, ranks)});
        for (std::int32_t step = 0; step + 1 < ranks; ++step) {
            const std::int32_t row = (rank - step + ranks) % ranks;
            std::vector<OpRef> after;
            if (step > 0) after = {{(rank + ranks - 1) % ranks, step - 1}};
            plan.ranks[static_cast<std::size_t>(rank)].push_back(
                move(OpKind::push, (rank + 1) % ranks, rows(row, row + 1), rows(row, row + 1), after));
        }
    }
    return plan;
}

/// Reduce-scatter and all-gather by a ring; with `in_order`, each rank also does its ops one after another.
Plan ring_all_reduce(std::int64_t ops, bool in_order) {
    const std::int32_t ranks = ranks_for(ops, 2);
    Plan plan = blank(ranks, ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        Holding mine{rank, rows(0, ranks)};
        mine.partial = true;
        plan.produced.push_back(mine);
        Holding wanted{rank, rows(0, ranks)};
        wanted.of_all = true;
        plan.final.push_back(wanted);
        for (std::int32_t step = 0; step < 2 * (ranks - 1); ++step) {
            const std::int32_t row = (rank - 1 - step + 3 * ranks) % ranks;
            std::vector<OpRef> after;
            if (step > 0) after = {{(rank + ranks - 1) % ranks, step - 1}};
            if (step > 0 && in_order) after.push_back({rank, step - 1});
            plan.ranks[static_cast<std::size_t>(rank)].push_back(
                move(OpKind::push, (rank + 1) % ranks, rows(row, row + 1), rows(row, row + 1), after,
                     step + 1 < ranks ? Reduce::sum : Reduce::none));
        }
    }
    return plan;
}

/// Thread blocks as other compilers have them: on each of 64 ranks 16 workers, each a sequence; a chunk goes
/// to the next rank's slot, and from there into place once it has come; a slot is free again after that.
Plan slots_and_workers(std::int64_t ops) {
    constexpr std::int32_t kRanks = 64;
    constexpr std::int32_t kWorkers = 16;
    const auto steps = static_cast<std::int32_t>(std::max<std::int64_t>(1, ops / (2 * kRanks * kWorkers)));
    Plan plan = blank(kRanks, static_cast<std::int64_t>(kRanks) * kWorkers * steps);
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        const std::int64_t first = static_cast<std::int64_t>(rank) * kWorkers * steps;
        plan.initial.push_back({rank, rows(first, first + static_cast<std::int64_t>(kWorkers) * steps)});
        const std::int32_t next = (rank + 1) % kRanks;
        plan.final.push_back({next, rows(first, first + static_cast<std::int64_t>(kWorkers) * steps)});
    }
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        const std::int32_t next = (rank + 1) % kRanks;
        const std::int32_t before = (rank + kRanks - 1) % kRanks;
        for (std::int32_t step = 0; step < steps; ++step) {
            for (std::int32_t worker = 0; worker < kWorkers; ++worker) {
                const std::int64_t row = (static_cast<std::int64_t>(rank) * kWorkers + worker) * steps + step;
                const std::int64_t come =
                    (static_cast<std::int64_t>(before) * kWorkers + worker) * steps + step;
                const std::int32_t send = 2 * (step * kWorkers + worker);
                std::vector<OpRef> after_send;
                if (step > 0) after_send = {{rank, send + 1 - 2 * kWorkers}, {next, send + 1 - 2 * kWorkers}};
                auto& list = plan.ranks[static_cast<std::size_t>(rank)];
                list.push_back(
                    move(OpKind::push, next, rows(row, row + 1), rows(worker, worker + 1, 1), after_send));
                list.push_back(move(OpKind::local, -1, rows(worker, worker + 1, 1), rows(come, come + 1),
                                    {{before, send}, {rank, send}}));
            }
        }
    }
    return plan;
}

/// Half of the ops read, one waits for all of them, and the others, after it, write over what was read.
Plan barrier(std::int64_t ops) {
    Plan plan = blank(2, ops);
    plan.initial = {{0, rows(0, ops)}, {1, rows(0, ops)}};
    auto& list = plan.ranks[0];
    std::vector<OpRef> all;
    for (std::int64_t i = 0; i < ops / 2; ++i) {
        list.push_back(move(OpKind::push, 1, rows(i, i + 1), rows(i, i + 1, 1)));
        all.push_back({0, static_cast<std::int32_t>(i)});
    }
    plan.ranks[1].push_back(move(OpKind::local, -1, rows(ops - 1, ops), rows(ops - 1, ops, 1), all));
    for (std::int64_t i = 0; i < ops / 2; ++i)
        plan.ranks[1].push_back(move(OpKind::push, 0, rows(i, i + 1), rows(i, i + 1), {{1, 0}}));
    plan.final = {{0, rows(0, ops)}};
    return plan;
}

/// Every op reads the whole of one box; one waits for all of them; then each writes its row of it.
Plan whole_then_rows(std::int64_t ops) {
    Plan plan = barrier(ops);
    for (std::int64_t i = 0; i < ops / 2; ++i) {
        Op& op = plan.ranks[0][static_cast<std::size_t>(i)];
        op.src = rows(0, ops / 2);
        op.dst = rows(0, ops / 2, 1);
        op.reduce = Reduce::max;
    }
    plan.initial.push_back({1, rows(0, ops / 2, 1)});
    return plan;
}

/// One place, written and read in turn by all.
Plan one_place(std::int64_t ops) {
    Plan plan = blank(2, 2);
    plan.initial = {{0, rows(0, 1)}};
    plan.final = {{1, rows(0, 1)}};
    for (std::int64_t i = 0; i < ops; ++i) {
        std::vector<OpRef> after;
        if (i > 0) after = {{0, static_cast<std::int32_t>(i - 1)}};
        plan.ranks[0].push_back(i % 2 == 0 ? move(OpKind::push, 1, rows(0, 1), rows(0, 1), after)
                                           : move(OpKind::pull, 1, rows(0, 1), rows(0, 1), after));
    }
    return plan;
}

/// All write one box, and none waits.
Plan all_at_once(std::int64_t ops) {
    Plan plan = one_place(ops);
    for (Op& op : plan.ranks[0]) op.after.clear();
    return plan;
}

/// Boxes of any size at any place, each op after a few earlier ones: wrong in every way, and hard to see.
Plan tangle(std::int64_t ops) {
    std::mt19937_64 random(1);
    Plan plan = blank(4, 4096);
    const auto below = [&](std::int64_t bound) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
    };
    for (std::int32_t rank = 0; rank < 4; ++rank) plan.initial.push_back({rank, rows(0, 4096)});
    std::vector<OpRef> made;
    for (std::int64_t i = 0; i < ops; ++i) {
        const auto owner = static_cast<std::int32_t>(below(4));
        const std::int64_t size = 1 + below(2000);
        const std::int64_t from = below(4096 - size);
        const std::int64_t to = below(4096 - size);
        std::vector<OpRef> after;
        for (int n = 0; n < 3 && !made.empty(); ++n)
            after.push_back(made[static_cast<std::size_t>(below(static_cast<std::int64_t>(made.size())))]);
        std::sort(after.begin(), after.end());
        after.erase(std::unique(after.begin(), after.end()), after.end());
        auto& list = plan.ranks[static_cast<std::size_t>(owner)];
        made.push_back({owner, static_cast<std::int32_t>(list.size())});
        list.push_back(move(OpKind::push, static_cast<std::int32_t>((owner + 1 + below(3)) % 4),
                            rows(from, from + size), rows(to, to + size), after));
    }
    return plan;
}

void measure(benchmark::State& state, const Plan& plan) {
    std::size_t ops = 0;
    for (const auto& list : plan.ranks) ops += list.size();
    std::size_t findings = 0;
    for ([[maybe_unused]] auto turn : state) findings = check(plan).size();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    state.counters["ranks"] = static_cast<double>(plan.ranks.size());
    state.counters["ops"] = static_cast<double>(ops);
    state.counters["findings"] = static_cast<double>(findings);
    state.counters["peak_GB"] = static_cast<double>(usage.ru_maxrss) / (1 << 20);
    state.counters["ops/s"] =
        benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate);
}

// One run each: a plan of a million ops takes seconds, and growth shows across sizes.
#define PLAN_BENCHMARK(name, plan)                               \
    void name(benchmark::State& state) { measure(state, plan); } \
    BENCHMARK(name)->Arg(1 << 16)->Arg(1 << 18)->Arg(1 << 20)->Iterations(1)->Unit(benchmark::kMillisecond)

PLAN_BENCHMARK(DirectAllGather, direct_all_gather(state.range(0)));
PLAN_BENCHMARK(HierarchicalAllGather, hierarchical_all_gather(state.range(0)));
PLAN_BENCHMARK(TwoShotAllReduce, two_shot_all_reduce(state.range(0)));
PLAN_BENCHMARK(TreeBroadcast, tree_broadcast(state.range(0)));
PLAN_BENCHMARK(RingAllGather, ring_all_gather(state.range(0)));
PLAN_BENCHMARK(RingAllReduce, ring_all_reduce(state.range(0), false));
PLAN_BENCHMARK(RingAllReduceInOrder, ring_all_reduce(state.range(0), true));
PLAN_BENCHMARK(SlotsAndWorkers, slots_and_workers(state.range(0)));
PLAN_BENCHMARK(Barrier, barrier(state.range(0)));
PLAN_BENCHMARK(WholeThenRows, whole_then_rows(state.range(0)));
PLAN_BENCHMARK(OnePlace, one_place(state.range(0)));
PLAN_BENCHMARK(AllAtOnce, all_at_once(state.range(0)));
PLAN_BENCHMARK(Tangle, tangle(state.range(0)));

/// The yardstick: every op's boxes, step by step through all ranks.
void Traversal(benchmark::State& state) {
    const Plan plan = ring_all_gather(state.range(0));
    std::size_t ops = 0;
    for (const auto& list : plan.ranks) ops += list.size();
    std::int64_t elements = 0;
    for ([[maybe_unused]] auto turn : state) {
        for (std::size_t step = 0; step < plan.ranks.front().size(); ++step) {
            for (const auto& list : plan.ranks) {
                elements += num_elements(list[step].src.region) + num_elements(list[step].dst.region);
            }
        }
        benchmark::DoNotOptimize(elements);
    }
    state.counters["ops"] = static_cast<double>(ops);
    state.counters["ops/s"] =
        benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Traversal)->Arg(1 << 16)->Arg(1 << 18)->Arg(1 << 20)->Iterations(1)->Unit(benchmark::kMillisecond);

/// From text: what `plan check FILE` does.
void RingAllGatherFromJson(benchmark::State& state) {
    const std::string text = to_json(ring_all_gather(state.range(0)));
    std::size_t findings = 0;
    for ([[maybe_unused]] auto turn : state) findings = check(*from_json(text)).size();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    state.counters["findings"] = static_cast<double>(findings);
    state.counters["MB_of_text"] = static_cast<double>(text.size()) / 1e6;
    state.counters["peak_GB"] = static_cast<double>(usage.ru_maxrss) / (1 << 20);
}
BENCHMARK(RingAllGatherFromJson)
    ->Arg(1 << 16)
    ->Arg(1 << 18)
    ->Arg(1 << 20)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace

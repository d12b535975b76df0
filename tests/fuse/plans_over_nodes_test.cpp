// Plans of many kinds between nodes, as nobody's template makes them: fused, played whatever the timing, and held against the plan's
// own executor. Of each also the part of every node.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fuse/part_of_whole.hpp"
#include "fuse/sample.hpp"
#include "fuse/simulator.hpp"
#include "ingest/msccl/msccl_text.hpp"
#include "plan/executor.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ingest/ingest.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/builder.hpp"

namespace syncopate::fuse {
namespace {

using plan::Builder;
using plan::Chunk;
using plan::Interval;
using plan::OpRef;
using plan::Plan;
using plan::RankChunk;
using plan::Reduce;

constexpr std::int64_t kColumns = 4;
constexpr plan::DType kType = plan::DType::fp32;

using Random = std::mt19937_64;

std::int32_t below(Random& random, std::int32_t bound) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(bound));
}

/// A plan in the making over nodes that have as many places each.
struct Draft {
    Draft(std::int32_t nodes, std::int32_t places, bool pull = false)
        : mesh{{{"node", nodes}, {"gpu", places}}, "node"}, builder(mesh, pull), ranks(nodes * places) {}

    std::int32_t tensor(const char* name, std::int64_t rows) {
        return builder.tensor({name, {rows, kColumns}, kType});
    }
    static Chunk rows(std::int32_t tensor, Interval of) { return {tensor, {of, {0, kColumns}}}; }
    Plan take() {
        auto made = builder.take();
        EXPECT_TRUE(made) << made.error().to_string();
        return std::move(made).value();
    }

    plan::Mesh mesh;
    Builder builder;
    std::int32_t ranks;
};

/// A permutation of the ranks.
std::vector<std::int32_t> shuffled(Random& random, std::int32_t ranks) {
    std::vector<std::int32_t> order(at(ranks));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    return order;
}

/// Each rank's shard goes round all ranks in `order`.
void add_ring(Draft& draft, std::int32_t tensor, const std::vector<Interval>& shards,
              const std::vector<std::int32_t>& order) {
    const auto n = static_cast<std::int32_t>(order.size());
    for (std::int32_t step = 0; step + 1 < n; ++step) {
        for (std::int32_t place = 0; place < n; ++place) {
            const Chunk chunk = Draft::rows(tensor, shards[at(order[at((place - step + n) % n)])]);
            if (is_empty(chunk.region)) continue;
            draft.builder.transfer({order[at(place)], chunk}, {order[at((place + 1) % n)], chunk});
        }
    }
}

/// All ranks have a shard, and want all.
std::vector<Interval> gather(Draft& draft, std::int32_t tensor, std::int64_t rows) {
    std::vector<Interval> shards = plan::split_evenly(0, rows, draft.ranks);
    for (std::int32_t rank = 0; rank < draft.ranks; ++rank) {
        if (!shards[at(rank)].empty()) draft.builder.initial({rank, Draft::rows(tensor, shards[at(rank)])});
        draft.builder.final({rank, Draft::rows(tensor, {0, rows})});
    }
    return shards;
}

struct Shape {
    std::int32_t nodes = 1, places = 1;
};

/// Makes a plan whose tensor A all ranks have whole at the end, or that moves other tensors.
struct Kind {
    const char* name;
    std::function<Plan(Random&, Shape)> make;
    bool gathers = true;  ///< A is there for a kernel to read
};

Plan ring(Random& random, Shape shape, bool interleaved, bool pull, std::int64_t rows) {
    Draft draft(shape.nodes, shape.places, pull);
    const std::int32_t a = draft.tensor("A", rows);
    const std::vector<Interval> shards = gather(draft, a, rows);
    std::vector<std::int32_t> order = shuffled(random, draft.ranks);
    if (interleaved) {  // each step goes to another node, where there is one
        std::ranges::sort(order, {}, [&](std::int32_t rank) {
            return std::pair(rank % shape.places, rank / shape.places);
        });
    }
    add_ring(draft, a, shards, order);
    return draft.take();
}

/// The rows of each shard go round in two rings at once, each its own way.
Plan two_rings(Random& random, Shape shape) {
    Draft draft(shape.nodes, shape.places);
    const std::int64_t rows = 2 * draft.ranks;
    const std::int32_t a = draft.tensor("A", rows);
    const std::vector<Interval> shards = gather(draft, a, rows);
    std::vector<Interval> first, second;
    for (const Interval shard : shards) {
        first.push_back({shard.begin, shard.begin + 1});
        second.push_back({shard.begin + 1, shard.end});
    }
    std::vector<std::int32_t> order = shuffled(random, draft.ranks);
    add_ring(draft, a, first, order);
    std::ranges::reverse(order);
    add_ring(draft, a, second, order);
    return draft.take();
}

/// Each chunk comes to all ranks by a tree of its own, which crosses nodes as it likes, and comes back.
Plan trees(Random& random, Shape shape, bool pull, std::int64_t rows) {
    Draft draft(shape.nodes, shape.places, pull);
    const std::int32_t a = draft.tensor("A", rows);
    const std::vector<Interval> shards = gather(draft, a, rows);
    std::vector<std::vector<std::int32_t>> have;
    for (std::int32_t rank = 0; rank < draft.ranks; ++rank) have.push_back({rank});
    std::vector<std::vector<std::int32_t>> want;
    for (std::int32_t rank = 0; rank < draft.ranks; ++rank) {
        want.push_back(shuffled(random, draft.ranks));
        std::erase(want.back(), rank);
    }
    for (std::int32_t step = 0; step + 1 < draft.ranks; ++step) {
        for (const std::int32_t shard : shuffled(random, draft.ranks)) {
            const std::int32_t to = want[at(shard)][at(step)];
            auto& from = have[at(shard)];
            const Chunk chunk = Draft::rows(a, shards[at(shard)]);
            const std::int32_t by = from[at(below(random, static_cast<std::int32_t>(from.size())))];
            if (!is_empty(chunk.region)) draft.builder.transfer({by, chunk}, {to, chunk});
            from.push_back(to);
        }
    }
    return draft.take();
}

/// A chunk of rank 0 goes from node to node and back, and only its last rank wants it: through memory of another tensor.
Plan there_and_back(Random& random, Shape shape) {
    Draft draft(shape.nodes, shape.places);
    constexpr std::int32_t kSteps = 5;
    const std::int32_t s = draft.tensor("S", 8), t = draft.tensor("T", 8 * kSteps);
    for (std::int32_t walk = 0; walk < 4; ++walk) {
        const Interval own{2 * walk, 2 * walk + 2};
        const std::int32_t begin = below(random, draft.ranks);
        draft.builder.initial({begin, Draft::rows(s, own)});
        RankChunk last{begin, Draft::rows(s, own)};
        for (std::int32_t step = 0; step < kSteps; ++step) {
            // To another node, at every other step back to the one before.
            const std::int32_t node =
                (last.rank / shape.places + (step % 2 == 0 ? 1 : shape.nodes - 1)) % shape.nodes;
            const std::int32_t to = node * shape.places + below(random, shape.places);
            const std::int64_t place = 8 * step + 2 * walk;
            RankChunk next{to, Draft::rows(t, {place, place + 2})};
            draft.builder.transfer(last, next);
            last = std::move(next);
        }
        draft.builder.final(last);
    }
    return draft.take();
}

/// What several ranks send in turn goes through one place of rank 0, which copies it away.
Plan through_one_place(Random& random, Shape shape) {
    Draft draft(shape.nodes, shape.places);
    const std::int32_t s = draft.tensor("S", 2 * draft.ranks), place = draft.tensor("place", 2),
                       t = draft.tensor("T", 2 * draft.ranks);
    for (const std::int32_t rank : shuffled(random, draft.ranks)) {
        const Interval own{2 * rank, 2 * rank + 2};
        draft.builder.initial({rank, Draft::rows(s, own)});
        draft.builder.transfer({rank, Draft::rows(s, own)}, {0, Draft::rows(place, {0, 2})});
        draft.builder.transfer({0, Draft::rows(place, {0, 2})}, {0, Draft::rows(t, own)});
        draft.builder.final({0, Draft::rows(t, own)});
    }
    return draft.take();
}

/// Each rank has something of another size for each other one, or nothing.
Plan uneven_exchange(Random& random, Shape shape) {
    Draft draft(shape.nodes, shape.places);
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    std::vector<Interval> parts;
    std::int64_t rows = 0;
    for (std::int32_t from = 0; from < draft.ranks; ++from) {
        for (std::int32_t to = 0; to < draft.ranks; ++to) {
            const std::int64_t size = below(random, 3);
            pairs.emplace_back(from, to);
            parts.push_back({rows, rows + size});
            rows += size;
        }
    }
    if (rows == 0) parts.back() = {0, ++rows};  // a tensor has rows
    const std::int32_t s = draft.tensor("S", rows), t = draft.tensor("T", rows);
    std::vector<std::size_t> order(pairs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
    for (const std::size_t pair : order) {
        const Chunk from = Draft::rows(s, parts[pair]), to = Draft::rows(t, parts[pair]);
        if (is_empty(from.region)) continue;
        draft.builder.initial({pairs[pair].first, from});
        draft.builder.transfer({pairs[pair].first, from}, {pairs[pair].second, to});
        draft.builder.final({pairs[pair].second, to});
    }
    return draft.take();
}

/// One rank gives all to all others, or gets it: the others have nothing for each other.
Plan from_one(Random& random, Shape shape, bool gets) {
    Draft draft(shape.nodes, shape.places);
    const std::int32_t one = below(random, draft.ranks);
    const std::int32_t s = draft.tensor("S", draft.ranks), t = draft.tensor("T", draft.ranks);
    for (const std::int32_t rank : shuffled(random, draft.ranks)) {
        const Chunk from = Draft::rows(s, {rank, rank + 1}), to = Draft::rows(t, {rank, rank + 1});
        draft.builder.initial({gets ? rank : one, from});
        draft.builder.transfer({gets ? rank : one, from}, {gets ? one : rank, to});
        draft.builder.final({gets ? one : rank, to});
    }
    return draft.take();
}

/// Contributions of all ranks go up a tree of their own for each chunk, and what is summed comes down by another one.
Plan sums(Random& random, Shape shape, Reduce reduce) {
    Draft draft(shape.nodes, shape.places);
    const std::int32_t chunks = 3, s = draft.tensor("S", chunks);
    for (std::int32_t rank = 0; rank < draft.ranks; ++rank) {
        for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
            draft.builder.initial({rank, Draft::rows(s, {chunk, chunk + 1})}, true);
            draft.builder.final_of_all({rank, Draft::rows(s, {chunk, chunk + 1})});
        }
    }
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
        const Chunk rows = Draft::rows(s, {chunk, chunk + 1});
        const std::vector<std::int32_t> up = shuffled(random, draft.ranks);
        for (std::int32_t child = draft.ranks - 1; child > 0; --child)
            draft.builder.join({up[at(child)], rows}, {up[at((child - 1) / 2)], rows}, reduce);
        for (std::int32_t child = 1; child < draft.ranks; ++child)
            draft.builder.transfer({up[at((child - 1) / 3)], rows}, {up[at(child)], rows});
    }
    return draft.take();
}

/// What another system made for as many ranks in one ring, over nodes.
Plan imported(Random&, Shape shape) {
    const int ranks = shape.nodes * shape.places;
    std::vector<ingest::test::GpuText> gpus(at(ranks));
    const auto place = [&](int chunk) { return "o" + std::to_string((chunk + ranks) % ranks); };
    for (int gpu = 0; gpu < ranks; ++gpu) {
        ingest::test::TbText block{.send = (gpu + 1) % ranks, .receive = (gpu + ranks - 1) % ranks};
        block.steps.push_back({.type = "s", .src = place(gpu), .dst = place(gpu)});
        for (int step = 1; step + 1 < ranks; ++step)
            block.steps.push_back({.type = "rcs", .src = place(gpu - step), .dst = place(gpu - step)});
        block.steps.push_back({.type = "r", .src = place(gpu + 1), .dst = place(gpu + 1)});
        gpus[at(gpu)].tbs.push_back(block);
    }
    ingest::ImportOptions options;
    options.tensor = plan::Tensor{"A", {ranks, kColumns}, kType};
    auto made = ingest::import_plan(ingest::test::algo("allgather", ranks, true, gpus), "ring.xml",
                                    ingest::Format::automatic, options);
    EXPECT_TRUE(made) << made.error().to_string();
    EXPECT_TRUE(made->findings.empty());
    Plan plan = std::move(made->plan);
    plan.mesh = {{{"node", shape.nodes}, {"gpu", shape.places}}, "node"};
    return plan;
}

const std::vector<Kind>& kinds() {
    using R = Random;
    static const std::vector<Kind> all{
        {"a ring in any order", [](R& r, Shape s) { return ring(r, s, false, false, 16); }},
        {"a ring that leaves its node at each step",
         [](R& r, Shape s) { return ring(r, s, true, false, 16); }},
        {"a ring of pulls, some of nothing", [](R& r, Shape s) { return ring(r, s, true, true, 11); }},
        {"a ring of uneven shards", [](R& r, Shape s) { return ring(r, s, false, false, 37); }},
        {"two rings, each its own way", two_rings},
        {"trees that cross and come back", [](R& r, Shape s) { return trees(r, s, false, 16); }},
        {"trees of pulls of uneven shards, some of nothing",
         [](R& r, Shape s) { return trees(r, s, true, 13); }},
        {"imported from MSCCL", imported},
        {"there and back", there_and_back, false},
        {"through one place", through_one_place, false},
        {"an uneven exchange", uneven_exchange, false},
        {"from one", [](R& r, Shape s) { return from_one(r, s, false); }, false},
        {"to one", [](R& r, Shape s) { return from_one(r, s, true); }, false},
        {"sums up a tree and down", [](R& r, Shape s) { return sums(r, s, Reduce::sum); }, false},
        {"the largest up a tree and down", [](R& r, Shape s) { return sums(r, s, Reduce::max); }, false},
    };
    return all;
}

/// The plan, and a kernel that reads its A, or something of its own.
StagedProgram program_of(Plan plan, bool gathers) {
    const std::int64_t rows = gathers ? plan.tensors.front().shape[0] : 4;
    kernel::Kernel kernel = sample::gemm({rows, kColumns, kColumns, 2, 4, 2, 3});
    for (auto& [name, tensor] : kernel.arguments.tensors) tensor.dtype = kType;
    Stage stage{std::move(kernel), {}};
    if (gathers) stage.bindings["a_ptr"] = "A";
    return {{std::move(stage)}, std::move(plan)};
}

void expect_right(const Kind& kind, Shape shape, std::uint64_t seed, int runs) {
    Random random(seed);
    const StagedProgram program = program_of(kind.make(random, shape), kind.gathers);
    const std::vector<plan::Finding> findings = plan::check(program.plan);
    ASSERT_TRUE(findings.empty()) << findings.front().to_string();
    const plan::test::Memory values = plan::test::execute(program.plan, plan::test::small_integer, 1);
    if (kind.gathers) {
        ASSERT_EQ(plan::test::compare(program.plan, values, plan::test::small_integer), "");
    }
    std::vector<std::int64_t> program_of_slot;
    for (const kernel::Tile& tile : program.stages.front().kernel.tiles)
        program_of_slot.push_back(tile.program);
    for (const Device device : {Device::host, Device::cuda}) {
        const Options options{.device = device};
        const auto schedule = fuse(program, options);
        ASSERT_TRUE(schedule) << schedule.error().to_string() << '\n' << plan::to_json(program.plan);
        for (int run = 0; run < runs; ++run) {
            SimulatorOptions timing{.calls = 2, .seed = static_cast<std::uint64_t>(run), .values = &values};
            if (run > 0) timing.straggler = run % program.plan.num_ranks();
            const auto fault = simulate(program, *schedule, program_of_slot, timing);
            ASSERT_FALSE(fault) << "timing " << run << ": " << *fault << '\n' << plan::to_json(program.plan);
        }
        test::expect_parts(program, options, *schedule);
    }
}

void expect_all_right(const std::vector<Shape>& shapes, std::uint64_t first, std::uint64_t seeds, int runs) {
    for (const Kind& kind : kinds()) {
        for (const Shape shape : shapes) {
            for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
                SCOPED_TRACE(std::string(kind.name) + " on " + std::to_string(shape.nodes) + " nodes of " +
                             std::to_string(shape.places) + ", seed " + std::to_string(seed));
                expect_right(kind, shape, seed, runs);
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
    }
}

TEST(PlansOverNodes, OfManyKindsGiveWhatTheySayOnFourNodesOfFour) { expect_all_right({{4, 4}}, 1, 1, 2); }
TEST(PlansOverNodes, OfManyKindsGiveWhatTheySayOnSmallerOnes) {
    expect_all_right({{2, 1}, {5, 1}, {2, 3}, {3, 2}}, 11, 2, 3);
}
TEST(PlansOverNodesSweep, OfManyKindsGiveWhatTheySay) {
    expect_all_right({{4, 4}, {2, 8}, {8, 2}, {16, 1}}, 100, 6, 4);
    expect_all_right({{2, 1}, {5, 1}, {2, 3}, {3, 2}, {4, 2}}, 200, 40, 6);
}

}  // namespace
}  // namespace syncopate::fuse

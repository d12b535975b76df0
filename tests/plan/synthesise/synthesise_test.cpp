#include "syncopate/plan/synthesise/synthesise.hpp"

#include <map>
#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "plan/plans.hpp"
#include "syncopate/plan/simulate/simulate.hpp"

namespace syncopate::plan {
namespace {

Tensor square(std::int64_t size) { return {"A", {size, size}, DType::bf16}; }

std::int32_t devices_of(const std::string& topology) { return find_topology(topology)->num_devices(); }

Result<Plan> made(CollectiveKind kind, const std::string& topology, const Tensor& tensor,
                  std::int32_t chunks = 1) {
    return synthesise(test::ring_of(devices_of(topology)), tensor, *find_topology(topology),
                      {.kind = kind, .chunks = chunks});
}

/// Makespan over lower bound, on the topology that the plan was made for.
double ratio(CollectiveKind kind, const std::string& topology, const Tensor& tensor, std::int32_t chunks) {
    const Simulation run = *simulate(*made(kind, topology, tensor, chunks), *find_topology(topology));
    return run.makespan_us / run.bound.us;
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                     CollectiveKind::all_reduce, CollectiveKind::all_to_all,
                                     CollectiveKind::broadcast};

TEST(Synthesise, EveryKindOnEveryTopologyPassesTheCheck) {
    for (const char* topology : {"ring:1", "ring:2", "ring:5", "torus:3x4", "mesh:2x3", "switch:7", "h200x2",
                                 "h200x8", "h200x8x2"}) {
        for (const CollectiveKind kind : kKinds) {
            for (const std::int32_t chunks : {1, 3}) {
                const Result<Plan> plan = made(kind, topology, square(50), chunks);  // shards of unequal size
                ASSERT_TRUE(plan) << topology << " " << name_of(kind) << ": " << plan.error().to_string();
                EXPECT_EQ(test::lines(check(*plan)), std::vector<std::string>{})
                    << topology << " " << name_of(kind);
            }
        }
    }
}

TEST(Synthesise, ShardsMayBeEmpty) {
    for (const CollectiveKind kind : kKinds) {
        const Result<Plan> plan = made(kind, "ring:6", square(4), 2);
        ASSERT_TRUE(plan) << plan.error().to_string();
        EXPECT_EQ(test::lines(check(*plan)), std::vector<std::string>{}) << name_of(kind);
    }
}

TEST(Synthesise, SendsOnlyBetweenNeighbours) {
    const Plan plan = *made(CollectiveKind::all_to_all, "ring:6", square(36));
    for (std::int32_t rank = 0; rank < 6; ++rank) {
        for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)])
            EXPECT_TRUE((op.peer - rank + 6) % 6 == 1 || (op.peer - rank + 6) % 6 == 5);
    }
}

TEST(Synthesise, IsTheSameEveryTimeAndAnotherWithAnotherSeed) {
    const auto with_seed = [](std::uint64_t seed) {
        return *synthesise(test::ring_of(12), square(240), torus_topology({3, 4}),
                           {.chunks = 2, .seed = seed});
    };
    EXPECT_EQ(with_seed(3), with_seed(3));
    EXPECT_FALSE(with_seed(3) == with_seed(4));
}

TEST(Synthesise, AmongSomeRanksTheOthersRest) {
    const std::vector<std::int32_t> members{1, 4, 6};
    for (const CollectiveKind kind : kKinds) {
        const Result<Plan> plan = synthesise(test::ring_of(8), square(24), *find_topology("h200x8"),
                                             {.kind = kind, .chunks = 2, .root = 4, .ranks = members});
        ASSERT_TRUE(plan) << plan.error().to_string();
        EXPECT_EQ(test::lines(check(*plan)), std::vector<std::string>{}) << name_of(kind);
        for (const std::int32_t rank : {0, 2, 3, 5, 7})
            EXPECT_TRUE(plan->ranks[static_cast<std::size_t>(rank)].empty());
    }
}

TEST(Synthesise, ReachesTheBandwidthBound) {
    const Tensor large{"A", {16 * 32768, 4096}, DType::bf16};  // 4 GiB
    using Case = std::tuple<CollectiveKind, const char*, std::int32_t, double>;
    for (const auto& [kind, topology, chunks, most] : {
             Case{CollectiveKind::all_gather, "ring:8", 2, 1.01},
             Case{CollectiveKind::reduce_scatter, "ring:8", 2, 1.01},
             Case{CollectiveKind::all_reduce, "ring:8", 2, 1.01},
             Case{CollectiveKind::all_gather, "torus:4x4", 4, 1.02},
             Case{CollectiveKind::reduce_scatter, "torus:4x4", 4, 1.02},
             Case{CollectiveKind::all_reduce, "torus:4x4", 4, 1.02},
             Case{CollectiveKind::all_gather, "mesh:4x4", 4, 1.02},  // the corners are the bound
             Case{CollectiveKind::reduce_scatter, "mesh:4x4", 4, 1.02},
             Case{CollectiveKind::all_gather, "h200x8x2", 2, 1.05},
             Case{CollectiveKind::all_gather, "switch:16", 1, 1.01},
             Case{CollectiveKind::all_reduce, "switch:16", 1, 1.01},
             Case{CollectiveKind::all_to_all, "switch:16", 1, 1.01},
             Case{CollectiveKind::all_to_all, "torus:4x4", 2, 1.02},
             Case{CollectiveKind::all_to_all, "mesh:4x4", 2, 1.02},  // the cut in the middle is the bound
             Case{CollectiveKind::all_to_all, "torus:3x5", 4, 1.05},
             Case{CollectiveKind::all_reduce, "h200x8", 4, 1.05},
             Case{CollectiveKind::all_reduce, "mesh:4x4", 64, 1.05},  // along trees
             Case{CollectiveKind::reduce_scatter, "h200x8x2", 4, 1.05},
             Case{CollectiveKind::all_reduce, "h200x8x2", 8, 1.05},
             Case{CollectiveKind::broadcast, "torus:4x4", 512, 1.05},
         }) {
        EXPECT_LE(ratio(kind, topology, large, chunks), most) << name_of(kind) << " on " << topology;
    }
}

TEST(Synthesise, AsManyChunksAsAreFastest) {
    const Tensor large{"A", {8 * 4096, 4096}, DType::bf16};
    const double best = ratio(CollectiveKind::broadcast, "ring:8", large, 0);
    EXPECT_LE(best, ratio(CollectiveKind::broadcast, "ring:8", large, 1));
    EXPECT_LE(best, ratio(CollectiveKind::broadcast, "ring:8", large, 8));
    EXPECT_LE(best, 1.1);
}

TEST(Synthesise, BothEnginesHideEachOthersStartUps) {
    const Tensor large{"A", {8 * 4096, 65536}, DType::int8};  // 256 MiB a rank
    EXPECT_LE(ratio(CollectiveKind::broadcast, "h200x8", large, 0), 1.05);
    EXPECT_LE(ratio(CollectiveKind::all_to_all, "h200x8", large, 0), 1.02);
    const Topology machine = *find_topology("h200x8");
    for (const bool sms : {true, false}) {
        const Plan plan =
            *synthesise(test::ring_of(8), large, machine,
                        {.kind = CollectiveKind::broadcast, .chunks = 0, .root = 5, .sms = sms});
        EXPECT_EQ(test::lines(check(plan)), std::vector<std::string>{});
        std::set<Backend> used;
        for (const std::vector<Op>& ops : plan.ranks) {
            for (const Op& op : ops) used.insert(op.backend);
        }
        EXPECT_EQ(used, sms ? (std::set{Backend::automatic, Backend::tma_dedicated})
                            : std::set{Backend::automatic});
        EXPECT_LE(simulate(plan, machine)->makespan_us, (sms ? 1.05 : 1.13) * lower_bound(plan, machine).us);
    }
}

TEST(Synthesise, ABroadcastOverTwoNodesKeepsAllCardsBusy) {
    const Tensor large{"A", {16 * 4096, 65536}, DType::int8};
    const Topology machine = *find_topology("h200x8x2");
    const auto make = [&](std::int32_t root) {
        return *synthesise(test::ring_of(16), large, machine,
                           {.kind = CollectiveKind::broadcast, .chunks = 0, .root = root});
    };
    for (const std::int32_t root : {0, 13}) {
        const Plan plan = make(root);
        EXPECT_EQ(test::lines(check(plan)), std::vector<std::string>{});
        EXPECT_LE(simulate(plan, machine)->makespan_us, 1.08 * lower_bound(plan, machine).us) << root;
        if (root == 0) {
            EXPECT_EQ(plan, make(root));
        }
    }
}

TEST(Synthesise, SmsMoveOnlyRowsOfSixteenBytes) {
    using Case = std::tuple<CollectiveKind, std::vector<std::int64_t>, std::int32_t, bool>;
    for (const auto& [kind, shape, axis, both] : {
             Case{CollectiveKind::broadcast, {(1 << 28) + 16 * 1001}, 0, true},
             Case{CollectiveKind::broadcast, {(1 << 28) + 3}, 0, false},
             Case{CollectiveKind::broadcast, {1 << 14, (1 << 14) + 8}, 0, false},
             Case{CollectiveKind::broadcast, {1 << 14, 1 << 14}, 1, true},
             Case{CollectiveKind::all_to_all, {1 << 14, 1 << 14}, 0, true},
             Case{CollectiveKind::all_to_all, {1 << 14, (1 << 14) + 16}, 0, false},  // columns of 2050
         }) {
        const Plan plan = *synthesise(test::ring_of(8), {"A", shape, DType::int8}, *find_topology("h200x8"),
                                      {.kind = kind, .axis = axis, .to_axis = 1 - axis, .chunks = 0});
        EXPECT_EQ(test::lines(check(plan)), std::vector<std::string>{});
        bool found = false;
        for (const std::vector<Op>& ops : plan.ranks) {
            for (const Op& op : ops) {
                if (op.backend != Backend::tma_dedicated) continue;
                found = true;
                ASSERT_EQ(op.src.region.back().begin % 16, 0);
                ASSERT_EQ(op.src.region.back().end % 16, 0);
            }
        }
        EXPECT_EQ(found, both) << name_of(kind) << " " << shape.front();
    }
}

TEST(Synthesise, TheNumberOfChunksIsFoundForAnyNumberOfRanks) {
    for (const std::int32_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16}) {
        for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::all_to_all}) {
            for (const std::int64_t size : {std::int64_t{1}, std::int64_t{9}, std::int64_t{4096}}) {
                const SynthesiseOptions options{.kind = kind, .chunks = 0, .root = ranks - 1};
                const auto make = [&] {
                    return *synthesise(test::ring_of(ranks), square(size), default_topology(ranks), options);
                };
                const Plan plan = make();
                EXPECT_EQ(test::lines(check(plan)), std::vector<std::string>{}) << ranks << " " << size;
                EXPECT_EQ(plan, make());
            }
        }
    }
}

TEST(Synthesise, IntoAnotherNodeAChunkGoesOnceWhereThatIsTheBottleneck) {
    Topology nodes = *find_topology("h200x8x2");
    for (Link& link : nodes.links) {
        if (link.gbps == 50) link.gbps = 5;
    }
    const Plan plan = *synthesise(test::ring_of(16), square(4096), nodes, {.chunks = 2});
    std::map<std::int64_t, int> crossings;  // by first row of the chunk
    for (std::int32_t rank = 0; rank < 16; ++rank) {
        for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
            if (rank / 8 != op.peer / 8) ++crossings[op.src.region[0].begin];
        }
    }
    EXPECT_EQ(crossings.size(), 32u);
    for (const auto& [row, count] : crossings) EXPECT_EQ(count, 1) << row;
}

TEST(Synthesise, EveryChunkArrivesWhereStepsAreShortAndWaysLong) {
    // A row whose first two are linked twice, once without latency: a chunk could go to and fro between them.
    const Topology row = *find_topology(std::string(SYNCOPATE_SOURCE_DIR) +
                                        "/tests/fuzz/plan/topology_json/row_linked_twice.json");
    const Result<Plan> plan = synthesise(test::ring_of(8), square(32), row,
                                         {.kind = CollectiveKind::all_to_all, .chunks = 2, .attempts = 1});
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(test::lines(check(*plan)), std::vector<std::string>{});
}

TEST(Synthesise, GoodTo512Ranks) {
    const Tensor tensor{"A", {512 * 64, 64}, DType::bf16};
    for (const char* name : {"torus:16x32", "switch:512"}) {
        const Topology topology = *find_topology(name);
        const Plan plan = *synthesise(test::ring_of(512), tensor, topology, {.attempts = 1});
        std::size_t ops = 0;
        for (const auto& list : plan.ranks) ops += list.size();
        EXPECT_EQ(ops, 512u * 511u) << name;
    }
}

TEST(Synthesise, BadArgumentsAreRefused) {
    const auto error_of = [](const SynthesiseOptions& options, const Tensor& tensor = square(8)) {
        const Result<Plan> plan = synthesise(test::ring_of(4), tensor, ring_topology(4), options);
        EXPECT_EQ(plan.error().error_class, ErrorClass::usage);
        return plan.error().message;
    };
    EXPECT_EQ(error_of({.kind = CollectiveKind::permute}),
              "synthesise permute: a permute moves each chunk once, so there is nothing to synthesise");
    EXPECT_EQ(error_of({.axis = 2}),
              "synthesise all_gather: axis 2 is not an axis of tensor A; expected 0 to 1");
    EXPECT_EQ(error_of({.kind = CollectiveKind::all_to_all}, {"A", {8}, DType::bf16}),
              "synthesise all_to_all: to_axis 1 must be another axis of tensor A than 0: shards along the "
              "one become "
              "shards along the other");
    EXPECT_EQ(error_of({.chunks = -1}), "synthesise all_gather: chunks is -1; expected 0 to 16777216");
    EXPECT_EQ(error_of({.ranks = {0, 4}}),
              "synthesise all_gather: ranks names a rank that is not one of 0 to 3");
    EXPECT_EQ(error_of({.ranks = {1, 1}}), "synthesise all_gather: ranks names a rank twice");
    EXPECT_EQ(error_of({.kind = CollectiveKind::broadcast, .root = 4}),
              "synthesise broadcast: root 4 does not take part");
    EXPECT_EQ(error_of({.ranks = {0, 2}}),
              "synthesise all_gather: there is no way from rank 2 to rank 0 through the ranks that take "
              "part, on topology "
              "ring:4");
    EXPECT_NE(synthesise(test::ring_of(513), square(1024), ring_topology(513))
                  .error()
                  .message.find("513 ranks on 513 devices are too many to search for; at most 512"),
              std::string::npos);
    EXPECT_EQ(synthesise(test::ring_of(5), square(8), ring_topology(4)).error().message,
              "synthesise all_gather: the mesh has 5 ranks, but topology ring:4 has 4 devices");
    EXPECT_EQ(error_of({.chunks = 1 << 24}, {"A", {1 << 26}, DType::int8}).substr(0, 52),
              "synthesise all_gather: the plan would have more than");
}

}  // namespace
}  // namespace syncopate::plan

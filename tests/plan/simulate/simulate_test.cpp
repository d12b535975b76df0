#include "syncopate/plan/simulate/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cpu_time.hpp"
#include "plan/plans.hpp"
#include "syncopate/plan/draw/svg.hpp"
#include "syncopate/plan/draw/trace.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/reduce_scatter.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int64_t kMb = 1'000'000;

/// `count` devices on a switch: 100 GB/s each way, 2 µs a push, 3 µs a pull, 1 µs a post.
Topology star(std::int32_t count) {
    Topology topology = switch_topology(count, {100, 0});
    topology.copy_engine = {.lanes = 1, .push_us = 2, .pull_us = 3, .post_us = 1, .wait_us = 0.5};
    topology.sm = topology.copy_engine;
    return topology;
}

/// Pushes of `bytes` each, by pairs of ranks, every one of a region of its own.
Plan pushes(std::int32_t ranks, std::int64_t bytes,
            const std::vector<std::pair<std::int32_t, std::int32_t>>& pairs) {
    Plan plan;
    plan.mesh = test::ring_of(ranks);
    plan.tensors = {{"A", {bytes * static_cast<std::int64_t>(pairs.size())}, DType::int8}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    std::int64_t at = 0;
    for (const auto& [from, to] : pairs) {
        plan.initial.push_back({from, test::box({{at, at + bytes}})});
        plan.final.push_back({to, test::box({{at, at + bytes}})});
        plan.ranks[static_cast<std::size_t>(from)].push_back(test::push(to, test::box({{at, at + bytes}})));
        at += bytes;
    }
    return plan;
}

double makespan(const Plan& plan, const Topology& topology) {
    return simulate(plan, topology).value().makespan_us;
}

TEST(Simulate, WhatWaitsForAFullLinkMovesInTheEnd) {
    // On a torus links in the middle are full, and lines are long: nobody is forgotten in one.
    const Topology torus = torus_topology({8, 8});
    Topology many = torus;
    many.copy_engine.lanes = 64;
    const Plan plan = *all_gather({{{"gpu", 64}}}, {"A", {64, 1 << 16}, DType::bf16}, {});
    for (const Topology& topology : {torus, many}) {
        const Simulation run = *simulate(plan, topology);
        for (const auto& ops : run.ops) {
            for (const OpTime& op : ops) EXPECT_GT(op.end_us, op.start_us);
        }
        EXPECT_GE(run.makespan_us, run.bound.us);
    }
}

TEST(Simulate, AnOpWaitsUntilWhatItSendsIsMade) {
    const Plan plan = pushes(2, kMb, {{0, 1}, {0, 1}});
    SimulateOptions options;
    options.timings = {{{}, {.ready_us = 50}}, {}};
    const Simulation run = *simulate(plan, star(2), options);
    EXPECT_NEAR(run.ops[0][0].end_us, 13, 1e-9);
    EXPECT_NEAR(run.ops[0][1].start_us, 50, 1e-9);
    EXPECT_NEAR(run.makespan_us, 63, 1e-9);
}

TEST(Simulate, AnOpWhoseTimeIsKnownTakesThatLongAndNoLink) {
    const Plan plan = pushes(3, kMb, {{0, 1}, {2, 1}});
    SimulateOptions options;
    options.timings = {{{.lasts_us = 4}}, {}, {{}}};
    const Simulation run = *simulate(plan, star(3), options);
    EXPECT_NEAR(run.ops[0][0].end_us, 4, 1e-9);
    EXPECT_NEAR(run.ops[2][0].end_us, 13, 1e-9) << "it has the link for itself";
}

TEST(Simulate, AnOpInALineOfItsOwnKeepsNoOtherOneWaiting) {
    const Plan plan = pushes(3, kMb, {{0, 1}, {0, 2}, {0, 1}});
    SimulateOptions options;
    options.timings = {{{.ready_us = 50}, {}, {}}, {}, {}};
    EXPECT_NEAR((*simulate(plan, star(3), options)).ops[0][1].start_us, 63, 1e-9);
    options.timings[0][0].line = 0;
    const Simulation run = *simulate(plan, star(3), options);
    EXPECT_NEAR(run.ops[0][0].start_us, 50, 1e-9);
    EXPECT_NEAR(run.ops[0][1].start_us, 0, 1e-9);
    EXPECT_NEAR(run.ops[0][2].start_us, 13, 1e-9) << "the engine's line has one lane";
    options.timings[0][2].line = 0;
    EXPECT_NEAR((*simulate(plan, star(3), options)).ops[0][2].start_us, 63, 1e-9)
        << "so has a line of its own";
}

TEST(Simulate, TimingsAreThoseOfThePlansOps) {
    SimulateOptions options;
    options.timings = {{}, {}};
    EXPECT_FALSE(simulate(pushes(2, kMb, {{0, 1}}), star(2), options));
}

TEST(Simulate, OnePushTakesStartUpBytesAndPost) {
    const Simulation run = *simulate(pushes(2, kMb, {{0, 1}}), star(2));
    EXPECT_NEAR(run.makespan_us, 2 + 10 + 1, 1e-9);
    EXPECT_NEAR(run.bound.us, 2 + 10, 1e-9);
    EXPECT_EQ(run.bound.reason, "bytes out of rank 0: 1 MB at 100 GB/s");
    EXPECT_EQ(run.ops[0][0].start_us, 0);
    EXPECT_NEAR(run.ops[0][0].end_us, 13, 1e-9);
    EXPECT_NEAR(run.links[0].utilisation, 10.0 / 13, 1e-9);
    EXPECT_EQ(run.links[0].bytes, kMb);
}

TEST(Simulate, WithoutPostsAnOpEndsWithItsLastByte) {
    EXPECT_NEAR(simulate(pushes(2, kMb, {{0, 1}}), star(2), {.posts = false})->makespan_us, 12, 1e-9);
}

TEST(Simulate, APullStartsSlower) {
    Plan plan = pushes(2, kMb, {{0, 1}});
    plan.ranks = {{}, {test::pull(0, plan.ranks[0][0].src)}};
    EXPECT_NEAR(makespan(plan, star(2)), 3 + 10 + 1, 1e-9);
}

TEST(Simulate, OpsOfOneEngineFollowEachOther) {
    EXPECT_NEAR(makespan(pushes(3, kMb, {{0, 1}, {0, 2}}), star(3)), 26, 1e-9);
    Topology two_lanes = star(3);
    two_lanes.copy_engine.lanes = 2;  // they share the link: 2 + 20 + 1
    EXPECT_NEAR(makespan(pushes(3, kMb, {{0, 1}, {0, 2}}), two_lanes), 23, 1e-9);
}

TEST(Simulate, APushToTheSamePeerAsTheOneBeforeStartsFaster) {
    Topology topology = star(3);
    topology.copy_engine.repeat_us = 0.5;
    EXPECT_NEAR(makespan(pushes(3, kMb, {{0, 1}, {0, 1}}), topology), 13 + 11.5, 1e-9);
    EXPECT_NEAR(makespan(pushes(3, kMb, {{0, 1}, {0, 2}}), topology), 13 + 13, 1e-9);
}

TEST(Simulate, NoOpStartsBeforeTheCallHasBeenLaunched) {
    Topology topology = star(2);
    topology.start_us = 4;
    const Simulation run = *simulate(pushes(2, kMb, {{0, 1}}), topology);
    EXPECT_EQ(run.ops[0][0].start_us, 4);
    EXPECT_NEAR(run.makespan_us, 4 + 13, 1e-9);
    EXPECT_NEAR(run.bound.us, 4 + 12, 1e-9);
}

TEST(Simulate, RanksMayStartApart) {
    Topology topology = star(4);
    topology.skew_us = 8;
    const Simulation run = *simulate(pushes(4, kMb, {{0, 1}, {1, 2}, {2, 3}, {3, 0}}), topology);
    EXPECT_EQ(run.ops[0][0].start_us, 0);
    EXPECT_EQ(run.ops[1][0].start_us, 4);
    EXPECT_EQ(run.ops[2][0].start_us, 2);
    EXPECT_EQ(run.ops[3][0].start_us, 6);
}

TEST(Simulate, CopyEngineAllGathersTakeWhatWasMeasured) {
    // 4 x H200, graph, median µs (bench/results/simulate_all_gather_4xH200.json).
    for (const auto& [mib, split, pull, measured] : {std::tuple{1, 1, false, 31.6},
                                                     {16, 1, false, 156.6},
                                                     {64, 1, false, 541.0},
                                                     {256, 1, false, 2078.2},
                                                     {1, 4, false, 72.1},
                                                     {8, 4, false, 130.7},
                                                     {64, 4, false, 597.2},
                                                     {1, 1, true, 51.5},
                                                     {64, 1, true, 583.6}}) {
        const Plan plan = *all_gather(test::ring_of(4), {"A", {4 * mib * std::int64_t{1 << 20}}, DType::int8},
                                      {.axis = 0, .split = split, .pull = pull});
        EXPECT_NEAR(makespan(plan, *find_topology("h200x4")) / measured, 1, 0.2)
            << mib << " MiB, split " << split;
    }
}

TEST(Simulate, SendersThatMeetShareTheReceiversLink) {
    const Plan plan = pushes(3, kMb, {{0, 2}, {1, 2}});
    EXPECT_NEAR(makespan(plan, star(3)), 2 + 20 + 1, 1e-9);
    Topology contended = star(3);
    for (Link& link : contended.links) link.contended = 0.5;
    EXPECT_NEAR(makespan(plan, contended), 2 + 40 + 1, 1e-9);
}

TEST(Simulate, AShareGrowsWhenTheOtherEnds) {
    Plan plan = pushes(3, kMb, {{0, 2}, {1, 2}});
    plan.tensors[0].shape = {4 * kMb};
    plan.ranks[1][0].src.region = plan.ranks[1][0].dst.region = {{kMb, 4 * kMb}};  // three times as long
    const Simulation run = *simulate(plan, star(3));
    EXPECT_NEAR(run.ops[0][0].end_us, 2 + 20 + 1, 1e-9);
    EXPECT_NEAR(run.ops[1][0].end_us, 2 + 40 + 1, 1e-9);
}

TEST(Simulate, MoreSendersThanALinkServesAtOnceTakeTurns) {
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    for (std::int32_t rank = 1; rank <= 40; ++rank) pairs.emplace_back(rank, 0);
    EXPECT_NEAR(makespan(pushes(41, kMb, pairs), star(41)), 2 + 400 + 1, 1e-6);
}

TEST(Simulate, ADevicesOwnLimitHolds) {
    Topology limited = star(2);
    limited.devices[1].ingress_gbps = 20;
    EXPECT_NEAR(makespan(pushes(2, kMb, {{0, 1}}), limited), 2 + 50 + 1, 1e-9);
}

TEST(Simulate, AnOpStartsWhenThoseBeforeItHaveEnded) {
    Plan plan = pushes(3, kMb, {{0, 1}});
    plan.final.push_back({2, plan.ranks[0][0].src});
    plan.ranks[1].push_back(test::push(2, plan.ranks[0][0].src, {{0, 0}}));
    const Simulation run = *simulate(plan, star(3));
    EXPECT_NEAR(run.ops[1][0].start_us, 13, 1e-9);
    EXPECT_NEAR(run.ops[1][0].end_us, 13 + 0.5 + 2 + 10 + 1,
                1e-9);  // wait_us: the other rank's op must be seen
}

TEST(Simulate, AListThatWouldBlockItsEngineRunsInAnOrderThatDoesNot) {
    Plan plan = pushes(3, kMb, {{0, 1}, {0, 2}});
    plan.ranks[0][0].after = {{0, 1}};  // the first in the list waits for the second
    const Simulation run = *simulate(plan, star(3));
    EXPECT_NEAR(run.ops[0][1].start_us, 0, 1e-9);
    EXPECT_NEAR(run.makespan_us, 26, 1e-9);
}

TEST(Simulate, ReductionsAreDoneBySms) {
    Plan plan = pushes(2, kMb, {{0, 1}});
    plan.ranks[0][0].reduce = Reduce::sum;
    Topology topology = star(2);
    topology.sm.blocks = 2;
    topology.sm.gbps_per_block = 25;
    const Simulation run = *simulate(plan, topology);
    EXPECT_EQ(run.ops[0][0].engine, EngineKind::sm);
    EXPECT_NEAR(run.makespan_us, 2 + 20 + 1, 1e-9);
}

TEST(Simulate, LatencyOfTheWayDelaysTheChunkButNotTheLane) {
    Topology far = ring_topology(4, {100, 5});
    const Simulation run = *simulate(pushes(4, kMb, {{0, 2}, {0, 2}}), far);  // two links away
    EXPECT_NEAR(run.ops[0][0].end_us, 10 + 10, 1e-5);
    EXPECT_NEAR(run.ops[0][1].start_us, 10, 1e-5);
    EXPECT_NEAR(run.makespan_us, 20 + 10, 1e-5);
}

TEST(Simulate, ALibrarysCollectiveWaitsForAllParticipants) {
    Plan plan = pushes(2, kMb, {{0, 1}});
    Op gather;
    gather.kind = OpKind::collective;
    gather.collective = CollectiveKind::all_gather;
    gather.ranks = std::vector{0, 1};
    plan.tensors[0].shape = {2 * kMb};
    gather.src = test::box({{0, kMb}});
    gather.dst = test::box({{0, 2 * kMb}});
    gather.after = {{0, 0}};
    plan.ranks[0].push_back(gather);
    gather.src = test::box({{kMb, 2 * kMb}});
    gather.after = {};  // the whole waits for what any participant waits for
    plan.ranks[1].push_back(gather);
    Topology topology = star(2);
    topology.library_us = 7;
    const Simulation run = *simulate(plan, topology);
    EXPECT_NEAR(run.ops[1][0].start_us, 13, 1e-9);
    EXPECT_NEAR(run.ops[1][0].end_us, 13 + 7 + 10, 1e-9);
    EXPECT_EQ(run.ops[0][1].end_us, run.ops[1][0].end_us);
}

TEST(Simulate, WhatCannotRunIsRefused) {
    const auto error_of = [](const Plan& plan, const Topology& topology) {
        return simulate(plan, topology).error().to_string();
    };
    EXPECT_EQ(error_of(pushes(3, kMb, {{0, 1}}), star(2)),
              "the plan has 3 ranks, but topology switch:2 has 2 devices");
    Topology ring = ring_topology(4);
    ring.forwarding = false;
    EXPECT_EQ(error_of(pushes(4, kMb, {{0, 1}, {1, 3}}), ring),
              "rank 1 op 0: there is no way from device 1 to device 3 in topology ring:4, whose devices do "
              "not forward");
    Plan plan = pushes(2, kMb, {{0, 1}});
    plan.ranks[0][0].after = {{0, 0}};
    EXPECT_EQ(error_of(plan, star(2)),
              "ops wait for each other in a circle: `syncopate plan check` prints it");
    plan = pushes(2, kMb, {{0, 1}});
    plan.ranks[0][0].peer = 7;
    EXPECT_NE(error_of(plan, star(2)).find("rank 0 op 0: malformed"), std::string::npos)
        << error_of(plan, star(2));
}

TEST(Simulate, AnEmptyPlanTakesNoTime) {
    Plan plan;
    plan.mesh = test::ring_of(2);
    plan.tensors = {{"A", {4}, DType::int8}};
    plan.ranks.resize(2);
    const Simulation run = *simulate(plan, star(2));
    EXPECT_EQ(run.makespan_us, 0);
    EXPECT_EQ(run.busiest_link, -1);
}

TEST(Simulate, NothingIsFasterThanItsBound) {
    for (const std::int32_t split : {1, 3}) {
        for (const bool pull : {false, true}) {
            const Plan plan = *all_gather(test::ring_of(8), {"A", {80'000, 7}, DType::fp32},
                                          {.axis = 0, .split = split, .pull = pull});
            for (const char* name : {"h200x8", "h200x8x2", "ring:8", "torus:2x4", "mesh:2x4", "switch:9"}) {
                const Simulation run = *simulate(plan, *find_topology(name));
                EXPECT_GE(run.makespan_us, run.bound.us) << name;
                EXPECT_GT(run.bound.us, 0) << name;
                for (const LinkLoad& load : run.links) EXPECT_LE(load.utilisation, 1 + 1e-9) << name;
            }
        }
    }
}

TEST(Bound, OfAllGatherIsWhatComesIn) {
    const Plan plan = *all_gather(test::ring_of(4), {"A", {4 * kMb}, DType::int8});
    EXPECT_NEAR(lower_bound(plan, star(4)).us, 2 + 30, 1e-9);
}

TEST(Bound, OfReduceScatterIsWhatGoesOut) {
    const Plan plan = test::ring_reduce_scatter(4);  // 4 bytes a shard
    const Bound bound = lower_bound(plan, star(4));
    EXPECT_NEAR(bound.us, 2 + 12e-6 / 0.1, 1e-9);
    EXPECT_EQ(bound.reason.substr(0, 21), "bytes out of rank 0: ");
}

TEST(Bound, CountsNoEngineForWhatRanksSumInTheirOwnMemory) {
    const Tensor tensor{"A", {4096, 512}, DType::fp32};
    const Plan plan = *reduce_scatter(test::ring_of(2), tensor, {.axis = 0});
    Topology slow = star(2);  // but its memory is fast
    slow.sm.gbps = 5;
    const Simulation run = *simulate(plan, slow);
    EXPECT_GE(run.makespan_us, run.bound.us) << run.bound.reason;
}

TEST(Bound, OfAnAllReduceCountsEveryContributionAndEveryResultOnce) {
    Plan plan = pushes(4, kMb, {});
    plan.tensors[0].shape = {kMb};
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        plan.initial.push_back({rank, test::box({{0, kMb}}), true});
        plan.final.push_back({rank, test::box({{0, kMb}})});
        plan.final.back().of_all = true;
    }
    EXPECT_NEAR(lower_bound(plan, star(4)).us, 2 + 2.0 * 3 / 4 * 10, 1e-9);
}

TEST(Bound, BetweenNodesIsTheirBorder) {
    const Plan plan = *all_gather(test::ring_of(16), {"A", {16 * 100 * kMb}, DType::int8});
    Topology nodes = *find_topology("h200x8x2");
    for (Link& link : nodes.links) {
        if (link.gbps == 50) link.gbps = 5;
    }
    EXPECT_NEAR(lower_bound(plan, nodes).us, 4 + 2.5 + 800e6 / 40e3, 1e-6);
    EXPECT_EQ(lower_bound(plan, nodes).reason, "bytes into node 0: 800 MB at 40 GB/s");
}

TEST(Simulate, AMillionOpsTakeSecondsOfTheCpu) {
    const Plan plan =
        *all_gather(test::ring_of(512), {"A", {512 * 4096}, DType::bf16}, {.axis = 0, .split = 4});
    const double start = syncopate::test::cpu_seconds();
    const Simulation run = *simulate(plan, switch_topology(512));
    EXPECT_GE(run.makespan_us, run.bound.us);
    EXPECT_LT(syncopate::test::cpu_seconds() - start, 60);  // 1,046,528 ops; about 4 s
}

TEST(Trace, HoldsEveryOpAndEveryDependence) {
    const Plan plan = test::ring_reduce_scatter(4);
    const Topology topology = ring_topology(4);
    const Simulation run = *simulate(plan, topology);
    const nlohmann::json trace = nlohmann::json::parse(to_trace(plan, topology, run));
    std::map<std::string, int> count;
    double last = 0;
    for (const auto& event : trace["traceEvents"]) {
        ++count[event["ph"].get<std::string>()];
        if (event["ph"] != "X") continue;
        last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
        EXPECT_LT(event["pid"].get<int>(), 4);
    }
    EXPECT_EQ(count["X"], 12);
    EXPECT_EQ(count["s"], 8);
    EXPECT_EQ(count["f"], 8);
    // The last chunks are on their way for 1 µs after they have left their lanes, and nothing follows them
    // there.
    EXPECT_NEAR(last, run.makespan_us, 0.01);
}

/// What the Trace Event Format, and Perfetto's reader of it, demand of the events used here; "" if all is as
/// it should be. Perfetto takes events by time, those of one moment by their place in the file, and binds an
/// arrow's end to the slice that is open on its track: which has begun by then and has not ended yet.
std::string malformed_event(const nlohmann::json& trace) {
    using Track = std::pair<int, int>;
    std::map<Track, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;  // ns
    std::set<Track> named;
    std::set<int> processes;
    std::map<std::int64_t, std::vector<std::pair<std::string, std::pair<Track, std::int64_t>>>> flows;
    const auto ns = [](const nlohmann::json& us) { return std::llround(us.get<double>() * 1e3); };
    for (const nlohmann::json& event : trace.at("traceEvents")) {
        const std::string phase = event.at("ph");
        if (!event.at("name").is_string() || !event.at("pid").is_number_integer()) return event.dump();
        if (phase == "M") {
            const std::string name = event.at("name");
            const nlohmann::json& args = event.at("args");
            if (name == "process_name" && args.at("name").is_string()) {
                processes.insert(event.at("pid").get<int>());
            } else if (name == "thread_name" && args.at("name").is_string()) {
                if (!named.emplace(event.at("pid"), event.at("tid")).second) return event.dump();
            } else if (name != "process_sort_index" || !args.at("sort_index").is_number_integer()) {
                return event.dump();
            }
            continue;
        }
        const Track track{event.at("pid"), event.at("tid")};
        if (!event.at("ts").is_number() || event.at("ts") < 0) return event.dump();
        if (phase == "X") {
            if (!event.at("dur").is_number() || event.at("dur") < 0 || !event.at("args").is_object())
                return event.dump();
            if (!flows.empty()) return "a slice after an arrow";
            slices[track].emplace_back(ns(event.at("ts")), ns(event.at("ts")) + ns(event.at("dur")));
        } else if (phase == "s" || phase == "f") {
            if (!event.at("id").is_number_integer() || !event.at("cat").is_string()) return event.dump();
            if (phase == "f" && event.at("bp") != "e") return event.dump();
            flows[event.at("id")].push_back({phase, {track, ns(event.at("ts"))}});
        } else {
            return event.dump();
        }
    }
    for (auto& [track, list] : slices) {
        if (!named.contains(track) || !processes.contains(track.first)) return "a track without a name";
        // Perfetto makes a thread that is numbered 0 or as a process is that process's main thread.
        if (track.second == 0 || processes.contains(track.second)) return "a thread that is a process";
        std::sort(list.begin(), list.end());
        for (std::size_t i = 1; i < list.size(); ++i) {
            if (list[i].first < list[i - 1].second)
                return fmt::format("slices overlap at {} ns on track {}/{}", list[i].first, track.first,
                                   track.second);
        }
    }
    for (const auto& [id, ends] : flows) {
        if (ends.size() != 2 || ends[0].first != "s" || ends[1].first != "f")
            return "an arrow without two ends";
        if (ends[0].second.second > ends[1].second.second) return "an arrow that goes back in time";
        for (const auto& [phase, where] : ends) {
            const auto& list = slices[where.first];
            if (std::none_of(list.begin(), list.end(), [&](const auto& slice) {
                    return slice.first <= where.second && where.second < slice.second;
                }))
                return "an arrow that ends at no slice";
        }
    }
    return "";
}

TEST(Trace, TellsChunksApartByTheirOrigins) {
    // Perfetto's colours come from names without their ASCII digits.
    const Plan plan = *make_plan("all_gather", test::ring_of(12), {"A", {24, 8}, DType::bf16}, {});
    const Topology topology = ring_topology(12);
    const nlohmann::json trace = nlohmann::json::parse(to_trace(plan, topology, *simulate(plan, topology)));
    std::map<std::string, std::set<int>> origins;  // by name without digits
    std::set<std::string> processes;
    for (const nlohmann::json& event : trace["traceEvents"]) {
        if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
        if (event["ph"] != "X") continue;
        std::string name = event["name"];
        std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
        origins[name].insert(event["args"]["origin"].get<int>());
    }
    EXPECT_TRUE(origins.contains("push to , chunk of ₁₁"));
    EXPECT_EQ(origins.size(), 12u);
    for (const auto& [name, ranks] : origins) EXPECT_EQ(ranks.size(), 1u) << name;
    EXPECT_TRUE(processes.contains("rank 02") && processes.contains("rank 10"));
}

TEST(Trace, IsWhatTheFormatDemands) {
    for (const char* name : {"ring:4", "torus:3x4", "h200x8", "h200x8x2", "switch:5"}) {
        const Topology topology = *find_topology(name);
        const Mesh mesh = test::ring_of(topology.num_devices());
        const Tensor tensor{"A \"\\\n", {512, 64}, DType::bf16};
        for (const char* collective : {"all_gather", "all_reduce", "all_to_all"}) {
            for (const Plan& plan : {*make_plan(collective, mesh, tensor, {.split = 3}),
                                     *make_collective(collective, mesh, tensor)}) {
                const nlohmann::json trace =
                    nlohmann::json::parse(to_trace(plan, topology, *simulate(plan, topology)));
                EXPECT_EQ(malformed_event(trace), "") << name << " " << collective;
            }
        }
    }
}

TEST(Svg, HasABarForEveryOpAndAnArrowForEveryDependence) {
    const Plan plan = test::ring_reduce_scatter(4);
    const Topology topology = ring_topology(4);
    const std::string svg = to_svg(plan, topology, *simulate(plan, topology));
    const auto count = [&](std::string_view text) {
        std::size_t found = 0;
        for (std::size_t at = svg.find(text); at != svg.npos; at = svg.find(text, at + 1)) ++found;
        return found;
    };
    EXPECT_EQ(count("<title>"), 12u);
    EXPECT_EQ(count("marker-end"), 8u);
    EXPECT_EQ(count("stroke-dasharray=\"3 2\""), 12u);  // all reduce
    EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
    // The sum of chunk c is complete at rank c: all four colours occur.
    for (const char* colour : {"#4e79a7", "#f28e2b", "#59a14f", "#e15759"})
        EXPECT_GE(count(colour), 4u) << colour;
}

TEST(Svg, TheNameOfTheBoundIsBelowTheLegend) {
    // Sixteen origins fill the legend's line as far as the bound is to the right.
    const Topology topology = switch_topology(16);
    const Plan plan = *all_to_all(test::ring_of(16), {"A", {16 * 64, 16 * 64}, DType::bf16}, {.axis = 0});
    const std::string svg = to_svg(plan, topology, *simulate(plan, topology));
    const auto y_before = [&](std::string_view text) {
        const std::size_t element = svg.rfind("<text", svg.find(text));
        return std::stod(svg.substr(svg.find("y=\"", element) + 3));
    };
    constexpr double kLetters = 11;  // pixels
    EXPECT_GE(y_before(">lower bound<") - kLetters, y_before(">chunks of rank<"));
}

TEST(Svg, LargePlansAreSummarised) {
    const Plan plan = *all_gather(test::ring_of(80), {"A", {80 * 64}, DType::bf16}, {.axis = 0, .split = 6});
    const Topology topology = switch_topology(80);
    const std::string svg = to_svg(plan, topology, *simulate(plan, topology));
    EXPECT_NE(svg.find("16 more ranks are not drawn"), std::string::npos);
    EXPECT_NE(svg.find("share of time of each origin"), std::string::npos);
    EXPECT_LT(svg.size(), 20u << 20);
}

TEST(LowerBound, OfAnExchangeOnAGridIsThatOfTheCutInItsMiddle) {
    const auto reason = [](const std::vector<std::int32_t>& sizes) {
        const Topology grid = mesh_topology(sizes);
        const Plan plan = *make_plan("all_to_all", test::ring_of(grid.num_devices()),
                                     {"A", {16000, 16000}, DType::int8}, {});
        return lower_bound(plan, grid).reason;
    };
    // 8 ranks on each side, each with a 16th of 16 MB for each of the 8 others; 4 and 2 links of 50 GB/s.
    EXPECT_EQ(reason({4, 4}), "bytes into ranks 0 to 7: 64 MB at 200 GB/s");
    EXPECT_EQ(reason({2, 8}), "bytes into ranks 0 to 3 of every 8: 64 MB at 100 GB/s");
}

}  // namespace
}  // namespace syncopate::plan

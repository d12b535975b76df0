#include "syncopate/plan/topology/topology.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace syncopate::plan {
namespace {

constexpr std::string_view kSound = R"({"schema": "syncopate.topology/1",
 "name": "pair",
 "devices": [{"count": 2, "node": 0, "egress_gbps": 30}],
 "switches": ["hub"],
 "links": [
  {"from": 0, "to": "hub", "gbps": 40, "latency_us": 0.5, "contended": 0.5},
  {"from": "hub", "to": 1, "gbps": 40, "one_way": true}],
 "engines": {"copy_engine": {"lanes": 2, "push_us": 3, "repeat_us": 1}, "sm": {"blocks": 8, "gbps_per_block": 4}},
 "start_us": 2, "skew_us": 1.5})";

std::string error_after(std::string_view old_text, std::string_view new_text) {
    std::string text(kSound);
    const std::size_t place = text.find(old_text);
    if (place == text.npos) return "the text to replace is not there";
    const Result<Topology> topology =
        topology_from_json(text.replace(place, old_text.size(), new_text), "t.json");
    return topology ? "no error" : topology.error().to_string();
}

std::vector<std::string> path_between(const Topology& topology, std::int32_t from, std::int32_t to) {
    Routes routes(topology);
    std::vector<std::int32_t> links;
    if (!routes.append_path(from, to, links)) return {"no way"};
    std::vector<std::string> names;
    for (std::size_t i = links.size(); i-- > 0;)
        names.push_back(topology.link_name(static_cast<std::size_t>(links[i])));
    return names;
}

TEST(Topology, IsReadWithItsDefaults) {
    const Topology topology = topology_from_json(kSound).value();
    EXPECT_EQ(topology.num_devices(), 2);
    EXPECT_EQ(topology.devices[1].egress_gbps, 30);
    EXPECT_EQ(topology.devices[1].ingress_gbps, kUnlimited);
    ASSERT_EQ(topology.links.size(), 3u);  // both ways, and one way
    EXPECT_EQ(topology.link_name(1), "hub -> 0");
    EXPECT_EQ(topology.links[1].contended, 0.5);
    EXPECT_EQ(topology.copy_engine.lanes, 2);
    EXPECT_EQ(topology.copy_engine.repeat_us, 1);
    EXPECT_FALSE(topology.sm.repeat_us.has_value());
    EXPECT_EQ(topology.start_us, 2);
    EXPECT_EQ(topology.sm.rate(), 32);
    EXPECT_FALSE(topology.network.has_value());
    EXPECT_FALSE(topology.forwarding);
}

TEST(Topology, SurvivesBeingWrittenAndRead) {
    std::vector<Topology> all{*topology_from_json(kSound), torus_topology({3, 2}), switch_topology(5)};
    for (const std::string& name : topology_names()) all.push_back(*find_topology(name));
    for (const Topology& topology : all) {
        const Result<Topology> again = topology_from_json(to_json(topology));
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_EQ(*again, topology) << to_json(topology);
    }
}

TEST(Topology, WhatIsWrongIsSaidWithItsPlace) {
    EXPECT_EQ(error_after("topology/1", "topology/2"),
              "t.json:1:12: schema is \"syncopate.topology/2\"; this version reads \"syncopate.topology/1\"");
    EXPECT_EQ(error_after("\"gbps\": 40, \"lat", "\"gbs\": 40, \"lat"),
              "t.json:6:28: links[0] has an unknown key \"gbs\"; did you mean \"gbps\"?");
    EXPECT_EQ(error_after("\"gbps\": 40, \"one", "\"one"), "t.json:7:3: links[1] lacks \"gbps\"");
    EXPECT_EQ(error_after("\"to\": \"hub\"", "\"to\": \"hop\""),
              "t.json:6:21: links[0].to names an unknown switch \"hop\"; the switches are hub");
    EXPECT_EQ(error_after("\"to\": 1", "\"to\": 2"),
              "t.json:7:25: links[1].to is 2; the topology has devices 0 to 1");
    EXPECT_EQ(error_after("\"to\": 1", "\"to\": \"hub\""),
              "t.json:7:3: links[1] leads back to where it starts");
    EXPECT_EQ(error_after("\"gbps\": 40, \"one", "\"gbps\": 0, \"one"),
              "t.json:7:36: links[1].gbps is 0; expected 1e-06 to 1e+09");
    EXPECT_EQ(error_after("\"gbps\": 40, \"one", "\"gbps\": \"40\", \"one"),
              "t.json:7:36: links[1].gbps is the string \"40\"; expected a number");
    EXPECT_EQ(error_after("\"count\": 2", "\"count\": 5000"),
              "t.json:3:24: devices[0].count is 5000; expected 1 to 4096");
    EXPECT_EQ(error_after("\"blocks\": 8, ", ""),
              "t.json:8:79: engines.sm has one of \"blocks\" and \"gbps_per_block\"; it needs both or none");
    EXPECT_EQ(error_after("{\"schema\"", "[{\"schema\""),
              "t.json:9:32: not JSON: parsing array - unexpected end of "
              "input; expected ']'");
    EXPECT_EQ(
        topology_from_json("{}").error().to_string(),
        "line 1:1: the topology is an empty object; it needs \"schema\", \"name\", \"devices\", \"links\", "
        "\"engines\"");
}

TEST(Topology, ComesByNameByNotationOrFromAFile) {
    for (const std::string& name : topology_names()) {
        const Result<Topology> topology = find_topology(name);
        ASSERT_TRUE(topology) << topology.error().to_string();
        EXPECT_EQ(topology->name, name);
    }
    EXPECT_EQ(find_topology("h200x8")->num_devices(), 8);
    EXPECT_EQ(find_topology("h200x8x2")->num_nodes(), 2);
    EXPECT_EQ(find_topology("torus:2x3x4")->num_devices(), 24);
    EXPECT_EQ(find_topology(std::string(SYNCOPATE_SOURCE_DIR) + "/share/topologies/ring.json")->num_devices(),
              8);
    const auto error_of = [](const std::string& name) {
        const Error error = find_topology(name).error();
        EXPECT_EQ(error.error_class, ErrorClass::usage);
        return error.message;
    };
    EXPECT_EQ(error_of("h200x9"), "there is no topology \"h200x9\"; did you mean \"h200x2\"?");
    EXPECT_EQ(error_of("torus:0x4").substr(0, 35), "topology \"torus:0x4\" is not ring:N,");
    EXPECT_EQ(error_of("ring:9999").substr(0, 23), "topology \"ring:9999\" is");
    EXPECT_EQ(error_of("ring:2x2").substr(0, 22), "topology \"ring:2x2\" is");
    EXPECT_EQ(find_topology("no/such.json").error().error_class, ErrorClass::input);
}

TEST(Topology, ShippedShapesAreTheGeneratedOnes) {
    EXPECT_EQ(find_topology("ring")->links, ring_topology(8).links);
    EXPECT_EQ(find_topology("torus")->links, torus_topology({4, 4}).links);
    EXPECT_EQ(find_topology("mesh")->links, mesh_topology({4, 4}).links);
    EXPECT_EQ(find_topology("ring")->copy_engine, ring_topology(8).copy_engine);
}

TEST(Topology, NeighboursAreLinkedOnce) {
    EXPECT_EQ(ring_topology(1).links.size(), 0u);
    EXPECT_EQ(ring_topology(2).links.size(), 2u);
    EXPECT_EQ(ring_topology(3).links.size(), 6u);
    EXPECT_EQ(torus_topology({4, 4}).links.size(), 64u);
    EXPECT_EQ(torus_topology({2, 4}).links.size(), 2u * (4 + 8));
    EXPECT_EQ(mesh_topology({4, 4}).links.size(), 48u);
    EXPECT_EQ(switch_topology(6).links.size(), 12u);
    std::set<std::pair<std::int32_t, std::int32_t>> pairs;
    for (const Link& link : torus_topology({2, 3, 4}).links)
        EXPECT_TRUE(pairs.emplace(link.from, link.to).second);
}

TEST(Routes, TakeTheWayOfLeastLatencyThenOfFewestLinks) {
    EXPECT_EQ(path_between(ring_topology(6), 0, 2), (std::vector<std::string>{"0 -> 1", "1 -> 2"}));
    EXPECT_EQ(path_between(ring_topology(6), 0, 4), (std::vector<std::string>{"0 -> 5", "5 -> 4"}));
    const Topology nodes = *find_topology("h200x8x2");
    EXPECT_EQ(path_between(nodes, 1, 2), (std::vector<std::string>{"1 -> nvswitch-0", "nvswitch-0 -> 2"}));
    EXPECT_EQ(path_between(nodes, 1, 9), (std::vector<std::string>{"1 -> fabric", "fabric -> 9"}));
}

TEST(Routes, PassThroughDevicesOnlyWhereTheyForward) {
    Topology ring = ring_topology(4);
    ring.forwarding = false;
    EXPECT_EQ(path_between(ring, 0, 1), (std::vector<std::string>{"0 -> 1"}));
    EXPECT_EQ(path_between(ring, 0, 2), (std::vector<std::string>{"no way"}));
}

}  // namespace
}  // namespace syncopate::plan

// Topologies, simulation and synthesis of plans; which way of a chain is the fastest.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "plan_values.hpp"
#include "syncopate/plan/draw/svg.hpp"
#include "syncopate/plan/draw/trace.hpp"
#include "syncopate/plan/draw/trace_events.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/sync/way.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

/// A simulation with what it was made from, for pictures and names.
struct Simulated {
    plan::Plan plan;
    plan::Topology topology;
    plan::Simulation simulation;
};

Simulated simulate(const plan::Plan& plan, const std::optional<std::string>& topology, bool posts) {
    Simulated result{
        plan,
        topology ? unwrap(plan::find_topology(*topology)) : plan::default_topology(plan.num_ranks()),
        {}};
    const GilReleased released;
    result.simulation = unwrap(plan::simulate(result.plan, result.topology, {.posts = posts}));
    return result;
}

plan::Plan synthesise(const std::string& kind, const plan::Mesh& mesh, const plan::Tensor& tensor,
                      const std::string& topology, std::int32_t axis, std::int32_t to_axis,
                      std::int32_t chunks, std::int32_t root, std::uint64_t seed, bool sms,
                      std::vector<std::int32_t> ranks) {
    plan::SynthesiseOptions options{.axis = axis,
                                    .to_axis = to_axis,
                                    .chunks = chunks,
                                    .root = root,
                                    .seed = seed,
                                    .sms = sms,
                                    .ranks = std::move(ranks)};
    std::optional<plan::CollectiveKind> known;
    for (std::size_t i = 0; i < plan::kNumCollectiveKinds; ++i) {
        const auto one = static_cast<plan::CollectiveKind>(i);
        if (plan::name_of(one) == kind) known = one;
    }
    options.kind =
        named(known, "collective", kind, names_of<plan::CollectiveKind>(plan::kNumCollectiveKinds));
    const plan::Topology machine = unwrap(plan::find_topology(topology));
    const GilReleased released;
    return unwrap(plan::synthesise(mesh, tensor, machine, options));
}

}  // namespace

void bind_simulate(nb::module_& module) {
    module.def(
        "fastest_way",
        [](const std::map<std::string, std::vector<double>>& times) {
            sync::TimesByWay by_way;
            for (std::size_t i = 0; i < sync::kNumWays; ++i) {
                const auto taken = times.find(std::string(name_of(static_cast<sync::Way>(i))));
                if (taken != times.end()) by_way.emplace(static_cast<sync::Way>(i), taken->second);
            }
            return std::string(name_of(sync::fastest(by_way)));
        },
        "times"_a, "The way that a chain keeps, by µs of a call, round by round (sync/way.hpp).");
    nb::class_<Simulated>(module, "Simulation",
                          "When each op of a plan runs on a topology; see plan/simulate/simulate.hpp.")
        .def_prop_ro(
            "topology", [](const Simulated& s) { return s.topology.name; }, "The machine's name.")
        .def_prop_ro(
            "makespan_us", [](const Simulated& s) { return s.simulation.makespan_us; },
            "When the last op ends.")
        .def_prop_ro(
            "bound_us", [](const Simulated& s) { return s.simulation.bound.us; },
            "What no schedule of such a plan can go below on this topology.")
        .def_prop_ro(
            "bound_reason", [](const Simulated& s) { return s.simulation.bound.reason; },
            "What sets that bound.")
        .def_prop_ro(
            "busiest_link",
            [](const Simulated& s) -> std::optional<std::pair<std::string, double>> {
                if (s.simulation.busiest_link < 0) return std::nullopt;
                const auto link = static_cast<std::size_t>(s.simulation.busiest_link);
                return std::pair(s.topology.link_name(link), s.simulation.links[link].utilisation);
            },
            "(its name, the share of its time that it is busy); None if nothing moves.")
        .def_prop_ro(
            "ops",
            [](const Simulated& s) {
                std::vector<std::vector<std::pair<double, double>>> ranks;
                for (const auto& ops : s.simulation.ops) {
                    auto& times = ranks.emplace_back();
                    for (const plan::OpTime& time : ops) times.emplace_back(time.start_us, time.end_us);
                }
                return ranks;
            },
            "By rank and op: (start, end) in µs. At its end an op's chunk has arrived.")
        .def(
            "svg", [](const Simulated& s) { return plan::to_svg(s.plan, s.topology, s.simulation); },
            "As `syncopate plan show --svg` draws it.")
        .def(
            "trace", [](const Simulated& s) { return plan::to_trace(s.plan, s.topology, s.simulation); },
            "JSON that Perfetto opens.");
    using plan::TraceEvents;
    nb::class_<TraceEvents>(module, "TraceEvents",
                            "See plan/draw/trace_events.hpp; `arguments` are JSON objects.")
        .def(nb::init<std::int32_t, std::string_view>(), "num_ranks"_a, "other"_a)
        .def("process", &TraceEvents::process, "rank"_a, "note"_a = "")
        .def(
            "thread",
            [](TraceEvents& t, std::int32_t rank, std::int32_t track, std::string_view name) {
                t.thread({rank, track}, name);
            },
            "rank"_a, "track"_a, "name"_a)
        .def(
            "slice",
            [](TraceEvents& t, std::int32_t rank, std::int32_t track, std::string_view category,
               std::string_view name, std::int64_t begin, std::int64_t end, std::string_view arguments) {
                t.slice({rank, track}, {category, name}, begin, end, arguments);
            },
            "rank"_a, "track"_a, "category"_a, "name"_a, "begin"_a, "end"_a, "arguments"_a)
        .def(
            "mark",
            [](TraceEvents& t, std::int32_t rank, std::int32_t track, std::string_view category,
               std::string_view name, std::int64_t moment,
               std::string_view arguments) { t.mark({rank, track}, {category, name}, moment, arguments); },
            "rank"_a, "track"_a, "category"_a, "name"_a, "moment"_a, "arguments"_a)
        .def(
            "flight",
            [](TraceEvents& t, std::int32_t rank, std::int32_t track, std::string_view category,
               std::string_view name, std::string_view id, std::int64_t begin,
               std::int64_t end) { t.flight({rank, track}, {category, name}, id, begin, end); },
            "rank"_a, "track"_a, "category"_a, "name"_a, "id"_a, "begin"_a, "end"_a)
        .def("text", &TraceEvents::text);
    module.def(
        "simulate", &simulate, "plan"_a, "topology"_a = nb::none(), nb::kw_only(), "posts"_a = true,
        R"(When each op of `plan` would run: `makespan_us`, `bound_us`, `busiest_link`, `ops` ((start, end) of each), `svg()`.

`topology`: a name (`topologies()`), a generated one ("ring:8", "torus:4x4", "mesh:4x4", "switch:16"), or a file;
default: h200x8, h200x8x2 above 8 ranks, a switch above 16. `posts`: whether ops set a flag after their chunk.)");
    module.def("topologies", &plan::topology_names, "The names of the topologies that come with Syncopate.");
    module.def(
        "synthesise", &synthesise, "kind"_a, "mesh"_a, "tensor"_a, "topology"_a, nb::kw_only(), "axis"_a = 0,
        "to_axis"_a = 1, "chunks"_a = 1, "root"_a = 0, "seed"_a = 0, "sms"_a = true,
        "ranks"_a = std::vector<std::int32_t>(),
        R"(A plan for a collective on any topology, found by greedy search; `syncopate plan synth` explains the options.

`kind`: "all_gather", "reduce_scatter", "all_reduce", "all_to_all" or "broadcast". `sms=False` is `--no-sms`.)");
}

}  // namespace syncopate::bindings

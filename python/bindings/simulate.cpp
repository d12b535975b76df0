// Topologies, simulation and synthesis of plans.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "syncopate/plan/draw/svg.hpp"
#include "syncopate/plan/draw/trace.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/topology/topology.hpp"

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
    const nb::gil_scoped_release released;
    result.simulation = unwrap(plan::simulate(result.plan, result.topology, {.posts = posts}));
    return result;
}

plan::Plan synthesise(const std::string& kind, const std::vector<std::pair<std::string, std::int32_t>>& axes,
                      std::string name, std::vector<std::int64_t> shape, const std::string& dtype,
                      const std::string& topology, plan::SynthesiseOptions options) {
    std::optional<plan::CollectiveKind> known;
    for (std::size_t i = 0; i < plan::kNumCollectiveKinds; ++i) {
        const auto one = static_cast<plan::CollectiveKind>(i);
        if (plan::name_of(one) == kind) known = one;
    }
    options.kind =
        named(known, "collective", kind, names_of<plan::CollectiveKind>(plan::kNumCollectiveKinds));
    plan::Mesh mesh;
    for (const auto& [axis, size] : axes) mesh.axes.push_back({axis, size});
    const plan::Tensor tensor{std::move(name), std::move(shape), to_dtype(dtype)};
    const plan::Topology machine = unwrap(plan::find_topology(topology));
    const nb::gil_scoped_release released;
    return unwrap(plan::synthesise(mesh, tensor, machine, options));
}

}  // namespace

void bind_simulate(nb::module_& module) {
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
    module.def("simulate", &simulate, "plan"_a, "topology"_a.none(), "posts"_a);
    module.def("topology_names", &plan::topology_names);
    module.def(
        "synthesise",
        [](const std::string& kind, const std::vector<std::pair<std::string, std::int32_t>>& mesh,
           std::string name, std::vector<std::int64_t> shape, const std::string& dtype,
           const std::string& topology, std::int32_t axis, std::int32_t to_axis, std::int32_t chunks,
           std::int32_t root, std::uint64_t seed, bool sms, std::vector<std::int32_t> ranks) {
            return synthesise(kind, mesh, std::move(name), std::move(shape), dtype, topology,
                              {.axis = axis,
                               .to_axis = to_axis,
                               .chunks = chunks,
                               .root = root,
                               .seed = seed,
                               .sms = sms,
                               .ranks = std::move(ranks)});
        },
        "kind"_a, "mesh"_a, "name"_a, "shape"_a, "dtype"_a, "topology"_a, "axis"_a, "to_axis"_a, "chunks"_a,
        "root"_a, "seed"_a, "sms"_a, "ranks"_a);
}

}  // namespace syncopate::bindings

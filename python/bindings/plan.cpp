// Plans as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/draw/show.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/lower/counted.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

nb::list findings(const plan::Plan& plan) {
    nb::list result;
    for (const plan::Finding& finding : plan::check(plan)) {
        nb::dict entry;
        entry["kind"] = std::string(plan::name_of(finding.kind));
        entry["rank"] = finding.rank;
        entry["op"] = finding.op;
        entry["message"] = finding.message;
        result.append(entry);
    }
    return result;
}

std::vector<std::pair<std::string, std::int32_t>> mesh_of(const plan::Plan& plan) {
    std::vector<std::pair<std::string, std::int32_t>> axes;
    for (const auto& axis : plan.mesh.axes) axes.emplace_back(axis.name, axis.size);
    return axes;
}

std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>> tensors_of(
    const plan::Plan& plan) {
    std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>> result;
    for (const plan::Tensor& t : plan.tensors)  // as they lie in memory
        result.emplace_back(t.name, t.memory_shape(), std::string(plan::name_of(t.dtype)));
    return result;
}

const std::string& tensor_of(const plan::Plan& plan, const plan::Holding& holding) {
    return plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)].name;
}

std::vector<std::pair<std::string, Box>> initial_of(const plan::Plan& plan, std::int32_t rank) {
    std::vector<std::pair<std::string, Box>> result;
    for (const plan::Holding& holding : plan.initial) {
        if (holding.rank == rank) result.emplace_back(tensor_of(plan, holding), to_box(holding.chunk.region));
    }
    return result;
}

std::vector<std::tuple<std::string, Box, std::vector<std::int32_t>>> final_of(const plan::Plan& plan,
                                                                              std::int32_t rank) {
    std::vector<std::tuple<std::string, Box, std::vector<std::int32_t>>> result;
    for (const plan::Holding& holding : plan.final) {
        if (holding.rank != rank) continue;
        std::vector<std::int32_t> of = holding.of;
        for (std::int32_t r = 0; holding.of_all && r < plan.num_ranks(); ++r) of.push_back(r);
        result.emplace_back(tensor_of(plan, holding), to_box(holding.chunk.region), std::move(of));
    }
    return result;
}

std::vector<std::string> produced_of(const plan::Plan& plan) {
    std::set<std::string> names;
    for (const plan::Holding& holding : plan.produced) names.insert(tensor_of(plan, holding));
    return {names.begin(), names.end()};
}

std::vector<std::pair<std::string, Box>> made_of(const plan::Plan& plan, std::int32_t rank) {
    std::vector<std::pair<std::string, Box>> result;
    for (const plan::Holding& holding : plan.produced) {
        if (holding.rank == rank) result.emplace_back(tensor_of(plan, holding), to_box(holding.chunk.region));
    }
    return result;
}

/// Such as "<Plan of 4 ranks (gpu=4) for A [64, 32] bf16: 12 push>".
std::string described(const plan::Plan& plan) {
    std::string axes;
    for (const auto& axis : plan.mesh.axes)
        axes += fmt::format("{}{}={}", axes.empty() ? "" : ", ", axis.name, axis.size);
    std::string tensors;
    for (const plan::Tensor& t : plan.tensors) {
        tensors += fmt::format("{}{} [{}] {}", tensors.empty() ? "" : ", ", t.name, fmt::join(t.shape, ", "),
                               plan::name_of(t.dtype));
    }
    std::map<plan::OpKind, std::size_t> counts;
    for (const std::vector<plan::Op>& ops : plan.ranks) {
        for (const plan::Op& op : ops) ++counts[op.kind];
    }
    std::string ops;
    for (const auto& [kind, count] : counts)
        ops += fmt::format("{}{} {}", ops.empty() ? "" : ", ", count, plan::name_of(kind));
    return fmt::format("<Plan of {} rank{} ({}) for {}: {}>", plan.num_ranks(),
                       plan.num_ranks() == 1 ? "" : "s", axes, tensors, ops.empty() ? "no ops" : ops);
}

std::string reduction_of(const plan::Plan& plan, const std::string& tensor) {
    for (const std::vector<plan::Op>& rank : plan.ranks) {
        for (const plan::Op& op : rank) {
            if (op.reduce != plan::Reduce::none &&
                plan.tensors[static_cast<std::size_t>(op.dst.tensor)].name == tensor)
                return std::string(plan::name_of(op.reduce));
        }
    }
    return "sum";
}

std::vector<std::string> ragged_of(const plan::Plan& plan) {
    std::vector<std::string> names;
    for (const plan::Tensor& tensor : plan.tensors) {
        if (tensor.ragged) names.push_back(tensor.name);
    }
    return names;
}

/// The numbers of nested sequences, or of what has tolist() (a tensor).
std::vector<std::int64_t> flat(const nb::object& given) {
    if (nb::hasattr(given, "tolist")) return flat(given.attr("tolist")());
    std::int64_t number = 0;
    if (nb::try_cast(given, number)) return {number};
    if (!nb::isinstance<nb::sequence>(given) || nb::isinstance<nb::str>(given))
        throw nb::type_error("counts: expected whole numbers");
    std::vector<std::int64_t> all;
    for (const nb::handle one : given) {
        const std::vector<std::int64_t> more = flat(nb::borrow(one));
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

}  // namespace

plan::DType to_dtype(const std::string& name) {
    return named(plan::dtype_from(name), "dtype", name, names_of<plan::DType>(plan::kNumDTypes));
}

plan::Backend to_backend(const std::string& name) {
    return named(plan::backend_from(name), "backend", name, names_of<plan::Backend>(plan::kNumBackends));
}

void bind_plan(nb::module_& m) {
    m.def(
        "dtype_name", [](const std::string& name) { return std::string(plan::name_of(to_dtype(name))); },
        nb::arg("name"), "Our name of a dtype, of any that is usual for it. ValueError for others.");
    nb::class_<plan::Plan>(m, "Plan",
                           "A communication plan: for each rank a list of ops (schema syncopate.plan/1).")
        .def("__repr__", &described)
        .def_prop_ro("num_ranks", &plan::Plan::num_ranks, "How many ranks the mesh has.")
        .def_prop_ro("mesh", &mesh_of, "(name, size) of each axis.")
        .def_prop_ro(
            "num_nodes", [](const plan::Plan& plan) { return plan.mesh.num_nodes(); },
            "Of how many nodes its ranks are, alike on each.")
        .def(
            "over_nodes",
            [](plan::Plan plan) {
                if (plan.mesh.axes.size() < 2)
                    throw nb::value_error(
                        "nodes are the first of at least two axes of the mesh, such as node=2, gpu=4");
                plan.mesh.nodes = plan.mesh.axes.front().name;
                return plan;
            },
            "The same, its ranks on several nodes: the first axis of its mesh is theirs.")
        .def_prop_ro("tensors", &tensors_of, "(name, shape, dtype) of each tensor.")
        .def("initial", &initial_of, nb::arg("rank"),
             "What `rank` holds before the first op: (tensor, box) pairs, a box a (begin, end) per axis.")
        .def(
            "final", &final_of, nb::arg("rank"),
            "What `rank` must hold at the end: (tensor, box, ranks whose contributions are reduced) triples.")
        .def("made", &made_of, nb::arg("rank"),
             "What the kernel of `rank` makes: (tensor, box) pairs, as of `initial`.")
        .def_prop_ro("produced", &produced_of, "The tensors of which some rank's kernel makes a part.")
        .def("reduction", &reduction_of, nb::arg("tensor"), "By what ops reduce into a tensor.")
        .def(
            "to_json", [](const plan::Plan& plan) { return plan::to_json(plan); },
            "The text of a plan file, which `plans.from_json` reads.")
        .def(
            "table", [](const plan::Plan& plan) { return plan::to_table(plan); },
            "As `syncopate plan show` prints it.")
        .def_prop_ro("ragged", &ragged_of,
                     "The tensors with groups of rows, of which only a call knows how many.")
        .def(
            "counted",
            [](const plan::Plan& plan, const nb::object& counts) {
                return unwrap(plan::counted(plan, flat(counts)));
            },
            nb::arg("counts"),
            "Of a plan with groups of rows, that of a call whose counts are known before it: an ordinary "
            "one, in which groups "
            "lie one behind the other. `counts`: rows of each group, nested as the groups are, or flat.")
        .def("check", &findings,
             "Everything wrong with the plan, as `plan check --json` lists it; empty if nothing is.");

    m.attr("BACKENDS") = to_tuple(names_of<plan::Backend>(plan::kNumBackends));
    m.def(
        "plan_from_json",
        [](const std::string& text, const std::string& name) { return unwrap(plan::from_json(text, name)); },
        nb::arg("text"), nb::arg("name"));
}

}  // namespace syncopate::bindings

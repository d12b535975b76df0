// The library's operators.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "problem.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/ops/gluon_box.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/spec.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

ops::Outline outline(const GivenProblem& problem, const ops::Strategy& strategy, std::int32_t axis,
                     bool kept) {
    return unwrap(ops::outline(problem_of(problem), strategy, {.axis = axis, .kept = kept}));
}

/// As JSON (fuse/model/json.hpp), of the library's kernels as they state themselves, for GPUs.
std::string schedule(const GivenProblem& problem, const ops::Strategy& strategy, bool w_transposed) {
    const fuse::StagedProgram program =
        unwrap(ops::program(problem_of(problem), strategy, {.w_transposed = w_transposed}));
    return fuse::to_json(unwrap(fuse::fuse(program, ops::fuse_options(strategy, fuse::Device::cuda))));
}

/// The library's own kernels of the operator, fused; their texts are Python's.
emit::Artifact artifact(const GivenProblem& problem, const ops::Strategy& strategy,
                        const std::string& device) {
    const fuse::Options options =
        ops::fuse_options(strategy, device == "cuda" ? fuse::Device::cuda : fuse::Device::host);
    const ops::Problem given = problem_of(problem);
    const GilReleased released;
    return unwrap(emit::make_artifact(unwrap(ops::program(given, strategy)), options));
}

nb::dict dict_of(const std::vector<kernel::stated::Count>& counts) {
    nb::dict made;
    for (const auto& [name, text] : counts) made[name.c_str()] = text;
    return made;
}

/// By parameter its ranges; of several boxes a list of them.
nb::dict dict_of(const std::vector<kernel::stated::Access>& accesses) {
    std::map<std::string, std::vector<std::vector<std::string>>> boxes;
    for (const kernel::stated::Access& access : accesses) boxes[access.param].push_back(access.ranges);
    nb::dict made;  // in the order of the statement
    for (const kernel::stated::Access& access : accesses) {
        const auto& ranges = boxes.at(access.param);
        made[access.param.c_str()] = ranges.size() == 1 ? nb::cast(ranges.front()) : nb::cast(ranges);
    }
    return made;
}

/// As keywords of sy.kernel.
nb::dict dict_of(const kernel::stated::Statement& statement) {
    nb::dict made;
    made["tiles"] = dict_of(statement.tiles);
    made["loops"] = dict_of(statement.loops);
    made["reads"] = dict_of(statement.reads);
    made["writes"] = dict_of(statement.writes);
    made["placed"] = statement.placed;
    made["split"] = statement.split;
    made["order"] = statement.order;
    made["any_order"] = statement.any_order;
    made["sums"] = statement.sums;
    made["head_start"] = statement.head_start;
    made["operations"] = statement.operations;
    return made;
}

nb::dict matmul_statement(bool w_transposed, bool gated, const std::string& scales, bool whole_bias) {
    return dict_of(ops::matmul_statement({.w_transposed = w_transposed,
                                          .gated = gated,
                                          .scales = scales == "row"     ? ops::Scales::row
                                                    : scales == "block" ? ops::Scales::block
                                                                        : ops::Scales::none,
                                          .whole_bias = whole_bias}));
}

nb::dict attention_statement(bool causal, bool windowed, bool documents, bool one_pass, bool placed,
                             std::int64_t together) {
    return dict_of(ops::attention_statement({.causal = causal,
                                             .windowed = windowed,
                                             .documents = documents,
                                             .one_pass = one_pass,
                                             .placed = placed,
                                             .together = together}));
}

nb::dict dict_of(const std::vector<ops::Word>& words) {
    nb::dict made;
    for (const auto& [name, value] : words) made[name.c_str()] = value;
    return made;
}

/// As the commands take it (ops/spec.hpp).
nb::dict parse_spec(const std::string& text, std::int32_t ranks) {
    const ops::Spec spec = unwrap(ops::parse_spec(text, ranks));
    nb::dict made, extents;
    for (const auto& [name, value] : spec.problem.extents) extents[name.c_str()] = value;
    made["operator"] = spec.problem.op;
    made["extents"] = extents;
    made["words"] = dict_of(spec.problem.words);
    made["dtype"] = std::string(plan::name_of(spec.problem.dtype));
    made["out"] = std::string(plan::name_of(spec.problem.out));
    made["scales"] = spec.problem.scales == ops::Scales::none
                         ? std::string()
                         : std::string(ops::kScalesNames[static_cast<std::size_t>(spec.problem.scales)]);
    made["ranks"] = spec.problem.ranks;
    made["nodes"] = spec.problem.nodes;
    made["sms"] = spec.problem.num_sms;
    made["equal_blocks"] = ops::operator_row(spec.problem.op)->equal_blocks;
    made["strategy"] = spec.strategy ? nb::cast(*spec.strategy) : nb::none();
    made["call"] = dict_of(spec.call);
    made["mixture"] = spec.problem.is_mixture();
    return made;
}

nb::tuple gluon_box(std::int32_t block_m, std::int32_t block_n, std::int32_t block_k, std::int64_t m,
                    std::size_t item, bool cut) {
    const ops::GluonBox box =
        ops::gluon_box({.block_m = block_m, .block_n = block_n, .block_k = block_k}, m, item, cut);
    return nb::make_tuple(box.rows, box.columns, box.depth);
}

}  // namespace

void bind_ops(nb::module_& module) {
    nb::module_ made = module.def_submodule("ops", "The library's operators, and what its kernels state");
    nb::class_<ops::Outline>(made, "Outline", "An operator without its kernels (ops/program.hpp).")
        .def_ro("plan", &ops::Outline::plan)
        .def_ro("bindings", &ops::Outline::bindings, "Of each kernel: parameter → tensor of the plan.")
        .def_ro("input", &ops::Outline::input)
        .def_ro("scales", &ops::Outline::scales)
        .def_ro("output", &ops::Outline::output);
    made.def("outline", outline, "problem"_a, "strategy"_a, "axis"_a = 0, "kept"_a = false);
    made.def("schedule", schedule, "problem"_a, "strategy"_a, "w_transposed"_a = false);
    made.def("parse_spec", parse_spec, "text"_a, "ranks"_a = 1);
    made.def(
        "problem_key",
        [](const std::string& text, std::int32_t ranks, std::int32_t num_sms) {
            return unwrap(ops::parse_problem(text, ranks, num_sms)).key();
        },
        "text"_a, "ranks"_a, "sms"_a, "Of a SPEC that asks for no strategy and says nothing of a call.");
    made.def("operator_names", [] {
        std::vector<std::string> names;
        for (const ops::OperatorRow& row : ops::operators()) names.emplace_back(row.name);
        return names;
    });
    made.def("artifact", artifact, "problem"_a, "strategy"_a, "device"_a);
    made.def("matmul_statement", matmul_statement, "w_transposed"_a = false, "gated"_a = false,
             "scales"_a = "", "whole_bias"_a = false);
    made.def("attention_statement", attention_statement, "causal"_a = false, "windowed"_a = false,
             "documents"_a = false, "one_pass"_a = false, "placed"_a = false, "together"_a = 0);
    made.def(
        "attention_backward_statement",
        [](bool causal, bool exchanges, bool whole, std::int64_t together, bool groups) {
            return dict_of(ops::attention_backward_statement({.causal = causal,
                                                              .exchanges = exchanges,
                                                              .whole = whole,
                                                              .together = together,
                                                              .groups = groups}));
        },
        "causal"_a = false, "exchanges"_a = false, "whole"_a = false, "together"_a = 0, "groups"_a = false);
    made.def("gluon_box", gluon_box, "block_m"_a, "block_n"_a, "block_k"_a, "m"_a, "item"_a, "cut"_a);
    made.def("rows_for", plan::rows_for, "bound"_a, "runs"_a, "align"_a);
    made.def(
        "lay_groups",
        [](const std::vector<std::int64_t>& counts, std::int64_t run, std::int64_t align,
           std::int64_t bound) {
            std::vector<std::pair<std::int64_t, std::int64_t>> places;
            for (const plan::Interval& place :
                 plan::lay_groups(counts, {.run = run, .align = align, .bound = bound}))
                places.emplace_back(place.begin, place.end);
            return places;
        },
        "counts"_a, "run"_a, "align"_a, "bound"_a);
    made.def("mixture_block", ops::mixture_block, "tokens"_a, "programs"_a);
    made.def(
        "mixture_sending",
        [](std::int64_t routes, std::int64_t row_bytes, std::int64_t programs) {
            const ops::MixtureSending of = ops::mixture_sending(routes, row_bytes, programs);
            return std::tuple(of.rows, of.programs, of.apart);
        },
        "routes"_a, "row_bytes"_a, "programs"_a,
        "Rows of a slot, programs, and whether these have multiprocessors of their own; see "
        "ops/mixture.hpp.");
    made.attr("SCALED") = ops::kScaled;
}

}  // namespace syncopate::bindings

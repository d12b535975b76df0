// The compiler as Python sees it: plans, and the whole way from a kernel's source to a fused one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "stages.hpp"
#include "syncopate/affine.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/kernel/model/compare.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/draw/show.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

using Box = std::vector<std::pair<std::int64_t, std::int64_t>>;

plan::Backend backend_of(const std::string& name) {
    const std::optional<plan::Backend> backend = plan::backend_from(name);
    if (!backend) throw nb::value_error(("unknown backend '" + name + "'").c_str());
    return *backend;
}

plan::DType dtype_of(const std::string& name) {
    const std::optional<plan::DType> dtype = plan::dtype_from(name);
    if (!dtype) throw nb::value_error(("unknown dtype '" + name + "'").c_str());
    return *dtype;
}

Box to_box(const plan::Region& region) {
    Box box;
    for (const plan::Interval& interval : region) box.emplace_back(interval.begin, interval.end);
    return box;
}

kernel::Scalar to_scalar(const std::string& name, nb::handle value) {
    if (value.is_none()) return kernel::NoneValue{};
    if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
    if (nb::isinstance<nb::int_>(value)) return nb::cast<std::int64_t>(value);
    if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
    if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
    throw nb::type_error(("argument " + name + ": expected an int, float, bool, str or None").c_str());
}

plan::Mesh mesh_from(const std::vector<std::pair<std::string, std::int32_t>>& axes) {
    plan::Mesh mesh;
    for (const auto& [name, size] : axes) mesh.axes.push_back({name, size});
    return mesh;
}

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

kernel::Arguments arguments_of(const nb::dict& scalars, const std::map<std::string, TensorTuple>& tensors,
                               const Values& values, const Grid& grid, std::int32_t num_sms) {
    kernel::Arguments arguments;
    arguments.num_sms = num_sms;
    if (grid) arguments.grid = {std::get<0>(*grid), std::get<1>(*grid), std::get<2>(*grid)};
    for (auto [key, value] : scalars) {
        const auto parameter = nb::cast<std::string>(key);
        arguments.scalars[parameter] = to_scalar(parameter, value);
    }
    for (const auto& [parameter, tensor] : tensors) {
        const auto& [shape, strides, dtype, block] = tensor;
        arguments.tensors[parameter] = {
            .shape = shape, .strides = strides, .dtype = dtype_of(dtype), .block = block};
    }
    for (const auto& [parameter, elements] : values) {
        const Status status = kernel::set_values(arguments, parameter, elements);
        if (!status) throw nb::value_error(status.error().message.c_str());
    }
    return arguments;
}

nb::dict to_dict(const kernel::ByParameter<kernel::SharedBoxes>& boxes) {
    nb::dict made;
    for (const auto& [parameter, regions] : boxes) {
        nb::list list;
        for (const plan::Region& region : regions) list.append(nb::cast(to_box(region)));
        made[parameter.c_str()] = list;
    }
    return made;
}

nb::list to_list(const std::set<std::string>& names) {
    nb::list list;
    for (const std::string& name : names) list.append(name);
    return list;
}

nb::dict analyse_source(const std::string& source, const std::string& file, const std::string& name,
                        const nb::dict& scalars, const std::map<std::string, TensorTuple>& tensors,
                        const Grid& grid, std::int32_t num_sms, const Values& values) {
    const kernel::Kernel found = unwrap(emit::language_of(file).analyse(
        source, file, name, arguments_of(scalars, tensors, values, grid, num_sms)));
    nb::dict made;
    nb::list axes;
    for (const kernel::TileAxis& axis : found.axes)
        axes.append(nb::make_tuple(axis.name, axis.count, axis.block));
    made["axes"] = axes;
    made["grid"] = nb::make_tuple(found.grid[0], found.grid[1], found.grid[2]);
    made["reduction"] = found.loops.size() != 1 ? nb::none() : nb::cast(found.loops.front().variable);
    nb::list loops;
    for (const kernel::Loop& loop : found.loops) {
        nb::list slices;
        for (const kernel::LoopSlice& slice : loop.slices)
            slices.append(nb::make_tuple(slice.param, slice.dim, slice.base, slice.step, slice.extent));
        loops.append(nb::make_tuple(loop.variable, loop.trips, loop.divisible, slices));
    }
    made["loops"] = loops;
    nb::list tiles;
    for (const kernel::Tile& tile : found.tiles)
        tiles.append(nb::make_tuple(tile.program, to_dict(tile.read_boxes), to_dict(tile.write_boxes),
                                    to_list(tile.inexact_reads), to_list(tile.inexact_writes)));
    made["tiles"] = tiles;
    return made;
}

/// The kernel of a stage, without its bindings.
kernel::Kernel kernel_of(const StageTuple& stage, std::int32_t num_sms) {
    const auto& [source, file, name, bindings, scalars, tensors, grid] = stage;
    return unwrap(emit::language_of(file).analyse(source, file, name,
                                                  arguments_of(scalars, tensors, {}, grid, num_sms)));
}

std::int64_t evaluate(const std::string& text, const std::string& subject,
                      const std::map<std::string, std::int64_t>& numbers) {
    affine::Names names;
    for (const auto& [name, value] : numbers) names.emplace(name, affine::Form::number(value));
    return unwrap(unwrap(affine::Expression::parse(text, subject)).number(names));
}

emit::Artifact fuse_stages(const std::vector<StageTuple>& stages, const plan::Plan& plan,
                           const std::string& device, std::int32_t num_sms, bool phases,
                           const std::string& backend, std::int64_t sum_parts, bool plain_kernel,
                           const std::vector<Values>& values) {
    std::vector<emit::StageText> texts = texts_of(stages, num_sms, values);
    fuse::Options options;
    options.device = device == "cuda" ? fuse::Device::cuda : fuse::Device::host;
    options.phases = phases;
    options.preferred = backend_of(backend);
    options.most_sum_parts = sum_parts;
    options.plain_kernel = plain_kernel;
    nb::gil_scoped_release release;
    return unwrap(emit::make_artifact(std::move(texts), plan, options));
}

}  // namespace

std::vector<emit::StageText> texts_of(const std::vector<StageTuple>& stages, std::int32_t num_sms,
                                      const std::vector<Values>& values) {
    if (!values.empty() && values.size() != stages.size())
        throw nb::value_error("values: give a mapping for each stage, or none at all");
    std::vector<emit::StageText> texts;
    for (const auto& [source, file, name, bindings, scalars, tensors, grid] : stages) {
        const Values known = values.empty() ? Values{} : values[texts.size()];
        texts.push_back({source, file, name, arguments_of(scalars, tensors, known, grid, num_sms), bindings});
    }
    return texts;
}

void bind_compiler(nb::module_& m) {
    nb::class_<plan::Plan>(m, "Plan",
                           "A communication plan: for each rank a list of ops (schema syncopate.plan/1).")
        .def_prop_ro("num_ranks", &plan::Plan::num_ranks)
        .def_prop_ro("mesh",
                     [](const plan::Plan& plan) {
                         std::vector<std::pair<std::string, std::int32_t>> axes;
                         for (const auto& axis : plan.mesh.axes) axes.emplace_back(axis.name, axis.size);
                         return axes;
                     })
        .def_prop_ro("tensors",
                     [](const plan::Plan& plan) {
                         std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>> result;
                         for (const plan::Tensor& t : plan.tensors) {
                             result.emplace_back(t.name, t.shape, std::string(plan::name_of(t.dtype)));
                         }
                         return result;
                     })
        .def(
            "initial",
            [](const plan::Plan& plan, std::int32_t rank) {
                std::vector<std::pair<std::string, Box>> result;
                for (const plan::Holding& holding : plan.initial) {
                    if (holding.rank != rank) continue;
                    result.emplace_back(plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)].name,
                                        to_box(holding.chunk.region));
                }
                return result;
            },
            nb::arg("rank"),
            "What `rank` holds before the first op: (tensor, box) pairs, a box a (begin, end) per axis.")
        .def(
            "final",
            [](const plan::Plan& plan, std::int32_t rank) {
                std::vector<std::tuple<std::string, Box, std::vector<std::int32_t>>> result;
                for (const plan::Holding& holding : plan.final) {
                    if (holding.rank != rank) continue;
                    std::vector<std::int32_t> of = holding.of;
                    for (std::int32_t r = 0; holding.of_all && r < plan.num_ranks(); ++r) of.push_back(r);
                    result.emplace_back(plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)].name,
                                        to_box(holding.chunk.region), std::move(of));
                }
                return result;
            },
            nb::arg("rank"),
            "What `rank` must hold at the end: (tensor, box, ranks whose contributions are reduced) triples.")
        .def_prop_ro(
            "produced",
            [](const plan::Plan& plan) {
                std::set<std::string> names;
                for (const plan::Holding& holding : plan.produced)
                    names.insert(plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)].name);
                return std::vector<std::string>(names.begin(), names.end());
            },
            "The tensors of which some rank's kernel makes a part.")
        .def(
            "reduction",
            [](const plan::Plan& plan, const std::string& tensor) {
                for (const std::vector<plan::Op>& rank : plan.ranks) {
                    for (const plan::Op& op : rank) {
                        if (op.reduce != plan::Reduce::none &&
                            plan.tensors[static_cast<std::size_t>(op.dst.tensor)].name == tensor)
                            return std::string(plan::name_of(op.reduce));
                    }
                }
                return std::string("sum");
            },
            nb::arg("tensor"), "By what ops reduce into a tensor.")
        .def("to_json", [](const plan::Plan& plan) { return plan::to_json(plan); })
        .def(
            "table", [](const plan::Plan& plan) { return plan::to_table(plan); },
            "As `syncopate plan show` prints it.")
        .def("check", &findings,
             "Everything wrong with the plan, as `plan check --json` lists it; empty if nothing is.");

    nb::list backends;
    for (std::size_t i = 0; i < plan::kNumBackends; ++i) {
        const std::string_view name = plan::name_of(static_cast<plan::Backend>(i));
        backends.append(nb::str(name.data(), name.size()));
    }
    m.attr("BACKENDS") = nb::tuple(backends);
    m.def(
        "plan_from_json",
        [](const std::string& text, const std::string& name) { return unwrap(plan::from_json(text, name)); },
        nb::arg("text"), nb::arg("name"));
    m.def(
        "push_reduce",
        [](const std::vector<std::pair<std::string, std::int32_t>>& axes, std::string name,
           std::vector<std::int64_t> shape, const std::string& dtype, std::int32_t axis, std::int32_t split,
           const std::string& reduce, bool all, bool by_part, std::int32_t pulled,
           std::optional<std::int32_t> split_axis, const std::vector<std::string>& backends) {
            if (reduce != "sum" && reduce != "max")
                throw nb::value_error(("unknown reduction '" + reduce + "'; expected sum or max").c_str());
            std::vector<plan::Backend> chosen;
            for (const std::string& backend : backends) chosen.push_back(backend_of(backend));
            return unwrap(plan::push_reduce(
                mesh_from(axes),
                {.name = std::move(name), .shape = std::move(shape), .dtype = dtype_of(dtype)},
                {.axis = axis,
                 .split = split,
                 .split_axis = split_axis,
                 .reduce = reduce == "max" ? plan::Reduce::max : plan::Reduce::sum,
                 .all = all,
                 .by_part = by_part,
                 .backends = std::move(chosen),
                 .pulled = pulled}));
        },
        nb::arg("mesh"), nb::arg("name"), nb::arg("shape"), nb::arg("dtype"), nb::arg("axis"),
        nb::arg("split"), nb::arg("reduce"), nb::arg("all"), nb::arg("by_part") = false,
        nb::arg("pulled") = 0, nb::arg("split_axis") = nb::none(),
        nb::arg("backends") = std::vector<std::string>());
    m.def(
        "push_exchange",
        [](const std::vector<std::pair<std::string, std::int32_t>>& axes, std::string name,
           const std::string& to, std::vector<std::int64_t> shape, const std::string& dtype,
           std::int32_t split, bool produced, bool transient, bool own_transient, std::int32_t minor_axis,
           std::int32_t minor_split, std::vector<std::int64_t> minor_sizes, bool peer_by_peer) {
            return unwrap(plan::push_exchange(
                mesh_from(axes),
                {.name = std::move(name), .shape = std::move(shape), .dtype = dtype_of(dtype)}, to,
                {.produced = produced,
                 .split = split,
                 .transient = transient,
                 .own_transient = own_transient,
                 .minor_axis = minor_axis,
                 .minor_split = minor_split,
                 .minor_sizes = std::move(minor_sizes),
                 .peer_by_peer = peer_by_peer}));
        },
        nb::arg("mesh"), nb::arg("name"), nb::arg("to"), nb::arg("shape"), nb::arg("dtype"), nb::arg("split"),
        nb::arg("produced"), nb::arg("transient"), nb::arg("own_transient"), nb::arg("minor_axis"),
        nb::arg("minor_split"), nb::arg("minor_sizes"), nb::arg("peer_by_peer"));

    m.def("fuse", &fuse_stages, nb::arg("stages"), nb::arg("plan"), nb::arg("device"), nb::arg("num_sms"),
          nb::arg("phases") = true, nb::arg("backend") = "auto",
          nb::arg("sum_parts") = fuse::Options{}.most_sum_parts, nb::arg("plain_kernel") = false,
          nb::arg("values") = std::vector<Values>(),
          "Analyses the kernel of each stage (source, file, kernel, bindings, scalars, tensors, grid), fuses "
          "them with a plan and emits them; see emit/artifact.hpp. `values`: of each stage, the elements of "
          "integer tensors that the host knows, by parameter.");
    m.def(
        "join_plans",
        [](const std::vector<plan::Plan>& parts,
           const std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>>& tensors) {
            std::vector<plan::Tensor> added;
            for (const auto& [name, shape, dtype] : tensors) added.push_back({name, shape, dtype_of(dtype)});
            return unwrap(plan::join(parts, added));
        },
        nb::arg("plans"), nb::arg("tensors"));
    m.def(
        "require_same_footprints",
        [](const StageTuple& stated, const StageTuple& found, std::int32_t num_sms) {
            unwrap(kernel::require_same_footprints(kernel_of(stated, num_sms), kernel_of(found, num_sms)));
        },
        nb::arg("stated"), nb::arg("found"), nb::arg("num_sms") = 132,
        "Raises InputError, naming parameter and tile, where the tiles of two kernels, stages as `fuse` "
        "takes "
        "them, do not touch the same; see kernel/model/compare.hpp.");
    m.def("evaluate", &evaluate, nb::arg("text"), nb::arg("subject"), nb::arg("numbers"),
          "A whole-number expression (syncopate/affine.hpp) where names have these values.");
    m.def("identity_table", &emit::identity_table, nb::arg("num_tiles"), nb::arg("num_programs"),
          "The words by which a kernel that follows a table runs alone; see emit/table.hpp.");
    m.def("analyse", &analyse_source, nb::arg("source"), nb::arg("file"), nb::arg("kernel"),
          nb::arg("scalars"), nb::arg("tensors"), nb::arg("grid").none(), nb::arg("num_sms") = 0,
          nb::arg("values") = Values(),
          "What the front end finds: axes as (name, count, block), grid, the reduction loop's variable, "
          "loops as "
          "(variable, trips, divisible, slices), a slice as (parameter, axis, base, step, extent), and "
          "for each "
          "tile (program, boxes read by parameter, boxes written, parameters whose boxes may be too large: "
          "read, written); see kernel/kernel.hpp.");
}

}  // namespace syncopate::bindings

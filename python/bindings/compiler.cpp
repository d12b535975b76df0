// The compiler as Python sees it: the whole way from a kernel's source to a fused one.
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
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "stages.hpp"
#include "syncopate/affine.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/kernel/model/compare.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

kernel::Scalar to_scalar(const std::string& name, nb::handle value) {
    if (value.is_none()) return kernel::NoneValue{};
    if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
    if (nb::isinstance<nb::int_>(value)) {
        std::int64_t whole = 0;
        if (nb::try_cast(value, whole)) return whole;
        throw nb::value_error(("argument " + name + ": the int has more than 64 bits").c_str());
    }
    if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
    if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
    throw nb::type_error(("argument " + name + ": expected an int, float, bool, str or None").c_str());
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
            .shape = shape, .strides = strides, .dtype = to_dtype(dtype), .block = block};
    }
    for (const auto& [parameter, elements] : values) {
        const Status status = kernel::set_values(arguments, parameter, elements);
        if (!status) throw nb::value_error(status.error().message.c_str());
    }
    return arguments;
}

template <typename Boxes>
nb::dict to_dict(const Boxes& boxes) {
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
                           const std::string& device, std::int32_t num_sms, const ops::Strategy& strategy,
                           const std::vector<Values>& values, const std::string& device_name,
                           std::optional<std::int32_t> rank, const std::string& machine) {
    std::vector<emit::StageText> texts = texts_of(stages, num_sms, values);
    fuse::Options options =
        ops::fuse_options(strategy, device == "cuda" ? fuse::Device::cuda : fuse::Device::host);
    if (!machine.empty()) {
        options.costs = unwrap(tune::find_machine(machine)).rates;
    } else if (!device_name.empty()) {
        // Over nodes each makes its part of one schedule.
        const auto nearest =
            plan.mesh.num_nodes() > 1 ? tune::nearest_machine_of_hosts : tune::nearest_machine;
        options.costs = unwrap(nearest(device_name, plan.num_ranks(), num_sms)).machine.rates;
    }
    const GilReleased released;
    return unwrap(emit::make_artifact(std::move(texts), plan, options, rank));
}

/// By name of a kernel's parameter what it is (ops/parameters.hpp): what of, and its name, shape, stage and number.
nb::dict parameters_of(const ops::Parameters& parameters) {
    constexpr std::array<const char*, 7> kOf{"operand", "scratch", "tensor",  "table",
                                             "rank",    "stride",  "constant"};
    nb::dict made;
    for (const auto& [name, of] : parameters)
        made[name.c_str()] =
            nb::make_tuple(kOf[static_cast<std::size_t>(of.of)], of.name, of.shape, of.stage, of.value);
    return made;
}

/// As fuse_stages, of stages whose rows come in groups (ops/ragged.hpp), with what they are given beside tensors.
nb::tuple fuse_ragged(const std::vector<StageTuple>& stages, const plan::Plan& plan,
                      const std::string& device, std::int32_t num_sms, const ops::Strategy& strategy,
                      std::int64_t programs) {
    const std::vector<emit::StageText> texts = texts_of(stages, num_sms, {});
    const fuse::Options options =
        ops::fuse_options(strategy, device == "cuda" ? fuse::Device::cuda : fuse::Device::host);
    emit::Artifact artifact;
    ops::RaggedProgram program;
    {
        const GilReleased released;
        program = unwrap(ops::ragged_program(texts, plan, programs));
        artifact = unwrap(emit::make_artifact(program.program, options));
    }
    nb::dict made;
    made["rows"] = program.of.rows.name;
    made["more"] = program.of.more ? nb::cast(program.of.more->name) : nb::none();
    made["back"] = program.of.back ? nb::cast(program.of.back->name) : nb::none();
    made["counts"] = program.of.counts;
    made["bound"] = program.of.bound;
    nb::list users;
    for (const ops::RaggedKernel& user : program.users) {
        nb::dict one;
        nb::list told, writes;
        for (const ops::RaggedTold& by : user.told) told.append(by.param);
        for (const kernel::Param& param : user.kernel.params) {
            if (param.written) writes.append(param.name);
        }
        one["told"] = told;
        one["writes"] = writes;
        one["warnings"] = user.warnings;
        nb::dict reads;
        for (const auto& [param, tensor] : user.reads) reads[param.c_str()] = tensor;
        one["reads"] = reads;
        one["makes"] = user.makes;
        users.append(one);
    }
    made["users"] = users;
    const bool beside = artifact.launch.schedule.stages.at(ops::kRaggedStages).overlaps;
    made["beside"] = beside;
    nb::dict known;
    known[ops::kRaggedExperts] = program.users.front().expert_of;
    known[ops::kRaggedFirstRows] = program.users.front().row_of;
    made["known"] = known;
    made["apart"] = program.sending.apart;
    nb::list parameters;
    for (const ops::Parameters& of_stage : ops::ragged_parameters(program, beside, {}))
        parameters.append(parameters_of(of_stage));
    made["parameters"] = parameters;
    return nb::make_tuple(std::move(artifact), made);
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
    m.def("fuse", &fuse_stages, nb::arg("stages"), nb::arg("plan"), nb::arg("device"), nb::arg("num_sms"),
          nb::arg("strategy") = ops::Strategy{}, nb::arg("values") = std::vector<Values>(),
          nb::arg("device_name") = "", nb::arg("rank") = nb::none(), nb::arg("machine") = "",
          "Analyses the kernel of each stage (source, file, kernel, bindings, scalars, tensors, grid), fuses "
          "them with a plan and emits them; see emit/artifact.hpp. `values`: of each stage, the elements of "
          "integer tensors that the host knows, by parameter. `rank`: for whom alone: of several nodes the "
          "part of its own is made, and warnings "
          "are of its tiles. `device_name`: as the driver calls what runs "
          "them; "
          "its figures are those by which the passes choose, or those of `machine`, its text.");
    m.def("fuse_ragged", &fuse_ragged, nb::arg("stages"), nb::arg("plan"), nb::arg("device"),
          nb::arg("num_sms"), nb::arg("strategy"), nb::arg("programs"),
          "As `fuse`, of kernels over rows in groups of which only the device knows how many they are: the "
          "artifact, whose "
          "first stages are those of kernels/ragged.py, and what they are given; see ops/ragged.hpp.");
    m.def(
        "ragged_verdict",
        [](const std::string& counts, std::int64_t bound, const std::vector<std::uint32_t>& seen,
           bool drops) {
            const std::vector<std::uint32_t> before(seen.size(), 0);
            return ops::ragged_verdict(counts, bound, before, seen, drops);
        },
        nb::arg("counts"), nb::arg("bound"), nb::arg("seen"), nb::arg("drops"),
        "What calls have seen that is wrong; \"\" where nothing is.");
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
          "read, written); see kernel/model/kernel.hpp.");
}

}  // namespace syncopate::bindings

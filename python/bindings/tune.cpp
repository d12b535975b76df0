// Choosing a strategy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bindings.hpp"
#include "gil.hpp"
#include "known.hpp"
#include "problem.hpp"
#include "stages.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/io.hpp"
#include "syncopate/ops/varied.hpp"
#include "syncopate/tune/candidates/candidates.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/machine/measured.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "syncopate/tune/search/contenders.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

/// What choosing is asked with, apart from the problem.
tune::ChooseOptions options_of(bool cuda, bool unfused, bool exact_fp32, bool gluon) {
    return {.unfused = unfused,
            .device = cuda ? fuse::Device::cuda : fuse::Device::host,
            .gluon = gluon,
            .exact_fp32 = exact_fp32};
}

tune::Machine machine_of(const std::string& name, const tune::Problem& problem, const std::string& device) {
    if (!name.empty()) return unwrap(tune::find_machine(name));
    return unwrap(tune::nearest_machine(device, problem.ranks / problem.nodes, problem.num_sms)).machine;
}

/// Of tune::Snapshot: the machine files named, measured and not read, and the results.
using SnapshotTexts = std::tuple<std::string, std::string, std::string, std::string>;

std::optional<tune::Snapshot> snapshot_of(const std::optional<SnapshotTexts>& texts) {
    if (!texts) return std::nullopt;
    const auto& [named, measured, unread, results] = *texts;
    return tune::Snapshot{.machines = {.named = named, .measured = measured, .unread = unread},
                          .results = results};
}

nb::dict dict_of(const tune::Estimate& estimate) {
    nb::dict made;
    made["us"] = estimate.us;
    made["compute"] = estimate.compute;
    made["communicate"] = estimate.communicate;
    made["exposed"] = estimate.exposed;
    made["fixed"] = estimate.fixed;
    made["copied"] = estimate.copied;
    return made;
}

/// With a kernel (its hash) what tuning has found for it is taken, unless SYNCOPATE_TUNE is off. With a `snapshot` of a rank,
/// what that one would take.
nb::tuple choose(const GivenProblem& given, const std::string& machine, const std::string& device, bool cuda,
                 bool unfused, bool exact_fp32, const std::string& kernel, const std::string& versions,
                 bool kept, bool copied, bool gluon, const std::optional<SnapshotTexts>& snapshot) {
    const tune::Problem problem = problem_of(given);
    const std::optional<tune::Snapshot> of = snapshot_of(snapshot);
    const Known known(kernel, device, versions, cuda, of);
    tune::ChooseOptions options = options_of(cuda, unfused, exact_fp32, gluon);
    options.kept = kept;
    options.copied = copied;
    const tune::Machine on =
        of ? unwrap(tune::nearest_machine_of(of->machines, device, problem.ranks / problem.nodes,
                                             problem.num_sms))
                 .machine
           : machine_of(machine, problem, device);
    return known.told(tune::choose(problem, on, known.store(), options));
}

/// What `choose` takes as its `snapshot` on another rank.
SnapshotTexts snapshot() {
    const tune::Snapshot here = unwrap(tune::snapshot_here());
    return {here.machines.named, here.machines.measured, here.machines.unread, here.results};
}

/// Why no operator can do the problem; "" where one can.
std::string problem_objection(const GivenProblem& given) {
    const Result<tune::Problem> problem = tune::parse_problem(key_of(given));
    return problem ? "" : problem.error().message;
}

/// Its figures are looked at where they come from a user, as those of a store are.
tune::Strategy checked(const tune::Strategy& strategy) {
    return unwrap(tune::strategy_from_json(tune::to_json(strategy), "the strategy"));
}

tune::Strategy complete(const GivenProblem& given, const tune::Strategy& strategy, const std::string& machine,
                        const std::string& device, bool cuda, bool exact_fp32, bool gluon) {
    const tune::Problem problem = problem_of(given);
    return tune::complete(problem, machine_of(machine, problem, device), checked(strategy),
                          options_of(cuda, true, exact_fp32, gluon));
}

/// What is to be said of the machine that stands for a device; "" where it is known.
std::string machine_message(const std::string& device, std::int32_t ranks, std::int32_t num_sms) {
    return unwrap(tune::nearest_machine(device, ranks, num_sms)).message;
}

/// The one that is taken here, of which other ranks may have another file.
std::string machine_text(const std::string& device, std::int32_t ranks, std::int32_t num_sms) {
    return tune::to_json(unwrap(tune::nearest_machine(device, ranks, num_sms)).machine);
}

/// Raises UsageError.
void require_routing(const tune::Problem& problem, const tune::Routing& rows) {
    const std::int64_t experts = problem.is_mixture() ? problem.extent("E") : 0;
    if (static_cast<std::int64_t>(rows.size()) == experts && std::ranges::min(rows) >= 0) return;
    throw Raised({fmt::format("rows: expected a number, from 0 on, for each of {} experts, got {} numbers",
                              experts, rows.size()),
                  {},
                  ErrorClass::usage});
}

/// `rows`: of a mixture of experts, how many of all ranks each expert gets; empty: as many each.
nb::dict estimate(const GivenProblem& given, const tune::Strategy& strategy, const std::string& machine,
                  const tune::Routing& rows) {
    const tune::Problem problem = problem_of(given);
    const tune::Machine on = machine_of(machine, problem, "");
    const tune::Strategy whole = tune::complete(problem, on, checked(strategy));
    if (!rows.empty()) require_routing(problem, rows);
    nb::dict made = dict_of(rows.empty() ? tune::estimate(problem, on, whole)
                                         : tune::estimate_mixture(problem, on, whole, rows));
    made["objection"] = tune::strategy_objection(problem, whole);
    made["name"] = tune::name_of(whole);
    return made;
}

/// `configurations`: of each, its stages as `fuse` takes them.
nb::list rank_program(const std::vector<std::vector<StageTuple>>& configurations, const plan::Plan& plan,
                      const std::string& device, std::int32_t num_sms, const std::vector<Values>& values,
                      const std::string& machine, const std::string& device_name) {
    std::vector<fuse::StagedProgram> programs;
    std::vector<std::size_t> index;  // among the configurations, of each program
    std::vector<std::pair<std::size_t, Error>> unread;
    for (std::size_t i = 0; i < configurations.size(); ++i) {
        auto program = emit::analyse_stages(texts_of(configurations[i], num_sms, values), plan);
        if (!program) {
            unread.emplace_back(i, program.error());
            continue;
        }
        programs.push_back(*std::move(program));
        index.push_back(i);
    }
    if (programs.empty() && !unread.empty()) throw Raised(unread.front().second);
    const tune::Machine on =
        machine.empty() ? unwrap(tune::nearest_machine(device_name, plan.num_ranks(), num_sms)).machine
                        : unwrap(tune::find_machine(machine));
    std::vector<tune::ProgramCandidate> ranked;
    {
        const GilReleased released;
        ranked = tune::rank_program(programs, on, device == "cuda" ? fuse::Device::cuda : fuse::Device::host);
    }
    nb::list made;
    for (const tune::ProgramCandidate& candidate : ranked) {
        nb::dict entry = dict_of(candidate.estimate);
        entry["name"] = candidate.name;
        entry["configuration"] = index[candidate.configuration];
        entry["strategy"] = candidate.strategy;
        entry["pruned"] = candidate.pruned;
        made.append(entry);
    }
    for (const auto& [at, error] : unread) {
        nb::dict entry = dict_of({});
        entry["name"] = tune::name_of(tune::Strategy{});
        entry["configuration"] = at;
        entry["strategy"] = tune::Strategy{};
        entry["pruned"] = error.message;
        made.append(entry);
    }
    return made;
}

std::string estimate_objection(const GivenProblem& given, const std::string& device) {
    const tune::Problem problem = problem_of(given);
    return tune::estimate_objection(problem, machine_of({}, problem, device));
}

tune::TileConfig tiles(std::int64_t m, std::int64_t n, std::int64_t k, const std::string& dtype,
                       std::int32_t programs, bool exact_fp32, const std::string& device) {
    const plan::DType type = to_dtype(dtype);
    return tune::quickest_tiles(unwrap(tune::nearest_machine(device, 1)).machine, type, {m, n, k}, programs,
                                exact_fp32);
}

/// Block sizes, stages and split of K of tiles for the Gluon GEMM, with their estimate in µs.
using GluonTile = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t, double>;

/// The quickest first.
std::vector<GluonTile> gluon_tiles(std::int64_t m, std::int64_t n, std::int64_t k, std::int32_t programs,
                                   const std::string& machine, const std::string& device) {
    const tune::Machine on = machine.empty() ? unwrap(tune::nearest_machine(device, 1)).machine
                                             : unwrap(tune::find_machine(machine));
    std::vector<tune::TileConfig> tiles = tune::gluon_tile_configs({}, {m, n, k}, programs);
    std::ranges::stable_sort(tiles, {}, [&](const tune::TileConfig& tile) {
        return tune::gluon_rank(on, {}, {m, n, k}, tile, programs);
    });
    std::vector<GluonTile> made;
    for (const tune::TileConfig& tile : tiles) {
        made.emplace_back(tile.block_m, tile.block_n, tile.block_k, tile.stages, tile.split_k,
                          tune::gluon_product_us(on, {}, {m, n, k}, tile, programs));
    }
    return made;
}

/// (name, strategy, estimate in µs, whether it is a baseline)
using ContenderTuple = std::tuple<std::string, std::string, double, bool>;

std::vector<ContenderTuple> contenders(const GivenProblem& given, const std::vector<std::string>& vary,
                                       const std::string& machine, const std::string& device, bool cuda,
                                       bool exact_fp32, bool gluon) {
    const tune::Problem problem = problem_of(given);
    std::vector<ContenderTuple> made;
    for (tune::Contender& one : unwrap(tune::contenders(problem, machine_of(machine, problem, device),
                                                        options_of(cuda, true, exact_fp32, gluon), vary)))
        made.emplace_back(std::move(one.name), std::move(one.strategy), one.estimate_us, one.baseline);
    return made;
}

using NamedValues = std::vector<std::pair<std::string, std::string>>;

tune::Strategy varied(const tune::Strategy& usual, const NamedValues& values) {
    std::vector<tune::Word> words;
    for (const auto& [name, value] : values) words.push_back({name, value});
    return unwrap(ops::varied(usual, words));
}

std::vector<std::pair<std::string, NamedValues>> variations(const std::vector<std::string>& texts) {
    std::vector<std::pair<std::string, NamedValues>> made;
    for (const ops::Variation& one : unwrap(ops::variations(texts))) {
        NamedValues& values = made.emplace_back(one.name, NamedValues{}).second;
        for (const auto& [name, value] : one.values) values.emplace_back(name, value);
    }
    return made;
}

/// Writes the machine file of a measurement. Returns its summary, and what is to be said about it.
nb::tuple measured_machine(const std::string& device, std::int32_t devices, std::int32_t num_sms,
                           const std::string& measured, const std::string& path) {
    tune::Measurement measurement = unwrap(tune::measurement_from_json(measured));
    measurement.device = device;
    measurement.devices = devices;
    measurement.num_sms = num_sms;
    const tune::Machine machine = unwrap(tune::machine_of(measurement));
    unwrap(write_file_atomically(path, tune::to_json(machine)));
    const std::string summary = path + ": " + machine.about;
    return nb::make_tuple(summary, machine.measured
                                       ? std::string()
                                       : "figures that were not measured here are marked so: their "
                                         "sources name another machine");
}

/// Puts what is between nodes into the machine file at `path`, or into the nearest machine where there is none. Returns a
/// summary.
std::string measured_network(const std::string& device, std::int32_t devices, std::int32_t num_sms,
                             double gbps, double us, double collective_gbps, const std::string& source,
                             const std::string& path) {
    std::error_code missing;
    tune::Machine machine = std::filesystem::exists(path, missing)
                                ? unwrap(tune::machine_from_json(unwrap(read_file(path)), path))
                                : unwrap(tune::nearest_machine(device, devices, num_sms)).machine;
    machine = tune::with_network(std::move(machine), {gbps, us, collective_gbps}, source);
    unwrap(write_file_atomically(path, tune::to_json(machine)));
    return fmt::format("{}: between nodes {:.1f} GB/s, {:.1f} us, in an all-gather {:.1f} GB/s", path, gbps,
                       us, collective_gbps);
}

}  // namespace

void bind_tune(nb::module_& module) {
    nb::module_ tune = module.def_submodule("tune", "Choosing a strategy for a problem");
    tune.def("choose", choose, "problem"_a, "machine"_a = "", "device"_a = "", "cuda"_a = true,
             "unfused"_a = true, "exact_fp32"_a = false, "kernel"_a = "", "versions"_a = "", "kept"_a = false,
             "copied"_a = false, "gluon"_a = true, "snapshot"_a = nb::none());
    tune.def("snapshot", snapshot,
             "What this process chooses by: its machine files and its store (snapshot.hpp).");
    tune.def("problem_objection", problem_objection, "problem"_a);
    tune.def(
        "strategy_objection",
        [](const GivenProblem& given, const tune::Strategy& strategy) {
            return tune::strategy_objection(problem_of(given), checked(strategy));
        },
        "problem"_a, "strategy"_a, "Why no operator carries the problem out so; \"\" where one does.");
    tune.def("complete", complete, "problem"_a, "strategy"_a, "machine"_a = "", "device"_a = "",
             "cuda"_a = true, "exact_fp32"_a = false, "gluon"_a = true);
    tune.def("estimate", estimate, "problem"_a, "strategy"_a, "machine"_a = "", "rows"_a = tune::Routing());
    tune.def("tiles", tiles, "m"_a, "n"_a, "k"_a, "dtype"_a, "programs"_a, "exact_fp32"_a = false,
             "device"_a = "");
    tune.def(
        "gluon_tiles", gluon_tiles, "m"_a, "n"_a, "k"_a, "programs"_a, "machine"_a = "", "device"_a = "",
        "(block_m, block_n, block_k, stages, split_k, µs) of tiles for the Gluon GEMM, the quickest first.");
    tune.attr("MOST_GLUON_SPLIT_TILES") = tune::kMostGluonSplitTiles;
    tune.attr("GLUON_SHARED_BYTES") = tune::kBlockSharedBytes;
    tune.attr("CHANNEL_BLOCKS") = fuse::kChannelBlocks;  // multiprocessors between nodes
    tune.def("contenders", &contenders, "problem"_a, "vary"_a = std::vector<std::string>(), "machine"_a = "",
             "device"_a = "", "cuda"_a = true, "exact_fp32"_a = false, "gluon"_a = true,
             "(name, strategy, estimate in µs, whether it is a baseline) of what a search tries.");
    tune.def("variations", &variations, "texts"_a, "(name, values) of each combination of --vary's texts.");
    tune.def("varied", &varied, "usual"_a, "values"_a, "The strategy with other values (ops/varied.hpp).");
    tune.attr("SMALL") = ops::small_tile();
    tune.def("measured_machine_path", tune::measured_machine_path);
    tune.def("measured_machine", measured_machine, "device"_a, "devices"_a, "num_sms"_a, "measured"_a,
             "path"_a);
    tune.def("measured_network", measured_network, "device"_a, "devices"_a, "num_sms"_a, "gbps"_a, "us"_a,
             "collective_gbps"_a, "source"_a, "path"_a);
    tune.def("machine_text", machine_text, "device"_a, "ranks"_a, "num_sms"_a = 0);
    tune.def("machine_message", machine_message, "device"_a, "ranks"_a, "num_sms"_a = 0);
    tune.def("estimate_objection", estimate_objection, "problem"_a, "device"_a = "");
    tune.def("rank_program", rank_program, "configurations"_a, "plan"_a, "device"_a, "num_sms"_a,
             "values"_a = std::vector<Values>(), "machine"_a = "", "device_name"_a = "",
             "All that fuse takes of a user's program, best first by the estimate; see "
             "tune/candidates/program.hpp.");
}

}  // namespace syncopate::bindings

// `syncopate fuse`: a kernel and a plan in, a directory that `syncopate run` takes out.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/json.hpp"
#include "syncopate/plan/topology.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

struct FuseOptions {
    std::string kernel;
    std::string plan;
    std::vector<std::string> bind;
    std::vector<std::string> args;
    std::vector<std::string> tensors;
    std::string grid;
    std::string device = "host";
    std::int64_t programs = 0;
    bool no_phases = false;
    bool tile_sums = false;
    std::string topology;
    bool json = false;
    std::string output;
};

[[noreturn]] void fail_usage(const std::string& message) { fail({message, {}, ErrorClass::usage}); }

template <typename T>
T or_fail(Result<T> result) {
    if (!result) fail(result.error());
    return *std::move(result);
}

/// The result of parsing a part of the command line: its errors are about the command line.
template <typename T>
T or_fail_usage(Result<T> result) {
    if (!result) fail_usage(result.error().message);
    return *std::move(result);
}

/// "FILE.py:NAME" or "FILE.py"; a colon belongs to the path unless an identifier follows it.
std::pair<std::string, std::string> split_kernel(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return {text, ""};
    const std::string name = text.substr(colon + 1);
    const bool identifier = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_';
    });
    return identifier ? std::pair{text.substr(0, colon), name} : std::pair{text, std::string()};
}

std::map<std::string, std::string> parse_bindings(const std::vector<std::string>& texts) {
    std::map<std::string, std::string> bindings;
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
            fail_usage("--bind " + text + ": expected PARAMETER=TENSOR, such as a_ptr=A");
        }
        if (!bindings.emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
            fail_usage("--bind " + text + ": " + text.substr(0, equals) + " is bound already");
        }
    }
    return bindings;
}

kernel::Arguments parse_arguments(const FuseOptions& options) {
    kernel::Arguments arguments;
    for (const std::string& text : options.args) {
        for (auto& [name, value] : or_fail_usage(kernel::parse_scalars(text))) {
            if (!arguments.scalars.emplace(name, std::move(value)).second)
                fail_usage("--args gives " + name + " twice");
        }
    }
    for (const std::string& text : options.tensors) {
        auto [name, tensor] = or_fail_usage(kernel::parse_tensor(text));
        if (!arguments.tensors.emplace(name, std::move(tensor)).second)
            fail_usage("--tensor gives " + name + " twice");
    }
    if (!options.grid.empty()) arguments.grid = or_fail_usage(kernel::parse_grid(options.grid));
    return arguments;
}

/// Writes all files or none: each beside its place first, then renamed. A directory that this call made and
/// could not fill is removed.
void write_directory(const std::string& directory,
                     const std::vector<std::pair<std::string, const std::string*>>& files) {
    namespace fs = std::filesystem;
    std::error_code failure;
    const bool existed = fs::exists(directory, failure);
    fs::create_directories(directory, failure);
    if (failure || !fs::is_directory(directory)) {
        fail({"cannot make the directory " + directory +
              (failure ? ": " + failure.message() : ": a file is in its place")});
    }
    const auto beside = [&](const std::string& name) {
        return (fs::path(directory) / ("." + name + ".new")).string();
    };
    const auto give_up = [&](const Error& error) {
        std::error_code ignored;
        for (const auto& file : files) fs::remove(beside(file.first), ignored);
        if (!existed) fs::remove(directory, ignored);
        fail(error);
    };
    for (const auto& [name, text] : files) {
        if (Status status = write_file_atomically(beside(name), *text); !status) give_up(status.error());
        if (fs::is_directory(fs::path(directory) / name)) {
            give_up(
                {(fs::path(directory) / name).string() + " is a directory, where a file is to be written"});
        }
    }
    for (const auto& file : files) {
        fs::rename(beside(file.first), fs::path(directory) / file.first, failure);
        if (failure)
            give_up(
                {"cannot write " + (fs::path(directory) / file.first).string() + ": " + failure.message()});
    }
}

std::string kernels_of(const emit::Artifact& artifact) {
    std::string names;
    for (const emit::KernelLaunch& stage : artifact.launch.stages)
        names += (names.empty() ? "" : ", then ") + stage.kernel;
    return names;
}

/// One stage: kernel.py and original.py; several: kernel_0.py, …
std::vector<std::pair<std::string, const std::string*>> files_of(const emit::Artifact& artifact) {
    std::vector<std::pair<std::string, const std::string*>> files{{"schedule.json", &artifact.schedule_json}};
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        const std::string number = artifact.sources.size() > 1 ? "_" + std::to_string(stage) : "";
        files.emplace_back("original" + number + ".py", &artifact.sources[stage].original);
        files.emplace_back("kernel" + number + ".py", &artifact.sources[stage].kernel);
    }
    return files;
}

void run_fuse(const FuseOptions& options) {
    const auto [file, name] = split_kernel(options.kernel);
    if (file == "-" && options.plan == "-")
        fail_usage("the kernel and the plan cannot both be standard input");
    std::map<std::string, std::string> bindings = parse_bindings(options.bind);
    kernel::Arguments arguments = parse_arguments(options);
    fuse::Options fuse_options;
    fuse_options.device = options.device == "cuda" ? fuse::Device::cuda : fuse::Device::host;
    fuse_options.phases = !options.no_phases;
    fuse_options.tile_sums = options.tile_sums;
    if (options.programs > 0) fuse_options.num_programs = options.programs;
    if (!options.topology.empty()) fuse_options.topology = or_fail(plan::find_topology(options.topology));

    plan::Plan plan = or_fail(plan::from_json(or_fail(read_file(options.plan)), options.plan));
    const emit::Artifact artifact =
        or_fail(emit::make_artifact(or_fail(read_file(file)), file, name, std::move(arguments),
                                    std::move(plan), std::move(bindings), fuse_options));
    write_directory(options.output, files_of(artifact));

    const fuse::Schedule& schedule = artifact.launch.schedule;
    std::size_t transfers = 0;
    std::size_t waits = 0;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        transfers += rank.transfers.size();
        for (const fuse::Slot& slot : rank.slots) {
            waits += slot.waits.size();
            for (const fuse::Phase& phase : slot.phases) waits += phase.waits.size();
        }
    }
    if (options.json) {
        std::cout << nlohmann::ordered_json{{"directory", options.output},
                                            {"kernel", kernels_of(artifact)},
                                            {"ranks", schedule.ranks.size()},
                                            {"tiles", schedule.num_slots},
                                            {"transfers", transfers},
                                            {"waits", waits},
                                            {"phased", schedule.phased}}
                         .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                  << '\n';
    } else {
        std::cout << options.output << ": " << kernels_of(artifact) << " on " << schedule.ranks.size()
                  << " ranks, " << schedule.num_slots << " tiles each"
                  << (schedule.phased ? " in phases" : "") << ", " << transfers << " transfers, " << waits
                  << " waits\n";
    }
}

}  // namespace

void register_fuse_commands(CLI::App& app) {
    const auto options = std::make_shared<FuseOptions>();
    CLI::App* fuse =
        app.add_subcommand("fuse", "Fuse a kernel with a plan: writes kernel.py and schedule.json");
    fuse->add_option("kernel", options->kernel, "FILE.py:NAME")->required();
    fuse->add_option("--plan", options->plan, "the plan, JSON; - is standard input")->required();
    fuse->add_option("--bind", options->bind, "PARAMETER=TENSOR: which parameter is which tensor of the plan")
        ->delimiter(',');
    fuse->add_option("--args", options->args, "scalar arguments: M=512,BLOCK_M=128,…")
        ->allow_extra_args(false);
    fuse->add_option("--tensor", options->tensors,
                     "PARAMETER=512x256:bf16[:STRIDES][@BLOCK]; a bound one follows the plan")
        ->allow_extra_args(false);
    fuse->add_option("--grid", options->grid, "programs per axis, where the kernel does not tell: 3,2,2");
    fuse->add_option("--device", options->device, "where it is to run")
        ->check(CLI::IsMember({"host", "cuda"}));
    fuse->add_option("--programs", options->programs,
                     "programs of a persistent kernel, if not its own number")
        ->check(CLI::PositiveNumber);
    fuse->add_flag("--no-phases", options->no_phases, "never cut the reduction loop");
    fuse->add_flag("--tile-sums", options->tile_sums,
                   "let tiles add what other ranks send for them, where they can");
    fuse->add_option("--topology", options->topology,
                     "order tiles by the arrivals that plan simulate expects on this machine");
    fuse->add_flag("--json", options->json, "print the summary as JSON");
    fuse->add_option("-o,--output", options->output, "the directory to write")->required();
    fuse->callback([options] { run_fuse(*options); });
}

}  // namespace syncopate::tools

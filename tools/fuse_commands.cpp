// `syncopate fuse`: a kernel and a plan in, a directory that `syncopate run` takes out.
#include <algorithm>
#include <cctype>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/emit/write_folder.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/draw_graph.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/io.hpp"
#include "syncopate/kernel/model/unwritten.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "tools/commands.hpp"
#include "tools/operator_options.hpp"

namespace syncopate::tools {
namespace {

/// What is said of one kernel.
struct StageOptions {
    std::string kernel;
    std::vector<std::string> bind;
    std::vector<std::string> args;
    std::vector<std::string> tensors;
    std::vector<std::string> values;
    std::string grid;
};

struct FuseOptions {
    std::vector<StageOptions> stages;
    std::vector<std::string> plans;
    std::string device;  ///< "": host; of an operator cuda
    std::int64_t programs = 0;
    bool kernel_sums = false;
    bool together = false;
    std::string topology;
    bool json = false;
    std::string output;
    std::string show;
    std::string svg;
    OperatorArguments op;
};

[[noreturn]] void fail_usage(const std::string& message) { fail({message, {}, ErrorClass::usage}); }

template <typename T>
T or_fail(Result<T> result) {
    if (!result) fail(result.error());
    return *std::move(result);
}

/// What is wrong with the plan is said of its file, where there is one.
template <typename T>
T or_fail_of_plan(Result<T> result, const FuseOptions& options) {
    if (result) return *std::move(result);
    Error error = result.error();
    const bool of_plan = error.location.rank >= 0 || error.location.of_plan;
    if (of_plan && error.location.file.empty() && options.plans.size() == 1)
        error.location.file = options.plans.front();
    fail(error);
}

/// The result of parsing a part of the command line: its errors are about the command line.
template <typename T>
T or_fail_usage(Result<T> result) {
    if (!result) fail_usage(result.error().message);
    return *std::move(result);
}

/// "FILE.py:NAME", "FILE.py:NAME@LINE" or "FILE.py"; a colon belongs to the path unless these follow it.
std::pair<std::string, std::string> split_kernel(const std::string& word) {
    const std::string text = as_given(word);
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return {text, ""};
    const std::string name = text.substr(colon + 1);
    const bool identifier = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '@';
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

kernel::Arguments parse_arguments(const StageOptions& options) {
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
    for (const std::string& text : options.values) {
        auto [name, values] = or_fail(kernel::parse_values(text));
        if (const Status status = kernel::set_values(arguments, name, std::move(values)); !status)
            fail_usage(status.error().message);
    }
    if (!options.grid.empty()) arguments.grid = or_fail_usage(kernel::parse_grid(options.grid));
    return arguments;
}

std::string kernels_of(const emit::Artifact& artifact) {
    std::string names;
    for (const emit::KernelLaunch& stage : artifact.launch.stages)
        names += (names.empty() ? "" : ", then ") + stage.kernel;
    return names;
}

/// Adds what the kernels import from their own folders, so that the fused ones find it beside them.
void add_imports(const std::vector<kernel::ImportedFile>& imported, const std::string& of,
                 emit::Artifact& artifact) {
    for (const kernel::ImportedFile& one : imported) {
        if (!emit::add_import(artifact, one.path, one.text))
            fail({of + " imports " + one.path +
                  ", but another file of this name is to be written: rename it"});
    }
}

/// The plan; of several, joined, with the tensors that stages hand on and no plan has, which take their shape
/// from --tensor.
plan::Plan read_plan(const FuseOptions& options, const std::vector<emit::StageText>& stages) {
    std::vector<plan::Plan> plans;
    for (const std::string& file : options.plans)
        plans.push_back(or_fail(plan::from_json(or_fail(read_file(file)), file)));
    std::vector<plan::Tensor> handed_on;
    for (const emit::StageText& stage : stages) {
        for (const auto& [param, tensor] : stage.bindings) {
            const auto has = [&, name = tensor](const plan::Plan& plan) {
                return plan.find_tensor(name).has_value();
            };
            const auto shape = stage.arguments.tensors.find(param);
            if (stages.size() < 2 || std::ranges::any_of(plans, has) ||
                shape == stage.arguments.tensors.end() ||
                std::ranges::find(handed_on, tensor, &plan::Tensor::name) != handed_on.end())
                continue;
            handed_on.push_back({tensor, shape->second.shape, shape->second.dtype});
        }
    }
    if (plans.size() == 1 && handed_on.empty()) return std::move(plans.front());
    return or_fail(plan::join(plans, handed_on));
}

/// A plan of which no kernel reads or makes anything would be carried out beside it, for nothing.
void require_binding(const plan::Plan& plan, const std::vector<emit::StageText>& stages) {
    std::string tensors;
    for (const plan::Tensor& tensor : plan.tensors) tensors += (tensors.empty() ? "" : ", ") + tensor.name;
    for (const emit::StageText& stage : stages) {
        if (!stage.bindings.empty()) return;
    }
    fail_usage("no parameter is bound to a tensor of the plan (" + tensors +
               "): say which one is, by --bind PARAMETER=TENSOR");
}

/// Prints and draws the work graph, as asked.
void show_graph(const FuseOptions& options, const fuse::StagedProgram& program,
                const fuse::Options& fuse_options) {
    if (options.show.empty() && options.svg.empty()) {
        if (options.output.empty()) fail_usage("give -o DIR, --show graph or --svg FILE");
        return;
    }
    const fuse::Decisions work = or_fail_of_plan(fuse::decide(program, fuse_options), options);
    if (!options.show.empty()) fuse::write_graph(std::cout, program, work);
    if (options.svg.empty()) return;
    if (Status written = write_file_atomically(options.svg, or_fail(fuse::graph_svg(program, work)));
        !written)
        fail(written.error());
}

void warn(const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings) std::cerr << "warning: " << warning << '\n';
}

/// The machine of --topology, with a warning where it orders nothing.
std::optional<plan::Topology> topology_of(const FuseOptions& options, const plan::Plan& plan) {
    if (options.topology.empty()) return std::nullopt;
    if (const std::string why = fuse::topology_objection(plan); !why.empty())
        warn({"--topology orders no tiles of this plan: " + why});
    return or_fail(plan::find_topology(options.topology));
}

/// An operator of the library: its work graph, as the kernels state themselves.
void show_operator(const FuseOptions& options) {
    if (options.stages.size() > 1)
        fail_usage("--op is an operator with all of its kernels: leave out --then");
    if (!options.output.empty())
        fail_usage("--op: print its graph by --show graph, or draw it by --svg; `syncopate run` compiles it");
    const OperatorTask task = task_of(options.op);
    fuse::Options fuse_options = tune::options_of(
        task.strategy, options.device == "host" ? fuse::Device::host : fuse::Device::cuda, task.machine);
    const fuse::StagedProgram program = or_fail(ops::program(task.problem, task.strategy));
    fuse_options.topology = topology_of(options, program.plan);
    show_graph(options, program, fuse_options);
}

/// `run` fills all tensors that a kernel takes.
void require_tensors(const fuse::StagedProgram& program) {
    for (const fuse::Stage& stage : program.stages) {
        for (const kernel::Param& param : stage.kernel.params) {
            const bool is_tensor =
                param.kind == kernel::ParamKind::pointer || param.kind == kernel::ParamKind::descriptor;
            const kernel::Arguments& given = stage.kernel.arguments;
            if (!is_tensor || given.tensors.contains(param.name) || given.scalars.contains(param.name))
                continue;
            fail(kernel::error_at(param, "the shape of `" + param.name +
                                             "` is not known, which `run` has to fill: give --tensor " +
                                             param.name + "=512x256:bf16"));
        }
    }
}

void run_fuse(const FuseOptions& options) {
    refuse_two_answers("--svg", options.svg, !options.show.empty(), "--show");
    refuse_two_answers("--svg", options.svg, options.json, "--json");
    if (!options.op.spec.empty()) return show_operator(options);
    if (options.stages.front().kernel.empty() || options.plans.empty())
        fail_usage("give FILE.py:NAME and --plan, or an operator by --op SPEC");
    std::vector<emit::StageText> stages;
    std::int64_t inputs = std::ranges::count(options.plans, "-");
    for (const StageOptions& stage : options.stages) {
        const auto [file, name] = split_kernel(stage.kernel);
        if (file == "-") ++inputs;
        if (inputs > 1) fail_usage("only one of the kernel and the plan can be standard input");
        stages.push_back({"", file, name, parse_arguments(stage), parse_bindings(stage.bind)});
    }
    fuse::Options fuse_options;
    fuse_options.device = options.device == "cuda" ? fuse::Device::cuda : fuse::Device::host;
    fuse_options.kernel_sums = options.kernel_sums;
    fuse_options.together = options.together;
    if (options.programs > 0) fuse_options.num_programs = options.programs;

    plan::Plan plan = read_plan(options, stages);
    fuse_options.topology = topology_of(options, plan);
    require_binding(plan, stages);
    for (emit::StageText& stage : stages) stage.source = or_fail(read_file(stage.file));
    std::vector<std::pair<std::string, std::vector<kernel::ImportedFile>>> imported;
    for (const emit::StageText& stage : stages)
        imported.emplace_back(
            stage.file, or_fail(emit::language_of(stage.file).imported_files(stage.source, stage.file)));
    const fuse::StagedProgram program =
        or_fail_of_plan(emit::analyse_stages(std::move(stages), std::move(plan)), options);
    show_graph(options, program, fuse_options);
    if (options.output.empty()) {
        for (const fuse::Stage& stage : program.stages) warn(stage.kernel.warnings);
        return;
    }
    require_tensors(program);
    if (options.output == "-") fail_usage("-o -: fuse writes a folder");
    emit::Artifact artifact = or_fail_of_plan(emit::make_artifact(program, fuse_options), options);
    if (options.kernel_sums && fuse::kernel_summands(artifact.launch.schedule) == 0)
        fail_usage("--kernel-sums: this kernel adds up no contributions of this plan: leave it out");
    warn(artifact.warnings);
    for (const fuse::Stage& stage : program.stages) {
        if (stage.kernel.arguments.grid) warn(kernel::left_unwritten(stage.kernel));
    }
    for (const auto& [file, more] : imported) add_imports(more, file, artifact);
    std::vector<std::string> read = options.plans;
    for (const StageOptions& stage : options.stages) read.push_back(split_kernel(stage.kernel).first);
    if (Status written = emit::write_folder(artifact, options.output, read); !written) fail(written.error());

    const fuse::Schedule& schedule = artifact.launch.schedule;
    const bool phased = std::ranges::any_of(schedule.stages, &fuse::StageSlots::phased);
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
                                            {"tiles", schedule.num_slots()},
                                            {"transfers", transfers},
                                            {"waits", waits},
                                            {"phased", phased}}
                         .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                  << '\n';
    } else {
        (options.svg == "-" ? std::cerr : std::cout)
            << options.output << ": " << kernels_of(artifact) << " on " << schedule.ranks.size() << " ranks, "
            << schedule.num_slots() << " tiles each" << (phased ? " in phases" : "") << ", " << transfers
            << " transfers, " << waits << " waits\n";
    }
}

void add_stage_options(CLI::App& command, StageOptions& stage) {
    command.add_option("kernel", stage.kernel, "FILE.py:NAME");
    command.add_option("--bind", stage.bind, "PARAMETER=TENSOR: which parameter is which tensor of the plan")
        ->delimiter(',');
    command.add_option("--args", stage.args, "scalar arguments: M=512,BLOCK_M=128,…")
        ->allow_extra_args(false);
    command
        .add_option("--tensor", stage.tensors,
                    "PARAMETER=512x256:bf16[:STRIDES][@BLOCK]; a bound one follows the plan")
        ->allow_extra_args(false);
    command
        .add_option(
            "--values", stage.values,
            "the elements of an integer tensor, where the host knows them: cu_seqlens=0,137,2178, or =@FILE")
        ->allow_extra_args(false);
    command.add_option("--grid", stage.grid, "programs per axis, where the kernel does not tell: 3,2,2");
}

void parse_further_stage(std::vector<std::string> words, StageOptions& stage) {
    CLI::App command{"A further stage", "--then"};
    add_stage_options(command, stage);
    command.get_option("kernel")->required();
    keep_standard_input(words);
    std::reverse(words.begin(), words.end());
    try {
        command.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
        fail_usage(
            std::string("--then: ") + error.what() +
            "; after it come FILE.py:NAME, --bind, --args, --tensor, --values and --grid of one more kernel");
    }
}

}  // namespace

void register_fuse_commands(CLI::App& app, std::vector<std::vector<std::string>> then) {
    const auto options = std::make_shared<FuseOptions>();
    options->stages.resize(1 + then.size());
    CLI::App* fuse =
        app.add_subcommand("fuse", "Fuse a kernel with a plan: writes kernel.py and schedule.json");
    add_stage_options(*fuse, options->stages.front());
    fuse->add_option("--plan", options->plans,
                     "the plan, JSON; - is standard input. Several are joined into one")
        ->allow_extra_args(false);
    fuse->add_option("--device", options->device, "where it is to run; default: host, of an operator cuda")
        ->check(CLI::IsMember({"host", "cuda"}));
    fuse->add_option("--programs", options->programs,
                     "programs of a persistent kernel, if not its own number")
        ->check(CLI::PositiveNumber);
    fuse->add_flag("--kernel-sums", options->kernel_sums,
                   "the kernel's programs add up contributions when they have made their tiles");
    fuse->add_flag("--together", options->together,
                   "tiles that need nothing of what arrives wait for it with the others");
    fuse->add_option("--topology", options->topology,
                     "order tiles by the arrivals that plan simulate expects on this machine");
    fuse->add_flag("--json", options->json, "print the summary as JSON");
    fuse->add_option("-o,--output", options->output, "the directory to write")->check(filled("a folder"));
    fuse->add_option("--show", options->show, "print the work graph: what happens in a call, and after what")
        ->check(CLI::IsMember({"graph"}));
    fuse->add_option("--svg", options->svg, "draw the work graph into this file (small ones)")
        ->check(filled(kFile));
    const std::vector<CLI::Option*> of_kernels = fuse->get_options();
    add_operator_options(*fuse, options->op);
    exclude_all_but({"device", "topology", "show", "svg", "output", "help"}, of_kernels,
                    *fuse->get_option("--op"));
    fuse->footer(
        "--then FILE.py:NAME --bind … --args … --tensor …, after all other options: one more kernel, which "
        "runs when\n"
        "the one before it has ended. What it reads of that one is bound in both to a tensor that no plan "
        "moves, of the\n"
        "shape that --tensor gives.");
    fuse->callback([options, then = std::move(then)] {
        for (std::size_t stage = 0; stage < then.size(); ++stage)
            parse_further_stage(then[stage], options->stages[1 + stage]);
        run_fuse(*options);
    });
}

}  // namespace syncopate::tools

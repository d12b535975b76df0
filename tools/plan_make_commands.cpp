// `syncopate plan make` and `syncopate plan lower`: plans from templates, and templates in the place of
// collectives.
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/io.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "tools/commands.hpp"
#include "tools/lowering_options.hpp"
#include "tools/operator_options.hpp"

namespace syncopate::tools {
namespace {

[[noreturn]] void fail_usage(std::string message) { fail(usage_error(std::move(message))); }

struct MakeArguments {
    std::string name;
    std::int32_t ranks = 0;
    std::string mesh;
    std::string tensor;
    std::string algorithm = "auto";
    std::string reduce = "sum";
    LoweringArguments lowering{.words = {"template"}};
    std::string output = "-";
    plan::TemplateOptions options;
    OperatorArguments op;
};

struct LowerArguments {
    std::string path;
    LoweringArguments lowering{.words = {"template"}};
    std::string algorithm = "auto";
    std::string output = "-";
    plan::LowerOptions options;
};

plan::Mesh mesh_of(const MakeArguments& arguments) {
    if (arguments.mesh.empty() && arguments.ranks == 0) fail_usage("give --ranks N or --mesh AXIS=SIZE,…");
    if (arguments.mesh.empty()) return plan::Mesh{{{"gpu", arguments.ranks}}};
    plan::Mesh mesh = take(plan::parse_mesh(arguments.mesh));
    if (arguments.ranks != 0 && arguments.ranks != mesh.num_ranks()) {
        fail_usage(fmt::format("--ranks {} contradicts --mesh {}, which has {} ranks; give one of them",
                               arguments.ranks, arguments.mesh, mesh.num_ranks()));
    }
    return mesh;
}

Result<plan::Plan> made(const std::string& name, const plan::Mesh& mesh, const plan::Tensor& tensor,
                        plan::TemplateOptions options, plan::LowerOptions lowering) {
    if (lowering.with == plan::Lowering::templated && !lowering.topology && lowering.seed == 0)
        return plan::make_plan(name, mesh, tensor, options);
    // What cuts a template's shards cuts the pieces of the synthesised collective.
    if (lowering.with == plan::Lowering::synthesised) lowering.split = std::exchange(options.split, 1);
    Result<plan::Plan> collective = plan::make_collective(name, mesh, tensor, options);
    return collective ? plan::lower_collectives(*collective, lowering) : collective;
}

void make_operator(const MakeArguments& arguments) {
    OperatorArguments op = arguments.op;
    op.ranks = arguments.ranks;
    const OperatorTask task = task_of(op);
    const ops::Outline made = take(ops::outline(task.problem, task.strategy));
    take(write_file_atomically(arguments.output, plan::to_json(made.plan)));
}

void make(const MakeArguments& arguments) {
    if (!arguments.op.spec.empty()) return make_operator(arguments);
    if (arguments.name.empty()) fail_usage("name a template, or an operator by --op SPEC");
    if (plan::find_template(arguments.name) == nullptr) {
        // Said before anything else, for the other options depend on it.
        fail(plan::make_plan(arguments.name, {}, {}).error());
    }
    plan::TemplateOptions options = arguments.options;
    options.algorithm = take(plan::parse_algorithm(arguments.algorithm, arguments.name));
    if (arguments.reduce == "max") {
        options.reduce = plan::Reduce::max;
    } else if (arguments.reduce != "sum") {
        fail_usage(fmt::format("--reduce is \"{}\"; expected sum or max", arguments.reduce));
    }
    const plan::LowerOptions lowering = take(to_options(arguments.lowering));
    if (!lowering.rules.empty()) fail_usage("--lower of one collective is template, direct or synth alone");
    const plan::Mesh mesh = mesh_of(arguments);
    const plan::Tensor tensor = take(plan::parse_tensor(arguments.tensor));
    take(write_file_atomically(arguments.output,
                               plan::to_json(take(made(arguments.name, mesh, tensor, options, lowering)))));
}

void lower(const LowerArguments& arguments) {
    plan::LowerOptions options = take(to_options(arguments.lowering, arguments.options));
    options.algorithm = take(plan::parse_algorithm(arguments.algorithm));
    const plan::Plan loaded = take(plan::from_json(take(read_file(arguments.path)), arguments.path));
    Result<plan::Plan> lowered = plan::lower_collectives(loaded, options);
    if (!lowered) {
        Error error = lowered.error();
        if (error.error_class == ErrorClass::input) error.location.file = arguments.path;
        fail(error);
    }
    take(write_file_atomically(arguments.output, plan::to_json(*lowered)));
}

std::string list_of_templates() {
    std::string text = "Templates, and the algorithms of each, the default first:\n";
    for (const plan::Template& one : plan::templates()) {
        std::vector<std::string_view> algorithms;
        for (const plan::Algorithm algorithm : one.algorithms) algorithms.push_back(plan::name_of(algorithm));
        text +=
            fmt::format("  {:<15} {}\n  {:<15} {}\n", one.name, one.summary, "", fmt::join(algorithms, ", "));
    }
    return text;
}

void register_make(CLI::App& group) {
    CLI::App* command =
        group.add_subcommand("make", "Write a plan from a template, or the plan of an operator");
    command->footer(list_of_templates());
    auto arguments = std::make_shared<MakeArguments>();
    plan::TemplateOptions& options = arguments->options;
    command->add_option("template", arguments->name, "One of those below");
    command->add_option("--ranks", arguments->ranks, "Number of ranks, in a mesh of one axis called gpu")
        ->check(CLI::Range(1, plan::kMaxRanks));
    command->add_option("--mesh", arguments->mesh, "Mesh axes instead, such as node=2,gpu=4");
    command->add_option("--tensor", arguments->tensor, "NAME:SHAPE:DTYPE, such as A:8192x4096:bf16");
    command->add_option("--axis", options.axis,
                        "Tensor axis along which shards, or a whole's chunks, are cut");
    command->add_option("--split", options.split, "Chunks per shard");
    command->add_option("--minor-axis", options.minor_axis, "A second axis to cut along; -1 for none");
    command->add_option("--minor-split", options.minor_split, "Slices along the minor axis");
    command->add_option("--minor-sizes", options.minor_sizes, "Or their extents, such as 512,1536,6144")
        ->delimiter(',')
        ->check(filled("extents, such as 512,1536,6144"));
    command->add_flag("--peer-by-peer", options.peer_by_peer,
                      "direct all_gather: all slices for one peer before the next peer's");
    command->add_option("--algorithm", arguments->algorithm, "Who sends what to whom; auto is the default");
    command->add_flag("--pull", options.pull, "Destinations read, instead of sources writing");
    command
        ->add_option("--over", options.over,
                     "Mesh axes, such as gpu: one collective in each group of ranks that differ only there")
        ->delimiter(',')
        ->check(filled("mesh axes, such as gpu"));
    command->add_option("--group", options.group, "Only these ranks, such as 0,2,4")
        ->delimiter(',')
        ->check(filled("ranks, such as 0,2,4"));
    command->add_option("--inner", options.inner,
                        "Ranks of the inner of two levels; 0 for the mesh's last axis");
    command->add_option("--to-axis", options.to_axis,
                        "all_to_all: where shards lie afterwards; -1 for the next");
    command->add_option("--root", options.root, "broadcast: position in the group of who has the tensor");
    command->add_option("--steps", options.steps, "ring: how often shards are passed on; -1 for all round");
    command->add_option("--reduce", arguments->reduce, "sum or max");
    command->add_flag("--produced", options.produced,
                      "The kernel writes what ranks start with, tile by tile");
    command->add_flag("--transient", options.transient,
                      "What arrives is for the kernel only, and need not be there at the end");
    add_lowering_options(*command, "--lower", arguments->lowering);
    const std::vector<CLI::Option*> of_templates = command->get_options();
    add_operator_options(*command, arguments->op);
    exclude_all_but({"ranks", "help"}, of_templates, *command->get_option("--op"));
    command->add_option("-o,--output", arguments->output, "Plan file to write")->check(filled(kFile));
    command->callback([arguments] { make(*arguments); });
}

void register_lower(CLI::App& group) {
    CLI::App* command = group.add_subcommand("lower", "Put transfers in the place of a plan's collectives");
    auto arguments = std::make_shared<LowerArguments>();
    plan::LowerOptions& options = arguments->options;
    command->add_option("plan", arguments->path, "Plan file")->required();
    add_lowering_options(*command, "--with", arguments->lowering);
    command->add_option("--algorithm", arguments->algorithm,
                        "For each collective that has it; auto is each one's default");
    command->add_option("--split", options.split, "Chunks per piece; synth: 0 for as many as are fastest");
    command->add_flag("--pull", options.pull, "Destinations read, instead of sources writing");
    command->add_option("--inner", options.inner,
                        "Ranks of the inner of two levels; 0 for the mesh's last axis");
    command->add_option("-o,--output", arguments->output, "Plan file to write")->check(filled(kFile));
    command->callback([arguments] { lower(*arguments); });
}

}  // namespace

void register_plan_make_commands(CLI::App& plan) {
    register_make(plan);
    register_lower(plan);
}

}  // namespace syncopate::tools

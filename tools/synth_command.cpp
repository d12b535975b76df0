// `syncopate plan synth`.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "syncopate/io.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

struct SynthArguments {
    std::string kind;
    std::string topology;
    std::string mesh;
    std::string tensor;
    std::string output = "-";
    plan::SynthesiseOptions options;
};

void synth(SynthArguments arguments) {
    std::optional<plan::CollectiveKind> kind;
    std::string names;
    for (std::size_t i = 0; i < plan::kNumCollectiveKinds; ++i) {
        const auto candidate = static_cast<plan::CollectiveKind>(i);
        if (candidate == plan::CollectiveKind::permute) continue;
        names += (names.empty() ? "" : ", ") + std::string(plan::name_of(candidate));
        if (plan::name_of(candidate) == arguments.kind) kind = candidate;
    }
    if (!kind) {
        fail(usage_error(fmt::format("\"{}\" cannot be synthesised; there are: {}", arguments.kind, names)));
    }
    arguments.options.kind = *kind;
    const plan::Topology topology = take(plan::find_topology(arguments.topology));
    const plan::Mesh mesh = arguments.mesh.empty() ? plan::Mesh{{{"gpu", topology.num_devices()}}}
                                                   : take(plan::parse_mesh(arguments.mesh));
    const plan::Tensor tensor = take(plan::parse_tensor(arguments.tensor));
    const plan::Plan made = take(plan::synthesise(mesh, tensor, topology, arguments.options));
    take(write_file_atomically(arguments.output, plan::to_json(made)));
}

}  // namespace

void register_synth_command(CLI::App& group) {
    CLI::App* command = group.add_subcommand("synth", "Find a plan for a collective on any topology");
    auto arguments = std::make_shared<SynthArguments>();
    command
        ->add_option("collective", arguments->kind,
                     "all_gather, reduce_scatter, all_reduce, all_to_all, broadcast")
        ->required();
    command
        ->add_option("--topology", arguments->topology,
                     "Name (plan topology lists them), ring:8, torus:4x4, …, or a file")
        ->required();
    command->add_option("--tensor", arguments->tensor, "NAME:SHAPE:DTYPE, such as A:8192x4096:bf16")
        ->required();
    command->add_option("--mesh", arguments->mesh, "Mesh axes, such as node=2,gpu=4; default: gpu=DEVICES");
    command->add_option("--axis", arguments->options.axis, "Tensor axis along which ranks hold shards");
    command->add_option("--to-axis", arguments->options.to_axis,
                        "all_to_all: along which they hold them afterwards");
    command->add_option("--chunks", arguments->options.chunks,
                        "Chunks per shard; of a broadcast, in all; 0: as many as are fastest");
    command->add_flag("!--no-sms", arguments->options.sms,
                      "Leave the SMs to kernels: copy engines alone move chunks (sums aside)");
    command->add_option("--root", arguments->options.root, "broadcast: the rank that has the tensor");
    command->add_option("--ranks", arguments->options.ranks, "Who takes part, such as 0,1,2; default: all")
        ->delimiter(',');
    command->add_option("--seed", arguments->options.seed, "Another one may find another plan")
        ->check(whole_number());
    command->add_option("--attempts", arguments->options.attempts,
                        "Searches, of which the fastest plan is kept; 0: as many as seem worth it");
    command->add_option("-o,--output", arguments->output, "Plan file to write")->check(filled(kFile));
    command->callback([arguments] { synth(*arguments); });
}

}  // namespace syncopate::tools

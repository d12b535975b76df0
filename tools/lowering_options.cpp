#include "tools/lowering_options.hpp"
#include "syncopate/try.hpp"

#include <utility>

namespace syncopate::tools {

void add_lowering_options(CLI::App& command, const std::string& name, LoweringArguments& arguments) {
    command
        .add_option(
            name, arguments.words,
            "template: transfers; synth: those found for a topology; direct: collectives, for a library. "
            "KIND=… or RANK:OP=… is for some of them; may be given several times")
        ->delimiter(',')
        ->allow_extra_args(false);  // what follows is the next argument
    command.add_option("--topology", arguments.topology,
                       "synth: a name (plan topology lists them), ring:8, torus:4x4, …, or a file");
    command.add_option("--seed", arguments.seed, "synth: another one may find other transfers")
        ->check(whole_number());
}

Result<plan::LowerOptions> to_options(const LoweringArguments& arguments, plan::LowerOptions options) {
    for (const std::string& word : arguments.words) {
        SYNCOPATE_TAKE(const plan::LowerRule rule, plan::parse_lower_rule(word));
        if (rule.kind || rule.op) {
            options.rules.push_back(rule);
        } else {
            options.with = rule.with;
            options.rules.clear();  // the last one that fits counts
        }
    }
    options.seed = arguments.seed;
    if (!arguments.topology.empty()) {
        SYNCOPATE_TAKE(plan::Topology topology, plan::find_topology(arguments.topology));
        options.topology = std::move(topology);
    }
    return options;
}

}  // namespace syncopate::tools

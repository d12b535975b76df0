#include "tools/operator_options.hpp"

#include <algorithm>
#include <iostream>
#include <utility>

#include <fmt/format.h>

#include "syncopate/io.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/tune/choose.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

tune::Strategy given_strategy(const std::string& text) {
    if (!text.starts_with('@')) return take(tune::strategy_from_json(text, "--strategy"));
    const std::string file = text.substr(1);
    return take(tune::strategy_from_json(take(read_file(file)), file));
}

}  // namespace

void add_operator_options(CLI::App& command, OperatorArguments& arguments) {
    command.add_option("--op", arguments.spec,
                       "an operator of the library: all_gather_matmul:M=8192,N=3584,K=8192");
    command
        .add_option("--strategy", arguments.strategy,
                    "of --op: how it is done, as JSON or @FILE; what it leaves open is filled in")
        ->needs("--op");
    command
        .add_option("--machine", arguments.machine,
                    "of --op: for which it is chosen, a name or a file; default: the nearest known one")
        ->needs("--op");
    if (command.get_option_no_throw("--ranks") == nullptr)
        command.add_option("--ranks", arguments.ranks, "of --op: its ranks, if the SPEC has none")
            ->check(CLI::Range(1, plan::kMaxRanks))
            ->needs("--op");
}

void exclude_all_but(const std::vector<std::string>& allowed, const std::vector<CLI::Option*>& options,
                     CLI::Option& op) {
    for (CLI::Option* option : options) {
        const auto named = [&](const std::string& name) { return option->check_lname(name); };
        if (std::ranges::none_of(allowed, named)) option->excludes(&op);
    }
}

tune::Problem problem_of(const OperatorArguments& arguments) {
    const std::int32_t ranks = arguments.ranks;
    tune::Problem problem = take(tune::parse_problem(arguments.spec, ranks > 0 ? ranks : kUsualRanks));
    if (ranks > 0) problem.ranks = ranks;
    if (const std::string objection = tune::problem_objection(problem); !objection.empty())
        fail(usage_error(objection));
    return problem;
}

tune::Machine machine_of(const std::string& name, tune::Problem& problem) {
    tune::Machine machine;
    const std::int32_t places = problem.ranks / problem.nodes;
    if (name.empty()) {
        const Result<std::string> device = runtime::cuda_device_name(0);  // none here: any machine
        tune::NearestMachine nearest = take(tune::nearest_machine(device ? *device : std::string(), places));
        if (!nearest.message.empty()) std::cerr << nearest.message << '\n';
        machine = std::move(nearest.machine);
    } else {
        machine = take(tune::find_machine(name));
        if (const std::string message = tune::retired_message(machine); !message.empty())
            std::cerr << message << '\n';
        if (machine.num_devices() < places)
            std::cerr << fmt::format("{} has {} GPUs; {} are estimated as if all were on one switch\n",
                                     machine.name, machine.num_devices(), places);
    }
    if (problem.num_sms == 0) problem.num_sms = machine.num_sms;
    return machine;
}

OperatorTask task_of(const OperatorArguments& arguments) {
    tune::Problem problem = problem_of(arguments);
    tune::Machine machine = machine_of(arguments.machine, problem);
    tune::Strategy strategy;
    if (arguments.strategy.empty()) {
        strategy = tune::choose(problem, machine, nullptr, {.unfused = false}).strategy;
        if (strategy.placement != tune::Placement::fused) strategy = tune::complete(problem, machine, {});
        std::cerr << "strategy: " << tune::to_json(strategy) << '\n';
    } else {
        strategy = tune::complete(problem, machine, given_strategy(arguments.strategy));
        if (const std::string why = tune::strategy_objection(problem, strategy); !why.empty())
            fail(usage_error("--strategy: " + why));
    }
    return {std::move(problem), std::move(strategy), std::move(machine)};
}

}  // namespace syncopate::tools

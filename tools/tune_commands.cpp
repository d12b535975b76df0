// `syncopate tune`: finds strategies by measuring, which Python does; what was found, and what the estimate
// says.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "syncopate/tune/ops.hpp"
#include "tools/commands.hpp"
#include "tools/python_command.hpp"
#include "tools/tune_explain.hpp"
#include "tools/tune_store.hpp"

namespace syncopate::tools {
namespace {

struct TuneOptions {
    std::string spec;
    TuneStoreOptions store;
    std::string device = "host";
    std::string machine;
    std::string output;
    std::vector<std::string> vary;
    double budget = 60;
    int ranks = 0;
    bool again = false;
    bool explain = false;
    std::string routing;
    bool measure_machine = false;
    bool json = false;
};

void measure(const TuneOptions& options) {
    std::vector<std::string> words{options.spec, "--device=" + options.device,
                                   "--ranks=" + std::to_string(options.ranks),
                                   fmt::format("--budget={}", options.budget)};
    if (!options.machine.empty()) words.push_back("--machine=" + options.machine);
    for (const std::string& values : options.vary) words.push_back("--vary=" + values);
    if (options.again) words.emplace_back("--again");
    if (options.json) words.emplace_back("--json");
    run_python("syncopate.command.tune", words);
}

/// What is given must belong to what is asked for: `allowed` names it, without dashes.
void refuse_others(const CLI::App& tune, std::string_view asked,
                   std::initializer_list<std::string_view> allowed) {
    for (const CLI::Option* option : tune.get_options()) {
        const std::string name = option->get_single_name();
        if (option->count() == 0 || std::ranges::find(allowed, name) != allowed.end()) continue;
        const std::string given = name == "spec" ? "SPEC" : "--" + name;
        fail(usage_error(fmt::format("tune: {} does not belong to {}", given, asked)));
    }
}

/// --explain measures nothing: what says how to measure would be passed over.
void explain_only(const CLI::App& tune, const TuneOptions& options) {
    const auto refuse = [](const std::string& message) { fail(usage_error("tune: --explain " + message)); };
    if (options.spec.empty()) refuse("needs a problem, such as all_gather_matmul:M=8192,N=3584,K=8192");
    refuse_others(tune, "--explain", {"explain", "spec", "ranks", "machine", "json", "device", "routing"});
    explain(options.spec, options.ranks, options.machine, options.routing, options.json);
}

/// SPEC and --ranks may both say how many, but not different numbers.
void refuse_two_counts(const TuneOptions& options) {
    if (options.ranks == 0) return;
    const Result<tune::Problem> problem = tune::parse_problem(options.spec, options.ranks);
    if (problem && problem->ranks != options.ranks) {
        fail(usage_error(
            fmt::format("tune: SPEC is of {} ranks, --ranks says {}", problem->ranks, options.ranks)));
    }
}

}  // namespace

void register_tune_commands(CLI::App& app) {
    auto options = std::make_shared<TuneOptions>();
    CLI::App* tune =
        app.add_subcommand("tune", "find the fastest strategy of a problem by measuring, and keep it");
    tune->add_option(
        "spec", options->spec,
        "a problem: all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16; of the store also an operator");
    tune->add_flag("--explain", options->explain,
                   "rank all strategies of SPEC by the estimate, with no GPU: µs and of what they consist");
    tune->add_option("--routing", options->routing,
                     "with --explain, of moe: random (the default), balanced, skewed (half of all rows to "
                     "one expert), or rows of "
                     "each expert as measured, as numbers or @FILE");
    tune->add_option("--device", options->device, "that measures: host or cuda")
        ->check(CLI::IsMember({"host", "cuda"}))
        ->capture_default_str();
    tune->add_option(
            "--ranks", options->ranks,
            "processes that measure; default: every GPU, or four on host. With --explain, of the problem; "
            "default: those of SPEC, or 8")
        ->check(CLI::Range(1, 1024));
    tune->add_option("--budget", options->budget, "seconds that the search may take")
        ->check(between(1.0, 1e6))
        ->capture_default_str();
    tune->add_option(
            "--vary", options->vary,
            "measure these variations of the default instead of all strategies: split=1,2,4; several: all "
            "combinations; not with --explain")
        ->allow_extra_args(false);
    tune->add_flag("--again", options->again, "forget what earlier searches of SPEC have measured");
    tune->add_option("--machine", options->machine,
                     "whose rates the estimate takes, a name or a file; default: the nearest known one");
    tune->add_flag("--measure-machine", options->measure_machine,
                   "measure this machine, in at most two minutes, into a file");
    tune->add_option("-o,--output", options->output,
                     "of --measure-machine; default: machine.json in the cache folder")
        ->check(filled(kFile));
    tune->add_flag("--json", options->json, "print the result as JSON");
    add_tune_store_options(*tune, options->store);
    tune->callback([options, tune] {
        if (options->explain) {
            refuse_two_counts(*options);
            return explain_only(*tune, *options);
        }
        if (!options->routing.empty())
            fail(usage_error("tune: --routing: a search measures random ones; give --explain"));
        if (options->measure_machine) {
            refuse_others(*tune, "--measure-machine", {"measure-machine", "output"});
            std::vector<std::string> words;
            if (!options->output.empty()) words.push_back("--output=" + options->output);
            run_python("syncopate.measure.machine", words);
        }
        if (const std::string_view asked = asked_of_store(options->store); !asked.empty()) {
            if (options->json && asked == "--export")
                fail(usage_error("tune: --json does not belong to --export, whose file is JSON"));
            refuse_others(*tune, asked, {asked.substr(2), "spec", "json"});
            return run_tune_store(options->store, options->spec, options->json);
        }
        if (options->spec.empty()) {
            fail(usage_error(
                "tune: name a problem, such as all_gather_matmul:M=8192,N=3584,K=8192, or one of --list, "
                "--export, --import and --measure-machine"));
        }
        refuse_others(*tune, "a search",
                      {"spec", "device", "ranks", "budget", "vary", "again", "machine", "json"});
        refuse_two_counts(*options);
        measure(*options);
    });
}

}  // namespace syncopate::tools

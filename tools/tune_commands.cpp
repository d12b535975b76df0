// `syncopate tune`: what tuning has found, and what the estimate says.
#include <memory>
#include <string>
#include <vector>

#include "tools/commands.hpp"
#include "tools/python_command.hpp"
#include "tools/tune_explain.hpp"
#include "tools/tune_store.hpp"

namespace syncopate::tools {
namespace {

struct TuneOptions {
    std::string spec;
    TuneStoreOptions store;
    std::string machine;
    std::string output;
    int ranks = 0;
    bool explain = false;
    bool measure_machine = false;
    bool json = false;
};

}  // namespace

void register_tune_commands(CLI::App& app) {
    auto options = std::make_shared<TuneOptions>();
    CLI::App* tune = app.add_subcommand("tune", "what tuning has found: the store of results");
    tune->add_option(
        "spec", options->spec,
        "a problem: all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16; of the store also an operator");
    tune->add_flag("--explain", options->explain,
                   "rank all strategies of SPEC by the estimate, with no GPU: µs and of what they consist");
    tune->add_option("--ranks", options->ranks, "of the problem; default: those of SPEC, or 8")
        ->check(CLI::Range(1, 1024));
    tune->add_option("--machine", options->machine,
                     "whose rates the estimate takes, a name or a file; default: the nearest known one");
    tune->add_flag("--measure-machine", options->measure_machine,
                   "measure this machine, in at most two minutes, into a file");
    tune->add_option("-o,--output", options->output,
                     "of --measure-machine; default: machine.json in the cache folder");
    tune->add_flag("--json", options->json, "print the result as JSON");
    add_tune_store_options(*tune, options->store);
    tune->callback([options] {
        if (options->explain) {
            if (options->spec.empty())
                fail(Error{"tune: --explain needs a problem, such as all_gather_matmul:M=8192,N=3584,K=8192",
                           {},
                           ErrorClass::usage});
            explain(options->spec, options->ranks, options->machine, options->json);
            return;
        }
        if (options->measure_machine) {
            std::vector<std::string> words;
            if (!options->output.empty()) words.push_back("--output=" + options->output);
            run_python("syncopate.measure_machine", words);
        }
        if (run_tune_store(options->store, options->spec, options->json)) return;
        fail(Error{
            "tune: expected --explain, --measure-machine, --list, --show, --forget, --export or --import",
            {},
            ErrorClass::usage});
    });
}

}  // namespace syncopate::tools

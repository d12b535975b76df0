// `syncopate tune`: what tuning has found.
#include <memory>
#include <string>

#include "tools/commands.hpp"
#include "tools/tune_store.hpp"

namespace syncopate::tools {
namespace {

struct TuneOptions {
    std::string spec;
    TuneStoreOptions store;
    bool json = false;
};

}  // namespace

void register_tune_commands(CLI::App& app) {
    auto options = std::make_shared<TuneOptions>();
    CLI::App* tune = app.add_subcommand("tune", "what tuning has found: the store of results");
    tune->add_option(
        "spec", options->spec,
        "a problem: all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16; of the store also an operator");
    tune->add_flag("--json", options->json, "print the result as JSON");
    add_tune_store_options(*tune, options->store);
    tune->callback([options] {
        if (run_tune_store(options->store, options->spec, options->json)) return;
        fail(Error{"tune: expected --list, --show, --forget, --export or --import", {}, ErrorClass::usage});
    });
}

}  // namespace syncopate::tools

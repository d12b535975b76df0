// `syncopate run`: hands the work to Python, which alone can call Triton's JIT.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/commands.hpp"
#include "tools/python_command.hpp"

namespace syncopate::tools {
namespace {

struct RunOptions {
    std::string spec;
    std::string device = "host";
    int ranks = 0;
    bool check = false;
    std::string trace;
    int calls = 1;
    std::optional<double> deadline;
    double delay_ms = 2.0;
    int seed = 0;
    bool json = false;
};

}  // namespace

void register_run_commands(CLI::App& app) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* run = app.add_subcommand("run", "run a fused kernel on all ranks of this machine");
    run->add_option("spec", options->spec,
                    "a folder made by `syncopate fuse`, or an operator: "
                    "all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16")
        ->required()
        ->check(filled("a folder or an operator"));
    run->add_option("--device", options->device, "host or cuda")
        ->check(CLI::IsMember({"host", "cuda"}))
        ->capture_default_str();
    run->add_option("--ranks", options->ranks,
                    "processes; default: what the folder's plan is for, or every GPU")
        ->check(CLI::Range(1, 4096));
    run->add_flag("--check", options->check,
                  "compare with the unfused kernel on the gathered input, bit for bit");
    run->add_option("--trace", options->trace,
                    "write when each chunk was made, sent and arrived and each tile ran: FILE.json for "
                    "Perfetto, or FILE.png for a picture and FILE.json beside it")
        ->check(filled("FILE.json or FILE.png"));
    run->add_option("--calls", options->calls, "calls, each with fresh data")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    run->add_option("--deadline", options->deadline,
                    "seconds that any wait may last, also at set-up; 0: for ever [30; 600 at set-up]")
        ->check(between(0.0, 1e6));
    run->add_option("--delay-ms", options->delay_ms, "host: chunks are delayed at random, up to this")
        ->check(between(0.0, 10000.0))
        ->capture_default_str();
    run->add_option("--seed", options->seed, "of data and delays")
        ->check(CLI::Range(0, std::numeric_limits<int>::max()))
        ->capture_default_str();
    run->add_flag("--json", options->json, "print the result as JSON");
    run->callback([options] {
        std::vector<std::string> words{options->spec,
                                       "--device=" + options->device,
                                       "--ranks=" + std::to_string(options->ranks),
                                       "--calls=" + std::to_string(options->calls),
                                       "--delay-ms=" + std::to_string(options->delay_ms),
                                       "--seed=" + std::to_string(options->seed)};
        if (options->deadline) words.push_back("--deadline=" + std::to_string(*options->deadline));
        if (options->check) words.emplace_back("--check");
        if (!options->trace.empty()) words.push_back("--trace=" + options->trace);
        if (options->json) words.emplace_back("--json");
        run_python("syncopate.command.run", words);
    });
}

}  // namespace syncopate::tools

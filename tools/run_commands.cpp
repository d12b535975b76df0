// `syncopate run`: hands the work to Python, which alone can call Triton's JIT. The command itself only finds
// the interpreter and the package.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"

namespace syncopate::tools {
namespace {

namespace fs = std::filesystem;

/// The checkout that this binary was built in: the nearest folder above it that has python/syncopate.
fs::path find_checkout() {
    std::error_code error;
    fs::path at = fs::read_symlink("/proc/self/exe", error);
    for (at = at.parent_path(); !error && at.has_relative_path(); at = at.parent_path()) {
        if (fs::exists(at / "python" / "syncopate" / "__init__.py")) return at;
    }
    return {};
}

/// The interpreter that pip installed this binary beside, or nothing.
fs::path find_python_beside() {
    std::error_code error;
    const fs::path python = fs::read_symlink("/proc/self/exe", error).parent_path() / "python3";
    return !error && fs::exists(python) ? python : fs::path();
}

/// Replaces this process by `python -m MODULE ARGUMENTS…`. SYNCOPATE_PYTHON names the interpreter; otherwise
/// it is the one beside this binary, where pip installed it, otherwise the checkout's .venv has it, otherwise
/// it is python3.
[[noreturn]] void run_python(const std::string& module, const std::vector<std::string>& arguments) {
    const fs::path beside = find_python_beside();
    const fs::path checkout = beside.empty() ? find_checkout() : fs::path();
    std::string python = "python3";
    if (const char* named = std::getenv("SYNCOPATE_PYTHON"); named != nullptr && *named != '\0') {
        python = named;
    } else if (!beside.empty()) {
        python = beside.string();
    } else if (!checkout.empty() && fs::exists(checkout / ".venv" / "bin" / "python")) {
        python = (checkout / ".venv" / "bin" / "python").string();
    }
    if (!checkout.empty()) {
        std::string path = (checkout / "python").string();
        if (const char* old = std::getenv("PYTHONPATH"); old != nullptr && *old != '\0')
            path += std::string(":") + old;
        ::setenv("PYTHONPATH", path.c_str(), 1);
    }
    std::vector<std::string> words{python, "-m", module};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execvp(python.c_str(), argv.data());
    fail(Error{
        "cannot start " + python + ": " + std::strerror(errno) + "; set SYNCOPATE_PYTHON or run `make build`",
        {},
        ErrorClass::machine});
}

struct RunOptions {
    std::string spec;
    std::string device = "host";
    int ranks = 0;
    bool check = false;
    std::string trace;
    int calls = 1;
    double deadline = 30.0;
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
        ->required();
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
                    "Perfetto, or FILE.png for a picture and FILE.json beside it");
    run->add_option("--calls", options->calls, "calls, each with fresh data")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    run->add_option("--deadline", options->deadline, "seconds that any wait may last; 0: for ever")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    run->add_option("--delay-ms", options->delay_ms, "host: chunks are delayed at random, up to this")
        ->check(CLI::Range(0.0, 10000.0))
        ->capture_default_str();
    run->add_option("--seed", options->seed, "of data and delays")->capture_default_str();
    run->add_flag("--json", options->json, "print the result as JSON");
    run->callback([options] {
        std::vector<std::string> words{options->spec,
                                       "--device=" + options->device,
                                       "--ranks=" + std::to_string(options->ranks),
                                       "--calls=" + std::to_string(options->calls),
                                       "--deadline=" + std::to_string(options->deadline),
                                       "--delay-ms=" + std::to_string(options->delay_ms),
                                       "--seed=" + std::to_string(options->seed)};
        if (options->check) words.emplace_back("--check");
        if (!options->trace.empty()) words.push_back("--trace=" + options->trace);
        if (options->json) words.emplace_back("--json");
        run_python("syncopate.run", words);
    });
}

}  // namespace syncopate::tools

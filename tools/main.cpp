// The `syncopate` command: parses the command line and maps how it ended to an exit code (DESIGN.md §7).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>

#include "tools/commands.hpp"

namespace syncopate::tools {

void fail(const Error& error) {
    std::cout.flush();
    std::cerr << "error: " << error.to_string() << '\n';
    throw Exit{static_cast<int>(error.error_class)};
}

namespace {

int run(int argc, char** argv) {
    CLI::App app{"Fuses local Triton kernels with communication plans into distributed kernels.",
                 "syncopate"};
    app.set_version_flag("--version", "syncopate " SYNCOPATE_VERSION);
    app.require_subcommand(1);
    app.option_defaults()->always_capture_default();
    register_plan_commands(app);
    register_kernel_commands(app);
    register_fuse_commands(app);
    register_run_commands(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& asked) {  // --help, --version
        return app.exit(asked);
    } catch (const CLI::ParseError& error) {
        std::cerr << "error: " << error.what() << "\nRun with --help for more information.\n";
        return static_cast<int>(ErrorClass::usage);
    } catch (const Exit& exit) {
        return exit.code;
    }
    return 0;
}

}  // namespace
}  // namespace syncopate::tools

int main(int argc, char** argv) {
    try {
        const int code = syncopate::tools::run(argc, argv);
        std::cout.flush();
        if (!std::cout) {
            std::cerr << "error: standard output could not be written\n";
            return code == 0 ? 1 : code;
        }
        return code;
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}

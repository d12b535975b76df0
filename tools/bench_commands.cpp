// `syncopate bench`: hands the work to Python, which calls operators and what they are compared with.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/commands.hpp"
#include "tools/python_command.hpp"

namespace syncopate::tools {

void register_bench_commands(CLI::App& app) {
    CLI::App* bench = app.add_subcommand(
        "bench",
        "measure operators against what people run today, over shapes and rows (bench --help says how)");
    // Python knows operators, peers and strategies, so it reads the options.
    bench->prefix_command();
    bench->set_help_flag();
    bench->callback([bench] { run_python("syncopate.bench", bench->remaining()); });
}

}  // namespace syncopate::tools

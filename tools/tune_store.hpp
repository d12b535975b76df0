// The options of `syncopate tune` that are about the store of results.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "tools/commands.hpp"

namespace syncopate::tools {

struct TuneStoreOptions {
    bool list = false;
    bool show = false;
    bool forget = false;
    std::string export_to;
    std::string import_from;
};

void add_tune_store_options(CLI::App& tune, TuneStoreOptions& options);
/// What is asked for, "--list"; "" where nothing is. Fails where two things are.
[[nodiscard]] std::string_view asked_of_store(const TuneStoreOptions& options);
/// Does it. `spec`: a problem, an operator, or "".
void run_tune_store(const TuneStoreOptions& options, const std::string& spec, bool json);

}  // namespace syncopate::tools

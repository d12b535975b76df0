// The options of `syncopate tune` that are about the store of results.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

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
/// Does what was asked for; false where nothing was. `spec`: a problem, an operator, or "".
bool run_tune_store(const TuneStoreOptions& options, const std::string& spec, bool json);

}  // namespace syncopate::tools

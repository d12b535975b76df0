// What becomes of collectives, as several commands take it: `plan make --lower`, `plan lower --with`, `plan
// import
// --lower`.
#pragma once

#include <string>
#include <vector>

#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/result.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {

struct LoweringArguments {
    std::vector<std::string> words;  ///< "synth", "all_reduce=direct", "2:5=template"
    std::string topology;            ///< empty: none
    std::uint64_t seed = 0;
};

/// Adds the option `name`, --topology and --seed.
void add_lowering_options(CLI::App& command, const std::string& name, LoweringArguments& arguments);

/// `options` with what the words ask for; the last one that fits a collective counts.
[[nodiscard]] Result<plan::LowerOptions> to_options(const LoweringArguments& arguments,
                                                    plan::LowerOptions options = {});

}  // namespace syncopate::tools

// Strategies changed by name: what `--vary split=1,2,4` and a SPEC's `split=2` ask for. A name is a member of a
// strategy's JSON (strategy.hpp); those of its chunking and of its tiles have a dot: "chunking.rows",
// "tiles.group_m". "unfused" and "apart" are placements.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// `usual`, fused, with other values. What follows from a changed one is open again: programs leave the chunk
/// engine its multiprocessors, and each kernel has tiles of its own. Fails (ErrorClass::usage) naming the value.
[[nodiscard]] Result<Strategy> varied(const Strategy& usual, std::span<const Word> values);

/// Some values that are varied together: "split=1,backend=copy_engine".
struct Variation {
    std::string name;
    std::vector<Word> values;
};

/// Of {"split=1,2", "backend=copy_engine"} each combination, the last text's values in turn first; none of none.
/// Fails (ErrorClass::usage), as of the option --vary, for a text that is not KEY=VALUE,VALUE,… of a strategy.
[[nodiscard]] Result<std::vector<Variation>> variations(std::span<const std::string> texts);

}  // namespace syncopate::ops

// Where emit touches the source: the places at which the tile id enters the kernel, the tile loop, the last
// store, the loops inside a tile and the calls that load and store, from what the evaluation found; and what
// of that is said of the kernel in neutral terms.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

/// All but `parameter`. Fails where an address follows from a variable that looks like a tile id and is none.
[[nodiscard]] Result<Sites> find_sites(const Module& module, std::int32_t kernel, const Evaluator& evaluator,
                                       const std::array<std::int64_t, 3>& grid);

/// The loops of a tile that read: what the kernel says of them, where they stand in the text, and of each
/// loop that was walked its place among them, or -1.
struct FoundLoops {
    std::vector<Loop> loops;
    std::vector<LoopSite> sites;
    std::vector<std::int32_t> index;
    bool tiles_differ = false;
    std::optional<Error> wrong;  ///< a directive that cannot hold
};
[[nodiscard]] FoundLoops find_loops(const Module& module, std::int32_t kernel, const Evaluator& evaluator);

/// The calls of `sites` that load and store, with what emit can do with each.
[[nodiscard]] std::vector<ParamAccess> accesses_of(const Sites& sites, std::string_view source);

/// The places of a kernel in words, for people.
[[nodiscard]] std::vector<std::string> places_of(const Kernel& kernel);

}  // namespace syncopate::kernel::triton

#include "syncopate/ingest/tensor_program.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace syncopate::ingest {

std::string Shape::to_string() const {
    if (!tuple) return fmt::format("{}[{}]", dtype.empty() ? "?" : dtype, fmt::join(dims, ","));
    std::string text = "(";
    for (std::size_t i = 0; i < elements.size(); ++i) text += (i == 0 ? "" : ", ") + elements[i].to_string();
    return text + ")";
}

bool is_collective(std::string_view opcode) {
    static constexpr std::array<std::string_view, 7> kNames{
        "all-gather",        "all-reduce",         "reduce-scatter",      "all-to-all",
        "ragged-all-to-all", "collective-permute", "collective-broadcast"};
    // Shardy's, on global arrays: listed, and refused for that.
    static constexpr std::array<std::string_view, 6> kShardy{"sdy.all_gather",     "sdy.all_reduce",
                                                             "sdy.reduce_scatter", "sdy.all_to_all",
                                                             "sdy.reshard",        "sdy.collective_permute"};
    if (std::find(kShardy.begin(), kShardy.end(), opcode) != kShardy.end()) return true;
    constexpr std::string_view kStart = "-start";
    if (opcode.ends_with(kStart)) opcode.remove_suffix(kStart.size());
    return std::find(kNames.begin(), kNames.end(), opcode) != kNames.end();
}

}  // namespace syncopate::ingest

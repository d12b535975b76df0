#include "syncopate/ingest/program/tensor_program.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/names.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::ingest {

std::string Shape::to_string() const {
    if (!tuple && dtype.starts_with('!')) return dtype;
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

Result<std::size_t> choose_module(const std::vector<std::string_view>& names, std::string_view module) {
    std::vector<std::size_t> found;
    std::string listed;
    for (std::size_t i = 0; i < names.size(); ++i) {
        constexpr std::size_t kListed = 32;
        if (module.empty() || names[i] == module) found.push_back(i);
        if (i < kListed) listed += fmt::format("{}{} ({})", i == 0 ? "" : ", ", i, escaped(names[i]));
        if (i == kListed) listed += ", …";
    }
    if (found.size() == 1) return found.front();
    if (found.empty() && names.size() > 0) {  // a number
        const std::optional<std::size_t> number = whole_number<std::size_t>(module);
        if (number && *number < names.size()) return *number;
    }
    const std::string what =
        module.empty() ? fmt::format("holds {} modules", names.size())
                       : fmt::format("holds {} called {}", found.empty() ? "no module" : "several modules",
                                     escaped(module));
    return Error{fmt::format("{}; choose one with --module, by its name or number: {}", what, listed)};
}

}  // namespace syncopate::ingest

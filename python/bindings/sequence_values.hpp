// What Python may say of the rows of a sequence: ValueError for what would be divided by, or make no sense.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace syncopate::bindings {

inline constexpr std::int64_t kMostRows = std::int64_t{1} << 40;

inline void require(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw nanobind::value_error(
        fmt::format("{}: expected a number from {} to {}, got {}", name, least, most, value).c_str());
}

/// `block`: cuts are at multiples of it.
inline void require_sequence(std::int64_t length, std::int64_t block,
                             const std::vector<std::int64_t>& documents) {
    require("length", length, 0, kMostRows);
    require("block", block, 1, kMostRows);
    if (documents.empty()) return;
    if (documents.front() != 0 || documents.back() != length || !std::ranges::is_sorted(documents))
        throw nanobind::value_error(fmt::format("documents: expected offsets that rise from 0 to {}, got {}",
                                                length, fmt::join(documents, ", "))
                                        .c_str());
}

template <typename Rows>
void require_rows(const Rows& rows, std::int64_t length) {
    for (const auto& [begin, end] : rows) {
        require("rows", begin, 0, length);
        require("rows", end, begin, length);
    }
}

}  // namespace syncopate::bindings

// Whether a chain is one at all, before anything is worked out from it. A chain of a file has been read so
// that it is (chain_json.cpp, with line and column); one that a program made may be anything.
#pragma once

#include <cstdint>
#include <optional>

#include "syncopate/sync/generate.hpp"

namespace syncopate::sync {

inline constexpr std::int32_t kMostStages = 64;
inline constexpr std::int32_t kMostAxes = 8;
inline constexpr std::int32_t kMostBoxes = 64;  // of a tensor that a stage touches
inline constexpr std::int64_t kLargestExtent = std::int64_t{1} << 40;

/// The first thing that makes no sense: of tensors, grids, names, boxes, orders and policies, whatever they
/// depend on. nullopt: there is none, and all indices that they hold are within bounds.
[[nodiscard]] std::optional<Malformed> find_malformed(const Chain& chain);

}  // namespace syncopate::sync

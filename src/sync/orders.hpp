// In which order a stage's blocks take its tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/sync/chain.hpp"

namespace syncopate::sync {

/// The tiles of an order that is not `automatic`, the first to run first.
[[nodiscard]] std::vector<std::int32_t> tiles_in_order(const ChainStage& stage, const Order& order);

/// By tile: its place in the order.
[[nodiscard]] std::vector<std::int32_t> places_in(const std::vector<std::int32_t>& order);

}  // namespace syncopate::sync

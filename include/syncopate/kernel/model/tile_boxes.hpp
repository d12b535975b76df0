// What a tile touches of one parameter.
#pragma once

#include <span>
#include <string>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel {

/// The disjoint boxes that `tile` reads, or writes, through parameter `param`: exact where they are known,
/// else the bounding box; none where it touches nothing. They are the tile's.
[[nodiscard]] std::span<const plan::Region> boxes_read(const Tile& tile, const std::string& param);
[[nodiscard]] std::span<const plan::Region> boxes_written(const Tile& tile, const std::string& param);

}  // namespace syncopate::kernel

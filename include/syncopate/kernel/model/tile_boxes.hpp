// What a tile touches of one parameter.
#pragma once

#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel {

/// The disjoint boxes that `tile` reads, or writes, through parameter `param`: exact where they are known,
/// else the bounding box; none where it touches nothing.
[[nodiscard]] std::vector<plan::Region> boxes_read(const Tile& tile, const std::string& param);
[[nodiscard]] std::vector<plan::Region> boxes_written(const Tile& tile, const std::string& param);

}  // namespace syncopate::kernel

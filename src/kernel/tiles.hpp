// From what the evaluation touched to the tile space: disjoint boxes and bounding boxes for each tile, and
// the named axes with each tile's coordinates.
#pragma once

#include <string>
#include <vector>

#include "kernel/evaluate.hpp"
#include "syncopate/kernel/kernel.hpp"

namespace syncopate::kernel {

/// The tile's footprints, by parameter.
[[nodiscard]] Tile make_tile(const TileRecord& record, const Findings& found, const Function& kernel,
                             const std::vector<TensorView>& tensors);

/// Sets the coordinates that the evaluation recorded (in the order of `kernel.axes`), if they number the tile
/// space one to one. False, changing nothing, when they do not.
[[nodiscard]] bool set_recorded_coordinates(Kernel& kernel, const std::vector<TileRecord>& records);

/// Sets axes and coordinates from where the tiles write, if their boxes form a grid over one tensor. Names
/// and blocks are taken from `named` where counts agree.
[[nodiscard]] bool set_coordinates_by_writes(Kernel& kernel, const std::vector<TileAxis>& named);

/// Puts the axes in the order of the axes of the tensor that the tiles write, where each runs along one.
void order_axes_by_writes(Kernel& kernel);

}  // namespace syncopate::kernel

// Tiles of a mixture of experts. How many rows an expert has only a call knows: a tile has as many as an expert
// has on average, and half as many more.
#pragma once

#include <string>
#include <vector>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// Of both products. It follows from the problem's rows and experts alone, so that all of its parts ("dispatch",
/// "combine") align experts' rows alike.
[[nodiscard]] TileConfig mixture_tile(const Problem& problem, fuse::Device device);

/// Of the Gluon kernel.
[[nodiscard]] TileConfig mixture_gluon_tile();

/// Of so many rows, for Triton's interpreter.
[[nodiscard]] TileConfig mixture_host_tile(const Problem& problem, std::int32_t rows);

/// Complete ones: unfused, then that tile, then those that are chosen for more rows an expert, and for fewer, with more
/// and fewer stages and columns; last the Gluon kernel for the first product, where it takes the problem.
[[nodiscard]] std::vector<Strategy> mixture_candidates(const Problem& problem, const Machine& machine);

/// Why no mixture of experts is carried out so; "" where one is. Of a strategy it has a kernel, a tile and programs.
[[nodiscard]] std::string mixture_objection(const Problem& problem, const Strategy& strategy);

}  // namespace syncopate::tune

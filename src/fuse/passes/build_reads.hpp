// The half of build.hpp that asks what tiles read.
#pragma once

#include "syncopate/fuse/passes/build.hpp"

namespace syncopate::fuse {

/// What earlier stages of a program have written on every rank, by tensor.
using Written = std::map<std::int32_t, std::vector<plan::Region>>;

/// Adds what the tiles of `program` write of bound tensors.
void add_written(const BoundKernel& program, Written& written);

/// Adds the tiles of stage `stage`, `program`, as nodes, with what they need of ops. Fails as build does.
Status add_tiles(const BoundKernel& program, std::size_t stage, const Written& written, Graph& graph);

}  // namespace syncopate::fuse

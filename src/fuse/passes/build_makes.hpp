// The half of build.hpp that asks what tiles make.
#pragma once

#include "syncopate/fuse/passes/build.hpp"

namespace syncopate::fuse {

/// Adds the chunks that stage `stage`, `program`, makes as nodes, and the edges from them to the ops that
/// need them. Fails as build does.
Status add_chunks(const BoundKernel& program, std::size_t stage, const Lowered& lowered, Graph& graph);

}  // namespace syncopate::fuse

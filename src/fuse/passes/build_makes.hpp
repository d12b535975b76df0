// The half of build.hpp that asks what tiles make.
#pragma once

#include "syncopate/fuse/passes/build.hpp"

namespace syncopate::fuse {

/// Adds the chunks that stage `stage`, `program`, makes as nodes, and the edges from them to the ops that
/// need them. Fails as build does.
///
/// Of ranks outside of `scope` later passes ask which ops need what a stage makes, and no more, where tiles of the stage need no
/// ops, so that none comes after another by way of them, and none store for ops. Graph::elsewhere says that then: of
/// many ranks their chunks would be most of the graph. What is missing of them, their own node's part finds.
Status add_chunks(const BoundKernel& program, std::size_t stage, const Lowered& lowered, Scope scope,
                  Graph& graph);

}  // namespace syncopate::fuse

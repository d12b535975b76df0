// The part of build.hpp that asks what tiles of one stage read of what tiles of earlier stages write, where
// nothing but tiles works on it: the stages then overlap, tile by tile.
//
//      stage 0   | t0 t1 t2 t3 | t4 t5 t6 t7 |        tiles that the same tiles of later stages need are
//                └── chunk 0 ──┴── chunk 1 ──┘        one chunk
//      stage 1                 └─► t0 t1      └─► t2 t3
//
// So no tile waits for one that it does not need, and none for two chunks where one would do (sync/ does the
// same for stages in CUDA C++).
#pragma once

#include "syncopate/fuse/passes/build.hpp"

namespace syncopate::fuse {

/// Of a graph that has the tiles of all stages and no ops; with ops stages start one after another, and this
/// does nothing. Adds the chunks that earlier stages make for later ones, what tiles await of them, and which
/// stages may start beside the ones before: not one that writes what an earlier one, which may still run,
/// reads or writes.
void add_chain(const StagedProgram& program, const plan::Plan& plan, Graph& graph);

/// The same of `stage` of a graph with ops, if a call makes its tiles and those of the stage before, which lets the
/// next one start (kernel::Kernel::starts_next): what comes from other ranks its tiles await anyway, and what their
/// own rank makes for itself they await here. So it starts beside that stage, if that one does not start beside
/// another. No program waits for one that finds no room: those of the stage before all run when the first of this
/// one starts, and nothing that they wait for is made by this one. The graph has the tiles of both stages, and no
/// chunks of this one yet.
void add_beside(const StagedProgram& program, const plan::Plan& plan, std::size_t stage, Graph& graph);

}  // namespace syncopate::fuse

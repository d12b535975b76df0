// Build: the work graph of a program, from the regions that its ops move and its tiles touch.
//
// On rank r a tile needs op X if X's destination is in r's memory and the written region shares an element
// with a box that the tile reads of a parameter bound to that tensor. Tiles that read the same boxes are one
// node (the rows of tiles of a GEMM), so the work is nodes × the few ops near each box, found by bisection
// along one axis. What tiles load from its source (Carrier::tile_loads) is no op that they wait for: they
// need what that op comes after.
//
// In a reduction loop (K of a GEMM) an edge also has the first iteration that reads the delivered region:
//
//      iteration       0      1      2      3            a tile's read box, K to the right
//                  |------|------|------|------|
//      X delivers               |////////|               first iteration 1
//
// The other half: an op that sends what a kernel writes (`produced` in the plan), or adds to it, needs the
// tiles that write there. Each such region is a chunk node of its rank; a tile counts in every chunk that it
// touches:
//
//      C of rank 1   | chunk 0: rows for rank 2 | chunk 1: rows for rank 0 | own rows |
//      tiles         |   t0    t1   |   t2      t3 (straddles: counts in both)  |  t4  …
//
// Several tiles may write one place (split-K by atomic_add): each counts.
#pragma once

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/scope.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Bindings must be sound (program.hpp). Fails where `after` has a cycle; if a tile reads a region of a bound
/// tensor that on its rank is neither initial, nor delivered, nor written by an earlier stage, naming tile,
/// parameter, region and rank; and, with rank and op, where an op moves what a kernel writes and the plan
/// does not list as produced, where no tile writes what the plan says is produced, and where a tile writes
/// what is not. Of ranks outside of `scope` chunks have nodes where later passes look at them (build_makes.hpp).
[[nodiscard]] Result<Graph> build(const StagedProgram& program, const Lowered& lowered,
                                  const Backends& backends, Scope scope = {});

/// Makes all tiles of a stage on a rank need what any of them needs, from the same iterations on, or before
/// they start where their loops differ. Fails where that may never come, since a stage makes something that
/// is sent.
[[nodiscard]] Status wait_together(const StagedProgram& program, Graph& graph);

}  // namespace syncopate::fuse

// Emit: the user's file with the few lines that make its kernel follow a schedule, in the language that it
// came in (language.hpp). Every other byte stays as it was. In Triton, whose helpers are in
// python/syncopate/language.py:
//
//   from syncopate.language import sy_acquire, sy_finish, …
//       after the last top-level import
//   def matmul(…, sy_schedule, sy_control):
//       after the last parameter without a default, so that a positional call stays valid up to there
//   tile_id = sy_acquire(sy_schedule, sy_control, tile_id)
//       where the kernel takes its linear id: now the n-th slot's tile, once its chunks have arrived
//   … sy_tile(sy_schedule, tile_id_c) …
//       where it takes it once more, for stores
//   sy_post(sy_schedule, sy_control, tile_id_c)
//       where tiles make chunks: after a tile's last store, with the slot that the store is of
//   sy_post_previous(sy_schedule, sy_control, tile_id_c)
//       in a persistent kernel that stores at other ranks, before a tile's stores: what the tile before it
//       sent is complete by then, so that nobody stands still; sy_post_last does the last one, and
//       sy_post_at_once, after the stores, all else
//   c_desc.store([row + sy_row(sy_schedule, tile_id_c), …
//       where stores are sent inline (fuse/inline/inline.hpp)
//   sy_from = sy_load_row(sy_schedule, sy_slot) … a_desc.load([row + sy_from, …
//       after sy_acquire, where loads are fetched inline (fuse/inline/inline_reads.hpp)
//   sy_from = a_desc
//   if sy_reads_own(sy_schedule, sy_slot):
//       sy_from = sy_own … sy_from.load([row, …
//       the same where a rank fetches from itself only: one parameter more, sy_own, leads there
//   sy_finish(sy_schedule, sy_control)
//       at the end of the body, and before each return
//
// A phased schedule also nests the reduction loop; the user's loop keeps its body and its own options:
//
//   for sy_phase in range(sy_num_phases(sy_schedule, sy_slot)):
//       sy_lo, sy_hi = sy_acquire_phase(sy_schedule, sy_control, sy_slot, sy_phase)
//       for k in range(sy_lo, sy_hi):
//           …
//
// (sy_lo comes from the table and is not carried from phase to phase as sy_hi: Triton 3.6 takes a
// loop-carried value that is used only as the lower bound of an inner loop for dead, and starts each phase at
// iteration 0.) It also sets `flatten=True` of a tile loop to False, since Triton would flatten the nest with
// the wait inside it.
#pragma once

#include <string>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

/// The fused source of the whole file. The same input gives the same bytes. Fails, with file, line and
/// column, where the added lines cannot be placed: no place where a tile id is taken, a name of ours that the
/// kernel already uses, a statement that shares its line with what follows, a reduction loop that is not
/// range(n).
[[nodiscard]] Result<std::string> emit(const fuse::BoundKernel& program, const fuse::Schedule& schedule);

/// The same for the schedule's stage `stage`, whose kernel and bindings `program` has.
[[nodiscard]] Result<std::string> emit(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                                       std::size_t stage);

}  // namespace syncopate::emit

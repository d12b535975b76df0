// The backward of attention over a sharded sequence: what of K, V and their gradients moves where. A rank
// differentiates its own rows of Q, which stay with it. It needs the rows of K and V that these attend to, and
// makes what it adds to the gradients of those. Contributions leave tile by tile, as they are complete, and are
// summed in fp32 where the rows of K and V are held.
//
// Tensors: K, V [B, HKV, S, D], DK, DV (fp32) alike.
//
//   all_gather    K and V come from their owners, and contributions go straight back: they are summed in the
//                 order of ranks
//   ring          K and V are passed on, and the sums travel behind them: each rank adds its own
//   double_ring   … in the order in which K and V come to the ranks
//
//       K, V of rank 0 →  1  →  2  →  3         ring, 4 ranks
//       dK, dV            1  →  2  →  3  →  0
//
// Where ranks exchange heads (`ulysses`: all of them), each rank computes some heads of all rows, so what it makes
// is whole and is summed nowhere. Two sets of tensors stand for the two cuts. By rows, as a rank holds them at first
// and gets them in the end, a rank's rows behind those of the rank before it: Q, DO, DQ [B, H, S, D], K, V, DK, DV
// [B, HKV, S, D], LSE, DELTA (fp32) [B, H, S]. By heads, a rank's share of the heads with all rows in the sequence's
// order: Q.heads and so on, so that kernels are the same on all ranks. LSE.heads and DELTA.heads have `padded` rows.
//
// Where groups of ranks do (`ulysses`: fewer of them), rows of Q.heads and those beside it are of the group, in the
// sequence's order. K.heads, V.heads and DK.heads, DV.heads (fp32), which have all rows, go round a ring of groups as above, and
// DK and DV by rows are fp32, too.
#pragma once

#include "syncopate/plan/templates/attention.hpp"

namespace syncopate::plan {

struct AttentionBackwardOptions {
    /// Q and O are no part of it, whatever `only_kv` and `q_o_stay` say.
    AttentionOptions moved;
    /// All that a rank attends to of K and V is there, from the forward: only gradients move.
    bool kept = false;
    /// K and V that came stay readable after the call, until the rank's next one.
    bool stays = false;
    /// ulysses: rows of LSE.heads and DELTA.heads; at least those of the sequence, or of the group with most.
    std::int64_t padded = 0;
};

/// Fails as attention() does; and where heads are exchanged, but those of K and V are no multiple of the ranks that do.
[[nodiscard]] Result<Plan> attention_backward(const Mesh& mesh, const AttentionShape& shape,
                                              const AttentionBackwardOptions& options);

}  // namespace syncopate::plan

// Produce: which tile makes which chunk.
//
// An op that sends what a kernel writes (`produced` in the plan) may start when the tiles that write its
// source are done. So each such source is a **made chunk** of its rank, with the number of tiles that write
// into it; a tile counts in every chunk that it touches, and the last one to count posts:
//
//      C of rank 1   | made chunk 0: rows for rank 2 | made chunk 1: rows for rank 0 | own rows |
//      tiles         |   t0    t1   |   t2      t3 (straddles: counts in both)  |  t4  …
//
// Several tiles may write one place (split-K by atomic_add): each counts.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Names a made chunk: `index` in Production::chunks[rank].
struct MadeRef {
    std::int32_t rank = 0;
    std::int32_t index = 0;
    auto operator<=>(const MadeRef&) const = default;
};

struct Production {
    std::vector<std::vector<plan::Chunk>> chunks;                ///< by rank
    std::vector<std::vector<std::vector<std::int64_t>>> makers;  ///< by rank and chunk: tile ids, rising
    /// By op id: the made chunks that it must wait for; not those whose tiles an op before it has waited for.
    std::vector<std::vector<MadeRef>> needs;

    [[nodiscard]] bool any() const;
};

/// `program.plan` is a lowered plan. Fails, with rank and op, where an op moves what the kernel writes and
/// the plan does not list as produced, where no tile writes what the plan says is produced, where a tile
/// writes what is not, and where an op writes into what another rank's kernel makes without a surely earlier
/// op that has waited for that.
[[nodiscard]] Result<Production> produce(const Program& program, const Lowered& lowered,
                                         const Precedence& precedence);

}  // namespace syncopate::fuse

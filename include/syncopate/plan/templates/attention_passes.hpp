// Attention whose K and V come a slice at a time, so that a rank has few of them at once. Each pass gathers
// the p-th slice of every run of rows of every rank into the same places, and each rank goes on with what the
// passes before have made of its rows:
//
//     2 ranks, zigzag, 2 passes      run of    rank 0 | rank 1 | rank 1 | rank 0
//                                    rows      0 .. 8 | 8 … 16 | 16…24  | 24…32
//     what a rank has in pass 0                0 .. 4 | 8 … 12 | 16…20  | 24…28       16 rows of 32
//     …                  in pass 1             4 .. 8 | 12…16  | 20…24  | 28…32
//
// Places rise as the rows do, so what a row sees of a pass is one range of places. Every pass is a call of
// one op: the next call's transfers wait until the readers of this one have ended (fuse/passes/guard.hpp).
//
// Source: ring attention (Liu et al., arXiv 2310.01889) keeps the K and V of two steps; here a pass takes the
// same memory from all ranks at once, so that every link is used in each.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// Rows of the sequence in one place of a pass. Of a run that does not divide evenly a slice may begin with
/// rows that an earlier pass had: those before `fresh` are not seen again.
struct PassSlice {
    Interval rows;
    std::int64_t fresh = 0;
    bool operator==(const PassSlice&) const = default;
};

struct AttentionPasses {
    std::int64_t width = 0;                                   ///< rows of K and V that a rank has in a pass
    std::vector<Rows> places;                                 ///< by rank: those that it brings, run by run
    std::vector<std::vector<std::vector<PassSlice>>> slices;  ///< by pass and rank: what lies in its places
};

/// So many passes over ranks' `rows` (as of shard_rows). Fails (ErrorClass::usage) for less than one.
[[nodiscard]] Result<AttentionPasses> attention_passes(const std::vector<Rows>& rows, std::int32_t passes);

/// The fewest passes in which a rank has at most `most` rows at once. Fails where that is less than there are
/// runs, as each brings at least a row.
[[nodiscard]] Result<std::int32_t> passes_within(const std::vector<Rows>& rows, std::int64_t most);

}  // namespace syncopate::plan

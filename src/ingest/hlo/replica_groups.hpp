// The notations of HLO for who takes part in a collective.
#pragma once

#include "ingest/program/text_cursor.hpp"
#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {

/// Reads the value of replica_groups at the cursor:
///
///     {{0,1},{2,3}}                        lists
///     {}                                   everybody
///     [2,4]<=[8]                           iota: 0..7 in rows of 4
///     [4,2]<=[2,4]T(1,0)                   iota: 0..7 as 2×4, transposed, in rows of 2
///     mesh['x'=2,'y'=4] {'y'}              one group for each place along the other axes
///
/// Fails at what is none of these. A form that is well written but not taken is no failure: `out.problem`
/// tells it, so that a listing can go on.
bool parse_replica_groups(TextCursor& at, ReplicaGroups& out);

/// The groups of the iota form: numbers 0..product(reshape)-1 as an array of shape `reshape`, its axes
/// permuted by `transpose` (empty: not), cut into `groups` rows of `size`.
[[nodiscard]] std::vector<std::vector<std::int32_t>> iota_groups(std::int64_t groups, std::int64_t size,
                                                                 const std::vector<std::int64_t>& reshape,
                                                                 const std::vector<std::int64_t>& transpose);

/// The groups of a mesh with axes of these sizes: one for each place along the axes that are not in `over`,
/// of the ranks along those that are, in this order. `over` names each axis once.
[[nodiscard]] std::vector<std::vector<std::int32_t>> groups_over(const std::vector<std::int64_t>& sizes,
                                                                 const std::vector<std::int64_t>& over);

}  // namespace syncopate::ingest

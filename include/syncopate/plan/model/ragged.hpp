// Ragged: where the rows of groups lie whose sizes only a call knows.
//
//     counts      3    0    5  |   2    4    0  |       six groups, in runs of three (an expert's, by source)
//     rows       [0,3)[3,3)[3,8)  [8,10)[10,14)[14,14)  runs that begin at multiples of 4
//
// Each group begins where the one before it ends, so that no counts make two of them meet; a run, which
// somebody reads as one, begins at a multiple of `align`. Of rows beyond the bound the last ones are left
// out: a group is cut, and all after it are empty. So what is proved of groups is so of rows, whatever the
// counts. The device does the same for each call (python/syncopate/kernels/moe.py).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// What stands between the names of groups in a plan.
inline constexpr std::string_view kGroupsTimes = " × ";

/// How the groups of a rank lie.
struct GroupLayout {
    std::int64_t run = 1;    ///< groups that are read as one
    std::int64_t align = 1;  ///< rows: where a run may begin
    std::int64_t bound = 0;  ///< rows of all groups together
    std::int64_t rows = 0;   ///< for which there is memory
};

/// The least memory, in rows, in which so many runs have place whatever their counts are.
[[nodiscard]] std::int64_t rows_for(std::int64_t bound, std::int64_t runs, std::int64_t align);

/// The rows of each group, in order. Counts are not negative, and as many as runs are long, or a multiple.
[[nodiscard]] std::vector<Interval> lay_groups(std::span<const std::int64_t> counts,
                                               const GroupLayout& layout);

/// What is wrong with what a tensor says of its ragged axis; "" if nothing is, or it has none.
[[nodiscard]] std::string ragged_objection(const Tensor& tensor);

/// "X[rows_from_rank 0:2, expert 3, 0:64]": a region, with the names of groups where a tensor has some.
[[nodiscard]] std::string region_text(const Tensor& tensor, const Region& region);

}  // namespace syncopate::plan

// Numbers of rows at which a kernel over rows in groups could do otherwise than at others: none, one, all that there may be,
// whole blocks and one more or less; and some that look like none of these.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace syncopate::ops {

/// Where each expert's rows begin, and where the last one's end.
using Offsets = std::vector<std::int64_t>;

/// Of experts that have up to `bound` rows each, every such number of each of them. `blocks`: of the kernel's tiles.
[[nodiscard]] std::vector<Offsets> offsets_by_expert(std::int64_t experts, std::int64_t bound,
                                                     const std::vector<std::int64_t>& blocks);

/// Of experts that have up to `bound` rows together, fewer, as each is an analysis that takes long: such numbers as far as there are
/// so many rows, of many experts each of half of them; all rows of a middle and of the last expert alone (the caller has tried
/// the first); and numbers by which there are as many tiles as there can be, of so many rows each (`most_of`).
[[nodiscard]] std::vector<Offsets> offsets_together(std::int64_t experts, std::int64_t bound,
                                                    const std::vector<std::int64_t>& blocks,
                                                    const std::set<std::int64_t>& most_of);

/// "3, 0, 17": how many rows each expert has, of the first ones.
[[nodiscard]] std::string lengths_of(const Offsets& offsets);

}  // namespace syncopate::ops

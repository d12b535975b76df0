// Numbers of rows at which a kernel over rows in groups could do otherwise than at others: none, one, all that there may be,
// whole blocks and one more or less; and some that look like none of these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace syncopate::ops {

/// Where each expert's rows begin, and where the last one's end.
using Offsets = std::vector<std::int64_t>;

/// Of experts that have up to `bound` rows each, every such number of each of them. `blocks`: of the kernel's tiles.
[[nodiscard]] std::vector<Offsets> offsets_by_expert(std::int64_t experts, std::int64_t bound,
                                                     const std::vector<std::int64_t>& blocks);

/// Of experts that have up to `bound` rows together: the same as far as there are so many, and all rows of one expert, of the
/// first, a middle and the last one alone, as each is an analysis of its own; and numbers that take as many tiles as there can be
/// of `blocks` and of usual numbers of rows.
[[nodiscard]] std::vector<Offsets> offsets_together(std::int64_t experts, std::int64_t bound,
                                                    const std::vector<std::int64_t>& blocks);

/// "3, 0, 17": how many rows each expert has, of the first ones.
[[nodiscard]] std::string lengths_of(const Offsets& offsets);

}  // namespace syncopate::ops

// Which blocks of one stage touch what which blocks of another one touch.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::sync {

using BlockBoxes = std::vector<std::vector<plan::Region>>;  ///< by block

/// What takes a quarter of a GiB.
inline constexpr std::int64_t kMostListed = std::int64_t{1} << 26;

/// Blocks that touch the same boxes need the same: they are one class.
struct Overlaps {
    std::vector<std::int32_t> class_of;             ///< by block
    std::vector<std::vector<std::int32_t>> blocks;  ///< by class: the others' blocks, rising
    std::int64_t listed = 0;                        ///< in all of `blocks`
    bool cut_off = false;                           ///< there are more

    [[nodiscard]] const std::vector<std::int32_t>& of(std::int64_t block) const {
        return blocks[at(class_of[at(block)])];
    }
};

/// For each block of `mine` the blocks of `others` that share an element with it; either may be empty:
/// nothing is touched then. Stops where it has listed more than `most`. Time: for each class the others whose
/// boxes begin near its own along the best axis.
[[nodiscard]] Overlaps overlaps(const BlockBoxes& mine, const BlockBoxes& others,
                                std::int64_t most = kMostListed);

}  // namespace syncopate::sync

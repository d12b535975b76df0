// What a call has made of a stage's table (layout.hpp, "groups"), held against the counts of the call: every row of every group in
// every column once, slots that wait and post as their group does, and no more slots than there is room for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::emit {

/// What the slots of a stage should do.
struct MadeStage {
    std::vector<plan::Interval> groups;  ///< by number, rows
    std::int64_t first = 0;              ///< tile of the record of group 0, modulo their number
    std::int64_t tile = 1;               ///< rows of a tile
    std::int64_t columns = 1;            ///< of tiles
};

/// Why the table is not what the call should have made of it; "" where it is.
[[nodiscard]] std::string made_table_objection(std::span<const std::int32_t> words, const MadeStage& of);

}  // namespace syncopate::emit

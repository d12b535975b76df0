// Where chunks come from, for pictures: the rank whose colour a chunk has.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/model/box_index.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// The rank that holds a chunk's value at the start; of a chunk that is being reduced (everyone holds a part
/// of it), the first rank that wants it in the end; else, for what neither says, the op's source. Regions
/// must lie in their tensors.
class Origins {
public:
    explicit Origins(const Plan& plan);
    [[nodiscard]] std::int32_t of(OpRef ref) const;

private:
    const Plan& plan_;
    std::vector<BoxIndex<std::int32_t>> held_;  ///< by tensor
    std::vector<BoxIndex<std::int32_t>> sums_;  ///< by tensor: where the sum of a region is made
};

}  // namespace syncopate::plan

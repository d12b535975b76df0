// Sum parts: a sum of what this rank's kernel makes is cut where the kernel makes it.
//
// The sum of a chunk must wait for the tiles that make the own part of it. In one piece it would begin when
// the last of them is done, which for the rows that are made last is the kernel's end. In parts, each begins
// when its own tiles are done, and runs beside the kernel, which leaves it registers enough:
//
//      kernel    | tiles for others …… | own, part 0 | own, part 1 | own, part 2 |
//      sums                                          | sum of 0    | sum of 1    | sum of 2 |
//
// The tiles are done part by part, so the cut must not disturb the order that the kernel chose for its
// caches: of all ways to cut the chunk into a x b boxes the one is taken in which that order changes least.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

inline constexpr std::int64_t kMostSumParts = 8;  ///< of one sum

/// `chunk` as boxes in the order in which `stage`'s kernel makes them: about one for every
/// Costs::part_rounds rounds of its `programs` over it, at most kMostSumParts; one where the kernel does not write
/// the chunk's tensor (of `tensor_name`), or where every cut would change the order of many tiles.
/// `last_round`: what the last round of tiles makes is a part of its own, since nothing runs beside its sum
/// that would hide it.
[[nodiscard]] std::vector<plan::Region> sum_parts(const Stage& stage, const std::string& tensor_name,
                                                  const plan::Region& chunk, std::int64_t programs,
                                                  bool last_round = false,
                                                  const Costs& costs = usual_costs());

}  // namespace syncopate::fuse

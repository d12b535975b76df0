// Synchronize: the smallest set of waits that covers every dependence, given the order.
//
// A wait for op X also covers every op that precedes X. So a slot waits only for
//   - the last ones of the ops that it needs (no wait for what precedes another of them), and
//   - not for what its program has seen before: programs run their slots in order, and each thread of a
//   program that
//     has waited for a signal needs no second wait for it.
// With phases the same holds along the iterations of a tile: a phase ends where the next op is needed that
// nothing before covers, and neighbouring phases without a wait between them are one.
//
// An op waits for the last ones of those that it is `after`, except what its own copy stream already orders.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/precedence.hpp"

namespace syncopate::fuse {

/// What one slot waits for, as op ids.
struct SlotWaits {
    struct Phase {
        std::int64_t iteration_end = 0;
        std::vector<std::int32_t> ops;
    };
    std::vector<std::int32_t> ops;  ///< before the tile starts
    std::vector<Phase> phases;  ///< empty without phases; otherwise at least one; the first has no ops, the
                                ///< last ends at `trips`
};

struct Synchronization {
    std::vector<std::vector<SlotWaits>> slots;         ///< by rank and slot
    std::vector<std::vector<std::int32_t>> transfers;  ///< by op id: what it waits for before it starts
    std::vector<std::vector<std::int32_t>>
        seen_by_kernel;  ///< by rank: the ops that some slot waits for, sorted
};

/// `tiles`: by rank and slot (order.hpp). `program_of`: by slot, the program that runs it; a program runs its
/// slots in ascending order. `trips`: iterations of the reduction loop if phases are wanted, else 0.
[[nodiscard]] Synchronization synchronize(const Precedence& precedence, const Dependence& dependence,
                                          const std::vector<std::vector<std::int64_t>>& tiles,
                                          const std::vector<std::int64_t>& program_of, std::int64_t trips);

}  // namespace syncopate::fuse

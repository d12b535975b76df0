// Rounds in which a rank sends, or receives, something already.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/at.hpp"

namespace syncopate::plan {

class TakenRounds {
public:
    /// The first free one from `round` on. Nearly O(1), as what is skipped once is skipped at once from then on.
    std::int32_t free_from(std::int32_t round) {
        while (next_.size() <= at(round)) next_.push_back(static_cast<std::int32_t>(next_.size()));
        std::int32_t free = round;
        while (at(free) < next_.size() && next_[at(free)] != free) free = next_[at(free)];
        while (round != free) {
            const std::int32_t further = next_[at(round)];
            next_[at(round)] = free;
            round = further;
        }
        return free;
    }
    void take(std::int32_t round) {
        (void)free_from(round);
        next_[at(round)] = round + 1;
    }

private:
    std::vector<std::int32_t> next_;  ///< by round: itself, or one on the way to the first free one
};

/// Takes the first round from `round` on that is free for both.
inline std::int32_t take_first(TakenRounds& sends, TakenRounds& receives, std::int32_t round) {
    for (;;) {
        const std::int32_t first = sends.free_from(round);
        round = receives.free_from(first);
        if (first == round) break;
    }
    sends.take(round);
    receives.take(round);
    return round;
}

}  // namespace syncopate::plan

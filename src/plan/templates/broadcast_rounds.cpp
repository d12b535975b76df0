#include "plan/templates/broadcast_rounds.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// Of the participants 0 to count - 1, root 0, who sends which chunk in one round, to its partner.
class Rounds {
public:
    Rounds(std::int32_t count, std::int32_t chunks)
        : chunks_(chunks),
          axes_(std::countr_zero(static_cast<std::uint32_t>(count))),
          has_(at(count) * at(chunks), 0) {}

    [[nodiscard]] std::int32_t num_rounds() const { return chunks_ + axes_ - 1; }

    /// The chunk that `to` gets in a round; -1: none. `to` is not the root.
    [[nodiscard]] std::int32_t chunk_for(std::int32_t to, std::int32_t round) const {
        // Chunk j's tree has reached, after l rounds, those whose address has axis j set and is 0 outside the
        // axes j to j + l; in its last round it reaches those in which axis j is not set.
        const std::int32_t axis = round % axes_;
        if ((to >> axis & 1) == 0) return chunk_in_turn(round - axes_);
        std::int32_t back = 0;  // the farthest set axis, going down from this round's
        for (std::int32_t l = 0; l < axes_; ++l) {
            if ((to >> ((axis - l + axes_) % axes_) & 1) != 0) back = l;
        }
        return chunk_in_turn(round - back);
    }

    [[nodiscard]] std::int32_t partner(std::int32_t to, std::int32_t round) const {
        return to ^ (1 << (round % axes_));
    }

    /// False: it has it already.
    bool give(std::int32_t to, std::int32_t chunk) {
        char& has = has_[at(to) * at(chunks_) + at(chunk)];
        return has == 0 ? (has = 1) != 0 : false;
    }

private:
    /// The chunk that leaves the root in a round; the last one in all rounds after its own.
    [[nodiscard]] std::int32_t chunk_in_turn(std::int32_t round) const {
        return round < 0 ? -1 : std::min(round, chunks_ - 1);
    }

    std::int32_t chunks_;
    std::int32_t axes_;
    std::vector<char> has_;  ///< by participant and chunk
};

}  // namespace

bool fits_rounds(const HopNetwork& network) {
    const std::size_t count = network.leaving.size();
    return count >= 4 && std::has_single_bit(count) && network.hops.size() == count * (count - 1) &&
           std::none_of(network.hops.begin(), network.hops.end(), [](const Hop& hop) { return hop.crosses; });
}

std::vector<SynthesisStep> broadcast_rounds(std::int32_t participants, std::int32_t root,
                                            std::int32_t chunks) {
    Rounds rounds(participants, chunks);
    std::vector<SynthesisStep> steps;
    std::vector<std::int32_t> last(at(participants), -1);  ///< by receiver: the step before
    for (std::int32_t round = 0; round < rounds.num_rounds(); ++round) {
        for (std::int32_t to = 1; to < participants; ++to) {
            const std::int32_t chunk = rounds.chunk_for(to, round);
            if (chunk < 0 || !rounds.give(to, chunk)) continue;
            const std::int32_t from = rounds.partner(to, round);
            std::int32_t& before = last[at(to)];
            const bool yields = before >= 0 && steps[at(before)].from != (from ^ root);
            steps.push_back(
                {chunk, from ^ root, to ^ root, yields ? before : -1, static_cast<double>(round)});
            before = static_cast<std::int32_t>(steps.size()) - 1;
        }
    }
    return steps;
}

}  // namespace syncopate::plan

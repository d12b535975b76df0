#include <bit>
#include <cstddef>
#include <limits>

#include "plan/synthesise/hop_clock.hpp"
#include "plan/synthesise/match_chunks.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kBits = 64;
constexpr double kWorthIt = 1.5;           ///< an estimate has to be clearly better
constexpr double kWorthItInPassing = 0.9;  ///< measured: docs/topologies.md, all_reduce on h200x8x2

/// A set of chunks for each of several holders.
class ChunkSets {
public:
    ChunkSets(std::size_t holders, std::size_t chunks)
        : words_((chunks + kBits - 1) / kBits), bits_(holders * words_, 0) {}
    void insert(std::int32_t holder, std::int32_t chunk) {
        row(holder)[static_cast<std::size_t>(chunk) / kBits] |= Word{1}
                                                                << (static_cast<std::size_t>(chunk) % kBits);
    }
    [[nodiscard]] bool contains(std::int32_t holder, std::int32_t chunk) {
        return (row(holder)[static_cast<std::size_t>(chunk) / kBits] >>
                    (static_cast<std::size_t>(chunk) % kBits) &
                1) != 0;
    }
    [[nodiscard]] Word* row(std::int32_t holder) {
        return bits_.data() + static_cast<std::size_t>(holder) * words_;
    }
    [[nodiscard]] std::size_t words() const { return words_; }

private:
    std::size_t words_;
    std::vector<Word> bits_;
};

/// Mixes a number with a seed (the finaliser of splitmix64).
std::uint64_t mixed(std::uint64_t value, std::uint64_t seed) {
    value += seed * 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

class Spreading {
public:
    Spreading(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed,
              SecondCrossings second_crossings)
        : network_(network),
          chunks_(chunks),
          seed_(seed),
          worth_it_(second_crossings == SecondCrossings::eager ? kWorthItInPassing : kWorthIt),
          clock_(network),
          arrived_(network.leaving.size(), chunks.size()),
          coming_(network.leaving.size(), chunks.size()),
          in_node_(network.leaving.size(), chunks.size()),
          copies_(chunks.size(), 1),
          lacking_(network.leaving.size(), static_cast<std::int64_t>(chunks.size())),
          lacking_in_node_(lacking_) {
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
            const auto id = static_cast<std::int32_t>(chunk);
            const std::int32_t origin = chunks[chunk].origin;
            arrived_.insert(origin, id);
            coming_.insert(origin, id);
            enter_node(origin, id);
            --lacking_[at(origin)];
        }
    }

    Matching run() {
        do {
            clock_.attempt_marked([this](std::int32_t hop) { match(hop); });
        } while (
            clock_.advance([this](std::int32_t chunk, const Hop& hop) { arrived_.insert(hop.to, chunk); }));
        for (std::size_t at = 0; at < lacking_.size(); ++at) {
            if (lacking_[at] == 0) continue;
            const auto participant = static_cast<std::int32_t>(at);
            std::int32_t chunk = 0;
            while (coming_.contains(participant, chunk)) ++chunk;
            result_.unreachable.push_back({chunk, participant});
            break;
        }
        return std::move(result_);
    }

private:
    std::int32_t node(std::int32_t participant) const { return network_.node_of[at(participant)]; }

    void enter_node(std::int32_t participant, std::int32_t chunk) {
        if (in_node_.contains(node(participant), chunk)) return;
        in_node_.insert(node(participant), chunk);
        --lacking_in_node_[at(node(participant))];
    }

    void match(std::int32_t hop_id) {
        const Hop& hop = network_.hops[at(hop_id)];
        if (lacking_[at(hop.to)] == 0 || !clock_.is_free(hop)) return;
        std::int32_t chunk = choose(hop, hop.crosses);
        // Once its node has or expects all that is here: what would take longer from inside may come twice.
        if (chunk < 0 && hop.crosses && is_short_cut(hop)) chunk = choose(hop, false);
        if (chunk < 0) return;
        const MovingChunk& moving = chunks_[at(chunk)];
        result_.movements.push_back(clock_.start(chunk, hop_id, moving.bytes, moving.origin != hop.from));
        result_.makespan_us = std::max(result_.makespan_us, result_.movements.back().end_us);
        coming_.insert(hop.to, chunk);
        enter_node(hop.to, chunk);
        ++copies_[at(chunk)];
        --lacking_[at(hop.to)];
    }

    /// Whether all chunks are in the far end's node or on the way there, and those that it still lacks take
    /// so much longer over its connections inside the node than one chunk does over this one.
    bool is_short_cut(const Hop& hop) const {
        if (lacking_in_node_[at(node(hop.to))] > 0) return false;
        double inside = 0;  // bytes per µs
        for (const std::int32_t id : network_.entering[at(hop.to)]) {
            const Hop& other = network_.hops[at(id)];
            if (!other.crosses) inside = std::max(inside, 1 / other.us_per_byte);
        }
        return static_cast<double>(lacking_[at(hop.to)]) / inside > worth_it_ * hop.us_per_byte;
    }

    /// Of the chunks that the near end has and the far end (its node, with `new_to_node`) lacks, the one with
    /// the fewest copies; -1: none.
    std::int32_t choose(const Hop& hop, bool new_to_node) {
        const Word* here = arrived_.row(hop.from);
        const Word* there = coming_.row(hop.to);
        const Word* inside = in_node_.row(node(hop.to));
        std::int32_t best = -1;
        std::int32_t fewest = std::numeric_limits<std::int32_t>::max();
        std::uint64_t best_tie = 0;
        for (std::size_t word = 0; word < arrived_.words(); ++word) {
            Word useful = here[word] & ~there[word];
            if (new_to_node) useful &= ~inside[word];
            for (; useful != 0; useful &= useful - 1) {
                const auto chunk = static_cast<std::int32_t>(
                    word * kBits + static_cast<std::size_t>(std::countr_zero(useful)));
                const std::int32_t copies = copies_[at(chunk)];
                if (copies > fewest) continue;
                const std::uint64_t tie = tie_of(hop, chunk);
                if (copies == fewest && tie >= best_tie) continue;
                best = chunk;
                fewest = copies;
                best_tie = tie;
            }
        }
        return best;
    }

    /// Lower goes first. Without a seed: chunks of the sender, then of those before it.
    std::uint64_t tie_of(const Hop& hop, std::int32_t chunk) const {
        if (seed_ != 0)
            return mixed(static_cast<std::uint64_t>(chunk) << 32 | static_cast<std::uint32_t>(hop.from),
                         seed_);
        const auto count = static_cast<std::int32_t>(network_.leaving.size());
        const std::int32_t origin = chunks_[at(chunk)].origin;
        const auto back = static_cast<std::uint64_t>((hop.from - origin + count) % count);
        return back << 32 | static_cast<std::uint32_t>(chunk);
    }

    const HopNetwork& network_;
    const std::vector<MovingChunk>& chunks_;
    std::uint64_t seed_;
    double worth_it_;
    HopClock clock_;
    ChunkSets arrived_;                          ///< by participant
    ChunkSets coming_;                           ///< by participant: has, or is being sent
    ChunkSets in_node_;                          ///< by node: the same of any member
    std::vector<std::int32_t> copies_;           ///< by chunk
    std::vector<std::int64_t> lacking_;          ///< by participant: chunks not even coming
    std::vector<std::int64_t> lacking_in_node_;  ///< by node
    Matching result_;
};

}  // namespace

Matching spread_chunks(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed,
                       SecondCrossings second_crossings) {
    return Spreading(network, chunks, seed, second_crossings).run();
}

}  // namespace syncopate::plan

// Collectives by synthesis: the search says who passes on what, the algorithm's data says where it lies.
#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "plan/templates/algorithms.hpp"

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr double kWorthTwiceTheOps = 0.995;

/// The chunks that travel, and which piece each is part of.
struct Pieces {
    Cut cut;
    std::int64_t most = kMaxOps;  ///< chunks
    std::vector<MovingChunk> chunks;
    std::vector<std::int32_t> piece_of;  ///< by chunk
    std::vector<std::int32_t> nth;       ///< by chunk: which one of its piece
    bool too_many = false;

    void add(const Builder& builder, const Chunk& piece, std::int32_t id, std::int32_t origin,
             std::int32_t destination) {
        too_many = too_many || static_cast<std::int64_t>(chunks.size()) + cut.num_chunks(piece.region) > most;
        if (too_many) return;
        std::int32_t number = 0;
        for (const Chunk& chunk : cut.chunks(piece, 0)) {
            const auto element = static_cast<double>(size_of(builder.tensor(chunk.tensor).dtype));
            chunks.push_back(
                {origin, destination, static_cast<double>(num_elements(chunk.region)) * element});
            piece_of.push_back(id);
            nth.push_back(number++);
        }
    }

    /// A chunk, where its piece lies at `place`.
    [[nodiscard]] Chunk at(std::int32_t chunk, const Chunk& place) const {
        // As Cut::chunks has it, without making the others.
        const Interval range = place.region[static_cast<std::size_t>(cut.axis)];
        const std::int64_t parts = std::min<std::int64_t>(cut.split, range.size());
        const std::int64_t number = nth[static_cast<std::size_t>(chunk)];
        const std::int64_t base = range.size() / parts;
        const std::int64_t longer = range.size() % parts;
        const std::int64_t begin = range.begin + number * base + std::min(number, longer);
        return {place.tensor,
                with_axis(place.region, cut.axis, {begin, begin + base + (number < longer ? 1 : 0)})};
    }
    [[nodiscard]] std::int32_t piece(std::int32_t chunk) const {
        return piece_of[static_cast<std::size_t>(chunk)];
    }
};

struct Found {
    Pieces pieces;
    std::vector<SynthesisStep> steps;
};

/// Cuts with list(pieces) and searches. A split of 0 is doubled as long as that makes the search's result
/// faster.
template <typename List>
Result<Found> search_steps(const Script& script, const SynthesisSearch& search, SynthesisPattern pattern,
                           List list) {
    const bool fixed = script.cut.split > 0;
    Result<Found> best = Found{};
    double shortest = 0;
    for (std::int32_t split = fixed ? script.cut.split : 1; split <= (fixed ? split : kMostChunksTried);
         split *= 2) {
        Pieces pieces;
        pieces.cut = {script.cut.axis, split};
        if (pattern != SynthesisPattern::send) pieces.most /= std::max(script.team.size() - 1, 1);
        list(pieces);
        if (pieces.too_many) {
            if (split > 1 && !fixed) break;
            return usage_error(
                fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
        }
        SYNCOPATE_TAKE(SynthesisSteps found, synthesis_steps(search, pattern, pieces.chunks));
        const double makespan = found.makespan_us;
        if (split == 1 || fixed || makespan < kWorthTwiceTheOps * shortest) {
            best = Found{std::move(pieces), std::move(found.steps)};
            shortest = makespan;
        } else if (makespan > kClearlySlower * shortest) {
            break;
        }
        if (fixed) break;
    }
    return best;
}

std::vector<OpRef> waits_of(const SynthesisStep& step, const std::vector<OpRef>& ops) {
    if (step.yields_to < 0) return {};
    const OpRef other = ops[at(step.yields_to)];
    return other.index < 0 ? std::vector<OpRef>{} : std::vector<OpRef>{other};
}

Status spread(const Script& script, const Gather& data, const std::vector<std::int32_t>& pieces,
              const SynthesisSearch& search) {
    SYNCOPATE_TAKE(const Found found,
                   search_steps(script, search, SynthesisPattern::spread, [&](Pieces& moving) {
                       for (const std::int32_t piece : pieces)
                           moving.add(script.builder, data.source(piece), piece, piece, -1);
                   }));
    std::vector<OpRef> ops;
    for (const SynthesisStep& step : found.steps) {
        const std::int32_t piece = found.pieces.piece(step.chunk);
        const Chunk source = step.from == piece ? data.source(piece) : data.place(step.from, piece);
        ops.push_back(script.builder.transfer(
            {script.team.rank(step.from), found.pieces.at(step.chunk, source)},
            {script.team.rank(step.to), found.pieces.at(step.chunk, data.place(step.to, piece))},
            Reduce::none, waits_of(step, ops)));
    }
    for (const std::int32_t piece : pieces) script.copy(piece, data.source(piece), data.place(piece, piece));
    return Done{};
}

}  // namespace

Status gather_synthesised(const Script& script, const Gather& data, const SynthesisSearch& search) {
    std::vector<std::int32_t> pieces;
    for (std::int32_t piece = 0; piece < script.team.size(); ++piece) pieces.push_back(piece);
    return spread(script, data, pieces, search);
}

Status broadcast_synthesised(const Script& script, const Gather& data, std::int32_t root,
                             const SynthesisSearch& search) {
    return spread(script, data, {root}, search);
}

Status reduce_synthesised(const Script& script, const Reduction& data, const SynthesisSearch& search) {
    SYNCOPATE_TAKE(const Found found,
                   search_steps(script, search, SynthesisPattern::sum, [&](Pieces& moving) {
                       for (std::int32_t piece = 0; piece < script.team.size(); ++piece)
                           moving.add(script.builder, data.contribution(piece, piece), piece, piece, -1);
                   }));
    const auto members = static_cast<std::size_t>(script.team.size());
    std::vector<char> sums(found.pieces.chunks.size() * members,
                           0);  // whether others join what a member has
    const auto at = [&](std::int32_t chunk, std::int32_t member) -> char& {
        return sums[static_cast<std::size_t>(chunk) * members + static_cast<std::size_t>(member)];
    };
    for (std::int32_t member = 0; member < script.team.size(); ++member)
        script.copy(member, data.contribution(member, member), data.work(member, member));
    for (const SynthesisStep& step : found.steps) {
        const std::int32_t piece = found.pieces.piece(step.chunk);
        if (std::exchange(at(step.chunk, step.to), 1) != 0 || step.to == piece) continue;
        script.copy(step.to, found.pieces.at(step.chunk, data.contribution(step.to, piece)),
                    found.pieces.at(step.chunk, data.work(step.to, piece)));
    }
    std::vector<OpRef> ops;
    for (const SynthesisStep& step : found.steps) {
        const std::int32_t piece = found.pieces.piece(step.chunk);
        const Chunk source = at(step.chunk, step.from) != 0 ? data.work(step.from, piece)
                                                            : data.contribution(step.from, piece);
        ops.push_back(script.builder.join(
            {script.team.rank(step.from), found.pieces.at(step.chunk, source)},
            {script.team.rank(step.to), found.pieces.at(step.chunk, data.work(step.to, piece))}, data.reduce,
            waits_of(step, ops)));
    }
    return Done{};
}

Status exchange_synthesised(const Script& script, const Exchange& data,
                            const std::function<Slots(std::int64_t count)>& make_slots,
                            const SynthesisSearch& search) {
    const std::int32_t n = script.team.size();
    SYNCOPATE_TAKE(const Found found,
                   search_steps(script, search, SynthesisPattern::send, [&](Pieces& moving) {
                       for (std::int32_t from = 0; from < n; ++from) {
                           for (std::int32_t to = 0; to < n; ++to) {
                               const std::optional<Chunk> piece = data.source(from, to);
                               if (from != to && piece)
                                   moving.add(script.builder, *piece, from * n + to, from, to);
                           }
                       }
                   }));
    // Where a piece changes hands on a member that it is not for, it has a slot there.
    std::vector<std::int32_t> used(static_cast<std::size_t>(n), 0);
    std::vector<std::vector<std::int32_t>> slot(static_cast<std::size_t>(n));  // by member and piece
    for (const SynthesisStep& step : found.steps) {
        const std::int32_t piece = found.pieces.piece(step.chunk);
        if (step.to == piece % n) continue;
        auto& own = slot[at(step.to)];
        own.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), -1);
        std::int32_t& place = own[at(piece)];
        if (place < 0) place = used[at(step.to)]++;
    }
    Slots slots = make_slots(*std::max_element(used.begin(), used.end()));
    const auto place = [&](std::int32_t member, std::int32_t piece) {
        const std::int32_t from = piece / n;
        const std::int32_t to = piece % n;
        if (member == from) return *data.source(from, to);
        if (member == to) return *data.target(from, to);
        return slots.at(slot[at(member)][at(piece)], data.source(from, to)->region);
    };
    std::vector<OpRef> ops;
    for (const SynthesisStep& step : found.steps) {
        const std::int32_t piece = found.pieces.piece(step.chunk);
        ops.push_back(script.builder.transfer(
            {script.team.rank(step.from), found.pieces.at(step.chunk, place(step.from, piece))},
            {script.team.rank(step.to), found.pieces.at(step.chunk, place(step.to, piece))}, Reduce::none,
            waits_of(step, ops)));
    }
    for (std::int32_t member = 0; member < n; ++member) {
        const std::optional<Chunk> source = data.source(member, member);
        if (source) script.copy(member, *source, *data.target(member, member));
    }
    return Done{};
}

}  // namespace syncopate::plan

// reduce_scatter and the reducing half of all_reduce; the drawings are in reduce_scatter.hpp.
#include "plan/templates/algorithms.hpp"

namespace syncopate::plan {
namespace {

/// `place`, chunk by chunk, becomes the reduction of what it holds and of the slots: own contribution number
/// `self` of `count`, the others in slots 0, 1, … in their order. Those before it are joined in the first
/// slot, so that contribution 0 comes first, then 1, …: a sum of two is the same either way round.
void reduce_in_order(const Script& script, std::int32_t member, const Chunk& place, std::int32_t self,
                     std::int32_t count, const std::function<Chunk(std::int32_t slot)>& slot,
                     std::int32_t slice, Reduce reduce) {
    for (std::int32_t earlier = 1; earlier < self; ++earlier)
        script.move(member, slot(earlier), member, slot(0), slice, reduce);
    if (self > 0) script.move(member, slot(0), member, place, slice, reduce);
    for (std::int32_t later = self; later + 1 < count; ++later)
        script.move(member, slot(later), member, place, slice, reduce);
}

/// The slot of contribution number `from` where contribution `self` needs none.
std::int32_t slot_of(std::int32_t from, std::int32_t self) { return from < self ? from : from - 1; }

}  // namespace

void reduce_direct(const Script& script, const Reduction& data, Slots& slots) {
    const std::int32_t n = script.team.size();
    for (std::int32_t member = 0; member < n; ++member)
        script.copy(member, data.contribution(member, member), data.work(member, member));
    for (std::int32_t slice = 0; slice < script.slices && n > 1; ++slice) {
        script.for_each_pair([&](std::int32_t from, std::int32_t to) {
            const Chunk piece = data.contribution(from, to);
            script.move(from, piece, to, slots.at(slot_of(from, to), piece.region), slice);
        });
        for (std::int32_t member = 0; member < n; ++member) {
            const Chunk place = data.work(member, member);
            if (is_empty(place.region)) continue;
            reduce_in_order(
                script, member, place, member, n,
                [&](std::int32_t slot) { return slots.at(slot, place.region); }, slice, data.reduce);
        }
    }
}

void reduce_ring(const Script& script, const Reduction& data) {
    const std::int32_t n = script.team.size();
    const auto start = [&](std::int32_t piece) { return (piece + 1) % n; };  // it comes home last
    for (std::int32_t member = 0; member < n; ++member) {
        for (std::int32_t piece = 0; piece < n; ++piece) {
            if (member != start(piece) || n == 1)
                script.copy(member, data.contribution(member, piece), data.work(member, piece));
        }
    }
    for (std::int32_t slice = 0; slice < script.slices && n > 1; ++slice) {
        for (std::int32_t step = 0; step + 1 < n; ++step) {
            for (std::int32_t owner = 0; owner < n; ++owner) {
                const std::int32_t from = script.builder.pull() ? (owner + n - 1) % n : owner;
                const std::int32_t to = (from + 1) % n;
                const std::int32_t piece = (from + 2 * n - 1 - step) % n;
                script.move(from, step == 0 ? data.contribution(from, piece) : data.work(from, piece), to,
                            data.work(to, piece), slice, data.reduce);
            }
        }
    }
}

void reduce_hierarchical(const Script& script, const Reduction& data, Slots& inner_slots,
                         Slots& outer_slots) {
    const Team& team = script.team;
    const std::int32_t outer = team.outer();
    const std::int32_t inner = team.inner;
    const bool pull = script.builder.pull();
    // The node whose pieces a node takes up in a turn: its own comes last.
    const auto target = [&](std::int32_t node, std::int32_t turn) { return (node + turn) % outer; };

    // Inside each node, contributions to the target's pieces go to who has their owner's place.
    const auto collect = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t owner = 0; owner < team.size(); ++owner) {
            const std::int32_t node = owner / inner;
            for (std::int32_t offset = 1; offset < inner; ++offset) {
                const std::int32_t other = team.position(node, (owner % inner + offset) % inner);
                const std::int32_t from = pull ? other : owner;
                const std::int32_t to = pull ? owner : other;
                const Chunk piece = data.contribution(from, team.position(target(node, turn), to % inner));
                if (is_empty(piece.region)) continue;
                const std::int32_t slot =
                    target(node, turn) * (inner - 1) + slot_of(from % inner, to % inner);
                script.move(from, piece, to, inner_slots.at(slot, piece.region), slice);
            }
        }
    };
    const auto reduce_node = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t member = 0; member < team.size(); ++member) {
            const std::int32_t to = target(member / inner, turn);
            const Chunk place = data.work(member, team.position(to, member % inner));
            if (is_empty(place.region)) continue;
            reduce_in_order(
                script, member, place, member % inner, inner,
                [&](std::int32_t slot) { return inner_slots.at(to * (inner - 1) + slot, place.region); },
                slice, data.reduce);
        }
    };
    const auto across = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t owner = 0; owner < team.size(); ++owner) {
            // A pull fetches from the node that reduces for this one in this turn.
            const std::int32_t node = pull ? (owner / inner + outer - turn) % outer : owner / inner;
            const std::int32_t from = team.position(node, owner % inner);
            const std::int32_t to = team.position(target(node, turn), owner % inner);
            const Chunk piece = data.work(from, to);
            if (is_empty(piece.region)) continue;
            script.move(from, piece, to, outer_slots.at(slot_of(node, target(node, turn)), piece.region),
                        slice);
        }
    };

    for (std::int32_t member = 0; member < team.size(); ++member) {
        for (std::int32_t node = 0; node < outer; ++node) {
            const std::int32_t piece = team.position(node, member % inner);
            script.copy(member, data.contribution(member, piece), data.work(member, piece));
        }
    }
    for (std::int32_t slice = 0; slice < script.slices && team.size() > 1; ++slice) {
        // What the node collects next is on its way while the sums of this turn cross over.
        collect(1, slice);
        for (std::int32_t turn = 1; turn < outer; ++turn) {
            collect(turn + 1, slice);
            reduce_node(turn, slice);
            across(turn, slice);
        }
        reduce_node(outer, slice);
        for (std::int32_t member = 0; member < team.size(); ++member) {
            const Chunk place = data.work(member, member);
            if (is_empty(place.region)) continue;
            reduce_in_order(
                script, member, place, member / inner, outer,
                [&](std::int32_t slot) { return outer_slots.at(slot, place.region); }, slice, data.reduce);
        }
    }
}

}  // namespace syncopate::plan

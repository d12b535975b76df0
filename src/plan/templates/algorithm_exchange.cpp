// all_to_all; the drawings are in all_to_all.hpp.
#include <utility>
#include <vector>

#include "plan/templates/algorithms.hpp"

namespace syncopate::plan {
namespace {

struct Crossing {
    Chunk source;
    Chunk target;
};

/// The union of two boxes, if it is one box that both fill.
std::optional<Region> joined(const Region& a, const Region& b) {
    if (overlaps(a, b)) return std::nullopt;
    Region box = bounding_box(a, b);
    std::size_t differing = 0;
    for (std::size_t axis = 0; axis < box.size(); ++axis) {
        if (a[axis] == b[axis]) continue;
        ++differing;
        if (box[axis].size() != a[axis].size() + b[axis].size()) return std::nullopt;
    }
    return differing == 1 ? std::optional(std::move(box)) : std::nullopt;
}

bool same_shift(const Crossing& a, const Crossing& b) {
    for (std::size_t axis = 0; axis < a.source.region.size(); ++axis) {
        if (a.target.region[axis].begin - a.source.region[axis].begin !=
            b.target.region[axis].begin - b.source.region[axis].begin) {
            return false;
        }
    }
    return true;
}

/// Appends a crossing, as one with the last where they lie side by side at both ends.
void append(std::vector<Crossing>& crossings, Crossing next) {
    if (!crossings.empty()) {
        Crossing& last = crossings.back();
        if (last.source.tensor == next.source.tensor && last.target.tensor == next.target.tensor &&
            same_shift(last, next)) {
            std::optional<Region> source = joined(last.source.region, next.source.region);
            std::optional<Region> target = joined(last.target.region, next.target.region);
            if (source && target) {
                last.source.region = *std::move(source);
                last.target.region = *std::move(target);
                return;
            }
        }
    }
    crossings.push_back(std::move(next));
}

void copy_own(const Script& script, const Exchange& data) {
    for (std::int32_t member = 0; member < script.team.size(); ++member) {
        const std::optional<Chunk> source = data.source(member, member);
        if (source) script.copy(member, *source, *data.target(member, member));
    }
}

}  // namespace

void exchange_direct(const Script& script, const Exchange& data) {
    for (std::int32_t slice = 0; slice < script.slices; ++slice) {
        script.for_each_pair([&](std::int32_t from, std::int32_t to) {
            const std::optional<Chunk> source = data.source(from, to);
            if (source) script.move(from, *source, to, *data.target(from, to), slice);
        });
    }
    copy_own(script, data);
}

void exchange_hierarchical(const Script& script, const Exchange& data) {
    const Team& team = script.team;
    const std::int32_t outer = team.outer();
    const std::int32_t inner = team.inner;
    const bool pull = script.builder.pull();
    // In turn t, node A sends to A + t; a node that pulls fetches from A + t, so that node serves A.
    const auto target_node = [&](std::int32_t node, std::int32_t turn) {
        return pull ? (node + outer - turn) % outer : (node + turn) % outer;
    };
    // Inside each node, what is for the target node goes to who has the receiver's place; in the last turn,
    // for the node itself, that is the receiver.
    const auto within = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t owner = 0; owner < team.size(); ++owner) {
            const std::int32_t node = owner / inner;
            for (std::int32_t offset = 1; offset < inner; ++offset) {
                const std::int32_t other = team.position(node, (owner % inner + offset) % inner);
                const std::int32_t from = pull ? other : owner;
                const std::int32_t via = pull ? owner : other;
                const std::int32_t to = team.position(target_node(node, turn), via % inner);
                const std::optional<Chunk> source = data.source(from, to);
                if (source) {
                    script.move(from, *source, via, via == to ? *data.target(from, to) : data.relay(from, to),
                                slice);
                }
            }
        }
    };
    const auto across = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t owner = 0; owner < team.size(); ++owner) {
            const std::int32_t node = pull ? (owner / inner + turn) % outer : owner / inner;
            const std::int32_t via = team.position(node, owner % inner);
            const std::int32_t to = team.position(target_node(node, turn), owner % inner);
            std::vector<Crossing> crossings;
            for (std::int32_t at = 0; at < inner; ++at) {
                const std::int32_t from = team.position(node, at);
                const std::optional<Chunk> source = data.source(from, to);
                if (!source) continue;
                append(crossings, {from == via ? *source : data.relay(from, to), *data.target(from, to)});
            }
            for (const Crossing& crossing : crossings)
                script.move(via, crossing.source, to, crossing.target, slice);
        }
    };
    for (std::int32_t slice = 0; slice < script.slices && team.size() > 1; ++slice) {
        // What goes to the next node is collected while this one's crosses over.
        within(1, slice);
        for (std::int32_t turn = 1; turn < outer; ++turn) {
            within(turn + 1, slice);
            across(turn, slice);
        }
    }
    copy_own(script, data);
}

}  // namespace syncopate::plan

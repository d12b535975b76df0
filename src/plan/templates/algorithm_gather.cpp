// all_gather and the ring shifts; the drawings are in all_gather.hpp and ring.hpp.
#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/templates/algorithms.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

std::int32_t modulo(std::int32_t value, std::int32_t n) { return (value % n + n) % n; }

/// Where a member has a piece to send from: its own where it starts, others where they are put.
Chunk held(const Gather& data, std::int32_t member, std::int32_t piece) {
    return piece == member ? data.source(member) : data.place(member, piece);
}

void copy_own(const Script& script, const Gather& data) {
    for (std::int32_t member = 0; member < script.team.size(); ++member)
        script.copy(member, data.source(member), data.place(member, member));
}

void pass(const Script& script, const Gather& data, std::int32_t from, std::int32_t to, std::int32_t piece,
          std::int32_t slice) {
    script.move(from, held(data, from, piece), to, data.place(to, piece), slice);
}

/// Passes pieces on in the pace of the script: who comes to a partner waits for who came before.
class Pace {
public:
    Pace(const Script& script, const Gather& data)
        : script_(script), data_(data), last_(script.team.ranks.size()) {}

    /// `came`: by chunk of the piece, what has brought it; empty: nothing has.
    void pass(std::int32_t from, std::int32_t to, std::int32_t piece, std::int32_t slice,
              std::span<const OpRef> came = {}) {
        if (!script_.paced) {
            script_.move_each(from, held(data_, from, piece), to, data_.place(to, piece), slice, came);
            return;
        }
        std::optional<OpRef>& last = last_[at(script_.builder.pull() ? from : to)];
        std::vector<OpRef> after;
        if (last) after.push_back(*last);
        const std::optional<OpRef> moved =
            script_.move(from, held(data_, from, piece), to, data_.place(to, piece), slice, Reduce::none,
                         std::move(after));
        if (moved) last = moved;
    }

private:
    const Script& script_;
    const Gather& data_;
    std::vector<std::optional<OpRef>> last_;  ///< by partner: the last transfer to it
};

}  // namespace

void gather_direct(const Script& script, const Gather& data, bool peer_by_peer) {
    Pace pace(script, data);
    if (script.team.size() > 1 && peer_by_peer) {
        script.for_each_pair([&](std::int32_t from, std::int32_t to) {
            for (std::int32_t slice = 0; slice < script.slices; ++slice) pace.pass(from, to, from, slice);
        });
    } else if (script.team.size() > 1) {
        for (std::int32_t slice = 0; slice < script.slices; ++slice) {
            script.for_each_pair(
                [&](std::int32_t from, std::int32_t to) { pace.pass(from, to, from, slice); });
        }
    }
    copy_own(script, data);
}

void gather_ring(const Script& script, const Gather& data, std::int32_t right, std::int32_t left) {
    const std::int32_t n = script.team.size();
    const bool pull = script.builder.pull();
    for (std::int32_t slice = 0; slice < script.slices && n > 1; ++slice) {
        for (std::int32_t step = 0; step < std::max(right, left); ++step) {
            for (std::int32_t owner = 0; owner < n; ++owner) {
                if (step < right) {
                    const std::int32_t from = modulo(pull ? owner - 1 : owner, n);
                    pass(script, data, from, modulo(from + 1, n), modulo(from - step, n), slice);
                }
                if (step < left) {
                    const std::int32_t from = modulo(pull ? owner + 1 : owner, n);
                    pass(script, data, from, modulo(from - 1, n), modulo(from + step, n), slice);
                }
            }
        }
    }
    copy_own(script, data);
}

void gather_double_ring(const Script& script, const Gather& data) {
    const Team& team = script.team;
    const std::int32_t outer = team.outer();
    const std::int32_t inner = team.inner;
    const std::int32_t back = script.builder.pull() ? -1 : 0;  // from owner to sender
    for (std::int32_t slice = 0; slice < script.slices && team.size() > 1; ++slice) {
        for (std::int32_t turn = 0; turn < outer; ++turn) {
            // What came by the outer ring goes on at once, while the inner ring passes it round.
            for (std::int32_t owner = 0; owner < team.size() && turn + 1 < outer; ++owner) {
                const std::int32_t node = modulo(owner / inner + back, outer);
                const std::int32_t at = owner % inner;
                pass(script, data, team.position(node, at), team.position((node + 1) % outer, at),
                     team.position(modulo(node - turn, outer), at), slice);
            }
            for (std::int32_t step = 0; step + 1 < inner; ++step) {
                for (std::int32_t owner = 0; owner < team.size(); ++owner) {
                    const std::int32_t node = owner / inner;
                    const std::int32_t at = modulo(owner % inner + back, inner);
                    pass(script, data, team.position(node, at), team.position(node, (at + 1) % inner),
                         team.position(modulo(node - turn, outer), modulo(at - step, inner)), slice);
                }
            }
        }
    }
    copy_own(script, data);
}

void gather_hierarchical(const Script& script, const Gather& data) {
    const Team& team = script.team;
    const std::int32_t outer = team.outer();
    const std::int32_t inner = team.inner;
    const bool pull = script.builder.pull();
    // By member, what brings it the piece that has crossed last; and the one before that, which goes round its node meanwhile.
    std::vector<std::vector<OpRef>> crossed(at(team.size())), round(at(team.size()));
    const auto across = [&](std::int32_t turn, std::int32_t slice) {
        round.swap(crossed);
        for (std::int32_t owner = 0; owner < team.size(); ++owner) {
            const std::int32_t other = team.position((owner / inner + turn) % outer, owner % inner);
            const std::int32_t from = pull ? other : owner, to = pull ? owner : other;
            crossed[at(to)] =
                script.move_each(from, held(data, from, from), to, data.place(to, from), slice, {});
        }
    };
    Pace pace(script, data);
    // Within each node, what came from `turn` nodes away; turn 0 is the node's own.
    const auto within = [&](std::int32_t turn, std::int32_t slice) {
        for (std::int32_t offset = 1; offset < inner; ++offset) {
            for (std::int32_t owner = 0; owner < team.size(); ++owner) {
                const std::int32_t node = owner / inner;
                const std::int32_t origin = modulo(pull ? node + turn : node - turn, outer);
                const std::int32_t other = team.position(node, (owner % inner + offset) % inner);
                const std::int32_t from = pull ? other : owner;
                pace.pass(from, pull ? owner : other, team.position(origin, from % inner), slice,
                          turn == 0 ? std::span<const OpRef>{} : round[at(from)]);
            }
        }
    };
    for (std::int32_t slice = 0; slice < script.slices && team.size() > 1; ++slice) {
        for (std::int32_t turn = 1; turn < outer; ++turn) {
            across(turn, slice);
            within(turn - 1, slice);
        }
        round.swap(crossed);
        within(outer - 1, slice);
    }
    copy_own(script, data);
}

namespace {

/// Calls pass_on(hop from, hop to) per chunk, so that every member has the first one early; hops count
/// members from the root.
template <typename Hops>
void broadcast(const Script& script, const Gather& data, std::int32_t root, Hops hops) {
    const Team& team = script.team;
    const std::int32_t n = team.size();
    script.copy(root, data.source(root), data.place(root, root));
    for (std::int32_t slice = 0; slice < script.slices && n > 1; ++slice) {
        std::vector<std::vector<Chunk>> places;  // by hop
        for (std::int32_t hop = 0; hop < n; ++hop)
            places.push_back(script.cut.chunks(held(data, (root + hop) % n, root), slice));
        for (std::size_t i = 0; i < places.front().size(); ++i) {
            hops([&](std::int32_t from, std::int32_t to) {
                script.builder.transfer({team.rank((root + from) % n), places[at(from)][i]},
                                        {team.rank((root + to) % n), places[at(to)][i]});
            });
        }
    }
}

}  // namespace

void broadcast_direct(const Script& script, const Gather& data, std::int32_t root) {
    broadcast(script, data, root, [&](const auto& pass_on) {
        for (std::int32_t hop = 1; hop < script.team.size(); ++hop) pass_on(0, hop);
    });
}

void broadcast_chain(const Script& script, const Gather& data, std::int32_t root) {
    broadcast(script, data, root, [&](const auto& pass_on) {
        for (std::int32_t hop = 1; hop < script.team.size(); ++hop) pass_on(hop - 1, hop);
    });
}

void broadcast_tree(const Script& script, const Gather& data, std::int32_t root) {
    const std::int32_t n = script.team.size();
    broadcast(script, data, root, [&](const auto& pass_on) {
        for (std::int32_t having = 1; having < n; having *= 2) {
            for (std::int32_t hop = 0; hop < having && hop + having < n; ++hop) pass_on(hop, hop + having);
        }
    });
}

}  // namespace syncopate::plan

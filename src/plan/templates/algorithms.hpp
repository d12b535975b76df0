// The algorithms, apart from where their data lies: a template puts it in place in one tensor, a lowered
// collective wherever its ops say. Each writes its transfers into a Builder, which finds the dependences; so
// a function here only has to be right when its transfers run in the order in which it writes them. That
// order is also the one in which each rank starts its own, so it goes by steps: what can start early comes
// early.
//
// Positions are those of the team. A place that is not where its data starts gets a local copy. Empty pieces
// move nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/model/cut.hpp"
#include "plan/model/team.hpp"
#include "plan/synthesise/synthesis_steps.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// What every algorithm needs to know.
struct Script {
    Builder& builder;
    const Team& team;
    Cut cut;
    std::int32_t slices = 1;  ///< along the cut's minor axis; all of one slice comes before the next
    /// In the direct steps of gathering, no rank is sent to (or with pull, read from) by two at once: each
    /// transfer waits for the one before it at its partner. Ranks that start together keep step by
    /// themselves; where an earlier phase has set them apart, two senders to one receiver slow each other
    /// down more than they gain.
    bool paced = false;

    /// Moves a piece from one member to another, or on one, chunk by chunk; the first waits for `after` too.
    /// Returns the last transfer, if there is one.
    std::optional<OpRef> move(std::int32_t from, const Chunk& source, std::int32_t to, const Chunk& target,
                              std::int32_t slice, Reduce reduce = Reduce::none,
                              std::vector<OpRef> after = {}) const;
    /// The same; each chunk waits for the one of `after` in its place, of which there may be none. Returns all.
    std::vector<OpRef> move_each(std::int32_t from, const Chunk& source, std::int32_t to, const Chunk& target,
                                 std::int32_t slice, std::span<const OpRef> after) const;
    /// Copies a member's piece from one place of its memory to another, uncut; nothing if they are the same.
    void copy(std::int32_t member, const Chunk& source, const Chunk& target) const;
    /// Calls visit(from, to) for each ordered pair of different members, in steps: in each, the partner of
    /// who owns the transfer (who sends, or with pull who fetches) is one further round the team from itself.
    void for_each_pair(const std::function<void(std::int32_t from, std::int32_t to)>& visit) const;
};

/// Gathering: piece i starts at member i, and every member is to have every piece.
struct Gather {
    std::function<Chunk(std::int32_t member)> source;  ///< where its own piece is at the start
    std::function<Chunk(std::int32_t member, std::int32_t piece)> place;  ///< where it is to have each
};
void gather_direct(const Script& script, const Gather& data, bool peer_by_peer = false);
/// `right` hops to the successor and `left` to the predecessor; n - 1 in all reach everyone.
void gather_ring(const Script& script, const Gather& data, std::int32_t right, std::int32_t left);
void gather_double_ring(const Script& script, const Gather& data);
/// Says itself what each transfer comes after.
void gather_hierarchical(const Script& script, const Gather& data);
/// As a search finds for the topology; so all that end in _synthesised. A cut's split of 0: as fine as is
/// fastest. They fail (ErrorClass::usage) where some member has no way to another, and where too many ops
/// come out.
Status gather_synthesised(const Script& script, const Gather& data, const SynthesisSearch& search);

/// Spreading: piece `root` of a Gather goes to every member.
void broadcast_direct(const Script& script, const Gather& data, std::int32_t root);
void broadcast_chain(const Script& script, const Gather& data, std::int32_t root);
void broadcast_tree(const Script& script, const Gather& data, std::int32_t root);
Status broadcast_synthesised(const Script& script, const Gather& data, std::int32_t root,
                             const SynthesisSearch& search);

/// Reducing: member i is to have the reduction of what all members contribute to piece i, at work(i, i).
struct Reduction {
    std::function<Chunk(std::int32_t member, std::int32_t piece)> contribution;
    /// Where a member may reduce a piece that others own; its contribution's own place, if that may be lost.
    std::function<Chunk(std::int32_t member, std::int32_t piece)> work;
    Reduce reduce = Reduce::sum;
};

/// Staging space: slots that each hold one piece, side by side along one axis. The tensor is made on first
/// use, so that what needs no slot needs no tensor; its copies on all ranks are used, by teams that share it,
/// each on its own ranks.
class Slots {
public:
    /// `model`: name, dtype and the extents of the largest piece, without slots.
    Slots(Builder& builder, Tensor model, std::int32_t axis, std::int64_t count);
    /// Where `chunk`, which lies in `piece`, is put in a slot.
    [[nodiscard]] Chunk at(std::int64_t slot, const Region& piece, const Region& chunk);
    [[nodiscard]] Chunk at(std::int64_t slot, const Region& piece) { return at(slot, piece, piece); }

private:
    Builder& builder_;
    Tensor model_;
    std::size_t axis_;
    std::int64_t count_;
    std::int32_t tensor_ = -1;
};

/// Slots: n - 1. In the order of positions, so that all sums of the same contributions are equal bit for bit.
void reduce_direct(const Script& script, const Reduction& data, Slots& slots);
/// No slots. Piece i adds up from member i + 1 round the ring to i.
void reduce_ring(const Script& script, const Reduction& data);
/// Slots: outer × (inner - 1), and outer - 1. In the order of positions inside a node, then of nodes.
void reduce_hierarchical(const Script& script, const Reduction& data, Slots& inner_slots, Slots& outer_slots);
/// No slots. Contributions to one place come in any order.
Status reduce_synthesised(const Script& script, const Reduction& data, const SynthesisSearch& search);

/// Exchanging: every ordered pair of members has a piece of its own; nullopt where it has none.
struct Exchange {
    using Chunks = std::function<std::optional<Chunk>(std::int32_t from, std::int32_t to)>;
    Chunks source;  ///< on the sender
    Chunks target;  ///< on the receiver
    /// On the member in the sender's node that has the receiver's place in its own, where a piece waits for
    /// its way across; asked for only where that member is neither of the two.
    std::function<Chunk(std::int32_t from, std::int32_t to)> relay;
};
void exchange_direct(const Script& script, const Exchange& data);
void exchange_hierarchical(const Script& script, const Exchange& data);
/// `make_slots`: as many as are needed, for pieces that change hands on the way.
Status exchange_synthesised(const Script& script, const Exchange& data,
                            const std::function<Slots(std::int64_t count)>& make_slots,
                            const SynthesisSearch& search);

}  // namespace syncopate::plan

#include "fuse/passes/make_schedule.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/fuse/passes/collective.hpp"

namespace syncopate::fuse {
namespace {

using Kind = SignalMeaning::Kind;

/// The signals of one rank, as they are numbered.
class SignalTable {
public:
    /// Its number; one that is there already keeps it.
    std::int32_t add(SignalMeaning meaning) {
        const auto next = static_cast<std::int32_t>(signals_.size());
        const auto [found, is_new] = index_.emplace(key_of(meaning.kind, meaning.op), next);
        if (is_new) signals_.push_back(meaning);
        return found->second;
    }
    [[nodiscard]] std::int32_t find(Kind kind, plan::OpRef op) const { return index_.at(key_of(kind, op)); }
    [[nodiscard]] const std::vector<SignalMeaning>& signals() const { return signals_; }

private:
    using Key = std::pair<Kind, plan::OpRef>;
    static Key key_of(Kind kind, plan::OpRef op) {
        // An op has one signal on a rank, whatever it is called there.
        return {kind == Kind::fetched ? Kind::arrived : kind, op};
    }
    std::vector<SignalMeaning> signals_;
    std::map<Key, std::int32_t> index_;
};

/// Of the slots of a chunk's tiles, the last one of each program, rising.
std::vector<std::int32_t> last_of_programs(std::vector<std::int64_t> slots,
                                           const std::vector<std::int64_t>& program_of, std::int64_t first) {
    std::sort(slots.begin(), slots.end(), std::greater<>());
    std::vector<bool> seen;  // by program
    std::vector<std::int32_t> last;
    for (const std::int64_t slot : slots) {
        const auto program = static_cast<std::size_t>(program_of[at(slot - first)]);
        if (program >= seen.size()) seen.resize(program + 1, false);
        if (!seen[program]) last.push_back(static_cast<std::int32_t>(slot));
        seen[program] = true;
    }
    std::reverse(last.begin(), last.end());
    return last;
}

/// A kernel may start before its call's begin waits are over, so before a program first stores into another
/// rank's memory, or loads from there, it waits for what that rank says of it.
void guard_places(const std::vector<std::int64_t>& program_of, RankSchedule& rank) {
    std::vector<std::vector<bool>> guarded;  // by rank and program
    const auto guard_place = [&](std::size_t slot, const Place& place) {
        const auto to = static_cast<std::size_t>(place.rank),
                   program = static_cast<std::size_t>(program_of[slot]);
        if (to >= guarded.size()) guarded.resize(to + 1);
        if (program >= guarded[to].size()) guarded[to].resize(program + 1, false);
        if (guarded[to][program]) return;
        guarded[to][program] = true;
        for (const Wait& wait : rank.begin_waits) {
            if (rank.signals[at(wait.signal)].op.rank == place.rank) rank.slots[slot].waits.push_back(wait);
        }
    };
    for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
        if (rank.slots[slot].from) guard_place(slot, *rank.slots[slot].from);
        for (const std::int32_t chunk : rank.slots[slot].makes) {
            for (const Place& store : rank.chunks[at(chunk)].stores) guard_place(slot, store);
            for (const std::int32_t to : rank.chunks[at(chunk)].sent)
                guard_place(slot, {to, rank.chunks[at(chunk)].chunk.tensor, 0});
        }
    }
    // Nobody is left to wait at the beginning.
    if (rank.transfers.empty() || sums_in_kernel(rank)) rank.begin_waits.clear();
}

class Numbering {
public:
    explicit Numbering(const Decisions& decisions)
        : in_(decisions),
          graph_(decisions.graph),
          plan_(decisions.lowered.plan),
          scope_(decisions.scope.within(plan_.num_ranks())),
          collectives_(collectives_of(plan_)),
          signals_(plan_.ranks.size()),
          first_(graph_.first_op[at(scope_.first)]),
          posts_(at(graph_.first_op[at(scope_.end)] - first_)),
          made_posts_(plan_.ranks.size()) {
        for_ranks([&](std::size_t rank) { made_posts_[rank].resize(graph_.made[rank].size()); });
        find_stored();
        for (const auto& [ref, side] : in_.lowered.channel) {
            if (side.sends) sends_.push_back(graph_.op(ref));
        }
    }

    Schedule run() {
        number_completions();
        if (!in_.lowered.channel.empty()) number_sides();
        number_made();
        number_awaited();
        for_ranks([&](std::size_t rank) {
            for (const Edge& edge : in_.guards.start[rank]) signals_[rank].add(meaning_of(edge));
        });
        Schedule schedule = shape();
        for_ranks([&](std::size_t rank) { schedule.ranks[rank] = of_rank(rank); });
        add_guards(schedule);
        return schedule;
    }

private:
    /// Those whose schedules are made.
    template <typename Each>
    void for_ranks(const Each& each) const {
        for (std::int32_t rank = scope_.first; rank < scope_.end; ++rank) each(at(rank));
    }
    template <typename Each>
    void for_ops(const Each& each) const {
        for (NodeId op = graph_.first_op[at(scope_.first)]; op < graph_.first_op[at(scope_.end)]; ++op)
            each(op);
    }
    [[nodiscard]] Carrier carrier(NodeId op) const { return graph_.carrier(op); }
    /// Whether it is one of its rank's list.
    [[nodiscard]] bool is_transfer(NodeId op) const {
        return carrier(op) == Carrier::own || carrier(op) == Carrier::programs;
    }
    [[nodiscard]] const plan::Op& op_of(NodeId op) const { return plan_.op(graph_.ref(op)); }

    /// By sum: the pushes that it stores at their destinations, in the order of its rank's list.
    void find_stored() {
        for_ops([&](NodeId op) {
            if (carrier(op) == Carrier::sum_stores) stored_[graph_.op(op_of(op).after.front())].push_back(op);
        });
    }

    /// A sum that reads contributions where they are, and these.
    [[nodiscard]] std::vector<NodeId> parts_of(NodeId op) const {
        std::vector<NodeId> parts{op};
        const auto direct = in_.lowered.direct.find(graph_.ref(op));
        if (direct == in_.lowered.direct.end()) return parts;
        for (const plan::OpRef pull : direct->second) parts.push_back(graph_.op(pull));
        return parts;
    }

    /// A sum that reads contributions where they are also waits for what they come after.
    [[nodiscard]] std::vector<NodeId> awaited_by(NodeId op) const {
        std::vector<NodeId> awaited;
        for (const NodeId part : parts_of(op)) {
            for (const NodeId other : in_.synchronization.before(part)) {
                const auto sum = in_.lowered.done_with.find(graph_.ref(other));
                if (sum == in_.lowered.done_with.end() || graph_.op(sum->second) != op)
                    awaited.push_back(other);
            }
        }
        std::sort(awaited.begin(), awaited.end());
        awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
        return awaited;
    }

    /// Who has to see which op.
    void number_completions() {
        std::vector<std::vector<NodeId>> observed = in_.guards.end;
        for_ranks([&](std::size_t rank) {
            const auto& seen = in_.synchronization.seen_by_kernel[rank];
            observed[rank].insert(observed[rank].end(), seen.begin(), seen.end());
        });
        for_ops([&](NodeId op) {
            if (!is_transfer(op) && carrier(op) != Carrier::tile_stores) return;
            std::vector<NodeId>& here = observed[at(graph_[op].rank)];
            const std::vector<NodeId> awaited = awaited_by(op);
            here.insert(here.end(), awaited.begin(), awaited.end());
        });
        for_ranks([&](std::size_t rank) {
            std::vector<NodeId>& ops = observed[rank];
            std::ranges::sort(ops, {}, [&](NodeId op) { return std::pair(in_.arrivals[at(op)], op); });
            ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
            for (const NodeId id : ops) {
                const plan::Op& op = op_of(id);
                const bool fetched =
                    op.kind == plan::OpKind::pull && op.peer == static_cast<std::int32_t>(rank);
                const std::int32_t signal =
                    signals_[rank].add({fetched ? Kind::fetched : Kind::arrived, graph_.ref(id)});
                posts_[at(id - first_)].push_back({static_cast<std::int32_t>(rank), signal});
            }
        });
    }

    /// A side of a channel has a word of its rank's, by which a fault names it.
    void number_sides() {
        for_ops([&](NodeId op) {
            if (graph_.round(op) < 0) return;
            const Kind kind = in_.lowered.channel.at(graph_.ref(op)).sends ? Kind::fetched : Kind::arrived;
            signals_[at(graph_[op].rank)].add({kind, graph_.ref(op)});
        });
    }

    /// Who waits for which chunk. Where tiles carry out the op itself, who completes the chunk has sent it.
    void number_made() {
        for_ops([&](NodeId op) {
            const std::int32_t executor = graph_[op].rank;
            const bool own = is_transfer(op) || carrier(op) == Carrier::sum_loads;
            for (const NodeId chunk : in_.placement.awaits[at(op)]) {
                std::vector<Post>& to = posts_of(chunk);
                if (!own) {
                    const std::vector<Post>& told = posts_[at(op - first_)];
                    to.insert(to.end(), told.begin(), told.end());
                    continue;
                }
                const std::int32_t signal = signals_[at(executor)].add({Kind::made, made_ref(chunk)});
                if (const Post post{executor, signal}; std::ranges::find(to, post) == to.end())
                    to.push_back(post);
            }
        });
    }

    /// What tiles of later stages wait for.
    void number_awaited() {
        for (std::size_t stage = 0; stage < graph_.stages.size(); ++stage) {
            for (const std::vector<NodeId>& chunks : graph_.stages[stage].awaits) {
                for (const NodeId chunk : chunks) {
                    const std::int32_t rank = graph_[chunk].rank;
                    const std::int32_t signal = signals_[at(rank)].add({Kind::made, made_ref(chunk)});
                    std::vector<Post>& to = posts_of(chunk);
                    if (to.empty()) to.push_back({rank, signal});
                }
            }
        }
    }

    [[nodiscard]] plan::OpRef made_ref(NodeId chunk) const {
        return {graph_[chunk].rank, graph_[chunk].index};
    }
    [[nodiscard]] std::vector<Post>& posts_of(NodeId chunk) {
        return made_posts_[at(graph_[chunk].rank)][at(graph_[chunk].index)];
    }

    [[nodiscard]] SignalMeaning meaning_of(const Edge& guard) const {
        return {guard.lag == 0 ? Kind::ready : Kind::consumed, {graph_[guard.from].rank, -1}};
    }

    /// What all ranks have in common.
    [[nodiscard]] Schedule shape() const {
        Schedule schedule;
        schedule.mesh = plan_.mesh;
        schedule.tensors = plan_.tensors;
        schedule.tensors.resize(in_.lowered.num_tensors);
        schedule.stages.clear();
        std::int64_t first = 0;
        for (const StageOrder& order : in_.orders) {
            const auto tiles = static_cast<std::int64_t>(order.program_of.size());
            const std::size_t index = schedule.stages.size();
            std::size_t slots = 0;  // of the rank that has most
            bool partial = false;
            for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
                const std::size_t own = graph_.num_run(index, rank);
                slots = std::max(slots, own);
                partial = partial || own < static_cast<std::size_t>(tiles);
            }
            const auto count = static_cast<std::int64_t>(slots);
            const auto loops = static_cast<std::int32_t>(std::max<std::size_t>(order.loops.size(), 1));
            const bool overlaps = index < graph_.overlapping.size() && graph_.overlapping[index];
            StageSlots& stage = schedule.stages.emplace_back(
                StageSlots{first, count, order.phased, overlaps, loops, order.head_start});
            if (partial) {
                stage.tiles = tiles;
                // A call makes as many slots as the kernel's own grid has programs.
                if (order.own_grid[0] > 0 && order.most_slots == 0)
                    stage.own_grid = {order.own_grid[0], order.own_grid[1]};
            }
            stage.most_slots = order.most_slots;
            first += count;
        }
        schedule.stages.front().stores = in_.stores.by;
        schedule.stages.front().loads = in_.loads.by;
        schedule.ranks.resize(signals_.size());
        return schedule;
    }

    [[nodiscard]] std::vector<Wait> waits_for(std::size_t rank, const std::vector<NodeId>& ops) const {
        std::vector<Wait> waits;
        waits.reserve(ops.size());
        for (const NodeId op : ops) waits.push_back({signals_[rank].find(Kind::arrived, graph_.ref(op)), 0});
        std::sort(waits.begin(), waits.end());
        return waits;
    }

    RankSchedule of_rank(std::size_t rank) const {
        RankSchedule out;
        out.signals = signals_[rank].signals();
        std::size_t slots = 0;
        for (const StageOrder& order : in_.orders) slots += order.tiles[rank].size();
        out.slots.reserve(slots);
        for (std::size_t stage = 0; stage < in_.orders.size(); ++stage) add_slots(rank, stage, out);
        for (const NodeId op : graph_.start_order[rank]) {
            if (carrier(op) == Carrier::tile_loads) {
                const std::vector<Post>& told = posts_[at(op - first_)];
                out.kernel_posts.insert(out.kernel_posts.end(), told.begin(), told.end());
            }
            if (is_transfer(op)) out.transfers.push_back(transfer_of(rank, op));
        }
        if (!in_.loads.borders.empty()) out.borders = in_.loads.borders[rank];
        out.end_waits = waits_for(rank, in_.guards.end[rank]);
        return out;
    }

    /// The slots of one stage, and the chunks that its tiles make.
    void add_slots(std::size_t rank, std::size_t stage, RankSchedule& out) const {
        const StageOrder& order = in_.orders[stage];
        const auto first = static_cast<std::int64_t>(out.slots.size());
        std::vector<std::int64_t> slot_of(order.program_of.size());  // by tile
        for (std::size_t slot = 0; slot < order.tiles[rank].size(); ++slot) {
            const SlotWaits& waits = in_.synchronization.stages[stage][rank][slot];
            const std::int64_t tile = order.tiles[rank][slot];
            Slot& to = out.slots.emplace_back(Slot{tile, waits_for(rank, waits.ops), {}, {}});
            for (const NodeId chunk : waits.chunks)
                to.waits.push_back({signals_[rank].find(Kind::made, made_ref(chunk)), 0});
            std::ranges::sort(to.waits);
            if (!in_.loads.at[rank].empty()) to.from = in_.loads.at[rank][at(tile)];
            for (const SlotWaits::Phase& phase : waits.phases)
                to.phases.push_back(
                    {phase.loop, phase.iteration_begin, phase.iteration_end, waits_for(rank, phase.ops)});
            slot_of[at(tile)] = first + static_cast<std::int64_t>(slot);
        }
        const std::vector<bool> at_once = count_at_once(rank);
        for (const Made& made : graph_.made[rank]) {
            if (made.stage != static_cast<std::int32_t>(stage)) continue;
            const auto index = static_cast<std::size_t>(out.chunks.size());
            std::vector<std::int64_t> making;
            for (const std::int64_t tile : made.makers) {
                making.push_back(slot_of[at(tile)]);
                out.slots[at(making.back())].makes.push_back(static_cast<std::int32_t>(index));
            }
            out.chunks.push_back({made.chunk, last_of_programs(std::move(making), order.program_of, first),
                                  made_posts_[rank][index], in_.stores.at[rank][index], at_once[index],
                                  in_.stores.sent[rank][index]});
        }
    }

    /// By chunk of the rank, whether its tiles count at once. Copies and sums wait for them, so they do; what
    /// is stored at other ranks takes long, and can wait.
    [[nodiscard]] std::vector<bool> count_at_once(std::size_t rank) const {
        std::vector<bool> at_once;
        for (std::size_t chunk = 0; chunk < in_.stores.at[rank].size(); ++chunk)
            at_once.push_back(in_.stores.at[rank][chunk].empty() && in_.stores.sent[rank][chunk].empty());
        return at_once;
    }

    [[nodiscard]] Transfer transfer_of(std::size_t rank, NodeId id) const {
        const plan::OpRef ref = graph_.ref(id);
        const plan::Op& op = plan_.op(ref);
        Transfer transfer{ref,
                          in_.backends[at(ref.rank)][at(ref.index)],
                          op.source_rank(ref.rank),
                          op.destination_rank(ref.rank),
                          op.src,
                          op.dst,
                          Copy{in_.placement.lanes[at(id)].stream},
                          waits_for(rank, awaited_by(id)),
                          {}};
        if (const auto pushes = stored_.find(id); pushes != stored_.end()) {
            for (const NodeId push : pushes->second) {
                const std::vector<Post>& told = posts_[at(push - first_)];
                transfer.posts.insert(transfer.posts.end(), told.begin(), told.end());
            }
        }
        if (const auto side = in_.lowered.channel.find(ref); side != in_.lowered.channel.end())
            make_side(side->second, id, transfer);
        if (is_sum(op)) transfer.work = sum_of(id);
        if (const auto found = collectives_.find(ref); found != collectives_.end())
            transfer.work = found->second;
        for (const NodeId part : parts_of(id)) {
            const std::vector<Post>& told = posts_[at(part - first_)];
            transfer.posts.insert(transfer.posts.end(), told.begin(), told.end());
            for (const NodeId chunk : in_.placement.awaits[at(part)]) {
                const Wait wait{signals_[rank].find(Kind::made, made_ref(chunk)), 0};
                if (std::ranges::find(transfer.waits, wait) == transfer.waits.end())
                    transfer.waits.push_back(wait);
            }
        }
        return transfer;
    }

    void make_side(const ChannelSide& side, NodeId id, Transfer& transfer) const {
        const NodeId send = side.sends ? id : graph_.op(side.other);
        const auto number = std::ranges::lower_bound(sends_, send) - sends_.begin();
        transfer.work = Channel{side.sends, static_cast<std::int32_t>(number), graph_.round(id)};
        (side.sends ? transfer.dst_rank : transfer.src_rank) = side.other.rank;
        (side.sends ? transfer.dst : transfer.src) = side.chunk;
    }

    [[nodiscard]] Sum sum_of(NodeId id) const {
        const plan::OpRef ref = graph_.ref(id);
        Sum sum{.reduce = plan_.op(ref).reduce};
        if (const auto own = in_.lowered.own.find(ref); own != in_.lowered.own.end()) sum.own = own->second;
        if (const auto found = in_.lowered.sources.find(ref); found != in_.lowered.sources.end())
            sum.sources = found->second;
        if (const auto pushes = stored_.find(id); pushes != stored_.end()) {
            for (const NodeId push : pushes->second) sum.peers.push_back(op_of(push).peer);
        }
        return sum;
    }

    void add_guards(Schedule& schedule) const {
        for_ranks([&](std::size_t rank) {
            for (const Edge& edge : in_.guards.start[rank]) {
                const SignalMeaning meaning = meaning_of(edge);
                const std::int32_t signal = signals_[rank].find(meaning.kind, meaning.op);
                RankSchedule& from = schedule.ranks[at(meaning.op.rank)];
                const bool at_end = graph_[edge.from].kind == Node::Kind::end && !sums_in_kernel(from);
                std::vector<Post>& posts = edge.lag == 0 ? from.begin_posts
                                           : at_end      ? from.end_posts
                                                         : from.kernel_posts;
                posts.push_back({static_cast<std::int32_t>(rank), signal});
                schedule.ranks[rank].begin_waits.push_back({signal, edge.lag});
            }
        });
        const bool sends = std::ranges::any_of(in_.stores.sent, [](const auto& by_chunk) {
            return std::ranges::any_of(by_chunk, [](const auto& to) { return !to.empty(); });
        });
        if (!schedule.stores() && !schedule.loads() && !sends) return;
        for_ranks([&](std::size_t rank) {
            std::vector<std::int64_t> program_of;  // by slot
            for (const StageOrder& order : in_.orders)
                program_of.insert(program_of.end(), order.program_of.begin(),
                                  order.program_of.begin() + std::ssize(order.tiles[rank]));
            guard_places(program_of, schedule.ranks[rank]);
        });
    }

    const Decisions& in_;
    const Graph& graph_;
    const plan::Plan& plan_;
    Scope scope_;
    Collectives collectives_;
    std::vector<SignalTable> signals_;                        ///< by rank
    NodeId first_;                                            ///< op of these ranks
    std::vector<std::vector<Post>> posts_;                    ///< by op, from there on
    std::vector<std::vector<std::vector<Post>>> made_posts_;  ///< by rank and chunk
    std::map<NodeId, std::vector<NodeId>> stored_;            ///< by sum
    std::vector<NodeId> sends_;                               ///< by number of the pair, rising
};

}  // namespace

Schedule make_schedule(const Decisions& decisions) { return Numbering(decisions).run(); }

}  // namespace syncopate::fuse

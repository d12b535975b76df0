#include "syncopate/fuse/fuse.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "syncopate/fuse/cost.hpp"
#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/guards.hpp"
#include "syncopate/fuse/inline.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/pack.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/produce.hpp"
#include "syncopate/fuse/synchronize.hpp"
#include "syncopate/plan/check.hpp"

namespace syncopate::fuse {
namespace {

/// By slot, the program that runs it.
Result<std::vector<std::int64_t>> programs_of_slots(const kernel::Kernel& kernel, const Options& options) {
    const std::int64_t own = kernel.num_programs();
    const std::int64_t programs = options.num_programs.value_or(own);
    if (programs < 1) return Error{"a grid of " + std::to_string(programs) + " programs runs nothing"};
    std::vector<std::int64_t> result;
    result.reserve(kernel.tiles.size());
    if (programs != own) {
        if (!kernel.sites.persistent) {
            return Error{kernel.name + " runs one tile per program, so its grid has " + std::to_string(own) +
                         " programs, not " + std::to_string(programs)};
        }
        for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot) {
            result.push_back(static_cast<std::int64_t>(slot) % programs);
        }
    } else {
        for (const kernel::Tile& tile : kernel.tiles) result.push_back(tile.program);
    }
    return result;
}

/// Replaces the order of a persistent kernel's tiles where these take unequal times.
void repack(const kernel::Kernel& kernel, const Dependence& dependence,
            const std::vector<std::int64_t>& arrivals, const std::vector<std::int64_t>& program_of,
            const std::vector<std::vector<std::int64_t>>& deadlines,
            std::vector<std::vector<std::int64_t>>& tiles) {
    const std::vector<double> times = estimate_tile_times(kernel);
    if (!differ(times)) return;
    const std::int64_t programs = 1 + *std::max_element(program_of.begin(), program_of.end());
    for (std::size_t slot = 0; slot < program_of.size(); ++slot) {
        if (program_of[slot] != static_cast<std::int64_t>(slot) % programs)
            return;  // another way of counting
    }
    std::vector<double> ready(times.size());
    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
        for (std::size_t tile = 0; tile < times.size(); ++tile) {
            ready[tile] = 0;
            for (const Need& need :
                 dependence.needs[rank][static_cast<std::size_t>(dependence.class_of[tile])]) {
                ready[tile] =
                    std::max(ready[tile], static_cast<double>(arrivals[need.op]) / kLinkBytesPerMicrosecond);
            }
        }
        const bool waits = std::any_of(ready.begin(), ready.end(), [](double time) { return time > 0; });
        tiles[rank] = deadlines.empty() || waits ? pack_tiles(times, ready, programs)
                                                 : pack_by_deadline(times, deadlines[rank], programs);
    }
}

/// A kernel may start before its call's begin waits are over, so before a program first stores into another
/// rank's memory it waits for what that rank says of it.
void guard_stores(const std::vector<std::int64_t>& program_of, RankSchedule& rank) {
    std::set<std::pair<std::int64_t, std::int32_t>> guarded;  // program, rank
    for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
        for (const std::int32_t chunk : rank.slots[slot].makes) {
            for (const Store& store : rank.chunks[static_cast<std::size_t>(chunk)].stores) {
                if (!guarded.insert({program_of[slot], store.rank}).second) continue;
                for (const Wait& wait : rank.begin_waits) {
                    if (rank.signals[static_cast<std::size_t>(wait.signal)].op.rank == store.rank)
                        rank.slots[slot].waits.push_back(wait);
                }
            }
        }
    }
}

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
    [[nodiscard]] std::int32_t of_op(plan::OpRef op) const {
        return index_.at(key_of(SignalMeaning::Kind::arrived, op));
    }
    [[nodiscard]] std::int32_t of_made(MadeRef chunk) const {
        return index_.at(key_of(SignalMeaning::Kind::made, {chunk.rank, chunk.index}));
    }
    [[nodiscard]] std::int32_t of_rank(SignalMeaning::Kind kind, std::int32_t rank) const {
        return index_.at(key_of(kind, {rank, -1}));
    }
    [[nodiscard]] const std::vector<SignalMeaning>& signals() const { return signals_; }

private:
    using Key = std::pair<SignalMeaning::Kind, plan::OpRef>;
    static Key key_of(SignalMeaning::Kind kind, plan::OpRef op) {
        // An op has one signal on a rank, whatever it is called there.
        return {kind == SignalMeaning::Kind::fetched ? SignalMeaning::Kind::arrived : kind, op};
    }
    std::vector<SignalMeaning> signals_;
    std::map<Key, std::int32_t> index_;
};

}  // namespace

Result<Schedule> fuse(const Program& given, const Options& options) {
    const kernel::Kernel& kernel = given.kernel;
    if (const auto findings = plan::check(given.plan); !findings.empty()) {
        Error error{std::string("the plan is wrong (") + std::string(plan::name_of(findings.front().kind)) +
                    "): " + findings.front().message};
        error.location.rank = findings.front().rank;
        error.location.op = findings.front().op;
        return error;
    }
    if (Status status = check_bindings(given); !status) return status.error();
    if (kernel.tiles.empty()) return Error{"kernel " + kernel.name + " has no tiles for these arguments"};
    const auto program_of = programs_of_slots(kernel, options);
    if (!program_of) return program_of.error();

    auto lowered = lower(given.plan);
    if (!lowered) return lowered.error();
    const Program program{kernel, lowered->plan, given.bindings};
    const plan::Plan& plan = program.plan;
    const auto backends =
        assign(plan, options.device, options.preferred, [&](plan::OpRef ref, plan::Backend backend) {
            return inline_objection(program, ref, backend);
        });
    if (!backends) return backends.error();
    const auto precedence = precede(plan, *backends);
    if (!precedence) return precedence.error();
    const auto dependence = depend(program, *precedence);
    if (!dependence) return dependence.error();
    std::vector<std::int64_t> arrivals;
    if (options.topology) {
        auto simulated = expect_arrivals(plan, *precedence, *backends, *options.topology);
        if (!simulated) return simulated.error();
        arrivals = *std::move(simulated);
    } else {
        arrivals = expect_arrivals(plan, *precedence);
    }
    const auto production = produce(program, *lowered, *precedence);
    if (!production) return production.error();
    const auto stores = store_inline(program, *lowered, *precedence, *production, *backends);
    if (!stores) return stores.error();
    const auto deadlines = deadlines_of(plan, *precedence, *production, arrivals, kernel.tiles.size());

    // Phases only where some tile would otherwise wait for a chunk before an iteration that does not read it.
    const auto& reduction = kernel.sites.reduction;
    const bool can_cut = options.phases && reduction && !reduction->bound.empty() && reduction->trips > 1;
    Synchronization sync;
    std::vector<std::vector<std::int64_t>> tiles;
    bool phased = false;
    if (can_cut) {
        tiles = order_tiles(*dependence, arrivals, true, deadlines);
        sync = synchronize(*precedence, *dependence, tiles, *program_of, reduction->trips);
        for (const auto& slots : sync.slots) {
            phased |= std::any_of(slots.begin(), slots.end(),
                                  [](const SlotWaits& s) { return s.phases.size() > 1; });
        }
    }
    if (!phased) {
        tiles = order_tiles(*dependence, arrivals, false, deadlines);
        if (kernel.sites.persistent) repack(kernel, *dependence, arrivals, *program_of, deadlines, tiles);
        sync = synchronize(*precedence, *dependence, tiles, *program_of, 0);
    }
    const Guards guards = guard(plan, *precedence, *dependence, sync);

    // Who has to see which op, so that signals can be numbered.
    const auto num_ranks = static_cast<std::size_t>(plan.num_ranks());
    std::vector<std::vector<std::int32_t>> observed = guards.end_ops;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        const auto& seen = sync.seen_by_kernel[rank];
        observed[rank].insert(observed[rank].end(), seen.begin(), seen.end());
    }
    for (std::int32_t id = 0; id < precedence->num_ops(); ++id) {
        auto& here = observed[precedence->ops[id].rank];
        here.insert(here.end(), sync.transfers[id].begin(), sync.transfers[id].end());
    }
    std::vector<std::vector<Post>> posts(precedence->ops.size());
    std::vector<std::vector<std::vector<Post>>> made_posts;  // by rank and chunk
    for (const auto& chunks : production->chunks) made_posts.emplace_back(chunks.size());
    std::vector<SignalTable> signals(num_ranks);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        auto& ids = observed[rank];
        std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
            return std::pair(arrivals[a], a) < std::pair(arrivals[b], b);
        });
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        for (const std::int32_t id : ids) {
            const plan::OpRef ref = precedence->ops[id];
            const plan::Op& op = plan.op(ref);
            const bool fetched = op.kind == plan::OpKind::pull && op.peer == static_cast<std::int32_t>(rank);
            const std::int32_t signal = signals[rank].add(
                {fetched ? SignalMeaning::Kind::fetched : SignalMeaning::Kind::arrived, ref});
            posts[id].push_back({static_cast<std::int32_t>(rank), signal});
        }
    }
    const auto sent_inline = [&](std::int32_t id) {
        const plan::OpRef ref = precedence->ops[id];
        return is_inline((*backends)[ref.rank][ref.index]);
    };
    for (std::int32_t id = 0; id < precedence->num_ops(); ++id) {
        const std::int32_t executor = precedence->ops[id].rank;
        for (const MadeRef& need : production->needs[id]) {
            if (sent_inline(id)) {  // who completes the chunk has sent it
                std::vector<Post>& to = made_posts[need.rank][need.index];
                to.insert(to.end(), posts[id].begin(), posts[id].end());
                continue;
            }
            const std::int32_t signal =
                signals[executor].add({SignalMeaning::Kind::made, {need.rank, need.index}});
            std::vector<Post>& to = made_posts[need.rank][need.index];
            if (const Post post{executor, signal}; std::find(to.begin(), to.end(), post) == to.end())
                to.push_back(post);
        }
    }
    for (const Acknowledgement& ack : guards.ready)
        signals[ack.to].add({SignalMeaning::Kind::ready, {ack.from, -1}});
    for (const Acknowledgement& ack : guards.consumed) {
        signals[ack.to].add({SignalMeaning::Kind::consumed, {ack.from, -1}});
    }

    Schedule schedule;
    schedule.mesh = plan.mesh;
    schedule.tensors = plan.tensors;
    schedule.num_slots = static_cast<std::int64_t>(kernel.tiles.size());
    schedule.phased = phased;
    schedule.stores = stores->form;
    schedule.ranks.resize(num_ranks);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        RankSchedule& out = schedule.ranks[rank];
        const SignalTable& table = signals[rank];
        const auto waits_for = [&](const std::vector<std::int32_t>& ids) {
            std::vector<Wait> waits;
            waits.reserve(ids.size());
            for (const std::int32_t id : ids) waits.push_back({table.of_op(precedence->ops[id]), 0});
            std::sort(waits.begin(), waits.end());
            return waits;
        };
        out.signals = table.signals();
        out.slots.reserve(tiles[rank].size());
        for (std::size_t slot = 0; slot < tiles[rank].size(); ++slot) {
            const SlotWaits& waits = sync.slots[rank][slot];
            Slot& to = out.slots.emplace_back(Slot{tiles[rank][slot], waits_for(waits.ops), {}, {}});
            for (const SlotWaits::Phase& phase : waits.phases) {
                to.phases.push_back({phase.iteration_end, waits_for(phase.ops)});
            }
        }
        std::vector<std::int64_t> slot_of(out.slots.size());
        for (std::size_t slot = 0; slot < out.slots.size(); ++slot)
            slot_of[out.slots[slot].tile] = static_cast<std::int64_t>(slot);
        for (std::size_t chunk = 0; chunk < production->chunks[rank].size(); ++chunk) {
            const std::vector<std::int64_t>& makers = production->makers[rank][chunk];
            out.chunks.push_back({production->chunks[rank][chunk], static_cast<std::int64_t>(makers.size()),
                                  made_posts[rank][chunk], stores->at[rank][chunk]});
            for (const std::int64_t tile : makers)
                out.slots[slot_of[tile]].makes.push_back(static_cast<std::int32_t>(chunk));
        }
        for (const std::int32_t id : precedence->start_order[rank]) {
            if (sent_inline(id)) continue;
            const plan::OpRef ref = precedence->ops[id];
            const plan::Op& op = plan.op(ref);
            const auto own = lowered->own.find(ref);
            Transfer& transfer = out.transfers.emplace_back(Transfer{
                ref, (*backends)[ref.rank][ref.index], op.source_rank(ref.rank),
                op.destination_rank(ref.rank), op.src, op.dst, op.reduce,
                own == lowered->own.end() ? -1 : own->second, waits_for(sync.transfers[id]), posts[id]});
            for (const MadeRef& need : production->needs[id])
                transfer.waits.push_back({table.of_made(need), 0});
        }
        out.end_waits = waits_for(guards.end_ops[rank]);
    }
    for (const Acknowledgement& ack : guards.ready) {
        const std::int32_t signal = signals[ack.to].of_rank(SignalMeaning::Kind::ready, ack.from);
        schedule.ranks[ack.from].begin_posts.push_back({ack.to, signal});
        schedule.ranks[ack.to].begin_waits.push_back({signal, 0});
    }
    for (const Acknowledgement& ack : guards.consumed) {
        const std::int32_t signal = signals[ack.to].of_rank(SignalMeaning::Kind::consumed, ack.from);
        RankSchedule& from = schedule.ranks[ack.from];
        (ack.at_end ? from.end_posts : from.kernel_posts).push_back({ack.to, signal});
        schedule.ranks[ack.to].begin_waits.push_back({signal, 1});
    }
    if (schedule.stores) {
        for (std::size_t rank = 0; rank < num_ranks; ++rank)
            guard_stores(*program_of, schedule.ranks[rank]);
    }
    return schedule;
}

}  // namespace syncopate::fuse

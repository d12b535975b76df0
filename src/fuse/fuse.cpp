#include "syncopate/fuse/fuse.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "fuse/stage.hpp"
#include "syncopate/fuse/collective.hpp"
#include "syncopate/fuse/guards.hpp"
#include "syncopate/fuse/inline.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/streams.hpp"
#include "syncopate/fuse/sum_parts.hpp"
#include "syncopate/fuse/sum_stores.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/chunk_key.hpp"

namespace syncopate::fuse {
namespace {

/// Of the slots of a chunk's tiles, the last one of each program, rising.
std::vector<std::int32_t> last_of_programs(std::vector<std::int64_t> slots,
                                           const std::vector<std::int64_t>& program_of) {
    std::sort(slots.begin(), slots.end(), std::greater<>());
    std::set<std::int64_t> seen;  // programs
    std::vector<std::int32_t> last;
    for (const std::int64_t slot : slots) {
        if (seen.insert(program_of[static_cast<std::size_t>(slot)]).second)
            last.push_back(static_cast<std::int32_t>(slot));
    }
    std::reverse(last.begin(), last.end());
    return last;
}

/// On cuda, a library's collective needs multiprocessors, which a kernel that waits for it may hold. So it
/// must have come before the kernel.
Status check_library(const plan::Plan& plan, const Precedence& precedence, const Synchronization& sync,
                     const Schedule& schedule) {
    std::set<plan::OpRef> late;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const RankSchedule& own = schedule.ranks[rank];
        const StreamPlan streams = plan_streams(own, static_cast<std::int32_t>(rank));
        for (std::size_t i = 0; i < streams.steps.size(); ++i) {
            if (own.transfers[i].collective && streams.steps[i].lane == Lane::late)
                late.insert(own.transfers[i].op);
        }
    }
    for (std::size_t rank = 0; rank < schedule.ranks.size() && !late.empty(); ++rank) {
        const std::vector<bool> awaited = completed_with(precedence, sync.seen_by_kernel[rank]);
        for (const plan::OpRef ref : late) {
            if (!awaited[static_cast<std::size_t>(precedence.id(ref))]) continue;
            return error_at(
                ref, "the kernel of rank " + std::to_string(rank) + " would wait for " +
                         std::string(plan::name_of(plan.op(ref).collective)) +
                         ", which follows other ops and needs multiprocessors that a waiting kernel holds: "
                         "expand it by a template (plan lower)");
        }
    }
    return Done{};
}

/// A kernel that is left as it is can neither wait nor post, and only the chunk engine starts after it.
Status check_plain(const Schedule& schedule) {
    const auto refuse = [](plan::OpRef at, const std::string& why) {
        return error_at(at, "the kernel cannot be left as it is (plain_kernel): " + why);
    };
    if (schedule.num_stages() > 1) return refuse({}, "the program has several stages");
    if (schedule.stores || schedule.loads) return refuse({}, "its tiles store or load for other ranks");
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const plan::OpRef where{static_cast<std::int32_t>(rank), -1};
        const auto waits = [](const Slot& slot) { return !slot.waits.empty() || !slot.phases.empty(); };
        if (std::ranges::any_of(schedule.ranks[rank].slots, waits))
            return refuse(where, "its tiles wait for what transfers bring");
        for (const Transfer& transfer : schedule.ranks[rank].transfers) {
            if (transfer.collective || lane_of(transfer.backend) != plan::Backend::tma_dedicated)
                return refuse(transfer.op, "this op goes by " + std::string(name_of(transfer.backend)) +
                                               ", and only the chunk engine starts after it: use "
                                               "tma_dedicated or ldst_dedicated");
        }
    }
    return Done{};
}

/// A kernel may start before its call's begin waits are over, so before a program first stores into another
/// rank's memory, or loads from there, it waits for what that rank says of it.
void guard_places(const std::vector<std::int64_t>& program_of, RankSchedule& rank) {
    std::set<std::pair<std::int64_t, std::int32_t>> guarded;  // program, rank
    const auto guard_place = [&](std::size_t slot, const Place& place) {
        if (!guarded.insert({program_of[slot], place.rank}).second) return;
        for (const Wait& wait : rank.begin_waits) {
            if (rank.signals[static_cast<std::size_t>(wait.signal)].op.rank == place.rank)
                rank.slots[slot].waits.push_back(wait);
        }
    };
    for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
        if (rank.slots[slot].from) guard_place(slot, *rank.slots[slot].from);
        for (const std::int32_t chunk : rank.slots[slot].makes) {
            for (const Place& store : rank.chunks[static_cast<std::size_t>(chunk)].stores)
                guard_place(slot, store);
        }
    }
    if (rank.transfers.empty()) rank.begin_waits.clear();  // nobody is left to wait at the beginning
}

/// Chunks into which something reduces that some op comes after, and so after the sum.
std::set<plan::ChunkKey> sent_on(const plan::Plan& given) {
    std::set<plan::ChunkKey> keys;
    for (const std::vector<plan::Op>& list : given.ranks) {
        for (const plan::Op& op : list) {
            for (const plan::OpRef before : op.after) {
                if (given.op(before).reduce != plan::Reduce::none)
                    keys.insert(plan::key_of(given.op(before).dst));
            }
        }
    }
    return keys;
}

/// The parts in which `chunk` is summed: where some kernel makes what this rank adds to it. What is sent on
/// stays as it is: one sum can store it at the peers.
std::vector<plan::Region> parts_of_sum(const StagedProgram& program, const std::set<plan::ChunkKey>& sent,
                                       const plan::Chunk& chunk, const Options& options) {
    const std::string& tensor = program.plan.tensors[static_cast<std::size_t>(chunk.tensor)].name;
    for (const Stage& stage : program.stages) {
        const std::int64_t programs = options.num_programs.value_or(stage.kernel.num_programs());
        std::vector<plan::Region> parts =
            sum_parts(stage, tensor, chunk.region, programs, options.most_sum_parts,
                      !sent.contains(plan::key_of(chunk)));
        if (parts.size() > 1) return parts;
    }
    return {chunk.region};
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

Result<Schedule> fuse(const Program& program, const Options& options) {
    return fuse(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<Schedule> fuse(const StagedProgram& given, const Options& options) {
    if (const auto findings = plan::check(given.plan); !findings.empty()) {
        Error error{std::string("the plan is wrong (") + std::string(plan::name_of(findings.front().kind)) +
                    "): " + findings.front().message};
        error.location.rank = findings.front().rank;
        error.location.op = findings.front().op;
        return error;
    }
    if (Status status = check_stages(given, options); !status) return status.error();

    const std::set<plan::ChunkKey> sent = sent_on(given.plan);
    auto lowered =
        lower(given.plan, {.preferred = options.preferred, .parts_of = [&](const plan::Chunk& chunk) {
                               return parts_of_sum(given, sent, chunk, options);
                           }});
    if (!lowered) return lowered.error();
    const plan::Plan& plan = lowered->plan;
    const Program first{given.stages.front().kernel, plan, given.stages.front().bindings};
    const bool staged = given.stages.size() > 1;
    const auto inline_objection = [&](plan::OpRef ref, plan::Backend backend) {
        if (lowered->done_with.contains(ref)) return std::string("a sum reads it, not a tile");
        if (follows_sums(plan, ref)) {
            return backend == plan::Backend::ldst_inline
                       ? sum_store_objection(plan, ref)
                       : std::string(name_of(backend)) +
                             " is for what tiles make, this op sends a sum: use ldst_inline";
        }
        if (staged) return std::string("a program of several stages sends nothing inline yet");
        return is_fetched(plan, ref) ? load_objection(first, ref, backend)
                                     : store_objection(first, ref, backend);
    };
    const auto own_objection = [&](plan::OpRef ref, plan::Backend backend) {
        if (staged) return std::string("a program of several stages fetches nothing inline yet");
        if (options.plain_kernel) return std::string("the kernel is left as it is");
        return own_load_objection(first, ref, backend);
    };
    const auto backends = assign(plan, options.device, options.preferred, inline_objection, own_objection);
    if (!backends) return backends.error();
    const auto stored = sum_stores(plan, *backends);
    if (!stored) return stored.error();
    const auto precedence = precede(plan, *backends, lowered->done_with);
    if (!precedence) return precedence.error();
    const auto stored_by_sum = [&](std::int32_t id) {
        const plan::OpRef ref = precedence->ops[id];
        return is_inline((*backends)[ref.rank][ref.index]) && follows_sums(plan, ref);
    };
    if (Status status = check_collective_order(plan, *precedence); !status) return status.error();
    const Collectives collectives = collectives_of(plan);
    std::vector<std::int64_t> arrivals;
    if (options.topology) {
        auto simulated = expect_arrivals(plan, *precedence, *backends, *options.topology);
        if (!simulated) return simulated.error();
        arrivals = *std::move(simulated);
    } else {
        arrivals = expect_arrivals(*lowered, *precedence);
    }
    // What a rank reads in its own memory is there.
    for (std::int32_t id = 0; id < precedence->num_ops(); ++id) {
        if (precedence->fetched[id] && plan.op(precedence->ops[id]).kind == plan::OpKind::local)
            arrivals[id] = 0;
    }
    std::vector<StageSchedule> stages;
    Written written;
    for (const Stage& stage : given.stages) {
        const Program program{stage.kernel, plan, stage.bindings};
        auto scheduled = schedule_stage(program, *lowered, *precedence, arrivals, written, options);
        if (!scheduled) return scheduled.error();
        stages.push_back(*std::move(scheduled));
        add_written(program, written);
    }
    if (Status status = check_stage_order(given, plan, *precedence, stages, options.device); !status)
        return status.error();
    const StageSchedule all = merge(std::move(stages));
    const Production& production = all.production;
    const Synchronization& sync = all.synchronization;
    const auto& tiles = all.tiles;
    const auto stores = store_inline(first, *lowered, *precedence, production, *backends);
    if (!stores) return stores.error();
    auto loads = load_inline(first, *precedence, *backends);
    if (!loads) return loads.error();
    if (!loads->form && !staged && !options.plain_kernel) {
        if (auto of_given = load_given(first)) loads = *std::move(of_given);
    }
    const Guards guards = guard(plan, *precedence, all.dependence, sync);

    // A sum that reads contributions where they are also waits for what they come after, and tells whom
    // they would tell.
    const auto parts_of = [&](std::int32_t id) {
        std::vector<std::int32_t> parts{id};
        const auto direct = lowered->direct.find(precedence->ops[id]);
        if (direct == lowered->direct.end()) return parts;
        for (const plan::OpRef pull : direct->second) parts.push_back(precedence->id(pull));
        return parts;
    };
    const auto awaited_by = [&](std::int32_t id) {
        std::vector<std::int32_t> awaited;
        for (const std::int32_t part : parts_of(id)) {
            for (const std::int32_t other : sync.transfers[part]) {
                const auto sum = lowered->done_with.find(precedence->ops[other]);
                if (sum == lowered->done_with.end() || precedence->id(sum->second) != id)
                    awaited.push_back(other);
            }
        }
        std::sort(awaited.begin(), awaited.end());
        awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
        return awaited;
    };

    // Who has to see which op, so that signals can be numbered.
    const auto num_ranks = static_cast<std::size_t>(plan.num_ranks());
    std::vector<std::vector<std::int32_t>> observed = guards.end_ops;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        const auto& seen = sync.seen_by_kernel[rank];
        observed[rank].insert(observed[rank].end(), seen.begin(), seen.end());
    }
    for (std::int32_t id = 0; id < precedence->num_ops(); ++id) {
        auto& here = observed[precedence->ops[id].rank];
        if (lowered->done_with.contains(precedence->ops[id]) || stored_by_sum(id) || precedence->fetched[id])
            continue;
        const std::vector<std::int32_t> awaited = awaited_by(id);
        here.insert(here.end(), awaited.begin(), awaited.end());
    }
    std::vector<std::vector<Post>> posts(precedence->ops.size());
    std::vector<std::vector<std::vector<Post>>> made_posts;  // by rank and chunk
    for (const auto& chunks : production.chunks) made_posts.emplace_back(chunks.size());
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
        for (const MadeRef& need : production.needs[id]) {
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
    schedule.num_slots = all.slots.back().first + all.slots.back().count;
    schedule.phased = all.slots.front().phased;
    schedule.later.assign(all.slots.begin() + 1, all.slots.end());
    schedule.stores = stores->form;
    schedule.loads = loads->form;
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
            if (!loads->at[rank].empty()) to.from = loads->at[rank][static_cast<std::size_t>(to.tile)];
            for (const SlotWaits::Phase& phase : waits.phases) {
                to.phases.push_back({phase.iteration_end, waits_for(phase.ops)});
            }
        }
        std::vector<std::int64_t> slot_of(out.slots.size());  // by tile, tiles numbered over all stages
        for (const StageSlots& stage : all.slots) {
            for (std::int64_t slot = stage.first; slot < stage.first + stage.count; ++slot)
                slot_of[stage.first + out.slots[slot].tile] = slot;
        }
        for (std::size_t chunk = 0; chunk < production.chunks[rank].size(); ++chunk) {
            const std::vector<std::int64_t>& makers = production.makers[rank][chunk];
            std::vector<std::int64_t> making;
            for (const std::int64_t tile : makers) {
                making.push_back(slot_of[tile]);
                out.slots[slot_of[tile]].makes.push_back(static_cast<std::int32_t>(chunk));
            }
            // Copies and sums wait for it, so it counts at once; what is stored at other ranks takes long,
            // and can wait.
            const std::vector<Place>& stored_at = stores->at[rank][chunk];
            out.chunks.push_back({production.chunks[rank][chunk],
                                  last_of_programs(std::move(making), all.program_of),
                                  made_posts[rank][chunk], stored_at, stored_at.empty()});
        }
        for (const std::int32_t id : precedence->start_order[rank]) {
            if (precedence->fetched[id])
                out.kernel_posts.insert(out.kernel_posts.end(), posts[id].begin(), posts[id].end());
            if (sent_inline(id)) continue;
            const plan::OpRef ref = precedence->ops[id];
            const plan::Op& op = plan.op(ref);
            if (lowered->done_with.contains(ref)) continue;
            const auto own = lowered->own.find(ref);
            Transfer& transfer =
                out.transfers.emplace_back(Transfer{ref,
                                                    (*backends)[ref.rank][ref.index],
                                                    op.source_rank(ref.rank),
                                                    op.destination_rank(ref.rank),
                                                    op.src,
                                                    op.dst,
                                                    op.reduce,
                                                    own == lowered->own.end() ? -1 : own->second,
                                                    waits_for(awaited_by(id)),
                                                    {}});
            transfer.copy_stream = precedence->copy_stream[id];
            if (const auto pushes = stored->find(ref); pushes != stored->end()) {
                for (const plan::OpRef push : pushes->second) {
                    transfer.peers.push_back(plan.op(push).peer);
                    const std::vector<Post>& told = posts[precedence->id(push)];
                    transfer.posts.insert(transfer.posts.end(), told.begin(), told.end());
                }
            }
            if (const auto found = collectives.find(ref); found != collectives.end()) {
                transfer.reduce = plan::Reduce::none;
                transfer.collective = found->second;
            }
            for (const std::int32_t part : parts_of(id)) {
                transfer.posts.insert(transfer.posts.end(), posts[part].begin(), posts[part].end());
                for (const MadeRef& need : production.needs[part]) {
                    const Wait wait{table.of_made(need), 0};
                    if (std::find(transfer.waits.begin(), transfer.waits.end(), wait) == transfer.waits.end())
                        transfer.waits.push_back(wait);
                }
            }
            if (const auto found = lowered->sources.find(ref); found != lowered->sources.end())
                transfer.sources = found->second;
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
    if (schedule.stores || schedule.loads) {
        for (std::size_t rank = 0; rank < num_ranks; ++rank)
            guard_places(all.program_of, schedule.ranks[rank]);
    }
    if (options.plain_kernel) {
        if (Status status = check_plain(schedule); !status) return status.error();
        schedule.plain = true;
    }
    if (options.device == Device::cuda) {
        if (Status status = check_library(plan, *precedence, sync, schedule); !status) return status.error();
    }
    return schedule;
}

}  // namespace syncopate::fuse

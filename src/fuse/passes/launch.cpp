#include "syncopate/fuse/passes/launch.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"

namespace syncopate::fuse {
namespace {

using Kind = SignalMeaning::Kind;

[[nodiscard]] constexpr std::size_t stream_of_copies(std::int32_t copy_stream) {
    return copy_stream == 0 ? kCopies : kSums + static_cast<std::size_t>(copy_stream);
}

/// On which stream each transfer goes, and how each of its waits is covered there.
class Streams {
public:
    Streams(RankSchedule& schedule, std::int32_t rank) : schedule_(schedule) {
        for (std::size_t i = 0; i < schedule.transfers.size(); ++i) own_[schedule.transfers[i].op] = i;
        for (std::size_t chunk = 0; chunk < schedule.chunks.size(); ++chunk) {
            for (const Post& post : schedule.chunks[chunk].posts) {
                if (post.rank == rank) made_by_[post.signal] = static_cast<std::int32_t>(chunk);
            }
        }
    }

    void run() {
        const std::size_t channel = stream_of_channel();
        bool late = false;          // some copy before
        bool collect_late = false;  // some collective before
        for (std::size_t index = 0; index < schedule_.transfers.size(); ++index) {
            const Transfer& transfer = schedule_.transfers[index];
            StreamStep& step = step_of(index);
            step = {};
            const bool collective = transfer.backend == plan::Backend::nccl;
            const bool between = transfer.backend == plan::Backend::channel;
            if (transfer.backend != plan::Backend::copy_engine && !collective && !between) continue;
            const bool sums = transfer.sum() != nullptr;
            const bool now = std::ranges::all_of(
                transfer.waits, [&](const Wait& wait) { return is_implied(wait, collective); });
            if (collective) {
                collect_late = collect_late || !now;
                step.launch = collect_late ? Launch::late : Launch::before;
            } else if (between) {
                step.launch = Launch::late;
                step.stream = channel;
            } else {
                late = late || (!sums && !now);
                step.launch = sums ? Launch::sums : late ? Launch::late : Launch::early;
                if (sums) step.stream = kSums;
                if (step.launch == Launch::late) step.stream = stream_of_copies(transfer.copy()->stream);
            }
            schedule_.num_streams = std::max(schedule_.num_streams, step.stream + 1);
            for (const Wait& wait : transfer.waits) cover(index, wait);
            if (!step.relayed.empty()) step.relay = schedule_.num_relays++;
        }
    }

private:
    /// The one behind those of copies.
    [[nodiscard]] std::size_t stream_of_channel() const {
        std::size_t most = kSums;
        for (const Transfer& transfer : schedule_.transfers) {
            if (transfer.backend == plan::Backend::copy_engine && transfer.copy() != nullptr)
                most = std::max(most, stream_of_copies(transfer.copy()->stream));
        }
        return most + 1;
    }

    [[nodiscard]] StreamStep& step_of(std::size_t index) { return schedule_.transfers[index].step; }
    [[nodiscard]] const StreamStep& step_of(std::size_t index) const {
        return schedule_.transfers[index].step;
    }

    /// The transfer by which a stream of this rank posts the signal; nullopt where none does.
    [[nodiscard]] std::optional<std::size_t> own_step(const Wait& wait) const {
        const SignalMeaning& meaning = schedule_.signals[at(wait.signal)];
        if (meaning.kind != Kind::arrived && meaning.kind != Kind::fetched) return std::nullopt;
        const auto found = own_.find(meaning.op);
        if (found == own_.end() || step_of(found->second).launch == Launch::none) return std::nullopt;
        return found->second;
    }

    /// Whether it is over when the copies begin, or an earlier one of them implies it; for a collective, when
    /// the kernel's stream comes to it.
    [[nodiscard]] bool is_implied(const Wait& wait, bool collective) const {
        if (schedule_.has_begun(wait)) return true;
        const auto own = own_step(wait);
        if (!own) return false;
        const Launch launch = step_of(*own).launch;
        return launch == Launch::before || (launch == Launch::early && !collective);
    }

    void cover(std::size_t index, const Wait& wait) {
        StreamStep& step = step_of(index);
        const bool sums = step.stream == kSums;
        if (schedule_.has_begun(wait)) return;
        if (const auto made = made_by_.find(wait.signal);
            made != made_by_.end() && (!sums || is_made(wait.signal))) {
            pass_gate(index, made->second);
            return;
        }
        if (const auto own = own_step(wait)) {
            const StreamStep& other = step_of(*own);
            if (other.stream == step.stream || other.launch == Launch::before ||
                (other.launch == Launch::early && !sums))
                return;  // in order; early copies come before late ones of all streams
            if (!sums) {
                step.after.push_back(*own);
                return;
            }
        }
        if (sums) {
            if (awaited_.insert(wait).second) step.awaited.push_back(wait);
        } else if (relayed_.insert({step.stream, wait}).second) {
            step.relayed.push_back(wait);
        }
    }

    /// A chunk has one gate for sums and one for copies: a copy follows the one of the other stream that has
    /// passed it.
    void pass_gate(std::size_t index, std::int32_t chunk) {
        StreamStep& step = step_of(index);
        const auto [passed, first] = passed_.try_emplace({step.stream == kSums, chunk}, index);
        if (first) {
            step.gates.push_back(chunk);
        } else if (step_of(passed->second).stream != step.stream) {
            step.after.push_back(passed->second);
        }
    }

    [[nodiscard]] bool is_made(std::int32_t signal) const {
        return schedule_.signals[at(signal)].kind == Kind::made;
    }

    RankSchedule& schedule_;
    std::map<plan::OpRef, std::size_t> own_;        ///< transfers by op
    std::map<std::int32_t, std::int32_t> made_by_;  ///< own signal → chunk whose last tile posts it
    std::map<std::pair<bool, std::int32_t>, std::size_t> passed_;  ///< transfers, by gate: of sums, and chunk
    std::set<std::pair<std::size_t, Wait>> relayed_;               ///< by number of the stream
    std::set<Wait> awaited_;                                       ///< by sums
};

/// Which copies within the rank go first, in the kernel's stream.
class Locals {
public:
    Locals(RankSchedule& schedule, std::int32_t rank) : schedule_(schedule), rank_(rank) {}

    void run() {
        std::vector<const Transfer*> locals;
        bool collects = false;
        for (Transfer& transfer : schedule_.transfers) {
            Launch& launch = transfer.step.launch;
            collects = collects || launch == Launch::before;
            if (launch == Launch::early && is_local(transfer) && transfer.waits.empty() &&
                may_go_first(transfer)) {
                launch = Launch::local;
                locals.push_back(&transfer);
            } else if (launch == Launch::early || is_engine(transfer.backend)) {
                beside_.push_back(&transfer);
            }
        }
        schedule_.copies_start_first = !collects && std::ranges::none_of(locals, [&](const Transfer* local) {
            return is_touched(*local);
        });
    }

private:
    [[nodiscard]] bool is_local(const Transfer& transfer) const {
        return transfer.src_rank == rank_ && transfer.dst_rank == rank_;
    }
    [[nodiscard]] bool reads(const Transfer& transfer, const plan::Chunk& chunk) const {
        return transfer.src_rank == rank_ && overlaps(transfer.src, chunk);
    }
    [[nodiscard]] bool writes(const Transfer& transfer, const plan::Chunk& chunk) const {
        return transfer.dst_rank == rank_ && overlaps(transfer.dst, chunk);
    }

    /// Whether a local copy touches nothing that earlier ones beside the caller's stream write here, and
    /// writes nothing that they read here: only then may it overtake them.
    [[nodiscard]] bool may_go_first(const Transfer& local) const {
        return std::ranges::none_of(beside_, [&](const Transfer* before) {
            return writes(*before, local.src) || writes(*before, local.dst) || reads(*before, local.dst);
        });
    }

    /// Whether any other transfer of this rank reads or writes what a local copy writes, or writes what it
    /// reads: then it starts after it.
    [[nodiscard]] bool is_touched(const Transfer& local) const {
        return std::ranges::any_of(schedule_.transfers, [&](const Transfer& other) {
            return &other != &local &&
                   (reads(other, local.dst) || writes(other, local.dst) || writes(other, local.src));
        });
    }

    RankSchedule& schedule_;
    std::int32_t rank_;
    std::vector<const Transfer*> beside_;  ///< whose data the copy stream or the chunk engine moves
};

bool has_gates(const StreamStep& step) { return !step.gates.empty() || step.relay >= 0; }

/// By transfer: the last slot whose tile its gates are for; -1: none.
std::vector<std::int64_t> last_slots(const RankSchedule& schedule) {
    std::vector<std::int64_t> of_chunk(schedule.chunks.size(), -1);
    for (std::size_t slot = 0; slot < schedule.slots.size(); ++slot) {
        for (const std::int32_t chunk : schedule.slots[slot].makes)
            of_chunk[at(chunk)] = static_cast<std::int64_t>(slot);
    }
    std::vector<std::int64_t> of_transfer;
    for (const Transfer& transfer : schedule.transfers) {
        std::int64_t last = -1;
        for (const std::int32_t chunk : transfer.step.gates) last = std::max(last, of_chunk[at(chunk)]);
        of_transfer.push_back(last);
    }
    return of_transfer;
}

/// Says from when on each sum's kernel that waits may run.
void await_early(RankSchedule& schedule) {
    const std::vector<std::int64_t> made = last_slots(schedule);
    const auto leaves = [](const StreamStep& step) {  // a copy of what the kernel makes, or a relay brings
        return step.launch == Launch::late && step.after.empty() && has_gates(step);
    };
    bool begun = std::ranges::none_of(schedule.transfers,
                                      [&](const Transfer& transfer) { return leaves(transfer.step); });
    for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
        StreamStep& step = schedule.transfers[i].step;
        if (step.launch != Launch::sums) continue;
        if (!begun && has_gates(step)) {
            for (std::size_t other = 0; other < i; ++other) {
                if (!leaves(schedule.transfers[other].step) || made[other] >= made[i]) continue;
                if (!step.await_after || made[other] > made[*step.await_after]) step.await_after = other;
            }
        }
        step.awaits_gate = (step.await_after || begun) && step.gates.size() == 1;
        begun = true;
    }
}

/// Whether what the end tells the others is true once its sums are done: nothing arrives for anybody but
/// them. All else that the rank does is to send what its kernel has made, which nobody overwrites but its
/// kernel.
bool ends_with_sum(const RankSchedule& schedule, std::int32_t rank) {
    if (!schedule.end_waits.empty() || schedule.end_posts.empty() || schedule.transfers.empty()) return false;
    const auto kind_of = [&](const Wait& wait) { return schedule.signals[at(wait.signal)].kind; };
    const auto sends_what_is_made = [&](const Transfer& transfer) {
        return transfer.src_rank == rank && !transfer.collective() && !transfer.waits.empty() &&
               std::ranges::all_of(transfer.waits,
                                   [&](const Wait& wait) { return kind_of(wait) == Kind::made; });
    };
    const auto good = [&](const Transfer& transfer) {
        return transfer.step.launch == Launch::sums ||
               (transfer.step.launch == Launch::late && sends_what_is_made(transfer));
    };
    const auto arrives = [&](const Wait& wait) {
        return kind_of(wait) != Kind::ready && kind_of(wait) != Kind::consumed;
    };
    const auto reads = [&](const Slot& slot) {
        return std::ranges::any_of(slot.waits, arrives) ||
               std::ranges::any_of(slot.phases, [&](const Phase& phase) {
                   return std::ranges::any_of(phase.waits, arrives);
               });
    };
    const Transfer& last = schedule.transfers.back();
    return std::ranges::all_of(schedule.transfers, good) && last.sum() != nullptr &&
           !is_empty(last.dst.region) && std::ranges::none_of(schedule.slots, reads);
}

}  // namespace

Schedule launch(Schedule schedule) {
    const auto size = static_cast<std::int32_t>(schedule.ranks.size());
    const std::int32_t first = schedule.part ? schedule.part->first : 0;
    for (std::int32_t rank = first; rank < (schedule.part ? schedule.part->end : size); ++rank) {
        RankSchedule& own = schedule.ranks[at(rank)];
        own.num_streams = 2;
        own.num_relays = 0;
        Streams(own, rank).run();
        Locals(own, rank).run();
        await_early(own);
        own.ends_with_sum = ends_with_sum(own, rank);
    }
    return schedule;
}

std::string step_objection(const RankSchedule& schedule, std::size_t index) {
    const Transfer& transfer = schedule.transfers[index];
    const StreamStep& step = transfer.step;
    const bool sums = transfer.sum() != nullptr;
    const bool collects = transfer.backend == plan::Backend::nccl;
    const bool by_engine = transfer.backend == plan::Backend::copy_engine;
    const bool between = transfer.backend == plan::Backend::channel;
    if (between != (transfer.channel() != nullptr)) return "its backend and what it does do not go together";
    const auto fits = [&] {
        switch (step.launch) {
            case Launch::none: return !by_engine && !collects && !between;
            case Launch::local:
            case Launch::early: return by_engine && !sums;
            case Launch::before: return collects;
            case Launch::late: return collects || between || (by_engine && !sums);
            case Launch::sums: return by_engine && sums;
        }
        return false;
    };
    if (!fits()) return "its backend and its step do not go together: fuse::launch makes steps";
    const bool known = std::ranges::all_of(step.gates, [&](std::int32_t chunk) {
        return chunk >= 0 && static_cast<std::size_t>(chunk) < schedule.chunks.size();
    });
    if (!known) return "its step waits for a chunk that the rank does not make";
    const auto follows_kernel = [&](std::size_t other) {
        return other < index && schedule.transfers[other].step.follows_kernel();
    };
    const bool in_order = std::ranges::all_of(step.after, follows_kernel) &&
                          (!step.await_after || follows_kernel(*step.await_after));
    if (!in_order) return "its step follows a transfer that is not launched before it";
    if (step.awaits_gate && (!sums || step.gates.size() != 1))
        return "its step awaits a gate that it does not have";
    return {};
}

std::vector<bool> polled_chunks(const RankSchedule& schedule, std::int32_t rank) {
    std::set<std::int32_t> polled;
    const auto add = [&](const std::vector<Wait>& waits) {
        for (const Wait& wait : waits) polled.insert(wait.signal);
    };
    for (const Slot& slot : schedule.slots) {
        add(slot.waits);
        for (const Phase& phase : slot.phases) add(phase.waits);
    }
    add(schedule.end_waits);
    for (const Transfer& transfer : schedule.transfers) {
        if (transfer.step.launch == Launch::none) add(transfer.waits);
        add(transfer.step.awaited);
        add(transfer.step.relayed);
    }
    std::vector<bool> result;
    for (const MadeChunk& chunk : schedule.chunks) {
        result.push_back(std::ranges::any_of(chunk.posts, [&](const Post& post) {
            return post.rank != rank || polled.contains(post.signal);
        }));
    }
    return result;
}

}  // namespace syncopate::fuse

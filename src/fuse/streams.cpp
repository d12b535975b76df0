#include "syncopate/fuse/streams.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace syncopate::fuse {
namespace {

using Kind = SignalMeaning::Kind;

class Planning {
public:
    Planning(const RankSchedule& schedule, std::int32_t rank) : schedule_(schedule) {
        for (std::size_t i = 0; i < schedule.transfers.size(); ++i) own_[schedule.transfers[i].op] = i;
        for (std::size_t chunk = 0; chunk < schedule.chunks.size(); ++chunk) {
            for (const Post& post : schedule.chunks[chunk].posts) {
                if (post.rank == rank) made_by_[post.signal] = static_cast<std::int32_t>(chunk);
            }
        }
    }

    StreamPlan run() {
        plan_.steps.resize(schedule_.transfers.size());
        bool late = false;          // some copy before
        bool collect_late = false;  // some collective before
        for (std::size_t index = 0; index < plan_.steps.size(); ++index) {
            const Transfer& transfer = schedule_.transfers[index];
            const bool collective = transfer.backend == plan::Backend::nccl;
            if (transfer.backend != plan::Backend::copy_engine && !collective) continue;
            StreamStep& step = plan_.steps[index];
            const bool sums = transfer.reduce != plan::Reduce::none;
            const bool now = std::all_of(transfer.waits.begin(), transfer.waits.end(),
                                         [&](const Wait& wait) { return is_implied(wait, collective); });
            if (collective) {
                collect_late = collect_late || !now;
                step.lane = collect_late ? Lane::late : Lane::before;
            } else {
                late = late || (!sums && !now);
                step.lane = sums ? Lane::sums : late ? Lane::late : Lane::early;
                if (sums) step.stream = kSums;
                if (step.lane == Lane::late) step.stream = stream_of_copies(transfer.copy_stream);
            }
            plan_.num_streams = std::max(plan_.num_streams, step.stream + 1);
            for (const Wait& wait : transfer.waits) cover(index, wait);
            if (!step.relayed.empty()) step.relay = plan_.num_relays++;
        }
        return std::move(plan_);
    }

private:
    [[nodiscard]] bool has_begun(const Wait& wait) const {
        return std::any_of(
            schedule_.begin_waits.begin(), schedule_.begin_waits.end(),
            [&](const Wait& begun) { return begun.signal == wait.signal && begun.lag <= wait.lag; });
    }

    /// The stream on which this rank posts the signal; nullopt where none does.
    [[nodiscard]] std::optional<std::size_t> own_step(const Wait& wait) const {
        const SignalMeaning& meaning = schedule_.signals[static_cast<std::size_t>(wait.signal)];
        if (meaning.kind != Kind::arrived && meaning.kind != Kind::fetched) return std::nullopt;
        const auto found = own_.find(meaning.op);
        if (found == own_.end() || plan_.steps[found->second].lane == Lane::none) return std::nullopt;
        return found->second;
    }

    /// Whether it is over when the copies begin, or an earlier one of them implies it; for a collective, when
    /// the kernel's stream comes to it.
    [[nodiscard]] bool is_implied(const Wait& wait, bool collective) const {
        if (has_begun(wait)) return true;
        const auto own = own_step(wait);
        if (!own) return false;
        const Lane lane = plan_.steps[*own].lane;
        return lane == Lane::before || (lane == Lane::early && !collective);
    }

    void cover(std::size_t index, const Wait& wait) {
        StreamStep& step = plan_.steps[index];
        const std::size_t stream = step.stream;
        const bool sums = stream == kSums;
        if (has_begun(wait)) return;
        if (const auto made = made_by_.find(wait.signal);
            made != made_by_.end() && (!sums || is_made(wait.signal))) {
            pass_gate(index, made->second);
            return;
        }
        if (const auto own = own_step(wait)) {
            const Lane lane = plan_.steps[*own].lane;
            if (plan_.steps[*own].stream == stream || lane == Lane::before || (lane == Lane::early && !sums))
                return;  // in order; early copies come before late ones of all streams
            if (!sums) {
                step.after.push_back(*own);
                return;
            }
        }
        if (sums) {
            if (awaited_.insert(wait).second) step.awaited.push_back(wait);
        } else if (relayed_.insert({stream, wait}).second) {
            step.relayed.push_back(wait);
        }
    }

    /// A chunk has one gate for sums and one for copies: a copy follows the one of the other stream that has
    /// passed it.
    void pass_gate(std::size_t index, std::int32_t chunk) {
        StreamStep& step = plan_.steps[index];
        const auto [passed, first] = passed_.try_emplace({step.stream == kSums, chunk}, index);
        if (first) {
            step.gates.push_back(chunk);
        } else if (plan_.steps[passed->second].stream != step.stream) {
            step.after.push_back(passed->second);
        }
    }

    [[nodiscard]] bool is_made(std::int32_t signal) const {
        return schedule_.signals[static_cast<std::size_t>(signal)].kind == Kind::made;
    }

    const RankSchedule& schedule_;
    std::map<plan::OpRef, std::size_t> own_;        ///< transfers by op
    std::map<std::int32_t, std::int32_t> made_by_;  ///< own signal → chunk whose last tile posts it
    std::map<std::pair<bool, std::int32_t>, std::size_t> passed_;  ///< steps, by gate: of sums, and chunk
    std::set<std::pair<std::size_t, Wait>> relayed_;               ///< by number of the stream
    std::set<Wait> awaited_;                                       ///< by sums in their own stream
    StreamPlan plan_;
};

}  // namespace

StreamPlan plan_streams(const RankSchedule& schedule, std::int32_t rank) {
    return Planning(schedule, rank).run();
}

std::vector<bool> polled_chunks(const RankSchedule& schedule, std::int32_t rank, const StreamPlan& streams) {
    std::set<std::int32_t> polled;
    const auto add = [&](const std::vector<Wait>& waits) {
        for (const Wait& wait : waits) polled.insert(wait.signal);
    };
    for (const Slot& slot : schedule.slots) {
        add(slot.waits);
        for (const Phase& phase : slot.phases) add(phase.waits);
    }
    add(schedule.end_waits);
    for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
        const StreamStep& step = streams.steps[i];
        if (step.lane == Lane::none) add(schedule.transfers[i].waits);
        add(step.awaited);
        add(step.relayed);
    }
    std::vector<bool> result;
    for (const MadeChunk& chunk : schedule.chunks) {
        result.push_back(std::any_of(chunk.posts.begin(), chunk.posts.end(), [&](const Post& post) {
            return post.rank != rank || polled.contains(post.signal);
        }));
    }
    return result;
}

}  // namespace syncopate::fuse

#include "ingest/mscclpp/mscclpp_schedule.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

// The phases of an op: what is added to is put in place, the others are added, the result is passed on.
constexpr std::int32_t kPrepare = 0;
constexpr std::int32_t kAdd = 1;
constexpr std::int32_t kPassOn = 2;

/// An addition to a counter, or a wait that takes one away.
struct Use {
    std::int32_t step;
    bool relaxed;
};

class Builder {
public:
    Builder(const MscclppPlan& plan, const Buffers& buffers, const std::string& file_name,
            std::vector<std::string>& warnings)
        : plan_(plan), buffers_(buffers), file_name_(file_name), warnings_(warnings) {}

    Result<Schedule> run() {
        signals_.resize(plan_.counters.size());
        waits_.resize(plan_.counters.size());
        if (!number_ops()) return *error_;
        for (std::size_t step = 0; step < ops_.size(); ++step) {
            if (!move(static_cast<std::int32_t>(step), *ops_[step])) return *error_;
        }
        if (!count_signals() || !meet_at_barriers() || !deliver_packets()) return *error_;
        if (multicasts_ > 0)
            warnings_.push_back(
                fmt::format("{} multicast ops are written as a transfer for each rank", multicasts_));
        return std::move(schedule_);
    }

private:
    bool fail(std::int32_t step, const std::string& problem) {
        const Step& place = schedule_.steps[at(step)];
        error_ = Error{describe(place) + ": " + problem, {file_name_, place.origin.line}};
        return false;
    }

    bool number_ops() {
        std::int32_t worker = 0;
        for (std::int32_t rank = 0; static_cast<std::size_t>(rank) < plan_.gpus.size(); ++rank) {
            for (const auto& ops : plan_.gpus[at(rank)].threadblocks) {
                for (const MscclppOp& op : ops) {
                    const auto step = static_cast<std::int32_t>(schedule_.steps.size());
                    schedule_.steps.push_back({rank, worker, op.origin});
                    ops_.push_back(&op);
                    for (const std::int32_t counter : op.counters)
                        (op.verb->waits ? waits_ : signals_)[at(counter)].push_back({step, op.verb->relaxed});
                    for (const std::int32_t counter : op.acquired)
                        waits_[at(counter)].push_back({step, false});
                    for (const std::int32_t counter : op.released)
                        signals_[at(counter)].push_back({step, false});
                }
                ++worker;
            }
        }
        workers_ = worker;
        return true;
    }

    [[nodiscard]] std::int32_t worker(std::int32_t step) const { return schedule_.steps[at(step)].worker; }

    // ---- signals and semaphores
    // ----------------------------------------------------------------------------------

    /// A wait that is the k-th of its worker has seen k additions, of which the counter's initial value may
    /// be some. An addition is surely among them if too few others could have come before it; those that
    /// could not are the later ones of its own worker.
    bool count_signals() {
        for (std::size_t counter = 0; counter < plan_.counters.size(); ++counter) {
            const std::vector<Use>& signals = signals_[counter];
            const std::vector<Use>& waits = waits_[counter];
            const auto total = static_cast<std::int64_t>(signals.size());
            const std::int64_t initial = plan_.counters[counter].initial;
            if (static_cast<std::int64_t>(waits.size()) > total + initial) {
                const Use& starved = waits[at(total + initial)];
                return fail(starved.step,
                            fmt::format("waits for ever: {} is awaited {} times and signalled {}",
                                        plan_.counters[counter].what, waits.size(), total + initial));
            }
            const std::vector<Run> runs = runs_of(signals);
            for (std::size_t first = 0; first < waits.size();) {
                std::size_t end = first;
                while (end < waits.size() && worker(waits[end].step) == worker(waits[first].step)) ++end;
                for (std::size_t i = first; i < end; ++i) {
                    if (!follow_signals(runs, total, waits[i],
                                        static_cast<std::int64_t>(i - first) + 1 - initial))
                        return false;
                }
                first = end;
            }
        }
        return true;
    }

    /// The additions of one worker to a counter.
    struct Run {
        std::vector<std::int32_t> steps;
        /// Up to and with each step, the last that is not relaxed; -1: none.
        std::vector<std::int32_t> publishing;
    };

    [[nodiscard]] std::vector<Run> runs_of(const std::vector<Use>& signals) const {
        std::vector<Run> runs;
        for (std::size_t i = 0; i < signals.size(); ++i) {
            if (i == 0 || worker(signals[i].step) != worker(signals[i - 1].step)) runs.emplace_back();
            Run& run = runs.back();
            const std::int32_t before = run.publishing.empty() ? -1 : run.publishing.back();
            run.steps.push_back(signals[i].step);
            run.publishing.push_back(signals[i].relaxed ? before : signals[i].step);
        }
        return runs;
    }

    /// Edges to `wait` from the last addition of each worker that is surely among the first `seen` of
    /// `total`.
    bool follow_signals(const std::vector<Run>& runs, std::int64_t total, const Use& wait,
                        std::int64_t seen) {
        for (const Run& run : runs) {
            // The n-th of this worker (from 0) has total - (count - n) others that may come before it.
            const auto count = static_cast<std::int64_t>(run.steps.size());
            const std::int64_t sure = std::min(count, seen - (total - count));
            if (!count_work(wait.step)) return false;
            if (sure <= 0) continue;
            const std::int32_t last = run.steps[at(sure - 1)];
            const std::int32_t publishing = wait.relaxed ? -1 : run.publishing[at(sure - 1)];
            if (publishing >= 0) schedule_.edges.push_back({publishing, wait.step, Edge::Kind::data});
            if (publishing != last) schedule_.edges.push_back({last, wait.step, Edge::Kind::order});
        }
        return true;
    }

    /// False above a bound that no plan that anybody runs comes near.
    bool count_work(std::int32_t step) {
        constexpr std::int64_t kMost = 16'000'000;
        return ++work_ <= kMost ||
               fail(step, "the file's signals and packets meet in too many ways to be ordered");
    }

    // ---- barriers
    // ------------------------------------------------------------------------------------------------

    /// The k-th barrier of a number in each threadblock that has one meet in a step of their own.
    bool meet_at_barriers() {
        // rank, id, round.
        std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::vector<std::int32_t>> meetings;
        std::map<std::tuple<std::int32_t, std::int32_t>, std::int32_t> rounds;  // worker, id
        const auto count = static_cast<std::int32_t>(ops_.size());
        for (std::int32_t step = 0; step < count; ++step) {
            const MscclppOp& op = *ops_[at(step)];
            if (op.barrier < 0) continue;
            const std::int32_t rank = schedule_.steps[at(step)].rank;
            meetings[{rank, op.barrier, rounds[{worker(step), op.barrier}]++}].push_back(step);
        }
        for (const auto& [key, steps] : meetings) {
            for (const std::int32_t step : steps) {
                const std::int32_t parties = ops_[at(step)]->barrier_parties;
                const auto coming = static_cast<std::int32_t>(steps.size());
                if (parties == coming) continue;
                return fail(step, fmt::format("{}: barrier {} is for {} threadblocks, and {} come to it",
                                              parties > coming
                                                  ? "waits for ever"
                                                  : "may wait for ever, as who meets whom is not certain",
                                              std::get<1>(key), parties, coming));
            }
            const auto hub = static_cast<std::int32_t>(schedule_.steps.size());
            Step meeting = schedule_.steps[at(steps.front())];
            meeting.worker = workers_++;
            schedule_.steps.push_back(std::move(meeting));
            for (const std::int32_t step : steps) {
                schedule_.edges.push_back({hub, step});
                if (step > 0 && worker(step - 1) == worker(step)) schedule_.edges.push_back({step - 1, hub});
            }
        }
        return true;
    }

    // ---- data
    // ----------------------------------------------------------------------------------------------------

    bool span(std::int32_t step, const MscclppRef& ref, std::int32_t rank, const MscclppSlice& slice,
              Span& out) {
        const std::int64_t size =
            ref.buffer == Buffer::scratch ? plan_.gpus[at(rank)].scratch : buffers_.chunks(ref.buffer);
        if (ref.index + ref.count > size)
            return fail(step, fmt::format("chunks {} to {} of the {} of rank {}, which has {}", ref.index,
                                          ref.index + ref.count - 1, name_of(ref.buffer), rank, size));
        out = buffers_.span(rank, ref.buffer, ref.index, ref.count);
        const std::int64_t rows = out.rows.size();
        const auto cut = [&](std::int64_t n) {
            return n * (rows / slice.count) + std::min(n, rows % slice.count);
        };
        out.rows = {out.rows.begin + cut(slice.index), out.rows.begin + cut(slice.index + 1)};
        return true;
    }

    bool add(std::int32_t step, std::int32_t phase, const Span& src, const Span& dst, plan::Reduce reduce) {
        const std::int32_t rank = schedule_.steps[at(step)].rank;
        if (src.rows.size() != dst.rows.size())
            return fail(step, "its source and its destination have different numbers of chunks");
        if (src.rank != rank && dst.rank != rank) return fail(step, "moves data between two other ranks");
        if (src.rows.empty()) return true;  // a slice of fewer rows than threadblocks
        if (src.rank == dst.rank && src.tensor == dst.tensor && src.rows.begin < dst.rows.end &&
            dst.rows.begin < src.rows.end)
            return fail(step, "its source and its destination overlap");
        if (static_cast<std::int64_t>(schedule_.moves.size()) >= kMaxMoves)
            return fail(step, fmt::format("makes more than {} transfers", kMaxMoves));
        Move move;
        move.kind = src.rank == dst.rank ? plan::OpKind::local
                    : src.rank == rank   ? plan::OpKind::push
                                         : plan::OpKind::pull;
        move.src = src;
        move.dst = dst;
        move.read = move.written = {step, phase};
        move.reduce = reduce;
        schedule_.moves.push_back(move);
        return true;
    }

    bool move(std::int32_t step, const MscclppOp& op) {
        switch (op.verb->data) {
            case MscclppData::none: return true;
            case MscclppData::pairwise: return move_pairs(step, op);
            case MscclppData::reduce: return move_reduction(step, op);
            case MscclppData::multicast_reduce:
            case MscclppData::multicast_load: return move_multicast_reduction(step, op);
            case MscclppData::multicast_store: return move_multicast(step, op);
        }
        return true;
    }

    bool spans(std::int32_t step, const MscclppOp& op, std::vector<Span>& src, std::vector<Span>& dst) {
        const std::int32_t rank = schedule_.steps[at(step)].rank;
        for (const auto& [refs, out] : {std::pair{&op.src, &src}, std::pair{&op.dst, &dst}}) {
            for (const MscclppRef& ref : *refs) {
                if (ref.group >= 0)
                    return fail(step, fmt::format("{} does not use multicast channels", op.verb->name));
                if (!span(step, ref, ref.rank, op.slice, out->emplace_back())) return false;
            }
        }
        if (src.empty() || dst.empty())
            return fail(step, fmt::format("{} needs a source and a destination", op.verb->name));
        const auto remote = [&](const Span& s) { return s.rank != rank; };
        const auto after_first = [&](std::vector<Span>& list) {
            return list.begin() + (op.verb->data == MscclppData::reduce ? 1 : 0);
        };
        if (std::any_of(src.begin(), op.verb->remote_src ? after_first(src) : src.end(), remote))
            return fail(step, fmt::format("{} does not read other ranks there", op.verb->name));
        if (std::any_of(dst.begin(), op.verb->remote_dst ? after_first(dst) : dst.end(), remote))
            return fail(step, fmt::format("{} does not write other ranks there", op.verb->name));
        return true;
    }

    bool move_pairs(std::int32_t step, const MscclppOp& op) {
        std::vector<Span> src;
        std::vector<Span> dst;
        if (!spans(step, op, src, dst)) return false;
        if (src.size() != dst.size() && src.size() != 1)
            return fail(step, fmt::format("has {} sources and {} destinations", src.size(), dst.size()));
        for (std::size_t k = 0; k < dst.size(); ++k) {
            const Span& from = src[src.size() == 1 ? 0 : k];
            if (from == dst[k]) continue;  // in place, the same chunk by its two names
            if (!add(step, kPrepare, from, dst[k], plan::Reduce::none)) return false;
        }
        if (op.verb->packets_read) note_packets(packet_reads_, step, src);
        if (op.verb->packets_written) note_packets(packet_writes_, step, dst);
        return true;
    }

    bool move_reduction(std::int32_t step, const MscclppOp& op) {
        std::vector<Span> src;
        std::vector<Span> dst;
        if (!spans(step, op, src, dst)) return false;
        // The result gathers in dst[0]: what is already there stays, or else the first source is put there.
        auto base = std::find(src.begin(), src.end(), dst.front());
        const bool in_place = base != src.end();
        if (!in_place) base = src.begin();
        if (!in_place && !add(step, kPrepare, *base, dst.front(), plan::Reduce::none)) return false;
        const plan::Reduce how = op.reduces_max ? plan::Reduce::max : plan::Reduce::sum;
        for (auto other = src.begin(); other != src.end(); ++other) {
            if (other != base && !add(step, kAdd, *other, dst.front(), how)) return false;
        }
        for (std::size_t k = 1; k < dst.size(); ++k) {
            if (!add(step, kPassOn, dst.front(), dst[k], plan::Reduce::none)) return false;
        }
        if (op.verb->packets_read) note_packets(packet_reads_, step, {src.begin() + 1, src.end()});
        if (op.verb->packets_written) note_packets(packet_writes_, step, {dst.begin() + 1, dst.end()});
        return true;
    }

    /// The ranks of the multicast group that both refs name, and that the op's rank is in.
    const std::vector<std::int32_t>* group(std::int32_t step, const MscclppRef& ref) {
        const std::int32_t rank = schedule_.steps[at(step)].rank;
        if (ref.group < 0) {
            fail(step, "needs a multicast channel (\"switch_channel_id\")");
            return nullptr;
        }
        const auto& ranks = plan_.groups[at(ref.group)];
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
            fail(step, "uses a multicast channel to a group that its rank is not in");
            return nullptr;
        }
        return &ranks;
    }

    bool move_multicast_reduction(std::int32_t step, const MscclppOp& op) {
        const std::int32_t rank = schedule_.steps[at(step)].rank;
        if (op.src.size() != 1 || op.dst.size() != 1)
            return fail(step, "needs one source and one destination");
        const bool loads = op.verb->data == MscclppData::multicast_load;
        if (loads && op.dst[0].group >= 0) return fail(step, "needs a local destination");
        const auto* const from = group(step, op.src[0]);
        const auto* const to = from == nullptr || loads ? from : group(step, op.dst[0]);
        if (to == nullptr) return false;
        Span mine;
        Span sum;
        if (!span(step, op.src[0], rank, op.slice, mine) || !span(step, op.dst[0], rank, op.slice, sum))
            return false;
        if (!(mine == sum) && !add(step, kPrepare, mine, sum, plan::Reduce::none)) return false;
        const plan::Reduce how = op.reduces_max ? plan::Reduce::max : plan::Reduce::sum;
        for (const std::int32_t peer : *from) {
            Span other;
            if (peer == rank) continue;
            if (!span(step, op.src[0], peer, op.slice, other) || !add(step, kAdd, other, sum, how))
                return false;
        }
        ++multicasts_;
        return loads || store(step, op, sum, *to);
    }

    bool move_multicast(std::int32_t step, const MscclppOp& op) {
        const std::int32_t rank = schedule_.steps[at(step)].rank;
        if (op.src.size() != 1 || op.dst.size() != 1)
            return fail(step, "needs one source and one destination");
        if (op.src[0].group >= 0) return fail(step, "needs a local source");
        const auto* const to = group(step, op.dst[0]);
        Span mine;
        if (to == nullptr || !span(step, op.src[0], rank, op.slice, mine)) return false;
        ++multicasts_;
        return store(step, op, mine, *to);
    }

    /// `from` to the destination of every rank of a group.
    bool store(std::int32_t step, const MscclppOp& op, const Span& from,
               const std::vector<std::int32_t>& ranks) {
        std::vector<Span> stored;
        for (const std::int32_t peer : ranks) {
            Span& to = stored.emplace_back();
            if (!span(step, op.dst[0], peer, op.slice, to)) return false;
            if (!(to == from) && !add(step, kPassOn, from, to, plan::Reduce::none)) return false;
        }
        if (op.verb->packets_written) note_packets(packet_writes_, step, stored);
        return true;
    }

    // ---- packets
    // -------------------------------------------------------------------------------------------------

    struct PacketTouch {
        std::int32_t step;
        Span span;
    };

    static void note_packets(std::vector<PacketTouch>& list, std::int32_t step,
                             const std::vector<Span>& spans) {
        for (const Span& span : spans) {
            if (!span.rows.empty()) list.push_back({step, span});
        }
    }

    /// A reader of packets waits until they have come. It knows them by a flag that is the same for the whole
    /// call, so only where each is written once does that order anything.
    bool deliver_packets() {
        struct Packets {
            std::int64_t end;
            std::int32_t writer;  ///< -1: more than one
        };
        std::map<std::pair<std::int32_t, std::int32_t>, std::map<std::int64_t, Packets>> memories;
        const auto split = [](std::map<std::int64_t, Packets>& runs, std::int64_t row) {
            auto at = runs.upper_bound(row);
            if (at == runs.begin()) return;
            --at;
            if (at->first == row || at->second.end <= row) return;
            const Packets rest = at->second;
            at->second.end = row;
            runs[row] = rest;
        };
        for (const PacketTouch& write : packet_writes_) {
            auto& runs = memories[{write.span.rank, write.span.tensor}];
            const plan::Interval rows = write.span.rows;
            split(runs, rows.begin);
            split(runs, rows.end);
            std::int64_t row = rows.begin;
            for (auto at = runs.lower_bound(row); row < rows.end;) {
                if (!count_work(write.step)) return false;
                if (at == runs.end() || at->first > row) {
                    const std::int64_t end = at == runs.end() ? rows.end : std::min(at->first, rows.end);
                    at = runs.emplace_hint(at, row, Packets{end, write.step});
                } else {
                    at->second.writer = -1;
                }
                row = at->second.end;
                ++at;
            }
        }
        for (const PacketTouch& read : packet_reads_) {
            const auto& runs = memories[{read.span.rank, read.span.tensor}];
            auto at = runs.upper_bound(read.span.rows.begin);
            if (at != runs.begin() && std::prev(at)->second.end > read.span.rows.begin) --at;
            std::int64_t row = read.span.rows.begin;
            std::int32_t last = -1;
            for (; row < read.span.rows.end; row = at->second.end, ++at) {
                if (!count_work(read.step)) return false;
                if (at == runs.end() || at->first > row) {
                    return fail(
                        read.step,
                        fmt::format("waits for ever for packets that nothing writes, in chunk {} of scratch",
                                    row / buffers_.rows_per_chunk()));
                }
                if (at->second.writer >= 0 && at->second.writer != last)
                    schedule_.edges.push_back({at->second.writer, read.step});
                last = at->second.writer;
            }
        }
        return true;
    }

    const MscclppPlan& plan_;
    const Buffers& buffers_;
    const std::string& file_name_;
    std::vector<std::string>& warnings_;
    Schedule schedule_;
    std::vector<const MscclppOp*> ops_;      ///< by step
    std::vector<std::vector<Use>> signals_;  ///< by counter, in the order of steps
    std::vector<std::vector<Use>> waits_;    ///< by counter
    std::vector<PacketTouch> packet_reads_;
    std::vector<PacketTouch> packet_writes_;
    std::int32_t workers_ = 0;
    std::int64_t work_ = 0;
    std::size_t multicasts_ = 0;
    std::optional<Error> error_;
};

}  // namespace

Result<Schedule> mscclpp_schedule(const MscclppPlan& plan, const Buffers& buffers,
                                  const std::string& file_name, std::vector<std::string>& warnings) {
    return Builder(plan, buffers, file_name, warnings).run();
}

}  // namespace syncopate::ingest

#include "syncopate/runtime/host/host_streams.hpp"

#include <algorithm>
#include <utility>

#include "runtime/host/host_channel.hpp"
#include "syncopate/emit/table.hpp"

namespace syncopate::runtime {

HostStreams::HostStreams(std::vector<PreparedTransfer> transfers, const fuse::RankSchedule& schedule,
                         HostControl control, HostChannel* channel, std::int64_t max_delay_us,
                         std::uint64_t seed)
    : transfers_(std::move(transfers)),
      control_(control),
      channel_(channel),
      streams_(schedule.num_streams + 1),
      done_(transfers_.size()),
      done_words_(reinterpret_cast<std::uint64_t>(done_.data())) {
    const auto launch_of = [&](std::size_t index) { return schedule.transfers[index].step.launch; };
    for (std::size_t index = 0; index < transfers_.size(); ++index) {
        const fuse::StreamStep& planned = schedule.transfers[index].step;
        if (planned.launch == fuse::Launch::none) {
            if (transfers_[index].collective() != nullptr)
                streams_.back().push_back({.index = index, .awaited = transfers_[index].waits});
            continue;
        }
        const bool sums = planned.launch == fuse::Launch::sums;
        std::vector<Step>& stream = streams_[planned.stream];
        // Those before the kernel come first, whatever copies stand before them in the list.
        const auto place =
            planned.launch == fuse::Launch::before
                ? std::ranges::find_if(
                      stream,
                      [&](const Step& other) { return launch_of(other.index) != fuse::Launch::before; })
                : stream.end();
        Step& step = *stream.emplace(place);
        step.index = index;
        step.after = planned.after;
        step.awaited = planned.awaited;
        for (const std::int32_t chunk : planned.gates) {
            const std::int32_t gate =
                emit::counter_of(schedule, chunk) + emit::control::gate + (sums ? 1 : 0);
            const std::size_t count = schedule.chunks[static_cast<std::size_t>(chunk)].counting.size();
            step.gates.push_back({gate, static_cast<std::uint32_t>(count), false});
        }
        if (planned.relay >= 0) step.gates.push_back({emit::relay_gate_of(schedule, planned.relay), 0, true});
    }
    std::erase_if(streams_, [](const std::vector<Step>& steps) { return steps.empty(); });
    if (streams_.empty()) return;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream)
        movers_.emplace_back(control, max_delay_us, seed * 31 + stream);
    workers_.make(streams_.size(), [this](std::size_t stream, std::uint32_t epoch) { run(stream, epoch); });
}

PreparedSum* HostStreams::sum_of(std::size_t index) {
    PreparedTransfer& transfer = transfers_.at(index);
    return transfer.executor == Executor::streams ? transfer.sum() : nullptr;
}

bool HostStreams::set_copies(std::size_t index, std::vector<StridedCopy> copies) {
    PreparedTransfer& transfer = transfers_.at(index);
    return transfer.executor == Executor::streams && transfer.set_copies(std::move(copies));
}

void HostStreams::run(std::size_t stream, std::uint32_t epoch) {
    std::vector<HostChannel::Side> round;
    for (const Step& step : streams_[stream]) {
        const std::int32_t where = emit::control::at_transfer(static_cast<std::int64_t>(step.index));
        const bool free =
            std::ranges::all_of(step.after, [&](std::size_t other) { return follow(other, epoch); }) &&
            std::ranges::all_of(step.gates, [this](const Gate& gate) { return pass(gate); }) &&
            std::ranges::all_of(step.awaited,
                                [&](const fuse::Wait& wait) { return control_.wait(wait, epoch, where); });
        if (!free) return;
        if (const PreparedSide* const side = transfers_[step.index].side()) {
            round.push_back({side, step.index});
            if (!side->ends_round) continue;
            movers_[stream].delay();
            if (!channel_->exchange(round, epoch)) return;
        } else {
            round.push_back({nullptr, step.index});
        }
        for (const HostChannel::Side& done : std::exchange(round, {})) {
            movers_[stream].perform(transfers_[done.index], epoch, where);
            done_words_.store(static_cast<std::int32_t>(done.index), epoch);
        }
    }
}

// [P22]
bool HostStreams::pass(const Gate& gate) const {
    if (!control_.until(control_, gate.word, gate.value, gate.relay)) return false;
    control_.store(gate.word, 0);
    return true;
}

bool HostStreams::follow(std::size_t transfer, std::uint32_t epoch) const {
    return control_.until(done_words_, static_cast<std::int32_t>(transfer), epoch);
}

}  // namespace syncopate::runtime

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
    const auto comes_later = [this](std::size_t other) {
        return transfers_[other].step.launch != fuse::Launch::before;
    };
    for (const PreparedTransfer& transfer : transfers_) {
        const fuse::Launch launch = transfer.step.launch;
        if (launch == fuse::Launch::none) {
            if (transfer.collective() != nullptr) streams_.back().push_back(transfer.index);
            continue;
        }
        std::vector<std::size_t>& stream = streams_[transfer.step.stream];
        const bool is_first = launch != fuse::Launch::late && launch != fuse::Launch::sums;
        if (is_first) first_.push_back(transfer.index);
        // Those before the kernel come first, whatever copies stand before them in the list.
        stream.insert(
            launch == fuse::Launch::before ? std::ranges::find_if(stream, comes_later) : stream.end(),
            transfer.index);
    }
    std::erase_if(streams_, [](const std::vector<std::size_t>& stream) { return stream.empty(); });
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
    const fuse::StreamStep& begins = transfers_[streams_[stream].front()].step;
    if (begins.launch == fuse::Launch::late && begins.stream != fuse::kCopies &&
        !std::ranges::all_of(first_, [&](std::size_t other) { return follow(other, epoch); }))
        return;
    for (const std::size_t index : streams_[stream]) {
        const PreparedTransfer& transfer = transfers_[index];
        if (!await(transfer, epoch)) return;
        const PreparedSide* const side = transfer.side();
        round.push_back({side, index});
        if (side != nullptr) {
            if (!side->ends_round) continue;
            movers_[stream].delay();
            if (!channel_->exchange(round, epoch)) return;
        }
        for (const HostChannel::Side& done : std::exchange(round, {})) {
            const std::int32_t where = emit::control::at_transfer(static_cast<std::int64_t>(done.index));
            movers_[stream].perform(transfers_[done.index], epoch, where);
            done_words_.store(static_cast<std::int32_t>(done.index), epoch);
        }
    }
}

bool HostStreams::await(const PreparedTransfer& transfer, std::uint32_t epoch) const {
    const fuse::StreamStep& step = transfer.step;
    const std::int32_t where = emit::control::at_transfer(static_cast<std::int64_t>(transfer.index));
    const bool streams = step.launch != fuse::Launch::none;
    return std::ranges::all_of(step.after, [&](std::size_t other) { return follow(other, epoch); }) &&
           std::ranges::all_of(transfer.gates, [this](const Gate& gate) { return pass(gate); }) &&
           std::ranges::all_of(streams ? step.awaited : transfer.waits,
                               [&](const fuse::Wait& wait) { return control_.wait(wait, epoch, where); });
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

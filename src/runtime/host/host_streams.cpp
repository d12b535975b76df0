#include "syncopate/runtime/host/host_streams.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/emit/table.hpp"

namespace syncopate::runtime {

HostStreams::HostStreams(std::vector<PreparedTransfer> transfers, const fuse::RankSchedule& schedule,
                         HostControl control, std::int64_t max_delay_us, std::uint64_t seed)
    : transfers_(std::move(transfers)),
      control_(control),
      streams_(schedule.num_streams + 1),
      done_(transfers_.size(), false) {
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
    if (std::ranges::all_of(streams_, &std::vector<Step>::empty)) return;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream)
        movers_.emplace_back(control, max_delay_us, seed * 31 + stream);
    for (std::size_t stream = 0; stream < streams_.size(); ++stream)
        threads_.emplace_back([this, stream] { serve(stream); });
}

HostStreams::~HostStreams() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void HostStreams::start(std::uint32_t epoch) {
    if (threads_.empty()) return;
    {
        const std::lock_guard lock(mutex_);
        epoch_ = epoch;
        ++calls_;
        working_ = threads_.size();
        std::fill(done_.begin(), done_.end(), false);
    }
    changed_.notify_all();
}

void HostStreams::join() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return working_ == 0; });
}

PreparedSum* HostStreams::sum_of(std::size_t index) {
    PreparedTransfer& transfer = transfers_.at(index);
    return transfer.executor == Executor::streams ? transfer.sum() : nullptr;
}

bool HostStreams::set_copies(std::size_t index, std::vector<StridedCopy> copies) {
    PreparedTransfer& transfer = transfers_.at(index);
    return transfer.executor == Executor::streams && transfer.set_copies(std::move(copies));
}

void HostStreams::serve(std::size_t stream) {
    std::uint64_t served = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return calls_ > served || leaving_; });
        if (calls_ == served) return;
        served = calls_;
        const std::uint32_t epoch = epoch_;
        lock.unlock();
        run(stream, epoch);
        lock.lock();
        --working_;
        changed_.notify_all();
    }
}

void HostStreams::run(std::size_t stream, std::uint32_t epoch) {
    for (const Step& step : streams_[stream]) {
        const std::int32_t where = emit::control::at_transfer(static_cast<std::int64_t>(step.index));
        const bool free =
            std::ranges::all_of(step.after, [this](std::size_t other) { return follow(other); }) &&
            std::ranges::all_of(step.gates, [this](const Gate& gate) { return pass(gate); }) &&
            std::ranges::all_of(step.awaited,
                                [&](const fuse::Wait& wait) { return control_.wait(wait, epoch, where); });
        if (!free) break;
        movers_[stream].perform(transfers_[step.index], epoch, where);
        const std::lock_guard lock(mutex_);
        done_[step.index] = true;
        changed_.notify_all();
    }
    changed_.notify_all();
}

bool HostStreams::pass(const Gate& gate) const {
    Backoff backoff;
    for (;;) {
        const std::uint32_t seen = control_.load(gate.word);
        if (gate.relay ? seen != 0 : static_cast<std::int32_t>(seen - gate.value) >= 0) break;
        if (control_.faulty()) return false;
        backoff.pause();
    }
    control_.store(gate.word, 0);
    return true;
}

bool HostStreams::follow(std::size_t transfer) {
    Backoff backoff;
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (done_[transfer]) return true;
        }
        if (control_.faulty()) return false;
        backoff.pause();
    }
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/host/host_executor.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"

namespace syncopate::runtime {
namespace {

bool is_elsewhere(const PreparedTransfer& transfer) {
    return transfer.executor != Executor::cpu || transfer.collective() != nullptr;
}

}  // namespace

HostExecutor::HostExecutor(std::vector<PreparedTransfer> transfers, HostControl control,
                           std::int64_t max_delay_us, std::uint64_t seed)
    : transfers_(std::move(transfers)), control_(control), mover_(control, max_delay_us, seed) {
    if (std::ranges::all_of(transfers_, is_elsewhere)) return;
    workers_.make(1, [this](std::size_t, std::uint32_t epoch) { execute(epoch); });
}

PreparedSum* HostExecutor::sum_of(std::size_t index) {
    PreparedTransfer& transfer = transfers_.at(index);
    return is_elsewhere(transfer) ? nullptr : transfer.sum();
}

bool HostExecutor::set_copies(std::size_t index, std::vector<StridedCopy> copies) {
    PreparedTransfer& transfer = transfers_.at(index);
    return !is_elsewhere(transfer) && transfer.set_copies(std::move(copies));
}

void HostExecutor::execute(std::uint32_t epoch) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
        if (!is_elsewhere(transfers_[i])) waiting.push_back(i);
    }
    std::vector<std::size_t> eligible;  // places in `waiting`
    const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
    WaitingClock since_progress;
    Backoff backoff;
    while (!waiting.empty()) {
        if (control_.faulty()) return;
        eligible.clear();
        for (std::size_t place = 0; place < waiting.size(); ++place) {
            const PreparedTransfer& transfer = transfers_[waiting[place]];
            const auto over = [&](const fuse::Wait& wait) { return control_.reached(wait, epoch); };
            if (!std::ranges::all_of(transfer.waits, over)) continue;
            eligible.push_back(place);
            if (!mover_.delays()) break;
        }
        if (eligible.empty()) {
            if (deadline.count() != 0 && since_progress.waited() >= deadline) {
                const PreparedTransfer& stuck = transfers_[waiting.front()];
                for (const fuse::Wait& wait : stuck.waits) {
                    if (control_.reached(wait, epoch)) continue;
                    control_.raise(wait, epoch,
                                   emit::control::at_transfer(static_cast<std::int64_t>(waiting.front())));
                    return;
                }
            }
            backoff.pause();
            continue;
        }
        const std::size_t place = eligible[mover_.delays() ? mover_.draw() % eligible.size() : 0];
        const std::size_t chosen = waiting[place];
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(place));
        if (Turns* const turns =
                Turns::of_thread()) {  // the order in which it takes them is nobody's promise
            turns->apart();
            if (control_.faulty()) return;
            for (const fuse::Wait& wait : transfers_[chosen].waits) (void)control_.passed(wait, epoch);
        }
        mover_.perform(transfers_[chosen], epoch,
                       emit::control::at_transfer(static_cast<std::int64_t>(chosen)));
        since_progress = WaitingClock();
        backoff = Backoff();
    }
}

}  // namespace syncopate::runtime

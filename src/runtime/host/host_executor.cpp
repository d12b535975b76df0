#include "syncopate/runtime/host/host_executor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace syncopate::runtime {
namespace {

bool is_elsewhere(const PreparedTransfer& transfer) {
    return transfer.executor == Executor::engine || transfer.executor == Executor::streams ||
           transfer.collective() != nullptr;
}

}  // namespace

HostExecutor::HostExecutor(std::vector<PreparedTransfer> transfers, HostControl control,
                           std::int64_t max_delay_us, std::uint64_t seed)
    : transfers_(std::move(transfers)), control_(control), mover_(control, max_delay_us, seed) {
    if (!std::ranges::all_of(transfers_, is_elsewhere)) thread_ = std::thread([this] { run(); });
}

HostExecutor::~HostExecutor() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void HostExecutor::start(std::uint32_t epoch) {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        epoch_ = epoch;
        working_ = true;
    }
    changed_.notify_all();
}

void HostExecutor::join() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !working_; });
}

PreparedSum* HostExecutor::sum_of(std::size_t index) {
    PreparedTransfer& transfer = transfers_.at(index);
    return is_elsewhere(transfer) ? nullptr : transfer.sum();
}

bool HostExecutor::set_copies(std::size_t index, std::vector<StridedCopy> copies) {
    PreparedTransfer& transfer = transfers_.at(index);
    return !is_elsewhere(transfer) && transfer.set_copies(std::move(copies));
}

void HostExecutor::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return working_ || leaving_; });
        if (!working_) return;
        const std::uint32_t epoch = epoch_;
        lock.unlock();
        execute(epoch);
        lock.lock();
        working_ = false;
        changed_.notify_all();
    }
}

void HostExecutor::execute(std::uint32_t epoch) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
        if (!is_elsewhere(transfers_[i])) waiting.push_back(i);
    }
    std::vector<std::size_t> eligible;  // places in `waiting`
    const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
    auto progress = std::chrono::steady_clock::now();
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
            const auto now = std::chrono::steady_clock::now();
            if (deadline.count() != 0 && now - progress >= deadline) {
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
        mover_.perform(transfers_[chosen], epoch,
                       emit::control::at_transfer(static_cast<std::int64_t>(chosen)));
        progress = std::chrono::steady_clock::now();
        backoff = Backoff();
    }
}

}  // namespace syncopate::runtime

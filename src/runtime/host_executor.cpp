#include "syncopate/runtime/host_executor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace syncopate::runtime {

HostExecutor::HostExecutor(std::vector<PreparedTransfer> transfers, HostControl control,
                           std::int64_t max_delay_us, std::uint64_t seed)
    : transfers_(std::move(transfers)), control_(control), max_delay_us_(max_delay_us), random_(seed) {
    if (!std::ranges::all_of(transfers_, &PreparedTransfer::by_engine))
        thread_ = std::thread([this] { run(); });
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
    std::optional<PreparedSum>& sum = transfers_.at(index).sum;
    return sum && !transfers_.at(index).by_engine ? &*sum : nullptr;
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
        if (!transfers_[i].by_engine) waiting.push_back(i);
    }
    std::vector<std::size_t> eligible;  // places in `waiting`
    const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
    auto progress = std::chrono::steady_clock::now();
    Backoff backoff;
    while (!waiting.empty()) {
        if (control_.faulty()) return;
        eligible.clear();
        bool stream_taken = false;  // by a transfer that is to go before
        for (std::size_t place = 0; place < waiting.size(); ++place) {
            const PreparedTransfer& transfer = transfers_[waiting[place]];
            if (transfer.in_order && std::exchange(stream_taken, true)) continue;
            const auto over = [&](const fuse::Wait& wait) { return control_.reached(wait, epoch); };
            if (!std::ranges::all_of(transfer.waits, over)) continue;
            eligible.push_back(place);
            if (max_delay_us_ == 0) break;
        }
        if (eligible.empty()) {
            const auto now = std::chrono::steady_clock::now();
            if (deadline.count() != 0 && now - progress >= deadline) {
                const PreparedTransfer& stuck = transfers_[waiting.front()];
                for (const fuse::Wait& wait : stuck.waits) {
                    if (control_.reached(wait, epoch)) continue;
                    control_.raise(wait, epoch, kWhereTransfer - static_cast<std::int32_t>(waiting.front()));
                    return;
                }
            }
            backoff.pause();
            continue;
        }
        const std::size_t place = eligible[max_delay_us_ == 0 ? 0 : random_() % eligible.size()];
        const std::size_t chosen = waiting[place];
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(place));
        perform(transfers_[chosen], epoch);
        progress = std::chrono::steady_clock::now();
        backoff = Backoff();
    }
}

void HostExecutor::perform(const PreparedTransfer& transfer, std::uint32_t epoch) {
    delay();
    if (transfer.sum) sum_on_host(*transfer.sum);
    for (const StridedCopy& copy : transfer.copies) {
        if (max_delay_us_ == 0 || copy.height < 2) {
            copy_on_host(copy);
            continue;
        }
        // The lower rows first, then the upper ones: a reader that does not wait sees a torn chunk.
        const std::uint64_t cut = 1 + random_() % (copy.height - 1);
        StridedCopy part = copy;
        part.height = copy.height - cut;
        part.src += cut * copy.src_pitch;
        part.dst += cut * copy.dst_pitch;
        copy_on_host(part);
        delay();
        part = copy;
        part.height = cut;
        copy_on_host(part);
    }
    delay();
    if (control_.faulty()) return;  // after a fault nothing more is posted
    for (const std::uint64_t word : transfer.post_words) {
        std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(word))
            .store(epoch, std::memory_order_release);
    }
}

void HostExecutor::delay() {
    if (max_delay_us_ <= 0) return;
    // Most pauses are short, some are long: that is how machines stall.
    const auto longest = static_cast<std::uint64_t>(
        random_() % 8 == 0 ? max_delay_us_ : std::max<std::int64_t>(max_delay_us_ / 8, 1));
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % (longest + 1)));
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/host/host_workers.hpp"

#include <utility>

#include "runtime/signals/turns.hpp"

namespace syncopate::runtime {

HostWorkers::~HostWorkers() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void HostWorkers::make(std::size_t count, Work work) {
    work_ = std::move(work);
    count_ = count;
}

void HostWorkers::start(std::uint32_t epoch) {
    if (Turns* const turns = Turns::of_thread()) {
        for (std::size_t worker = 0; worker < count_; ++worker)
            turns->start(this, [this, worker, epoch] { work_(worker, epoch); });
        return;
    }
    while (threads_.size() < count_)
        threads_.emplace_back([this, worker = threads_.size(), served = calls_] { serve(worker, served); });
    {
        const std::lock_guard lock(mutex_);
        epoch_ = epoch;
        ++calls_;
        working_ = threads_.size();
    }
    changed_.notify_all();
}

void HostWorkers::join() {
    if (Turns* const turns = Turns::of_thread()) return turns->join(this);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return working_ == 0; });
}

void HostWorkers::serve(std::size_t worker, std::uint64_t served) {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return calls_ > served || leaving_; });
        if (calls_ == served) return;
        served = calls_;
        const std::uint32_t epoch = epoch_;
        lock.unlock();
        work_(worker, epoch);
        lock.lock();
        --working_;
        changed_.notify_all();
    }
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/host/host_workers.hpp"

#include <utility>

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
    for (std::size_t worker = 0; worker < count; ++worker)
        threads_.emplace_back([this, worker] { serve(worker); });
}

void HostWorkers::start(std::uint32_t epoch) {
    {
        const std::lock_guard lock(mutex_);
        epoch_ = epoch;
        ++calls_;
        working_ = threads_.size();
    }
    changed_.notify_all();
}

void HostWorkers::join() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return working_ == 0; });
}

void HostWorkers::serve(std::size_t worker) {
    std::uint64_t served = 0;
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

// Threads that serve one call after another: what the executors of device host have in common.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace syncopate::runtime {

/// Its owner holds it behind all that `work` uses, so that it is destroyed, and joined, first.
class HostWorkers {
public:
    /// What worker `worker` does in call `epoch`. It must not throw.
    using Work = std::function<void(std::size_t worker, std::uint32_t epoch)>;

    HostWorkers() = default;
    ~HostWorkers();  ///< waits for the call in progress, if any
    HostWorkers(const HostWorkers&) = delete;
    HostWorkers& operator=(const HostWorkers&) = delete;

    /// Of `count` workers. Once. Their threads begin with the first call.
    void make(std::size_t count, Work work);
    /// Starts call `epoch`, which sees all that the caller did before. The call before must have been joined.
    void start(std::uint32_t epoch);
    /// Returns when every worker has done its part of the call.
    void join();

private:
    void serve(std::size_t worker, std::uint64_t served);

    Work work_;
    std::size_t count_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint32_t epoch_ = 0;
    std::uint64_t calls_ = 0;
    std::size_t working_ = 0;
    bool leaving_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace syncopate::runtime

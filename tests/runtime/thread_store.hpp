// A store through which the ranks of one process meet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime::testing {

class ThreadStore {
public:
    void set(const std::string& key, const Bytes& value) {
        {
            const std::lock_guard lock(mutex_);
            values_[key] = value;
        }
        changed_.notify_all();
    }
    Bytes set_first(const std::string& key, const Bytes& value) {
        const std::lock_guard lock(mutex_);
        changed_.notify_all();
        return values_.try_emplace(key, value).first->second;
    }
    bool wait(const std::string& key, std::int64_t timeout_ms) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                 [&] { return values_.contains(key); });
    }
    Bytes get(const std::string& key) {
        const std::lock_guard lock(mutex_);
        return values_.at(key);
    }

    /// Of which the store must not end before.
    std::shared_ptr<Rendezvous> rendezvous(int rank, int size) {
        return std::make_shared<CallbackRendezvous>(
            rank, size, [this](const std::string& key, const Bytes& value) { set(key, value); },
            [this](const std::string& key, Milliseconds timeout) {
                if (!wait(key, timeout.count())) throw std::runtime_error("nothing at " + key);
                return get(key);
            },
            [this](const std::string& key, const Bytes& value) { return set_first(key, value); });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, Bytes> values_;
};

}  // namespace syncopate::runtime::testing

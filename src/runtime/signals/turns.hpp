// The seam at which a test decides which thread of device host goes on (tests/explore/): then all run on one thread, by
// turns, and what each awaits, tells and touches is known. Else of_thread() is null, and threads are threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace syncopate::runtime {

struct StridedCopy;

class Turns {
public:
    using Clock = std::chrono::steady_clock;

    Turns() = default;
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;
    virtual ~Turns() = default;

    /// In place of a thread of `owner` that does `work`.
    virtual void start(const void* owner, std::function<void()> work) = 0;
    virtual void join(const void* owner) = 0;
    /// What this one awaits has not come.
    virtual void pause() = 0;
    virtual void sleep(std::chrono::microseconds time) = 0;
    virtual Clock::time_point now() = 0;

    /// The word has reached `value`, or, of `any`, is not 0: a wait is over.
    virtual void awaited(const std::uint32_t* word, std::uint32_t value, bool any) = 0;
    /// Before it looks whether its rank has a fault, or (`awaits`) waits for what only that ends early: whether it is to
    /// find that it has. `fault`: the rank's word for it.
    virtual bool finds_fault(std::uint32_t* fault, bool awaits) = 0;
    /// What follows awaits nothing of what this one has done before.
    virtual void apart() = 0;
    /// Before it is done: a word is set, or added to; bytes are read or written, all that follows in one go with them.
    virtual void store(const std::uint32_t* word, std::uint32_t value) = 0;
    virtual void add(const std::uint32_t* word, std::uint32_t value) = 0;
    virtual void read(std::uint64_t address, std::uint64_t bytes) = 0;
    virtual void write(std::uint64_t address, std::uint64_t bytes) = 0;
    void copy(const StridedCopy& copy);

    [[nodiscard]] static Turns*& of_thread() {
        static thread_local Turns* turns = nullptr;
        return turns;
    }
};

/// The time by which threads of the host wait.
inline Turns::Clock::time_point now_on_host() {
    Turns* const turns = Turns::of_thread();
    return turns != nullptr ? turns->now() : Turns::Clock::now();
}

/// Lets this thread do nothing for so long.
inline void sleep_on_host(std::chrono::microseconds time) {
    if (Turns* const turns = Turns::of_thread()) return turns->sleep(time);
    std::this_thread::sleep_for(time);
}

}  // namespace syncopate::runtime

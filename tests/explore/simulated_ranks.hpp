// Ranks that run by turns: what would be threads of device host, in several processes, are fibers of one thread, and a
// seed decides which goes on (the way FoundationDB is tested). The executors are the library's own; this is the
// runtime's seam (runtime/signals/turns.hpp) for tests. The clock is simulated: it moves when everybody waits.
#pragma once

#include <ucontext.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "runtime/signals/turns.hpp"

namespace syncopate::explore {

/// What one fiber does that others can notice, in the order in which it happens.
struct Event {
    enum class Kind : std::uint8_t { start, join, awaited, apart, look, store, add, count, read, write };
    Kind kind = Kind::store;
    int fiber = 0;
    std::uint64_t address = 0;  ///< of a word, or of bytes; of start: the other fiber; of join: the owner
    std::uint64_t value = 0;    ///< of a word, or how many bytes; of count: the target; of start: the owner
    bool any =
        false;  ///< awaited: not 0 is enough; count: who reaches the target sets the word to 0; look: awaits
    std::vector<std::uint64_t> posts{};  ///< count: words that are then set to `epoch`
    std::uint32_t epoch = 0;
};

struct SimulationOptions {
    std::uint64_t seed = 0;
    /// Each goes on until it waits, and nobody's turn is drawn: to record what a call does.
    bool in_order = false;
};

class SimulatedRanks final : public runtime::Turns {
public:
    explicit SimulatedRanks(const SimulationOptions& options) : options_(options), random_(options.seed) {}
    ~SimulatedRanks() override;

    /// The main thread of a rank; to be called before run().
    void add_rank(std::function<void()> work);
    /// Until all ranks' main threads have ended, or died. False: nobody could go on, for an hour of simulated time.
    [[nodiscard]] bool run();

    /// From its next turn on the rank does nothing any more, as after SIGKILL; or for some time, as after SIGSTOP.
    void kill(int rank) { stopped_[static_cast<std::size_t>(rank)] = Clock::time_point::max(); }
    void stop(int rank, std::chrono::milliseconds time) {
        auto& until = stopped_[static_cast<std::size_t>(rank)];
        if (until != Clock::time_point::max()) until = now_ + time;
    }
    /// Lets those who were killed run to their end, where all that they wait for has failed.
    [[nodiscard]] bool bury();
    [[nodiscard]] bool is_dead(int rank) const {
        return stopped_[static_cast<std::size_t>(rank)] == Clock::time_point::max();
    }
    /// What somebody waits for (pause()) may have come, of which nobody is told.
    void changed() { ++changes_; }
    /// The rank whose turn it is.
    [[nodiscard]] int rank() const { return current_->rank; }
    [[nodiscard]] std::uint64_t turns() const { return turns_; }
    /// Called at each turn, before who goes on is drawn.
    std::function<void()> each_turn{};
    /// Told of all that happens.
    std::function<void(const Event&)> observer{};
    /// Asked at each look at a rank's fault: the fault that it is to find, or 0.
    std::function<std::uint32_t(const Event&)> strikes{};

    /// Adds 1 to a word; who reaches `target` may set it back to 0, and posts. In one go.
    void count(std::uint32_t* word, std::uint32_t target, bool reset, const std::vector<std::uint64_t>& posts,
               std::uint32_t epoch);

    void start(const void* owner, std::function<void()> work) override;
    void join(const void* owner) override;
    void pause() override;
    void sleep(std::chrono::microseconds time) override;
    Clock::time_point now() override { return now_; }
    void awaited(const std::uint32_t* word, std::uint32_t value, bool any) override;
    bool finds_fault(std::uint32_t* fault, bool awaits) override;
    void apart() override;
    void store(const std::uint32_t* word, std::uint32_t value) override;
    void add(const std::uint32_t* word, std::uint32_t value) override;
    void read(std::uint64_t address, std::uint64_t bytes) override;
    void write(std::uint64_t address, std::uint64_t bytes) override;

private:
    struct Fiber {
        int id = 0;
        int rank = 0;
        const void* owner = nullptr;
        std::function<void()> work;
        std::unique_ptr<std::byte[]> stack;
        ucontext_t context{};
        bool paused = false;
        std::uint64_t seen = 0;  ///< what had changed when it began to wait
        Clock::time_point wake{};
        std::uint64_t priority = 0;
        bool touching = false;  ///< reads and writes that follow are one step
    };

    static void enter(unsigned low, unsigned high);
    void make(int rank, const void* owner, std::function<void()> work);
    [[nodiscard]] bool loop();
    [[nodiscard]] Fiber* draw();
    [[nodiscard]] bool advance();
    void leave();
    void step();
    void tell(Event event);
    void touch(Event::Kind kind, std::uint64_t address, std::uint64_t bytes);

    SimulationOptions options_;
    std::mt19937_64 random_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::vector<std::unique_ptr<std::byte[]>> stacks_;  ///< that nobody uses
    std::vector<Clock::time_point> stopped_;            ///< by rank: until when
    std::vector<Fiber*> able_;
    ucontext_t home_{};
    Fiber* current_ = nullptr;
    Clock::time_point now_{};
    Clock::time_point progress_{};  ///< when something last changed
    std::uint64_t changes_ = 1;
    std::uint64_t turns_ = 0;
    int next_id_ = 0;
    bool burying_ = false;
};

}  // namespace syncopate::explore

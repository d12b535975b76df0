// Finds that the ranks of a group call different ops, which then wait for each other: long before a deadline.
// What is looked at are the numbers of calls that each rank has begun of each op (call_board.hpp); no call
// does anything for it.
//
//   in a meeting   rank 0 comes to set something up, and rank 1 has begun a call of a known op that rank 0
//                  has not begun, and has not come: it never will. Looked for by the rank in the meeting.
//   in calls       rank 0 has begun a call of op A that rank 1 has not begun, and rank 1 one of op B that
//                  rank 0 has not begun, and neither goes on for a while. Looked for by a thread of each rank.
//
// Who finds it says so on the ops' boards, with what each rank calls, and makes it the fault of these ops on
// all ranks: the waits end, in kernels as well, and every rank's error is the same.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/call/call_board.hpp"
#include "runtime/call/call_executor.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

/// An op as the watch sees it. It is watched as long as it lives.
struct WatchedOp {
    std::string what;  ///< in messages
    std::unique_ptr<CallBoard> board;
    CallExecutor* executor = nullptr;
    std::atomic<bool> differs{false};  ///< something was declared of it; seen here a tick later
};

class CallWatch final : public MeetingWatch {
public:
    /// The watch of a rendezvous; made where it has none.
    static std::shared_ptr<CallWatch> of(Rendezvous& rendezvous);
    ~CallWatch() override;

    void add(WatchedOp& op);
    void remove(WatchedOp& op);
    /// What was declared of the op, for an error on this rank, if anything was: it is not told again.
    std::string tell(const WatchedOp& op);

    Status look(const Came& came) override;
    std::uint32_t told() const override { return told_; }

private:
    /// One op ahead on this rank, another one on another rank.
    struct Crossing {
        std::size_t mine = 0;
        std::size_t theirs = 0;
        int rank = 0;
        std::uint32_t begun_mine = 0;
        std::uint32_t begun_theirs = 0;
        bool asked = false;  ///< one of the calls that have not begun has been asked for
        bool operator==(const Crossing&) const = default;
    };

    /// Calls that a rank has begun and this one has not, and what to say of all that it calls.
    struct Calls {
        std::vector<WatchedOp*> ops;
        std::string doing;
    };

    void run(const std::stop_token& stop);
    void tick();
    void publish();
    [[nodiscard]] std::optional<Crossing> crossing(bool asked) const;
    [[nodiscard]] std::optional<Error> declared();
    /// Of each rank, once this rank's device has begun all that it was given; nullopt: nobody is ahead.
    [[nodiscard]] std::optional<std::vector<Calls>> calls_ahead();
    /// Ops of which `rank` has begun a call that this rank has not.
    [[nodiscard]] std::vector<WatchedOp*> ahead(int rank) const;
    /// "calls op 'a' (…)": ops of which the rank is ahead of some other one.
    [[nodiscard]] std::string doing(int rank) const;
    void declare(const std::vector<WatchedOp*>& ops, const std::string& text);

    std::mutex mutex_;
    std::unique_ptr<std::condition_variable_any> changed_ = std::make_unique<std::condition_variable_any>();
    std::vector<WatchedOp*> ops_;
    std::atomic<std::uint32_t> told_{0};  ///< the last event that this rank's caller knows
    std::optional<Crossing> seen_;
    int ticks_ = 0;  ///< for which `seen_` has been so
    /// Since when a meeting has seen a rank ahead that had not come.
    std::optional<std::chrono::steady_clock::time_point> suspected_;
    std::uint32_t forks_;
    std::unique_ptr<std::jthread> thread_;
};

}  // namespace syncopate::runtime

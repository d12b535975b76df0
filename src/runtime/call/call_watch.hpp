// Finds that the ranks of a group call different ops, which then wait for each other: long before a deadline.
// What is looked at are the numbers of calls that each rank has begun of each op (call_board.hpp).
//
//   in a meeting   rank 0 comes to set something up, and rank 1 has begun a call of a known op that rank 0
//                  has not begun, and has not come: it never will. Looked for by the rank in the meeting.
//   in calls       rank 0 has begun a call of op A that rank 1 has not begun, and rank 1 one of op B that
//                  rank 0 has not begun, and neither goes on for a while. Looked for by a thread of each rank.
//
// Who finds it makes it an event of the group (call_events.hpp), which says what each rank calls [P33]. Each rank's
// caller is told of it once, by its call in progress, its next one, or its next meeting, whatever that is.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/call/call_board.hpp"
#include "runtime/call/call_events.hpp"
#include "runtime/call/call_executor.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

/// An op as the watch sees it. It is watched as long as it lives.
struct WatchedOp {
    std::string what;  ///< in messages
    CallBoard board;
    CallExecutor* executor = nullptr;
    bool on_host = false;  ///< all its calls are asked for, none is replayed
};

class CallWatch final : public MeetingWatch {
public:
    /// `first_rank`: of the node whose ranks the events are of, for messages; they are numbered from 0 here.
    CallWatch(CallEvents events, int first_rank) : events_(std::move(events)), first_rank_(first_rank) {}
    ~CallWatch() override;

    void add(WatchedOp& op);
    /// With the last op its thread ends.
    void remove(WatchedOp& op);
    /// Counts a call that this rank's program asks for; an error, and it is not counted, where there is an event that
    /// the program has not been told of, or that ended the op.
    Status count_call(WatchedOp& op);
    /// What ended the op, for an error on this rank, if anything did: it is not told again.
    std::optional<Error> tell(const WatchedOp& op);

    /// Whether what ended the op, if anything did, is known to this rank's caller.
    [[nodiscard]] bool has_told(const WatchedOp& op) const;
    /// Until all ranks have asked for the call of the op that this rank has made [P27], or the op has failed; an error of
    /// class usage where they call something else, of class machine where `timeout` (0: none) has passed.
    Status await_others(const WatchedOp& op, std::chrono::milliseconds timeout);

    Status enter() override;
    Status look(const Came& came, bool labels_differ, bool failed) override;
    std::uint32_t told() const override { return told_; }
    bool has_ended(int rank) const override { return events_.has_ended(rank); }

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

    void run(const std::stop_token& stop);
    void tick();
    void give_up_on_ended();
    void publish();
    [[nodiscard]] std::optional<Crossing> crossing(bool asked) const;
    /// An event that this rank's caller has not been told of, and now is.
    [[nodiscard]] std::optional<Error> unheard();
    /// Of each rank what it is in the middle of, or "", once this rank's device has begun all that it was given.
    [[nodiscard]] std::vector<std::string> calls_ahead();
    /// Whether `rank` has begun a call that this rank has not.
    [[nodiscard]] bool is_ahead_of_this(int rank) const;
    /// "calls op 'a' (…)": ops of which the rank is ahead of some other one.
    [[nodiscard]] std::string doing(int rank) const;
    /// Of an op that a rank comes to close, where another rank is in a call that it has not made: how many it has made.
    [[nodiscard]] std::string left_out(std::string_view what, int closing);
    /// Makes it the next event, if no other rank has, which ends the ops whose calls `is_apart` says to differ.
    void declare(const std::string& text, const std::function<bool(const CallBoard&)>& is_apart);

    CallEvents events_;
    int first_rank_;
    std::mutex mutex_;
    std::unique_ptr<std::condition_variable_any> changed_ = std::make_unique<std::condition_variable_any>();
    std::vector<WatchedOp*> ops_;
    std::atomic<std::uint32_t> told_{0};  ///< the last event that this rank's caller knows
    std::optional<Crossing> seen_;
    int ticks_ = 0;  ///< for which `seen_` has been so
    int looks_ = 0;
    /// Since when a meeting has seen a rank ahead that had not come.
    std::optional<std::chrono::steady_clock::time_point> suspected_;
    std::uint32_t forks_;
    std::unique_ptr<std::jthread> thread_;
};

}  // namespace syncopate::runtime

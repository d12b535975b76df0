#include "runtime/call/call_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "runtime/heap/process.hpp"
#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/signals/fault.hpp"

namespace syncopate::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};
/// Threads of a rank may call in another order than those of another one: that passes.
constexpr std::chrono::milliseconds kToPass{1000};
/// Who neither has come nor is in a call is waited for, to be named, too.
constexpr std::chrono::milliseconds kToBeNamed{5000};
/// Ops on several streams may begin in another order on another rank, each behind other work: that passes.
constexpr int kTicksOfACrossing = 15;
/// Calls that were asked for may be behind long work. They may also have been asked for into a graph.
constexpr int kTicksOfAskedCalls = 100;
constexpr int kTicksToLookForEnded = 10;
constexpr std::chrono::microseconds kMoment{100};
constexpr std::string_view kCalls = " calls ";
constexpr std::string_view kClose = "close of ";
constexpr const char* kDiffer = "the ranks' calls differ: ";

}  // namespace

CallWatch::~CallWatch() {
    if (thread_ == nullptr || forks() == forks_) return;
    // A forked child has no such thread to join, nor one that ever leaves the condition.
    std::ignore = thread_.release();
    std::ignore = changed_.release();
}

void CallWatch::add(WatchedOp& op) {
    const std::lock_guard lock(mutex_);
    ops_.push_back(&op);
    if (thread_ != nullptr) return;
    forks_ = forks();
    thread_ = std::make_unique<std::jthread>([this](const std::stop_token& stop) { run(stop); });
}

void CallWatch::remove(WatchedOp& op) {
    std::unique_ptr<std::jthread> idle;  // ends without the lock, for which it may wait
    const std::lock_guard lock(mutex_);
    std::erase(ops_, &op);
    seen_.reset();
    if (ops_.empty()) idle = std::move(thread_);
}

Status CallWatch::count_call(WatchedOp& op) {
    op.board.add_call();
    if (events_.count() == told_ && op.board.ended_by() == 0) return Done{};
    events_.settle();
    op.board.take_back_call();
    if (std::optional<Error> ended = tell(op)) return *ended;
    {
        const std::lock_guard lock(mutex_);
        if (const std::optional<Error> event = unheard()) return *event;
    }
    return count_call(op);  // another thread has been told meanwhile
}

void CallWatch::run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        tick();
        (void)changed_->wait_for(lock, stop, kTick, [] { return false; });
    }
}

void CallWatch::publish() {
    for (WatchedOp* op : ops_) op->board.set_begun(op->executor->begun());
}

/// On a GPU a rank that has ended may have replayed the call; there the deadline ends it.
void CallWatch::give_up_on_ended() {
    for (int rank = 0; rank < events_.size(); ++rank) {
        if (rank == events_.rank() || !events_.has_ended(rank)) continue;
        for (const WatchedOp* op : ops_) {
            const CallBoard& board = op->board;
            if (op->on_host && is_ahead(board.called(board.rank()), board.called(rank)))
                op->executor->raise(emit::control::fault_of_peer |
                                    static_cast<std::uint32_t>(first_rank_ + rank));
        }
    }
}

void CallWatch::tick() {
    publish();
    if (++looks_ % kTicksToLookForEnded == 0) give_up_on_ended();
    for (WatchedOp* op : ops_) op->executor->look();
    std::optional<Crossing> now = crossing(false);
    if (!now) now = crossing(true);
    ticks_ = now && now == seen_ ? ticks_ + 1 : 0;
    seen_ = now;
    if (!now || ticks_ < (now->asked ? kTicksOfAskedCalls : kTicksOfACrossing)) return;
    ticks_ = 0;
    if (ops_[now->mine]->executor->is_faulty() || ops_[now->theirs]->executor->is_faulty()) return;
    std::string text = kDiffer;
    for (int rank = 0; rank < ops_.front()->board.size(); ++rank)
        text += fmt::format("{}rank {}{}", rank == 0 ? "" : "; ", first_rank_ + rank, doing(rank));
    declare(text, [&](const CallBoard& board) { return board.is_apart(now->asked); });
}

std::optional<CallWatch::Crossing> CallWatch::crossing(bool asked) const {
    const auto is_open = [](const WatchedOp* op) {
        return op->board.ended_by() == 0 && !op->executor->poll_fault().any();
    };
    const auto known = [&](const CallBoard& board, int rank) {
        return asked ? board.begun(rank) : board.called(rank);
    };
    for (std::size_t mine = 0; mine < ops_.size(); ++mine) {
        const CallBoard& first = ops_[mine]->board;
        for (int rank = 0; rank < first.size(); ++rank) {
            if (!is_ahead(first.begun(first.rank()), known(first, rank))) continue;
            for (std::size_t theirs = 0; theirs < ops_.size(); ++theirs) {
                const CallBoard& second = ops_[theirs]->board;
                if (!is_ahead(second.begun(rank), known(second, second.rank()))) continue;
                if (!is_open(ops_[mine]) || !is_open(ops_[theirs])) continue;
                return Crossing{mine, theirs, rank, first.begun(first.rank()), second.begun(rank), asked};
            }
        }
    }
    return std::nullopt;
}

bool CallWatch::is_ahead_of_this(int rank) const {
    return std::ranges::any_of(ops_, [&](const WatchedOp* op) {
        const CallBoard& board = op->board;
        return is_ahead(board.begun(rank), board.begun(board.rank())) && board.ended_by() == 0 &&
               !op->executor->is_faulty();
    });
}

std::string CallWatch::doing(int rank) const {
    std::string text;
    for (const WatchedOp* op : ops_) {
        const CallBoard& board = op->board;
        if (board.ended_by() != 0) continue;  // all have been told of what it was called for
        bool is_first = false;
        for (int other = 0; other < board.size(); ++other)
            is_first = is_first || is_ahead(board.begun(rank), board.begun(other));
        if (is_first) text += fmt::format("{}{}", text.empty() ? kCalls : ", ", op->what);
    }
    return text.empty() ? " has called neither" : text;
}

std::string CallWatch::left_out(std::string_view what, int closing) {
    const std::lock_guard lock(mutex_);
    for (const WatchedOp* op : ops_) {
        const CallBoard& board = op->board;
        if (op->what != what || board.ended_by() != 0) continue;
        for (int rank = 0; rank < board.size(); ++rank) {
            if (is_ahead(board.called(rank), board.called(closing)))
                return fmt::format(
                    "; that is call {} of rank {}, and rank {} has made {}: where it left one out, those "
                    "behind it took another "
                    "call's data",
                    board.called(rank), first_rank_ + rank, first_rank_ + closing, board.called(closing));
        }
    }
    return "";
}

void CallWatch::declare(const std::string& text, const std::function<bool(const CallBoard&)>& is_apart) {
    const std::uint32_t event = told_ + 1;
    if (!events_.claim(event)) return;
    std::vector<WatchedOp*> apart;
    for (WatchedOp* op : ops_) {
        // One that has failed for another reason says that.
        if (!is_apart(op->board) || op->board.ended_by() != 0 || op->executor->poll_fault().any()) continue;
        op->board.end_by(event);
        apart.push_back(op);
    }
    events_.publish(event, text);
    for (WatchedOp* op : apart)
        op->executor->raise(fault_differs | static_cast<std::uint32_t>(first_rank_ + op->board.rank()));
}

std::optional<Error> CallWatch::tell(const WatchedOp& op) {
    if (op.board.ended_by() == 0) return std::nullopt;
    events_.settle();
    const std::lock_guard lock(mutex_);
    const std::uint32_t event = op.board.ended_by();
    told_ = std::max(told_.load(), event);
    return Error{events_.text(event), {.rank = first_rank_ + op.board.rank()}, ErrorClass::usage};
}

bool CallWatch::has_told(const WatchedOp& op) const {
    const std::uint32_t event = op.board.ended_by();
    return event != 0 && event <= told_;
}

Status CallWatch::await_others(const WatchedOp& op, std::chrono::milliseconds timeout) {
    const CallBoard& board = op.board;
    const std::uint32_t made = board.called(board.rank());
    WaitingClock clock;
    for (int rank = 0; rank < board.size(); ++rank) {
        while (is_ahead(made, board.called(rank)) && !op.executor->is_faulty()) {
            if (std::optional<Error> differs = tell(op)) return *differs;
            if (timeout.count() > 0 && clock.waited() > timeout) {
                return Error{fmt::format("{}: rank {} has not called it within {} ms", op.what,
                                         first_rank_ + rank, timeout.count()),
                             {.rank = first_rank_ + board.rank()},
                             ErrorClass::machine};
            }
            sleep_on_host(kMoment);
        }
    }
    return Done{};
}

std::optional<Error> CallWatch::unheard() {
    if (events_.count() == told_) return std::nullopt;
    events_.settle();
    told_ = events_.count();
    return Error{events_.text(told_), {.rank = first_rank_ + events_.rank()}, ErrorClass::usage};
}

std::vector<std::string> CallWatch::calls_ahead() {
    const auto of_all = [&] {
        std::vector<std::string> all(static_cast<std::size_t>(events_.size()));
        publish();
        for (int rank = 0; rank < events_.size(); ++rank) {
            if (is_ahead_of_this(rank)) all[at(rank)] = doing(rank);
        }
        return all;
    };
    std::unique_lock lock(mutex_);
    std::vector<std::string> all = of_all();
    const auto is_none = [](const std::string& doing) { return doing.empty(); };
    if (std::ranges::all_of(all, is_none)) return all;
    // What this rank's device has still to begin was called before this meeting. Without the lock: it may wait for what
    // this rank's thread has still to end.
    const std::function<void()> settle = ops_.front()->executor->settling();
    if (!settle) return all;
    lock.unlock();
    settle();
    lock.lock();
    return of_all();
}

Status CallWatch::enter() {
    const std::lock_guard lock(mutex_);
    suspected_.reset();
    const std::optional<Error> event = unheard();
    return event ? Status(*event) : Done{};
}

Status CallWatch::look(const Came& came, bool labels_differ, bool failed) {
    {
        const std::lock_guard lock(mutex_);
        if (const std::optional<Error> event = unheard()) return *event;
    }
    // Others may be in the middle of what failed here.
    if (failed && !labels_differ) return Done{};
    const std::vector<std::string> calls = calls_ahead();
    // Looked for after the calls were seen: who comes now has made them before. Without the lock, since a
    // store may need what another thread holds that waits for the lock (Python's).
    bool in_calls = false;
    bool all_known = true;
    std::set<std::string> different;  // what the ranks come with, or call
    std::string text = kDiffer;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
        const std::optional<std::string> label = came(static_cast<int>(rank));
        text += fmt::format("{}rank {}{}", rank == 0 ? "" : "; ", at(first_rank_) + rank,
                            label                 ? ": " + *label
                            : calls[rank].empty() ? " has not come yet"
                                                  : calls[rank]);
        const std::string& call = calls[rank];
        different.insert(label ? *label : call.starts_with(kCalls) ? call.substr(kCalls.size()) : call);
        in_calls = in_calls || (!label && !call.empty());
        all_known = all_known && (label || !calls[rank].empty());
    }
    for (std::size_t rank = 0; in_calls && rank < calls.size(); ++rank) {
        const std::optional<std::string> label = came(static_cast<int>(rank));
        if (label && label->starts_with(kClose))
            text += left_out(label->substr(kClose.size()), static_cast<int>(rank));
    }
    if (in_calls && all_known && different.size() == 1)
        text += "; of one name, but ranks that set it up now do so by another function or object";
    const std::lock_guard lock(mutex_);
    if (!in_calls && !labels_differ) {
        suspected_.reset();
        return Done{};
    }
    const auto now = Clock::now();
    if (!suspected_) suspected_ = now;
    if (now - *suspected_ < (!all_known ? kToBeNamed : in_calls ? kToPass : Clock::duration{})) return Done{};
    suspected_.reset();
    // A call that this rank has captured it has asked for, and never begun: who replays it is ahead all the same.
    declare(text, [](const CallBoard& board) {
        bool is_ahead_of_this = false;
        for (int rank = 0; rank < board.size(); ++rank)
            is_ahead_of_this = is_ahead_of_this || is_ahead(board.begun(rank), board.begun(board.rank()));
        return is_ahead_of_this || board.is_apart(false);
    });
    const std::optional<Error> event = unheard();
    return event ? Status(*event) : Done{};
}

}  // namespace syncopate::runtime

#include "runtime/call/call_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "runtime/heap/process.hpp"
#include "syncopate/runtime/signals/fault.hpp"

namespace syncopate::runtime {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kToShow{250};
/// Ops on several streams may begin in another order on another rank, each behind other work: that passes.
constexpr int kTicksOfACrossing = 15;
/// Calls that were asked for may be behind long work. They may also have been asked for into a graph.
constexpr int kTicksOfAskedCalls = 100;

bool is_ahead(std::uint32_t calls, std::uint32_t of) { return static_cast<std::int32_t>(calls - of) > 0; }

Error differing(const std::string& text, int rank) { return Error{text, {.rank = rank}, ErrorClass::usage}; }

}  // namespace

std::shared_ptr<CallWatch> CallWatch::of(Rendezvous& rendezvous) {
    auto found = std::dynamic_pointer_cast<CallWatch>(rendezvous.watch());
    if (found == nullptr) {
        found = std::make_shared<CallWatch>();
        rendezvous.set_watch(found);
    }
    return found;
}

CallWatch::~CallWatch() {
    if (thread_ == nullptr || forks() == forks_) return;
    // A forked child has no such thread to join, nor one that ever leaves the condition.
    (void)thread_.release();
    (void)changed_.release();
}

void CallWatch::add(WatchedOp& op) {
    const std::lock_guard lock(mutex_);
    ops_.push_back(&op);
    if (thread_ == nullptr) {
        forks_ = forks();
        thread_ = std::make_unique<std::jthread>([this](const std::stop_token& stop) { run(stop); });
    }
    changed_->notify_all();
}

void CallWatch::remove(WatchedOp& op) {
    const std::lock_guard lock(mutex_);
    std::erase(ops_, &op);
    seen_.reset();
}

void CallWatch::run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        changed_->wait(lock, stop, [&] { return !ops_.empty(); });
        if (stop.stop_requested()) return;
        tick();
        (void)changed_->wait_for(lock, stop, kTick, [] { return false; });
    }
}

void CallWatch::publish() {
    for (WatchedOp* op : ops_) op->board->set_begun(op->executor->begun());
}

void CallWatch::tick() {
    publish();
    for (WatchedOp* op : ops_) op->differs = op->differs || op->board->declared() != 0;
    std::optional<Crossing> now = crossing(false);
    if (!now) now = crossing(true);
    ticks_ = now && now == seen_ ? ticks_ + 1 : 0;
    seen_ = now;
    if (!now || ticks_ < (now->asked ? kTicksOfAskedCalls : kTicksOfACrossing)) return;
    ticks_ = 0;
    if (ops_[now->mine]->executor->is_faulty() || ops_[now->theirs]->executor->is_faulty()) return;
    std::string text = "the ranks' calls differ: ";
    for (int rank = 0; rank < ops_.front()->board->size(); ++rank)
        text += fmt::format("{}rank {}{}", rank == 0 ? "" : "; ", rank, doing(rank));
    // A third rank may wait in a third op.
    std::vector<WatchedOp*> waiting;
    std::ranges::copy_if(ops_, std::back_inserter(waiting), [](const WatchedOp* op) {
        const CallBoard& board = *op->board;
        bool apart = false;
        for (int rank = 0; rank < board.size(); ++rank)
            apart = apart || board.begun(rank) != board.begun(board.rank());
        return apart && board.declared() == 0;
    });
    declare(waiting, text);
}

std::optional<CallWatch::Crossing> CallWatch::crossing(bool asked) const {
    const auto is_open = [](const WatchedOp* op) {
        return op->board->declared() == 0 && !op->executor->poll_fault().any();
    };
    const auto known = [&](const CallBoard& board, int rank) {
        return asked ? board.begun(rank) : board.called(rank);
    };
    for (std::size_t mine = 0; mine < ops_.size(); ++mine) {
        const CallBoard& first = *ops_[mine]->board;
        for (int rank = 0; rank < first.size(); ++rank) {
            if (!is_ahead(first.begun(first.rank()), known(first, rank))) continue;
            for (std::size_t theirs = 0; theirs < ops_.size(); ++theirs) {
                const CallBoard& second = *ops_[theirs]->board;
                if (!is_ahead(second.begun(rank), known(second, second.rank()))) continue;
                if (!is_open(ops_[mine]) || !is_open(ops_[theirs])) continue;
                return Crossing{mine, theirs, rank, first.begun(first.rank()), second.begun(rank), asked};
            }
        }
    }
    return std::nullopt;
}

std::vector<WatchedOp*> CallWatch::ahead(int rank) const {
    std::vector<WatchedOp*> found;
    for (WatchedOp* op : ops_) {
        const CallBoard& board = *op->board;
        if (is_ahead(board.begun(rank), board.begun(board.rank())) && board.declared() == 0)
            found.push_back(op);
    }
    return found;
}

std::string CallWatch::doing(int rank) const {
    std::string text;
    for (const WatchedOp* op : ops_) {
        const CallBoard& board = *op->board;
        bool is_first = false;
        for (int other = 0; other < board.size(); ++other)
            is_first = is_first || is_ahead(board.begun(rank), board.begun(other));
        if (is_first) text += fmt::format("{}{}", text.empty() ? " calls " : ", ", op->what);
    }
    return text.empty() ? " has called neither" : text;
}

void CallWatch::declare(const std::vector<WatchedOp*>& ops, const std::string& text) {
    for (WatchedOp* op : ops) op->board->declare(told_ + 1, text);
    for (WatchedOp* op : ops) {
        op->differs = true;
        op->executor->raise(fault_differs | static_cast<std::uint32_t>(op->board->rank()));
    }
}

std::string CallWatch::tell(const WatchedOp& op) {
    const std::lock_guard lock(mutex_);
    told_ = std::max(told_.load(), op.board->declared());
    return op.board->text();
}

std::optional<Error> CallWatch::declared() {
    for (const WatchedOp* op : ops_) {
        const std::uint32_t event = op->board->declared();
        if (event <= told_) continue;
        told_ = event;
        return differing(op->board->text(), op->board->rank());
    }
    return std::nullopt;
}

std::optional<std::vector<CallWatch::Calls>> CallWatch::calls_ahead() {
    const std::lock_guard lock(mutex_);
    const int size = ops_.empty() ? 0 : ops_.front()->board->size();
    const auto of_all = [&] {
        publish();
        std::vector<Calls> all;
        for (int rank = 0; rank < size; ++rank) all.push_back({ahead(rank), doing(rank)});
        return all;
    };
    const auto is_none = [](const Calls& calls) { return calls.ops.empty(); };
    if (std::ranges::all_of(of_all(), is_none)) return std::nullopt;
    // What this rank's device has still to begin was called before this meeting.
    for (WatchedOp* op : ops_) op->executor->settle();
    std::vector<Calls> all = of_all();
    for (Calls& calls : all)
        std::erase_if(calls.ops, [](const WatchedOp* op) { return op->executor->is_faulty(); });
    if (std::ranges::all_of(all, is_none)) return std::nullopt;
    return all;
}

Status CallWatch::look(const Came& came) {
    {
        const std::lock_guard lock(mutex_);
        if (const std::optional<Error> known = declared()) return *known;
    }
    const std::optional<std::vector<Calls>> calls = calls_ahead();
    if (!calls) return Done{};
    // Looked for after the calls were seen: who comes now has made them before. Without the lock, since a
    // store may need what another thread holds that waits for the lock (Python's).
    std::vector<std::optional<std::string>> there;
    for (std::size_t rank = 0; rank < calls->size(); ++rank) there.push_back(came(static_cast<int>(rank)));

    const std::lock_guard lock(mutex_);
    std::vector<WatchedOp*> called;
    std::string text = "the ranks' calls differ: ";
    for (std::size_t rank = 0; rank < calls->size(); ++rank) {
        const Calls& theirs = (*calls)[rank];
        text += fmt::format("{}rank {}{}", rank == 0 ? "" : "; ", rank,
                            there[rank]          ? ": " + *there[rank]
                            : theirs.ops.empty() ? " has not come yet"
                                                 : theirs.doing);
        if (there[rank]) continue;
        for (WatchedOp* op : theirs.ops) {
            const bool is_there = std::ranges::find(ops_, op) != ops_.end();
            if (is_there && std::ranges::find(called, op) == called.end()) called.push_back(op);
        }
    }
    if (called.empty()) {
        suspected_.reset();
        return Done{};
    }
    // Others that call something else, too, get a moment to show it, and are named then.
    const auto now = std::chrono::steady_clock::now();
    if (!suspected_) suspected_ = now;
    if (now - *suspected_ < kToShow) return Done{};
    suspected_.reset();
    const int own = called.front()->board->rank();
    declare(called, text);
    ++told_;
    return differing(text, own);
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/call/op.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/call/call_executor.hpp"
#include "runtime/call/call_watch.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

std::string list_of(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    return text;
}

}  // namespace

void FusedOp::give_up() {
    if (require_own()) executor_->raise(emit::control::fault_of_peer | static_cast<std::uint32_t>(rank()));
}

bool FusedOp::calls_differ() const { return watched_ != nullptr && watched_->board.ended_by() != 0; }

bool FusedOp::is_told() const { return watched_ != nullptr && watch_->has_told(*watched_); }

Error FusedOp::described(const FaultRecord& record, int of_rank) const {
    Error error = fault_error(schedule_, of_rank, called(), record, options_.deadline_ms);
    if (watched_ == nullptr || record.of_peer()) return error;
    std::vector<int> absent;
    std::vector<int> ended;
    for (int near = 0; near < heap_->num_mapped(); ++near) {
        const int other = heap_->first_mapped() + near;
        std::uint32_t begun = watched_->board.begun(near);
        const std::uint64_t epoch = control_address(other) + 4 * emit::control::epoch;
        if (heap_->device().kind == Device::Kind::host && !heap_->read(epoch, &begun, sizeof(begun)))
            continue;
        if (static_cast<std::int32_t>(begun - record.epoch) >= 0) continue;
        (watch_->has_ended(near) ? ended : absent).push_back(other);
    }
    const auto missing = [&](const std::vector<int>& ranks, const char* one, const char* several) {
        if (ranks.empty()) return;
        error.message += fmt::format("; {} {}", list_of(ranks), ranks.size() == 1 ? one : several);
    };
    missing(absent, "has not begun this call", "have not begun this call");
    missing(ended, "has not begun this call, as its process has ended",
            "have not begun this call, as their processes have ended");
    return error;
}

Status FusedOp::require_memory() const {
    Status there = heap_->require_there();
    if (there) return there;
    Error error = there.error();
    error.message = fmt::format("{}: {}", called(), error.message);
    return error;
}

std::string FusedOp::called() const {
    const std::string name = fmt::format("op '{}'", options_.name);
    if (!options_.what.starts_with(name)) return options_.what.empty() ? name : options_.what;
    return options_.what.substr(0, options_.what.find_first_of("(;", name.size()));
}

std::string FusedOp::of_ended(int peer, const std::string& message) const {
    if (watched_ == nullptr || !heap_->maps(peer) || !watch_->has_ended(peer - heap_->first_mapped()))
        return message;
    return fmt::format("{}: given up, as the process of rank {} has ended", called(), peer);
}

Error FusedOp::error_of(const FaultRecord& record) const {
    if (watched_ != nullptr) {
        if (std::optional<Error> differs = watch_->tell(*watched_)) return *differs;
    }
    if (!record.of_peer() || record.peer() >= heap_->size() || !heap_->maps(record.peer()))
        return described(record, rank());
    // The other rank's control block says what it waited for.
    Error error = described(record, rank());
    std::uint32_t words[emit::control::header_words] = {};
    if (heap_->read(control_address(record.peer()), words, sizeof(words))) {
        FaultRecord theirs = FaultRecord::from_words(words);
        if (theirs.of_peer())
            theirs.epoch = record.epoch;  // it gave up, and may not have come to the call since
        if (theirs.any() && (!theirs.of_peer() || theirs.peer() == record.peer())) {
            const Error cause = described(theirs, record.peer());
            error.message = cause.message + fmt::format("; so found on rank {}", record.peer());
            error.location = cause.location;
        }
        const bool gave_up = theirs.of_peer() && theirs.peer() == record.peer();
        if (!theirs.any() || (theirs.of_peer() && !gave_up))
            error.message = of_ended(record.peer(), error.message);
    }
    return error;
}

Status FusedOp::check() const {
    SYNCOPATE_TRY(require_not_retired());
    if (calls_differ()) return error_of({});
    SYNCOPATE_TAKE(FaultRecord record, executor_->read_fault());
    return record.any() ? Status(error_of(record)) : Status(Done{});
}

Status FusedOp::poll() const {
    SYNCOPATE_TRY(require_not_retired());
    if (calls_differ()) return error_of({});
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : Status(Done{});
}

}  // namespace syncopate::runtime

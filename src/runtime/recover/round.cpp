#include "runtime/recover/round.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "runtime/heap/fields.hpp"
#include "runtime/heap/process.hpp"
#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::runtime {
namespace {

constexpr Milliseconds kAMoment{1};
constexpr Milliseconds kPause{5};
constexpr Milliseconds kFirstPause{1};
constexpr const char* kDone = "done";
constexpr const char* kFailed = "failed";

}  // namespace

Round::Round(Rendezvous& store, const RoundOptions& options)
    : store_(&store), options_(options), process_(random_hex(8)) {}

std::string Round::key(const std::string& name) const { return fmt::format("recover.{}.{}", number_, name); }

std::string Round::prefix() const { return fmt::format("group.{}.", number_); }

Bytes Round::look(const std::string& name) const {
    const Result<Bytes> found = store_->get(key(name), kAMoment);
    return found ? *found : Bytes();
}

Result<Bytes> Round::decide(const std::string& name, const Bytes& value) {
    return store_->put_first(key(name), value);
}

Status Round::skip_past() {
    for (bool has_come = false;;) {
        if (const Bytes outcome = look("outcome"); !outcome.empty()) {
            if (outcome == kDone && number_ > options_.after && !options_.is_late_comer)
                return left_out(look("members"));
            ++number_;
            has_come = false;
            continue;
        }
        if (has_come) return Done{};  // in time, if that round takes it
        SYNCOPATE_TRY(store_->put(key(fmt::format("hello.{}", store_->rank())), process_));
        has_come = true;
    }
}

Result<Bytes> Round::await_members() {
    WaitingClock clock;
    std::vector<Bytes> here(static_cast<std::size_t>(store_->size()));
    Milliseconds pause = kFirstPause;
    for (;;) {
        if (Bytes members = look("members"); !members.empty()) return members;
        for (std::size_t rank = 0; rank < here.size(); ++rank)
            here[rank] =
                static_cast<int>(rank) == store_->rank() ? process_ : look(fmt::format("hello.{}", rank));
        const bool all = std::ranges::none_of(here, &Bytes::empty);
        const bool late = clock.waited() >= options_.deadline;
        if (late && options_.is_late_comer) {
            (void)store_->put(key(fmt::format("hello.{}", store_->rank())), "");
            return Error{
                fmt::format("no rank of the group came to go on within {} ms", options_.deadline.count()),
                {.rank = store_->rank()},
                ErrorClass::machine};
        }
        if (!options_.is_late_comer && (all || late)) {
            std::string members;
            for (std::size_t rank = 0; rank < here.size(); ++rank) {
                if (!here[rank].empty()) members += fmt::format("{}:{} ", rank, here[rank]);
            }
            Result<Bytes> decided = decide("members", members);
            if (decided || decided.error().error_class != ErrorClass::usage) return decided;
            if (all) return Bytes(members);  // a store that cannot decide takes all, or nobody
            (void)store_->put(key(fmt::format("hello.{}", store_->rank())), "");
            return Error{
                fmt::format(
                    "only a store that puts a key once for all ranks lets some go on without the others: "
                    "not all of {} came within {} ms; bring a group of those that are there",
                    store_->size(), options_.deadline.count()),
                {.rank = store_->rank()},
                ErrorClass::machine};
        }
        sleep_on_host(pause);
        pause = std::min(2 * pause, kPause);
    }
}

Status Round::take(const Bytes& members) {
    bool is_member = false;
    ranks_.clear();
    for (const std::string_view member : fields_of(members)) {
        const std::size_t colon = member.find(':');
        const int rank = whole_number<int>(member.substr(0, colon)).value_or(-1);
        ranks_.push_back(rank);
        is_member = is_member || (rank == store_->rank() && member.substr(colon + 1) == process_);
    }
    return is_member ? Status(Done{}) : left_out(members);
}

Error Round::left_out(const Bytes& members) {
    left_out_ = true;
    std::string list;
    for (const std::string_view member : fields_of(members))
        list += fmt::format("{}{}", list.empty() ? "" : ", ", member.substr(0, member.find(':')));
    return Error{
        fmt::format(
            "the group has gone on without this rank, which came too late: with ranks {} of {}; it can "
            "join them where they call recover again, and it, too",
            list, store_->size()),
        {.rank = store_->rank()},
        ErrorClass::machine};
}

Result<Round> Round::enter(Rendezvous& store, const RoundOptions& options, bool& left_out) {
    left_out = false;
    for (Round round(store, options);; ++round.number_) {
        round.left_out_ = false;
        Status status = round.skip_past();
        if (status) {
            const Result<Bytes> members = round.await_members();
            status = members ? round.take(*members) : Status(members.error());
        }
        if (status) return round;
        left_out = round.left_out_;
        if (!left_out || !round.may_come_to_next()) return status.error();
    }
}

/// One that joins the others comes to the next round; so does one whose round has failed without it.
bool Round::may_come_to_next() const {
    WaitingClock clock;
    Bytes outcome;
    while ((outcome = look("outcome")).empty() && clock.waited() < 2 * options_.deadline)
        sleep_on_host(kPause);
    return outcome == kFailed || (options_.is_late_comer && outcome == kDone);
}

bool Round::conclude(bool is_done) {
    const auto decided = [&](const Bytes& outcome) {
        const Result<Bytes> made = decide("outcome", outcome);
        if (!made) (void)store_->put(key("outcome"), outcome);  // it cannot decide: this rank's word
        return (made ? *made : outcome) == kDone;
    };
    if (!is_done) return decided(kFailed);
    (void)store_->put(key(fmt::format("done.{}", store_->rank())), process_);
    WaitingClock clock;
    Milliseconds pause = kFirstPause;
    for (;;) {
        if (const Bytes outcome = look("outcome"); !outcome.empty()) return outcome == kDone;
        const bool all = std::ranges::all_of(
            ranks_, [&](int rank) { return !look(fmt::format("done.{}", rank)).empty(); });
        if (all) return decided(kDone);
        if (clock.waited() >= options_.deadline) return decided(kFailed);
        sleep_on_host(pause);
        pause = std::min(2 * pause, kPause);
    }
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/heap/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "runtime/heap/process.hpp"
#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

std::string list_of(const std::vector<int>& ranks) {
    constexpr std::size_t kMost = 16;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
        text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
    if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
    return text;
}

constexpr Milliseconds kMoment{2};
constexpr Milliseconds kToBeNamed{5000};
constexpr Milliseconds kLongEnough{10};  ///< a wait that is told apart from a failure at once
constexpr int kFailures = 3;
constexpr Milliseconds kAfterFailure{50};
constexpr char kCame =
    'c';  ///< first byte of what a rank has put; then its label, caller and value, apart by 0
constexpr char kWithdrawn = 'w';  ///< all of it, once the rank has given the meeting up

/// The ranks of one node, among all.
class NodeRendezvous final : public Rendezvous {
public:
    explicit NodeRendezvous(Rendezvous& all)
        : Rendezvous(all.rank() - all.first_of_node(), all.ranks_of_node()),
          all_(all),
          prefix_(fmt::format("node{}.", all.first_of_node())) {}

    Status put(const std::string& key, const Bytes& value) override { return all_.put(prefix_ + key, value); }
    Result<Bytes> get(const std::string& key, Milliseconds timeout) override {
        return all_.get(prefix_ + key, timeout);
    }
    Result<Bytes> put_first(const std::string& key, const Bytes& value) override {
        return all_.put_first(prefix_ + key, value);
    }
    void erase(const std::string& key) override { all_.erase(prefix_ + key); }

private:
    Rendezvous& all_;
    std::string prefix_;
};

}  // namespace

Rendezvous& Rendezvous::within() {
    if (ranks_of_node_ == size_) return *this;
    if (within_ == nullptr) within_ = std::make_unique<NodeRendezvous>(*this);
    within_->set_timeout(timeout_);
    within_->set_caller(caller_);
    return *within_;
}

Rendezvous::Rendezvous(int rank, int size)
    : rank_(rank),
      size_(size),
      ranks_of_node_(std::max(size, 1)),
      forks_(forks()),
      memory_(std::make_unique<GroupMemory>()) {}

Rendezvous::~Rendezvous() = default;

bool Rendezvous::is_a_parents() const { return forks_ != forks(); }

/// One all_gather on one rank.
class Meeting {
public:
    Meeting(Rendezvous& rendezvous, std::string_view label, Milliseconds timeout, bool failed)
        : rendezvous_(rendezvous),
          label_(label),
          shown_(rendezvous.caller().empty() ? label : std::string_view(rendezvous.caller())),
          timeout_(rendezvous.timeout(timeout)),
          allowed_(timeout_),
          failed_(failed),
          all_(static_cast<std::size_t>(rendezvous.size())) {}

    Result<std::vector<Bytes>> hold(const Bytes& value) {
        rendezvous_.calls_differ_ = false;
        if (Status entered = enter(); !entered) {
            rendezvous_.calls_differ_ = true;
            return entered.error();
        }
        const std::string my_key = key_of(rendezvous_.rank());
        const Bytes mine =
            std::string(1, kCame) + std::string(label_) + '\0' + rendezvous_.caller() + '\0' + value;
        SYNCOPATE_TRY(rendezvous_.put(my_key, mine));
        take(rendezvous_.rank(), mine);
        do {
            for (int rank = 0; rank < rendezvous_.size(); ++rank) {
                if (Status awaited = await(rank); !awaited) return give_up(my_key, awaited.error(), true);
            }
        } while (absent_.empty() && !differ_ && !all_still_say_so());
        if (differ_) return differing(my_key);
        if (!store_failure_.empty()) return give_up(my_key, no_store(), false);
        if (!absent_.empty()) return give_up(my_key, absence(), false);
        // All ranks have come here, so none still reads what this rank put last time.
        if (!rendezvous_.last_key_.empty()) rendezvous_.erase(rendezvous_.last_key_);
        rendezvous_.last_key_ = my_key;
        ++rendezvous_.sequence_;
        return values();
    }

private:
    struct Rank {
        bool came = false;
        bool gave_up = false;
        std::string shown;  ///< the caller, else the label
        Bytes value;
        Bytes said;  ///< what it has put, with all that
    };

    /// Whether nobody has given up, or come again with something else, since it was first looked at: then there was a moment
    /// at which all were here with what has been read.
    bool all_still_say_so() {
        bool same = true;
        for (int rank = 0; rank < rendezvous_.size(); ++rank) {
            if (rank == rendezvous_.rank()) continue;
            const Result<Bytes> now = rendezvous_.get(key_of(rank), Milliseconds{1});
            if (!now || *now == of(rank).said) continue;
            same = false;
            if (!take(rank, *now)) of(rank) = {.gave_up = true};
        }
        return same;
    }

    /// Ranks that have been told as often that calls differed count their meetings from there on, whichever they came to
    /// before.
    Status enter() {
        if (MeetingWatch* const near = near_watch()) return near->enter();
        if (rendezvous_.watch() == nullptr) return Done{};
        const Status entered = rendezvous_.watch()->enter();
        const std::uint32_t told = rendezvous_.watch()->told();
        if (told != rendezvous_.told_) rendezvous_.sequence_ = 0;
        rendezvous_.told_ = told;
        return entered;
    }

    [[nodiscard]] std::string key_of(int rank) const {
        return fmt::format("{}.{}.{}", rendezvous_.told_, rendezvous_.sequence_, rank);
    }

    [[nodiscard]] Rank& of(int rank) { return all_[at(rank)]; }

    /// Whether what the rank has put says that it is there.
    bool take(int rank, const Bytes& bytes) {
        if (bytes.empty() || bytes[0] != kCame) return false;
        const std::size_t end = bytes.find('\0');
        const std::size_t after = end == Bytes::npos ? end : bytes.find('\0', end + 1);
        if (after == Bytes::npos) return false;
        const std::string label = bytes.substr(1, end - 1);
        const std::string caller = bytes.substr(end + 1, after - end - 1);
        of(rank) = {.came = true,
                    .shown = caller.empty() ? label : caller,
                    .value = bytes.substr(after + 1),
                    .said = bytes};
        if ((label != label_ || caller != rendezvous_.caller()) && !differ_) {
            differ_ = true;  // the others are waited for only to be named, too
            allowed_ = std::min<WaitingClock::Duration>(allowed_, clock_.waited() + kToBeNamed);
        }
        return true;
    }

    /// Whether the rank has come by now, or within `wait`.
    bool came(int rank, Milliseconds wait) {
        if (of(rank).came) return true;
        const auto asked = now_on_host();
        const Result<Bytes> theirs = rendezvous_.get(key_of(rank), std::max(wait, Milliseconds{1}));
        if (!theirs) {
            reason_ = theirs.error().message;
            if (wait < kLongEnough) return false;
            const bool waited = now_on_host() - asked >= wait / 2;
            failures_ = waited ? 0 : failures_ + 1;
            if (failures_ >= kFailures) store_failure_ = reason_;
            if (!waited) sleep_on_host(std::min(wait, kAfterFailure));
            return false;
        }
        failures_ = 0;
        if (take(rank, *theirs)) return true;
        of(rank).gave_up = true;
        sleep_on_host(std::min(wait, kMoment));
        return false;
    }

    /// Until the rank has come or the deadline has passed: once it has, each further rank gets a moment to
    /// show that it did come. An error: it cannot come.
    Status await(int rank) {
        Milliseconds slice{20};  // the watch looks rarely: set-up is where ranks are far apart
        for (;;) {
            const auto left = std::chrono::duration_cast<Milliseconds>(allowed_ - clock_.waited());
            if (came(rank, std::min(slice, left))) return Done{};
            if (left <= slice || !store_failure_.empty()) break;
            slice = std::min(2 * slice, Milliseconds{320});
            SYNCOPATE_TRY(look());
            if (has_ended(rank) && !came(rank, Milliseconds{1})) {
                ended_.push_back(rank);
                allowed_ = std::min<WaitingClock::Duration>(allowed_, clock_.waited());
                break;
            }
        }
        absent_.push_back(rank);
        return Done{};
    }

    [[nodiscard]] bool has_ended(int rank) const {
        return rendezvous_.watch() != nullptr && rendezvous_.watch()->has_ended(rank);
    }

    /// Of several nodes, that of this one: null where there is none yet.
    [[nodiscard]] MeetingWatch* near_watch() const {
        const bool apart = rendezvous_.ranks_of_node() != rendezvous_.size();
        return apart ? rendezvous_.within().watch().get() : nullptr;
    }

    Status look() {
        if (MeetingWatch* const near = near_watch()) {
            const MeetingWatch::Came seen = [&](int other) {
                const int rank = rendezvous_.first_of_node() + other;
                return came(rank, Milliseconds{1}) ? std::optional(of(rank).shown) : std::nullopt;
            };
            // Who comes here with something else is named by all nodes together (differing()).
            return near->look(seen, false, failed_);
        }
        if (rendezvous_.watch() == nullptr) return Done{};
        const MeetingWatch::Came seen = [&](int other) {
            return came(other, Milliseconds{1}) ? std::optional(of(other).shown) : std::nullopt;
        };
        return rendezvous_.watch()->look(seen, differ_, failed_);
    }

    Error no_store() const {
        return Error{fmt::format("'{}' cannot take place, as the store fails ({})", shown_, store_failure_),
                     {.rank = rendezvous_.rank()},
                     ErrorClass::machine};
    }

    /// Names the ranks that have not come at all, if there are some: others have been waiting for them, too.
    Error absence() {
        if (!ended_.empty()) {
            return Error{
                fmt::format("{} of {} cannot come to '{}': {}", list_of(ended_), rendezvous_.size(), shown_,
                            ended_.size() == 1 ? "its process has ended" : "their processes have ended"),
                {.rank = rendezvous_.rank()},
                ErrorClass::machine};
        }
        std::vector<int> never = absent_;
        std::erase_if(never, [&](int rank) { return of(rank).gave_up; });
        const bool all_gave_up = never.empty();
        return Error{fmt::format("{} of {} {} '{}' within {} ms{}", list_of(all_gave_up ? absent_ : never),
                                 rendezvous_.size(), all_gave_up ? "had given up" : "did not come to", shown_,
                                 timeout_.count(), all_gave_up ? "" : fmt::format(" ({})", reason_)),
                     {.rank = rendezvous_.rank()},
                     ErrorClass::machine};
    }

    /// The ranks meet here again; who comes late does not take this rank for one that waits.
    Error give_up(const std::string& my_key, Error error, bool differ) {
        (void)rendezvous_.put(my_key, Bytes(1, kWithdrawn));
        rendezvous_.calls_differ_ = differ;
        return error;
    }

    /// Each rank that comes here finds the same, and where there are calls, those that are in one are told.
    Error differing(const std::string& my_key) {
        for (; rendezvous_.watch() != nullptr; sleep_on_host(kMoment)) {
            if (Status told = look(); !told) return give_up(my_key, told.error(), true);
        }
        std::string labels;
        for (std::size_t rank = 0; rank < all_.size(); ++rank)
            labels += fmt::format("{}rank {}: {}", rank == 0 ? "" : "; ", rank,
                                  all_[rank].came ? all_[rank].shown : "has not come yet");
        rendezvous_.last_key_ = my_key;
        ++rendezvous_.sequence_;
        rendezvous_.calls_differ_ = true;
        return Error{fmt::format("the ranks' calls differ: {}", labels),
                     {.rank = rendezvous_.rank()},
                     ErrorClass::usage};
    }

    std::vector<Bytes> values() {
        std::vector<Bytes> values;
        for (Rank& rank : all_) values.push_back(std::move(rank.value));
        return values;
    }

    Rendezvous& rendezvous_;
    std::string_view label_;
    std::string_view shown_;
    Milliseconds timeout_;
    WaitingClock clock_;
    WaitingClock::Duration allowed_;
    bool failed_;
    std::vector<Rank> all_;
    std::vector<int> absent_;
    std::vector<int> ended_;  ///< of these, whose processes have
    std::string reason_;
    int failures_ = 0;  ///< in a row, each sooner than it was to wait: it is the store that fails, not a rank
    std::string store_failure_;
    bool differ_ = false;
};

Result<std::vector<Bytes>> all_gather(Rendezvous& rendezvous, std::string_view label, const Bytes& value,
                                      Milliseconds timeout, bool failed) {
    if (rendezvous.is_a_parents()) {
        return Error{
            fmt::format("'{}' in a process that was forked after its group was made: its parent is rank "
                        "{} of the group; make a group of the children, or start them instead (spawn)",
                        label, rendezvous.rank()),
            {.rank = rendezvous.rank()},
            ErrorClass::usage};
    }
    return Meeting(rendezvous, label, timeout, failed).hold(value);
}

Status barrier(Rendezvous& rendezvous, std::string_view label, Milliseconds timeout) {
    SYNCOPATE_TAKE(std::vector<Bytes> all, all_gather(rendezvous, label, "", timeout));
    return Done{};
}

Result<std::vector<Bytes>> agree(Rendezvous& rendezvous, std::string_view label, const Result<Bytes>& mine,
                                 Milliseconds timeout) {
    // One leading byte: 'v' for a value, else the error class as a digit.
    const Bytes packed =
        mine ? "v" + *mine
             : fmt::format("{}{}", static_cast<int>(mine.error().error_class), mine.error().to_string());
    Result<std::vector<Bytes>> all = all_gather(rendezvous, label, packed, timeout, !mine.ok());
    if (!mine) {
        Error error = mine.error();
        // What a machine lacks is about one rank; what is wrong with the input is about its file.
        if (error.error_class == ErrorClass::machine && error.location.rank < 0)
            error.location.rank = rendezvous.rank();
        return error;
    }
    if (!all) return all.error();
    for (std::size_t rank = 0; rank < all->size(); ++rank) {
        Bytes& bytes = (*all)[rank];
        if (bytes.empty() || bytes[0] != 'v') {
            return Error{fmt::format("failed at '{}': {}", label, bytes.empty() ? "" : bytes.substr(1)),
                         {.rank = static_cast<std::int32_t>(rank)},
                         bytes.empty() ? ErrorClass::machine : static_cast<ErrorClass>(bytes[0] - '0')};
        }
        bytes.erase(0, 1);
    }
    return all;
}

Status CallbackRendezvous::put(const std::string& key, const Bytes& value) {
    try {
        put_(key, value);
        return Done{};
    } catch (const std::exception& failure) {
        return machine_error(fmt::format("the store refused '{}': {}", key, failure.what()));
    }
}

Result<Bytes> CallbackRendezvous::get(const std::string& key, Milliseconds timeout) {
    try {
        return get_(key, timeout);
    } catch (const std::exception& failure) {
        return machine_error(fmt::format("the store has no '{}': {}", key, failure.what()));
    }
}

Result<Bytes> Rendezvous::put_first(const std::string& key, const Bytes&) {
    return usage_error(fmt::format("this store cannot put '{}' once for all ranks", key));
}

Result<Bytes> CallbackRendezvous::put_first(const std::string& key, const Bytes& value) {
    if (!put_first_) return Rendezvous::put_first(key, value);
    try {
        return put_first_(key, value);
    } catch (const std::exception& failure) {
        return machine_error(fmt::format("the store refused '{}': {}", key, failure.what()));
    }
}

}  // namespace syncopate::runtime

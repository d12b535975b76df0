#include "syncopate/runtime/heap/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace syncopate::runtime {
namespace {

using Clock = std::chrono::steady_clock;

std::string list_of(const std::vector<int>& ranks) {
    constexpr std::size_t kMost = 16;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
        text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
    if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
    return text;
}

}  // namespace

Result<std::vector<Bytes>> all_gather(Rendezvous& rendezvous, std::string_view label, const Bytes& value,
                                      Milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    const std::int64_t sequence = rendezvous.sequence_++;
    const auto key_of = [&](int rank) { return fmt::format("{}.{}.{}", sequence, label, rank); };

    const std::string my_key = key_of(rendezvous.rank());
    if (Status put = rendezvous.put(my_key, value); !put) return put.error();
    std::vector<Bytes> values(static_cast<std::size_t>(rendezvous.size()));
    std::vector<int> absent;
    std::string reason;
    for (int rank = 0; rank < rendezvous.size(); ++rank) {
        if (rank == rendezvous.rank()) {
            values[static_cast<std::size_t>(rank)] = value;
            continue;
        }
        // Once the deadline has passed, each further rank gets a moment to show that it did come.
        const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
        Result<Bytes> theirs = rendezvous.get(key_of(rank), std::max(left, Milliseconds{1}));
        if (theirs) {
            values[static_cast<std::size_t>(rank)] = std::move(theirs).value();
        } else {
            absent.push_back(rank);
            reason = theirs.error().message;
        }
    }
    if (!absent.empty()) {
        return Error{fmt::format("{} of {} did not come to '{}' within {} ms ({})", list_of(absent),
                                 rendezvous.size(), label, timeout.count(), reason),
                     {.rank = rendezvous.rank()},
                     ErrorClass::machine};
    }
    // All ranks have come here, so none still reads what this rank put last time.
    if (!rendezvous.last_key_.empty()) rendezvous.erase(rendezvous.last_key_);
    rendezvous.last_key_ = my_key;
    return values;
}

Status barrier(Rendezvous& rendezvous, std::string_view label, Milliseconds timeout) {
    Result<std::vector<Bytes>> all = all_gather(rendezvous, label, "", timeout);
    if (!all) return all.error();
    return Done{};
}

Result<std::vector<Bytes>> agree(Rendezvous& rendezvous, std::string_view label, const Result<Bytes>& mine,
                                 Milliseconds timeout) {
    // One leading byte: 'v' for a value, else the error class as a digit.
    const Bytes packed =
        mine ? "v" + *mine
             : fmt::format("{}{}", static_cast<int>(mine.error().error_class), mine.error().to_string());
    Result<std::vector<Bytes>> all = all_gather(rendezvous, label, packed, timeout);
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
        return Error{fmt::format("the store refused '{}': {}", key, failure.what()), {}, ErrorClass::machine};
    }
}

Result<Bytes> CallbackRendezvous::get(const std::string& key, Milliseconds timeout) {
    try {
        return get_(key, timeout);
    } catch (const std::exception& failure) {
        return Error{fmt::format("the store has no '{}': {}", key, failure.what()), {}, ErrorClass::machine};
    }
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/signals/control.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"

namespace syncopate::runtime {
namespace {

namespace word = emit::control;

/// [P1, P4]
bool at_least(std::uint32_t value, std::uint32_t target) {
    return static_cast<std::int32_t>(value - target) >= 0;
}

}  // namespace

// [P19] and, of what is stored, [P17].
std::uint32_t HostControl::load(std::int32_t word) const {
    return std::atomic_ref<std::uint32_t>(words_[word]).load(std::memory_order_acquire);
}

void HostControl::store(std::int32_t word, std::uint32_t value) const {
    if (Turns* const turns = Turns::of_thread()) turns->store(words_ + word, value);
    std::atomic_ref<std::uint32_t>(words_[word]).store(value, std::memory_order_release);
}

std::uint32_t HostControl::add(std::int32_t word, std::uint32_t value) const {
    if (Turns* const turns = Turns::of_thread()) turns->add(words_ + word, value);
    return std::atomic_ref<std::uint32_t>(words_[word]).fetch_add(value, std::memory_order_acq_rel);
}

bool HostControl::faulty() const {
    if (Turns* const turns = Turns::of_thread(); turns && turns->finds_fault(words_ + word::fault, false))
        return true;
    return has_fault();
}

bool HostControl::reached(const fuse::Wait& wait, std::uint32_t epoch) const {
    return at_least(load(word::word_of(wait.signal)), epoch - static_cast<std::uint32_t>(wait.lag));
}

bool HostControl::wait(const fuse::Wait& wait, std::uint32_t epoch, std::int32_t where) const {
    return wait_for(word::word_of(wait.signal), epoch - static_cast<std::uint32_t>(wait.lag), epoch, where);
}

bool HostControl::wait(std::int32_t word, std::int32_t lag_and_posts, std::uint32_t epoch,
                       std::int32_t where) const {
    constexpr std::int32_t kShift = emit::table::wait_count_shift;
    const auto lag = static_cast<std::uint32_t>(lag_and_posts & ((1 << kShift) - 1));
    const auto posts = static_cast<std::uint32_t>(1 + (lag_and_posts >> kShift));
    return wait_for(word, (epoch - lag) * posts, epoch, where);
}

// [P28], and [P29] of raise.
bool HostControl::wait_for(std::int32_t awaited, std::uint32_t target, std::uint32_t epoch,
                           std::int32_t where) const {
    const auto over = [&] { return at_least(load(awaited), target); };
    if (faulty()) return false;
    if (over()) return passed(awaited, target);
    WaitingClock clock;
    const std::chrono::milliseconds deadline(load(word::deadline_ms));
    Backoff backoff;
    while (!over()) {
        if (has_fault()) return false;
        if (deadline.count() != 0 && clock.waited() >= deadline) {
            raise((awaited - word::first_signal) / word::signal_stride, load(awaited), target, epoch, where);
            return false;
        }
        backoff.pause();
    }
    return passed(awaited, target);
}

bool HostControl::passed(const fuse::Wait& wait, std::uint32_t epoch) const {
    return passed(word::word_of(wait.signal), epoch - static_cast<std::uint32_t>(wait.lag));
}

bool HostControl::passed(std::int32_t awaited, std::uint32_t target) const {
    if (Turns* const turns = Turns::of_thread()) turns->awaited(words_ + awaited, target, false);
    return true;
}

bool HostControl::until(const HostControl& of, std::int32_t word, std::uint32_t value, bool any) const {
    Turns* const turns = Turns::of_thread();
    if (turns != nullptr && turns->finds_fault(words_ + word::fault, true)) return false;
    Backoff backoff;
    for (;;) {
        const std::uint32_t seen = of.load(word);
        if (any ? seen != 0 : at_least(seen, value)) break;
        if (has_fault()) return false;
        backoff.pause();
    }
    if (turns != nullptr) turns->awaited(of.words_ + word, value, any);
    return true;
}

void HostControl::raise(const fuse::Wait& wait, std::uint32_t epoch, std::int32_t where) const {
    raise(wait.signal, load(word::word_of(wait.signal)), epoch - static_cast<std::uint32_t>(wait.lag), epoch,
          where);
}

void HostControl::raise(std::int32_t signal, std::uint32_t seen, std::uint32_t awaited, std::uint32_t epoch,
                        std::int32_t where) const {
    std::uint32_t none = 0;
    if (!std::atomic_ref<std::uint32_t>(words_[word::fault_claim])
             .compare_exchange_strong(none, word::claiming, std::memory_order_acq_rel))
        return;
    store(word::fault_seen, seen);
    store(word::fault_epoch, awaited);
    store(word::fault_call, epoch);
    store(word::fault_where, static_cast<std::uint32_t>(where));
    const std::uint32_t fault = static_cast<std::uint32_t>(signal) + 1;
    store(word::fault_claim, raise_word(fault) ? fault : 0);
}

void HostControl::raise_peer(int rank) const {
    (void)raise_word(word::fault_of_peer | static_cast<std::uint32_t>(rank));
}

bool HostControl::raise_word(std::uint32_t value) const {
    if (Turns* const turns = Turns::of_thread()) turns->store(words_ + word::fault, value);
    std::uint32_t none = 0;
    return std::atomic_ref<std::uint32_t>(words_[word::fault])
        .compare_exchange_strong(none, value, std::memory_order_acq_rel);
}

void HostControl::leave_call(std::uint32_t epoch) const {
    if (load(word::fault_call) == 0) store(word::fault_call, epoch);
}

FaultRecord HostControl::fault() const {
    std::uint32_t words[word::header_words];
    for (std::int32_t i = 0; i < word::header_words; ++i) words[i] = load(i);
    return FaultRecord::from_words(words);
}

void Backoff::pause() {
    if (Turns* const turns = Turns::of_thread()) return turns->pause();
    ++count_;
    if (count_ < 32) return;
    if (count_ < 128) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + (count_ - 128), 200)));
}

}  // namespace syncopate::runtime

#include "runtime/call/call_events.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/heap/process.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

struct CallEvents::Page {
    static constexpr std::uint32_t kTexts = 4;
    static constexpr std::size_t kMostText = 4000;
    ProcessName process;  ///< each rank's; the rest is rank 0's
    std::uint32_t claimed;
    std::uint32_t published;
    char texts[kTexts][kMostText];  // of event n at n % kTexts
};

namespace {

using Word = std::atomic_ref<std::uint32_t>;

constexpr std::chrono::milliseconds kToPublish{1000};

}  // namespace

Result<CallEvents> CallEvents::create(Rendezvous& rendezvous, Milliseconds timeout) {
    SYNCOPATE_TAKE(SharedPages pages, SharedPages::create(rendezvous, sizeof(Page), timeout));
    // The pid last: without it there is nobody to ask for.
    ProcessName& process = pages.of<Page>(pages.rank()).process;
    const ProcessName own = ProcessName::own();
    process.start = own.start;
    process.space = own.space;
    std::atomic_ref<std::int64_t>(process.pid).store(own.pid);
    return CallEvents(std::move(pages));
}

CallEvents::Page& CallEvents::page() const { return pages_.of<Page>(0); }

std::uint32_t CallEvents::count() const { return Word(page().claimed).load(); }

bool CallEvents::has_ended(int rank) const {
    ProcessName& process = pages_.of<Page>(rank).process;
    return std::atomic_ref<std::int64_t>(process.pid).load() != 0 && process.has_ended();
}

bool CallEvents::claim(std::uint32_t number) {
    std::uint32_t before = number - 1;
    return Word(page().published).load() == before &&
           Word(page().claimed).compare_exchange_strong(before, number);
}

void CallEvents::publish(std::uint32_t number, std::string_view text) {
    char* own = page().texts[number % Page::kTexts];
    const std::size_t size = std::min(text.size(), Page::kMostText - 1);
    std::memcpy(own, text.data(), size);
    own[size] = '\0';
    Word(page().published).store(number);
}

void CallEvents::settle() const {
    const auto end = std::chrono::steady_clock::now() + kToPublish;
    while (Word(page().published).load() != count() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::string CallEvents::text(std::uint32_t number) const {
    const std::uint32_t published = Word(page().published).load();
    const bool known = number != 0 && number <= published && published - number < Page::kTexts;
    return known ? page().texts[number % Page::kTexts] : "the ranks' calls differed before";
}

}  // namespace syncopate::runtime

#include "runtime/call/call_events.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace syncopate::runtime {

struct CallEvents::Page {
    static constexpr std::uint32_t kTexts = 4;
    static constexpr std::size_t kMostText = 4000;
    // Rank 0's alone count.
    std::uint32_t claimed;
    std::uint32_t published;
    char texts[kTexts][kMostText];  // of event n at n % kTexts
    // Each rank's own.
    std::uint32_t refused_since;
    std::uint32_t refused;
    std::uint32_t known;
    char refusal[kMostText];
};

namespace {

using Word = std::atomic_ref<std::uint32_t>;

constexpr std::chrono::milliseconds kToPublish{1000};

void write(char* to, std::string_view text, std::size_t most) {
    const std::size_t size = std::min(text.size(), most - 1);
    std::memcpy(to, text.data(), size);
    to[size] = '\0';
}

}  // namespace

Result<CallEvents> CallEvents::create(Rendezvous& rendezvous, Milliseconds timeout) {
    Result<SharedPages> pages = SharedPages::create(rendezvous, sizeof(Page), timeout);
    if (!pages) return pages.error();
    return CallEvents(std::move(pages).value());
}

CallEvents::Page& CallEvents::page(int rank) const { return pages_.of<Page>(rank); }

std::uint32_t CallEvents::count() const { return Word(page().claimed).load(); }

bool CallEvents::claim(std::uint32_t number) {
    std::uint32_t before = number - 1;
    return Word(page().published).load() == before &&
           Word(page().claimed).compare_exchange_strong(before, number);
}

void CallEvents::publish(std::uint32_t number, std::string_view text) {
    write(page().texts[number % Page::kTexts], text, Page::kMostText);
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

std::uint32_t CallEvents::refused(int rank, std::uint32_t since) const {
    const std::uint32_t count = Word(page(rank).refused).load();
    return Word(page(rank).refused_since).load() == since ? count : 0;
}

std::string CallEvents::refusal(int rank) const { return page(rank).refusal; }

void CallEvents::refuse(std::uint32_t since, std::string_view text) {
    const std::uint32_t before = refused(rank(), since);
    Page& own = page(rank());
    Word(own.refused).store(0);
    write(own.refusal, text, Page::kMostText);
    Word(own.refused_since).store(since);
    Word(own.refused).store(before + 1);
}

std::uint32_t CallEvents::known_to(int rank) const { return Word(page(rank).known).load(); }
void CallEvents::set_known_to(int rank, std::uint32_t event) { Word(page(rank).known).store(event); }

}  // namespace syncopate::runtime

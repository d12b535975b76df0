#include "runtime/call/call_board.hpp"
#include "syncopate/try.hpp"

#include <atomic>

namespace syncopate::runtime {

struct CallBoard::Page {
    std::uint32_t begun;
    std::uint32_t called;
    std::uint32_t ended_by;  ///< rank 0's counts
};

namespace {

using Word = std::atomic_ref<std::uint32_t>;

}  // namespace

Result<CallBoard> CallBoard::create(Rendezvous& rendezvous, Milliseconds timeout) {
    SYNCOPATE_TAKE(SharedPages pages, SharedPages::create(rendezvous, sizeof(Page), timeout));
    return CallBoard(std::move(pages));
}

CallBoard::Page& CallBoard::page(int rank) const { return pages_.of<Page>(rank); }

std::uint32_t CallBoard::begun(int rank) const {
    return Word(page(rank).begun).load(std::memory_order_acquire);
}

std::uint32_t CallBoard::called(int rank) const {
    const std::uint32_t asked = Word(page(rank).called).load();
    const std::uint32_t started = begun(rank);
    return is_ahead(started, asked) ? started : asked;
}

void CallBoard::set_begun(std::uint32_t calls) {
    if (calls != begun(rank())) Word(page(rank()).begun).store(calls, std::memory_order_release);
}

void CallBoard::add_call() { Word(page(rank()).called).store(called(rank()) + 1); }

void CallBoard::take_back_call() { --Word(page(rank()).called); }

bool CallBoard::is_apart(bool asked) const {
    const auto known = [&](int rank) { return asked ? begun(rank) : called(rank); };
    for (int other = 1; other < size(); ++other) {
        if (known(other) != known(0)) return true;
    }
    return false;
}

std::uint32_t CallBoard::ended_by() const { return Word(page(0).ended_by).load(); }

void CallBoard::end_by(std::uint32_t event) { Word(page(0).ended_by).store(event); }

}  // namespace syncopate::runtime

// What the ranks have called of one op, where every rank sees it [P33]. No call waits for it.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/call/shared_pages.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class CallBoard {
public:
    /// Collective.
    static Result<CallBoard> create(Rendezvous& rendezvous, Milliseconds timeout);

    [[nodiscard]] int rank() const { return pages_.rank(); }
    [[nodiscard]] int size() const { return pages_.size(); }

    /// Calls of `rank` that have begun, or that its program has asked for at least: on a GPU a call begins later
    /// than it is asked for, and one that is replayed from a graph is not asked for.
    [[nodiscard]] std::uint32_t begun(int rank) const;
    [[nodiscard]] std::uint32_t called(int rank) const;
    void set_begun(std::uint32_t calls);
    /// This rank's program has asked for one more. What the caller reads then is read after all ranks can see
    /// it.
    void add_call();
    void take_back_call();
    /// Some rank has asked for a call, or begun one, that another one has not asked for; with `asked`: has begun one that
    /// another one has not, though it may have been asked for, as all calls have been that lie in graphs.
    [[nodiscard]] bool is_apart(bool asked) const;

    /// The event (call_events.hpp) that ended the op on all ranks; 0: none.
    [[nodiscard]] std::uint32_t ended_by() const;
    void end_by(std::uint32_t event);

private:
    struct Page;
    explicit CallBoard(SharedPages pages) : pages_(std::move(pages)) {}
    [[nodiscard]] Page& page(int rank) const;

    SharedPages pages_;
};

/// Whether `calls` is past `of`; both may have passed 2^32.
[[nodiscard]] inline bool is_ahead(std::uint32_t calls, std::uint32_t of) {
    return static_cast<std::int32_t>(calls - of) > 0;
}

}  // namespace syncopate::runtime

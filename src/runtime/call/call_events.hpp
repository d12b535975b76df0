// The events of a group [P33]: how often the ranks' calls have differed, and how. All ranks go on from calls that
// are alike:
//
//   open ── claim ──▶ claimed by one rank ── publish ──▶ open, one event more
//
// A call counts before it looks at the state (CallBoard::add_call), and
// who has claimed counts calls afterwards: so a call is seen by the event, or it sees the event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/call/shared_pages.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class CallEvents {
public:
    /// Collective.
    static Result<CallEvents> create(Rendezvous& rendezvous, Milliseconds timeout);

    [[nodiscard]] int rank() const { return pages_.rank(); }
    [[nodiscard]] int size() const { return pages_.size(); }
    /// Events so far, one that is claimed included: what it ends is known in a moment (settled).
    [[nodiscard]] std::uint32_t count() const;
    /// Makes event `number` this rank's; false: another rank has it.
    bool claim(std::uint32_t number);
    /// Says what the event was, after all that it ends has been told so.
    void publish(std::uint32_t number, std::string_view text);
    /// Waits until no event is claimed, but not for a rank that died meanwhile.
    void settle() const;
    /// Whether the process of `rank` is seen to have ended.
    [[nodiscard]] bool has_ended(int rank) const;
    /// What an event was; the last few are known.
    [[nodiscard]] std::string text(std::uint32_t number) const;

private:
    struct Page;
    explicit CallEvents(SharedPages pages) : pages_(std::move(pages)) {}
    [[nodiscard]] Page& page() const;

    SharedPages pages_;
};

}  // namespace syncopate::runtime

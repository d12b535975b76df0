// What the ranks have called of one op, where every rank sees it without a call of the driver: a page of host
// memory for each rank, which all map. No call waits for it, and nothing is exchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/heap/heap_memory.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class CallBoard {
public:
    /// Collective.
    static Result<std::unique_ptr<CallBoard>> create(Rendezvous& rendezvous, Milliseconds timeout);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }

    /// Calls of `rank` that have begun, or that its program has asked for at least: on a GPU a call begins later than it is
    /// asked for, and one that is replayed from a graph is not asked for.
    [[nodiscard]] std::uint32_t begun(int rank) const;
    [[nodiscard]] std::uint32_t called(int rank) const;
    void set_begun(std::uint32_t calls);
    /// This rank's program has asked for one more.
    void add_call();

    /// Says on this rank's page how the ranks' calls differ, for the `event`-th time in their group, from 1 on;
    /// the first text stays.
    void declare(std::uint32_t event, std::string_view text);
    /// The event that was declared; 0: none.
    [[nodiscard]] std::uint32_t declared() const;
    /// What the first rank that has declared said; "": none has.
    [[nodiscard]] std::string text() const;

private:
    struct Page;
    CallBoard(std::unique_ptr<HeapMemory> memory, std::uint64_t stride, int rank, int size);
    [[nodiscard]] Page& page(int rank) const;

    std::unique_ptr<HeapMemory> memory_;
    std::uint64_t stride_;
    int rank_;
    int size_;
};

}  // namespace syncopate::runtime

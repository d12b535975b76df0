// The memory of a group: the heaps that its ranks have made, what they may take together, and giving all of it back
// for a while, as an engine does that sleeps. A heap's memory comes back at the same addresses, so what was compiled,
// and graphs that were captured, go on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::runtime {

class Rendezvous;
class SymmetricHeap;

class GroupMemory {
public:
    GroupMemory();
    /// Bytes that this rank's heaps may take together, the same on all ranks; 0: as many as there are. A heap that
    /// would take more is refused on all ranks, before anything is allocated.
    void set_budget(std::uint64_t bytes);
    [[nodiscard]] std::uint64_t budget() const;
    /// This and `other` have one budget from now on, `other`'s, for what both take: ranks of them, as a group and the nodes' parts of it
    /// that meet apart, are on one device. What has taken the place of a group shares with it.
    void share_budget(const GroupMemory& other);

    /// Bytes of this rank's device that the group's heaps take when they are not released.
    [[nodiscard]] std::uint64_t bytes() const;
    /// Of those, what has been given back.
    [[nodiscard]] std::uint64_t bytes_released() const;

    /// Whether a heap of so many bytes more fits the budget; none does while some are released.
    [[nodiscard]] Status require(std::uint64_t bytes) const;
    /// A heap that all ranks have made: they count it alike.
    void add(const std::shared_ptr<SymmetricHeap>& heap);

    /// Those that are alive here, in the order of their making, with its number.
    using Numbered = std::pair<std::uint64_t, std::shared_ptr<SymmetricHeap>>;
    [[nodiscard]] std::vector<Numbered> alive() const;

private:
    friend Result<std::uint64_t> release(Rendezvous& rendezvous);
    friend Result<std::uint64_t> restore(Rendezvous& rendezvous);
    /// Those that are alive on all ranks. Collective.
    [[nodiscard]] Result<std::vector<Numbered>> alive_everywhere(Rendezvous& rendezvous) const;

    /// What those that share a budget have in common.
    struct Shared;
    [[nodiscard]] std::shared_ptr<Shared> shared() const;

    mutable std::mutex mutex_;
    std::shared_ptr<Shared> shared_;
    std::uint64_t made_ = 0;
    std::vector<std::pair<std::uint64_t, std::weak_ptr<SymmetricHeap>>> heaps_;
};

/// Gives the memory of all heaps of the group back; the bytes of this rank's device. Collective; waits for what the
/// device does, and no call may be in progress on any rank. What lies in the heaps is lost, but for what ops need
/// between calls. While it is released nothing can be called, and no heap made; what was not destroyed on all ranks
/// alike stays. Fails on all ranks, and then nothing is released.
[[nodiscard]] Result<std::uint64_t> release(Rendezvous& rendezvous);

/// Takes it again, at the same addresses. Collective. Fails on all ranks where one has too little memory: then all of
/// it stays released, and can be restored later.
[[nodiscard]] Result<std::uint64_t> restore(Rendezvous& rendezvous);

}  // namespace syncopate::runtime

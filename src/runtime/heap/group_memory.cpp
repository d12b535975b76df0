#include "syncopate/runtime/heap/group_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "runtime/heap/fields.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

struct GroupMemory::Shared {
    std::mutex mutex;
    std::uint64_t budget = 0;
    std::vector<std::weak_ptr<SymmetricHeap>> heaps;  ///< of all, once each

    void add(const std::shared_ptr<SymmetricHeap>& heap) {
        const std::lock_guard lock(mutex);
        std::erase_if(heaps, [&](const auto& one) { return one.expired() || one.lock() == heap; });
        heaps.push_back(heap);
    }
    /// What is retired belongs to no group any longer.
    std::uint64_t bytes(bool released) {
        std::uint64_t sum = 0;
        const std::lock_guard lock(mutex);
        for (const auto& one : heaps) {
            const std::shared_ptr<SymmetricHeap> heap = one.lock();
            if (heap != nullptr && !heap->is_retired() && (!released || heap->is_released()))
                sum += heap->stride();
        }
        return sum;
    }
};

GroupMemory::GroupMemory() : shared_(std::make_shared<Shared>()) {}

std::shared_ptr<GroupMemory::Shared> GroupMemory::shared() const {
    const std::lock_guard lock(mutex_);
    return shared_;
}

void GroupMemory::set_budget(std::uint64_t bytes) {
    const std::shared_ptr<Shared> of = shared();
    const std::lock_guard lock(of->mutex);
    of->budget = bytes;
}

std::uint64_t GroupMemory::budget() const {
    const std::shared_ptr<Shared> of = shared();
    const std::lock_guard lock(of->mutex);
    return of->budget;
}

void GroupMemory::share_budget(const GroupMemory& other) {
    const std::shared_ptr<Shared> of = other.shared();
    for (const auto& [number, heap] : alive()) of->add(heap);
    const std::lock_guard lock(mutex_);
    shared_ = of;
}

std::vector<GroupMemory::Numbered> GroupMemory::alive() const {
    std::vector<Numbered> found;
    const std::lock_guard lock(mutex_);
    for (const auto& [number, heap] : heaps_) {
        if (std::shared_ptr<SymmetricHeap> alive = heap.lock()) found.emplace_back(number, std::move(alive));
    }
    return found;
}

std::uint64_t GroupMemory::bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [number, heap] : alive()) sum += heap->stride();
    return sum;
}

std::uint64_t GroupMemory::bytes_released() const {
    std::uint64_t sum = 0;
    for (const auto& [number, heap] : alive())
        sum += heap->is_released() && !heap->is_retired() ? heap->stride() : 0;
    return sum;
}

Status GroupMemory::require(std::uint64_t bytes) const {
    for (const auto& [number, heap] : alive()) {
        if (heap->is_retired()) return heap->require_there();
    }
    const std::shared_ptr<Shared> of = shared();
    if (of->bytes(true) > 0) return usage_error("the group's memory has been released: restore it first");
    const std::uint64_t used = of->bytes(false);
    const std::uint64_t most = budget();
    if (most == 0 || (used <= most && bytes <= most - used)) return Done{};
    return machine_error(
        fmt::format("a heap of {} bytes does not fit the group's budget: {} of {} bytes are in use; give the "
                    "group a larger one, or destroy what is not needed",
                    bytes, used, most));
}

void GroupMemory::add(const std::shared_ptr<SymmetricHeap>& heap) {
    shared()->add(heap);
    const std::lock_guard lock(mutex_);
    std::erase_if(heaps_, [](const auto& one) { return one.second.expired(); });
    heaps_.emplace_back(made_++, heap);
}

Result<std::vector<GroupMemory::Numbered>> GroupMemory::alive_everywhere(Rendezvous& rendezvous) const {
    std::vector<Numbered> mine = alive();
    std::string numbers;
    for (const auto& [number, heap] : mine) numbers += fmt::format("{} ", number);
    SYNCOPATE_TAKE(const std::vector<Bytes> all, all_gather(rendezvous, "heaps", numbers));
    for (const Bytes& theirs : all) {
        const std::vector<std::string_view> known = fields_of(theirs);
        std::erase_if(mine, [&](const Numbered& one) {
            return std::ranges::find(known, fmt::format("{}", one.first)) == known.end();
        });
    }
    return mine;
}

Result<std::uint64_t> release(Rendezvous& rendezvous) {
    SYNCOPATE_TAKE(const auto heaps, rendezvous.memory().alive_everywhere(rendezvous));
    std::uint64_t bytes = 0;
    std::vector<SymmetricHeap*> released;  // now
    for (const auto& [number, heap] : heaps) {
        if (heap->is_released() && !heap->is_retired()) continue;
        if (Status done = heap->release(); !done) {
            for (SymmetricHeap* const before : released) {  // all ranks have come as far
                const Status back = before->restore();
                if (back) continue;
                Error both = done.error();
                both.message += "; and what had been released before stays so: " + back.error().message;
                return both;
            }
            return done.error();
        }
        released.push_back(heap.get());
        bytes += heap->stride();
    }
    return bytes;
}

Result<std::uint64_t> restore(Rendezvous& rendezvous) {
    SYNCOPATE_TAKE(const auto heaps, rendezvous.memory().alive_everywhere(rendezvous));
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < heaps.size(); ++i) {
        if (!heaps[i].second->is_released() && !heaps[i].second->is_retired()) continue;
        const Status done = heaps[i].second->restore();
        if (done) {
            bytes += heaps[i].second->stride();
            continue;
        }
        for (std::size_t before = 0; before < i; ++before) (void)heaps[before].second->release();
        return done.error();
    }
    return bytes;
}

}  // namespace syncopate::runtime

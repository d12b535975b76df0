// A few bytes of host memory for each rank of a group, which all ranks map: what they see of each other without an exchange
// and without a call of the driver.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/heap/heap_memory.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class SharedPages {
public:
    /// `bytes` for each rank, zero at first. Collective.
    static Result<SharedPages> create(Rendezvous& rendezvous, std::uint64_t bytes, Milliseconds timeout);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }
    /// What `rank` has of it, as a T without constructor.
    template <typename T>
    [[nodiscard]] T& of(int rank) const {
        return *reinterpret_cast<T*>(memory_->base() + static_cast<std::uint64_t>(rank) * stride_);
    }

private:
    SharedPages(std::unique_ptr<HeapMemory> memory, std::uint64_t stride, int rank, int size);

    std::unique_ptr<HeapMemory> memory_;
    std::uint64_t stride_;
    int rank_;
    int size_;
};

}  // namespace syncopate::runtime

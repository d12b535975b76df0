// The symmetric heap: every rank's memory, mapped by each process into one range of addresses.
//
//   base()              base() + stride()        base() + 2 * stride()
//   | rank 0's memory   | rank 1's memory        | rank 2's memory        …
//
// An object has the same offset on every rank, so a peer's copy is reached by arithmetic: address(rank,
// offset). base() differs between processes; stride() and offsets do not. Ranks that are threads of one process share
// one mapping. Addresses are device addresses on cuda and plain pointers on host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/device.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class HeapMemory;  // src/runtime/heap/heap_memory.hpp: reserving, exporting and mapping on one kind of device
struct HeapRanks;
class CudaContext;

/// Bytes of this device that are free now, and all of them. On host: of the machine's memory.
struct MemoryInfo {
    std::uint64_t free = 0;
    std::uint64_t total = 0;
};
Result<MemoryInfo> memory_info(Device device);

class SymmetricHeap {
public:
    /// Made by all ranks together, each with the same `bytes_per_rank`; returns when all memory is mapped
    /// everywhere and zeroed. A failure on one rank fails all, with that rank's error: too little memory
    /// (asked, free, total), the group's budget (group_memory.hpp), no peer-to-peer access (between which devices),
    /// different sizes. The capacity is fixed: it never grows. The heap keeps `rendezvous`, for the ops made on it.
    static Result<std::shared_ptr<SymmetricHeap>> create(Device device,
                                                         std::shared_ptr<Rendezvous> rendezvous,
                                                         std::uint64_t bytes_per_rank,
                                                         Milliseconds timeout = kOfGroup);
    ~SymmetricHeap();
    SymmetricHeap(const SymmetricHeap&) = delete;
    SymmetricHeap& operator=(const SymmetricHeap&) = delete;

    [[nodiscard]] Device device() const { return device_; }
    [[nodiscard]] int rank() const;
    [[nodiscard]] int size() const;
    [[nodiscard]] std::uint64_t base() const { return base_; }
    [[nodiscard]] std::uint64_t stride() const { return stride_; }  ///< bytes; the capacity, rounded up
    [[nodiscard]] std::uint64_t address(int rank, std::uint64_t offset) const {
        return base_ + static_cast<std::uint64_t>(rank) * stride_ + offset;
    }
    [[nodiscard]] std::uint64_t local(std::uint64_t offset) const { return address(rank(), offset); }

    /// An offset with `bytes` bytes behind it, the same on all ranks as long as all ranks allocate and free
    /// in the same order. `alignment`: any number of bytes. The memory is as its last user left it. Fails
    /// when no gap is large enough.
    Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment = 256);
    /// `offset` came from allocate and is not in use by any rank.
    void free(std::uint64_t offset);
    [[nodiscard]] std::uint64_t bytes_allocated() const;

    /// Blocking copies to and from any mapped address, and fills with zeros. They order with nothing else.
    Status write(std::uint64_t address, const void* data, std::uint64_t bytes);
    Status read(std::uint64_t address, void* data, std::uint64_t bytes) const;
    Status zero(std::uint64_t address, std::uint64_t bytes);

    /// What lies there, of what has been allocated, is the same again after release and restore, until it is freed.
    void keep(std::uint64_t offset, std::uint64_t bytes);
    /// As of the group (group_memory.hpp), of this heap alone. Collective.
    Status release();
    Status restore();
    [[nodiscard]] bool is_released() const { return released_; }
    /// Fails while it is released.
    [[nodiscard]] Status require_there() const { return released_ ? is_away() : Status(Done{}); }

    [[nodiscard]] Rendezvous& rendezvous() { return *rendezvous_; }
    /// The primary context of this rank's GPU; null on host.
    [[nodiscard]] const std::shared_ptr<CudaContext>& cuda_context() const;

private:
    SymmetricHeap(Device device, std::shared_ptr<Rendezvous> rendezvous, std::unique_ptr<HeapMemory> memory,
                  std::uint64_t stride);
    [[nodiscard]] Status is_away() const;  ///< the error while it is released
    /// Of what release has put aside; null where that has none of it.
    [[nodiscard]] const char* put_aside(std::uint64_t address, std::uint64_t bytes) const;

    Device device_;
    std::shared_ptr<Rendezvous> rendezvous_;
    std::unique_ptr<HeapMemory> memory_;
    std::uint64_t base_ = 0;
    std::uint64_t stride_ = 0;
    std::map<std::uint64_t, std::uint64_t> used_;  ///< offset → end, of what is allocated
    std::map<std::uint64_t, std::uint64_t> kept_;  ///< offset → bytes, of what release puts aside
    std::vector<std::pair<std::uint64_t, std::string>> aside_;  ///< offset, bytes
    std::unique_ptr<HeapRanks> ranks_;
    bool released_ = false;
};

}  // namespace syncopate::runtime

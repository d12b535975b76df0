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

/// What lies in a heap and goes on with it after a fault: an op (runtime/call/op.hpp).
class HeapUser {
public:
    virtual ~HeapUser() = default;
    /// What all ranks know alike of it.
    [[nodiscard]] virtual std::string identity() const = 0;
    /// Whether a captured graph may still run it.
    [[nodiscard]] virtual bool was_captured() const = 0;
    /// Fails in the middle of a call.
    [[nodiscard]] virtual Status require_idle() const = 0;
    /// Tells what is in flight, here and on the others, to end [P35]. No call follows before renew().
    virtual void interrupt() = 0;
    /// Waits until it has ended, and what else its device was given: all that it may wait for has been interrupted.
    virtual Status drain() = 0;
    /// As made anew, on the heap's ranks as they are now [P36]. Collective, as making it is.
    virtual Status renew() = 0;
    /// It takes no more calls, since `why`; a graph that runs it finds a fault.
    virtual void retire(const std::string& why) = 0;
};

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
    [[nodiscard]] int size() const;  ///< ranks of the group, whose numbers are used throughout
    /// Whether that rank's memory is mapped: it is of this node.
    [[nodiscard]] bool maps(int rank) const;
    /// Those whose memory is: so many from the first one on.
    [[nodiscard]] int first_mapped() const;
    [[nodiscard]] int num_mapped() const;
    /// Where rank 0's memory would be, which only its node maps.
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
    [[nodiscard]] bool is_retired() const { return !retired_.empty(); }

    /// Gives the memory back and takes new one, zeroed, at the same addresses, with the ranks of `to`: as many as before, of
    /// which this one has the same number [P36]. Collective. Where it fails there is none until it is renewed.
    Status renew(std::shared_ptr<Rendezvous> to, Milliseconds timeout = kOfGroup);
    /// Gives the memory back for good. `stands_in`: this rank's takes all ranks' addresses, so that a graph which is
    /// replayed touches nobody else's. Of this rank alone. `why`: what is said of it from then on, "was …".
    Status retire(bool stands_in, const std::string& why);
    /// Those that go on with it, in the order of their making, which all ranks have alike; each has a number.
    [[nodiscard]] const std::map<std::uint64_t, HeapUser*>& users() const { return users_; }
    void add_user(HeapUser& user) { users_[next_user_++] = &user; }
    void remove_user(const HeapUser& user) {
        std::erase_if(users_, [&](const auto& one) { return one.second == &user; });
    }
    /// Fails while it is released, and once it is retired.
    [[nodiscard]] Status require_there() const {
        return released_ || !retired_.empty() ? is_away() : Status(Done{});
    }

    [[nodiscard]] Rendezvous& rendezvous() { return *rendezvous_; }
    /// The primary context of this rank's GPU; null on host.
    [[nodiscard]] const std::shared_ptr<CudaContext>& cuda_context() const;

private:
    SymmetricHeap(Device device, std::shared_ptr<Rendezvous> rendezvous, std::unique_ptr<HeapMemory> memory,
                  std::uint64_t stride);
    [[nodiscard]] Status is_away() const;  ///< the error while it is released, or retired
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
    std::map<std::uint64_t, HeapUser*> users_;
    std::uint64_t next_user_ = 0;
    std::string retired_;  ///< why it is for good, or until it is renewed
    bool released_ = false;
};

}  // namespace syncopate::runtime

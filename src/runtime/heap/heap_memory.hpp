// The memory of a heap on one kind of device. The steps, in order: create, export_own, reserve or share, map, zero. After
// unmap they begin anew, at the same addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/heap/address_range.hpp"
#include "runtime/heap/file_descriptor.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/heap/device.hpp"

namespace syncopate::runtime {

/// The ranks of a heap, as one of them sees them.
struct HeapRanks {
    int rank = 0;
    std::vector<std::string> identities;  ///< by rank: HeapMemory::identity()
    std::vector<int> here;                ///< ranks that are threads of this process, rising; this one, too
    std::vector<int> ordinals;            ///< of their devices, each once

    [[nodiscard]] bool leads() const { return here.front() == rank; }
    [[nodiscard]] bool is_here(int other) const {
        for (const int one : here) {
            if (one == other) return true;
        }
        return false;
    }
    /// Whether this rank maps the memory of `other`: its own, and the first rank of a process that of other processes.
    [[nodiscard]] bool maps(int other) const { return other == rank || (leads() && !is_here(other)); }
};

/// Bytes of a rank's memory, by offset.
using KeptBytes = std::vector<std::pair<std::uint64_t, std::string>>;

class HeapMemory {
public:
    virtual ~HeapMemory() = default;

    /// What the sizes of mappings must be multiples of, bytes.
    [[nodiscard]] virtual std::uint64_t granularity() const = 0;
    /// Names the device across processes, in messages and for the check that peers can reach each other.
    [[nodiscard]] virtual std::string identity() const = 0;
    /// Takes `bytes` (a multiple of the granularity) of this rank's device.
    virtual Status create(std::uint64_t bytes) = 0;
    /// A descriptor through which another process can map them.
    virtual Result<FileDescriptor> export_own() = 0;
    /// Reserves addresses for the memory of so many ranks.
    virtual Status reserve(std::size_t ranks) = 0;
    /// What was reserved, for a thread beside this one, or by it.
    [[nodiscard]] virtual std::shared_ptr<AddressRange> range() const = 0;
    virtual void share(std::shared_ptr<AddressRange> range) = 0;
    /// Maps what this rank maps of the ranks' memory (HeapRanks::maps), others' by their descriptors, with access for
    /// all devices of this process. On host `kept` is there from the first moment on.
    virtual Status map(const HeapRanks& ranks, std::vector<FileDescriptor> peers, const KeptBytes& kept) = 0;
    /// Gives this rank's memory back, once its peers have done so, too; the addresses stay. What was never mapped, or made,
    /// is passed over. On host `kept` can still be read there, by the threads that do so at any time.
    virtual void unmap(const HeapRanks& ranks, const KeptBytes& kept) = 0;
    [[nodiscard]] std::uint64_t base() const { return range()->base(); }

    virtual Status write(std::uint64_t address, const void* data, std::uint64_t bytes) = 0;
    virtual Status read(std::uint64_t address, void* data, std::uint64_t bytes) const = 0;
    virtual Status zero(std::uint64_t address, std::uint64_t bytes) = 0;
    /// Waits for what the device does with it.
    virtual Status synchronize() const { return Done{}; }

    std::shared_ptr<CudaContext> context;  ///< null on host
};

Result<std::unique_ptr<HeapMemory>> make_host_memory();
Result<std::unique_ptr<HeapMemory>> make_cuda_memory(int ordinal);

}  // namespace syncopate::runtime

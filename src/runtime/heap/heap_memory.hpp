// The memory of a heap on one kind of device. The steps, in order: create, export_own, map, zero.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/heap/device.hpp"

namespace syncopate::runtime {

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
    /// Reserves peers.size() × bytes of addresses and maps each rank's memory there: the own one at `rank`
    /// (whose descriptor is not used), the others by their descriptors. `identities` are the ranks'
    /// identity().
    virtual Status map(int rank, std::vector<FileDescriptor> peers,
                       const std::vector<std::string>& identities) = 0;
    [[nodiscard]] virtual std::uint64_t base() const = 0;

    virtual Status write(std::uint64_t address, const void* data, std::uint64_t bytes) = 0;
    virtual Status read(std::uint64_t address, void* data, std::uint64_t bytes) const = 0;
    virtual Status zero(std::uint64_t address, std::uint64_t bytes) = 0;

    std::shared_ptr<CudaContext> context;  ///< null on host
};

Result<std::unique_ptr<HeapMemory>> make_host_memory();
Result<std::unique_ptr<HeapMemory>> make_cuda_memory(int ordinal);

}  // namespace syncopate::runtime

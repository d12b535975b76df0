#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/round_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

#include "runtime/heap/fields.hpp"
#include "runtime/heap/heap_memory.hpp"

namespace syncopate::runtime {
namespace {

Result<std::unique_ptr<HeapMemory>> make_memory(Device device) {
    return device.kind == Device::Kind::host ? make_host_memory() : make_cuda_memory(device.ordinal);
}

}  // namespace

Result<MemoryInfo> memory_info(Device device) {
    if (device.kind == Device::Kind::cuda) {
        Result<std::shared_ptr<CudaContext>> context = CudaContext::retain(device.ordinal);
        if (!context) return context.error();
        return (*context)->memory();
    }
    MemoryInfo info;
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);) {
        const std::vector<std::string_view> fields = fields_of(line);
        if (fields.size() < 2) continue;
        const std::uint64_t kib = number_from<std::uint64_t>(fields[1]).value_or(0);
        if (fields[0] == "MemTotal:") info.total = kib * 1024;
        if (fields[0] == "MemAvailable:") info.free = kib * 1024;
    }
    if (info.total == 0) return Error{"/proc/meminfo says nothing about memory", {}, ErrorClass::machine};
    return info;
}

SymmetricHeap::SymmetricHeap(Device device, std::shared_ptr<Rendezvous> rendezvous,
                             std::unique_ptr<HeapMemory> memory, std::uint64_t stride)
    : device_(device),
      rendezvous_(std::move(rendezvous)),
      memory_(std::move(memory)),
      base_(memory_->base()),
      stride_(stride) {}

SymmetricHeap::~SymmetricHeap() = default;

int SymmetricHeap::rank() const { return rendezvous_->rank(); }
int SymmetricHeap::size() const { return rendezvous_->size(); }
const std::shared_ptr<CudaContext>& SymmetricHeap::cuda_context() const { return memory_->context; }

Result<std::shared_ptr<SymmetricHeap>> SymmetricHeap::create(Device device,
                                                             std::shared_ptr<Rendezvous> rendezvous,
                                                             std::uint64_t bytes_per_rank,
                                                             Milliseconds timeout) {
    if (rendezvous == nullptr) return Error{"a heap needs a rendezvous", {}, ErrorClass::usage};
    // Each step is taken by all ranks, or fails on all: a rank that cannot go on says so instead of staying
    // away.
    const std::uint64_t most = (std::uint64_t{1} << 46) / static_cast<std::uint64_t>(rendezvous->size());
    Result<std::unique_ptr<HeapMemory>> memory = make_memory(device);
    std::uint64_t bytes = 0;
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        if (!memory) return memory.error();
        if (bytes_per_rank == 0 || bytes_per_rank > most) {
            return Error{fmt::format("a heap of {} bytes per rank makes no sense", bytes_per_rank),
                         {},
                         ErrorClass::usage};
        }
        bytes = round_up(bytes_per_rank, (*memory)->granularity());
        if (Status made = (*memory)->create(bytes); !made) return made.error();
        return fmt::format("{} {} {}", bytes, device.kind == Device::Kind::host ? "host" : "cuda",
                           (*memory)->identity());
    }();
    Result<std::vector<Bytes>> all = agree(*rendezvous, "heap", mine, timeout);
    if (!all) return all.error();

    std::vector<std::string> identities;
    std::string sizes;
    bool same = true;
    for (const Bytes& theirs : *all) {
        std::vector<std::string_view> fields = fields_of(theirs);
        fields.resize(3);  // bytes, kind, identity
        const std::uint64_t size = number_from<std::uint64_t>(fields[0]).value_or(0);
        const std::string_view kind = fields[1];
        identities.emplace_back(fields[2]);
        sizes += fmt::format("{}{} ({})", sizes.empty() ? "" : ", ", size, kind);
        same = same && size == bytes && kind == (device.kind == Device::Kind::host ? "host" : "cuda");
    }
    if (!same) {
        return Error{
            fmt::format("the ranks ask for different heaps; bytes by rank: {}. All must ask for the same",
                        sizes),
            {.rank = rendezvous->rank()},
            ErrorClass::usage};
    }

    Result<FileDescriptor> own = (*memory)->export_own();
    // The exchange also carries an export that failed: agree before anyone waits at a socket.
    if (Result<std::vector<Bytes>> exported =
            agree(*rendezvous, "export", own ? Result<Bytes>("") : Result<Bytes>(own.error()), timeout);
        !exported) {
        return exported.error();
    }
    Result<std::vector<FileDescriptor>> peers = exchange_descriptors(*rendezvous, *own, timeout);
    if (!peers) return peers.error();
    own->reset();

    Status ready = (*memory)->map(rendezvous->rank(), std::move(peers).value(), identities);
    if (ready) {
        const std::uint64_t first =
            (*memory)->base() + static_cast<std::uint64_t>(rendezvous->rank()) * bytes;
        ready = (*memory)->zero(first, bytes);
    }
    Result<std::vector<Bytes>> mapped =
        agree(*rendezvous, "mapped", ready ? Result<Bytes>("") : Result<Bytes>(ready.error()), timeout);
    if (!mapped) return mapped.error();
    return std::shared_ptr<SymmetricHeap>(
        new SymmetricHeap(device, std::move(rendezvous), std::move(memory).value(), bytes));
}

Result<std::uint64_t> SymmetricHeap::allocate(std::uint64_t bytes, std::uint64_t alignment) {
    if (alignment == 0) return Error{"an alignment of 0 bytes makes no sense", {}, ErrorClass::usage};
    // First fit: the lowest gap that is large enough, so that the offset depends on the order of calls alone.
    const std::uint64_t size = std::max<std::uint64_t>(bytes, 1);
    std::uint64_t offset = 0;
    std::uint64_t largest = 0;
    const auto fits = [&](std::uint64_t end) {
        largest = std::max(largest, end > offset ? end - offset : 0);
        return offset <= end && size <= end - offset;
    };
    for (const auto& [begin, end] : used_) {
        if (fits(begin)) {
            used_[offset] = offset + size;
            return offset;
        }
        offset = round_up(end, alignment);
    }
    if (fits(stride_)) {
        used_[offset] = offset + size;
        return offset;
    }
    return Error{
        fmt::format(
            "the symmetric heap on {} has no room for {} bytes: {} of {} are in use, the largest gap has {}. "
            "Create it with a larger capacity",
            device_.to_string(), bytes, bytes_allocated(), stride_, largest),
        {.rank = rank()},
        ErrorClass::machine};
}

void SymmetricHeap::free(std::uint64_t offset) { used_.erase(offset); }

std::uint64_t SymmetricHeap::bytes_allocated() const {
    std::uint64_t sum = 0;
    for (const auto& [begin, end] : used_) sum += end - begin;
    return sum;
}

Status SymmetricHeap::write(std::uint64_t address, const void* data, std::uint64_t bytes) {
    return memory_->write(address, data, bytes);
}
Status SymmetricHeap::read(std::uint64_t address, void* data, std::uint64_t bytes) const {
    return memory_->read(address, data, bytes);
}
Status SymmetricHeap::zero(std::uint64_t address, std::uint64_t bytes) {
    return memory_->zero(address, bytes);
}

}  // namespace syncopate::runtime

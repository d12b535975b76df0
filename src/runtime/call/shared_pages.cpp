#include "runtime/call/shared_pages.hpp"

#include <utility>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"

namespace syncopate::runtime {

SharedPages::SharedPages(std::unique_ptr<HeapMemory> memory, std::uint64_t stride, int rank, int size)
    : memory_(std::move(memory)), stride_(stride), rank_(rank), size_(size) {}

Result<SharedPages> SharedPages::create(Rendezvous& rendezvous, std::uint64_t bytes, Milliseconds timeout) {
    Result<std::unique_ptr<HeapMemory>> memory = make_host_memory();
    std::uint64_t stride = 0;
    Result<FileDescriptor> own = [&]() -> Result<FileDescriptor> {
        if (!memory) return memory.error();
        const std::uint64_t page = (*memory)->granularity();
        stride = (bytes + page - 1) / page * page;
        if (Status made = (*memory)->create(stride); !made) return made.error();
        const auto ranks = static_cast<std::size_t>(rendezvous.size());
        if (Status reserved = (*memory)->reserve(ranks); !reserved) return reserved.error();
        return (*memory)->export_own();
    }();
    if (Result<std::vector<Bytes>> made =
            agree(rendezvous, "board", own ? Result<Bytes>("") : Result<Bytes>(own.error()), timeout);
        !made) {
        return made.error();
    }
    Result<std::vector<FileDescriptor>> peers = exchange_descriptors(rendezvous, *own, timeout);
    if (!peers) return peers.error();
    // A rank that cannot map it says so where the op is ready.
    const HeapRanks alone{.rank = rendezvous.rank(), .here = {rendezvous.rank()}};
    if (Status mapped = (*memory)->map(alone, std::move(peers).value(), {}); !mapped) return mapped.error();
    return SharedPages(std::move(memory).value(), stride, rendezvous.rank(), rendezvous.size());
}

}  // namespace syncopate::runtime

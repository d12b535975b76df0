#include "runtime/call/shared_pages.hpp"

#include <utility>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"
#include "syncopate/try.hpp"

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
        SYNCOPATE_TRY((*memory)->create(stride));
        const auto ranks = static_cast<std::size_t>(rendezvous.size());
        SYNCOPATE_TRY((*memory)->reserve(ranks));
        return (*memory)->export_own();
    }();
    if (Result<std::vector<Bytes>> made =
            agree(rendezvous, "board", own ? Result<Bytes>("") : Result<Bytes>(own.error()), timeout);
        !made) {
        return made.error();
    }
    SYNCOPATE_TAKE(std::vector<FileDescriptor> peers, exchange_descriptors(rendezvous, *own, timeout));
    // A rank that cannot map it says so where the op is ready.
    const HeapRanks alone{.rank = rendezvous.rank(), .here = {rendezvous.rank()}};
    SYNCOPATE_TRY((*memory)->map(alone, std::move(peers), {}));
    return SharedPages(std::move(memory).value(), stride, rendezvous.rank(), rendezvous.size());
}

}  // namespace syncopate::runtime

#include "runtime/call/call_board.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"

namespace syncopate::runtime {

struct CallBoard::Page {
    static constexpr std::size_t kMostText = 4000;
    std::uint32_t begun;
    std::uint32_t called;
    std::uint32_t declared;
    char text[kMostText];
};

namespace {

std::uint32_t load(std::uint32_t& word) {
    return std::atomic_ref<std::uint32_t>(word).load(std::memory_order_acquire);
}

void store(std::uint32_t& word, std::uint32_t value) {
    std::atomic_ref<std::uint32_t>(word).store(value, std::memory_order_release);
}

/// The later of two numbers of calls, which may have passed 2^32.
std::uint32_t later(std::uint32_t one, std::uint32_t other) {
    return static_cast<std::int32_t>(one - other) >= 0 ? one : other;
}

}  // namespace

CallBoard::CallBoard(std::unique_ptr<HeapMemory> memory, std::uint64_t stride, int rank, int size)
    : memory_(std::move(memory)), stride_(stride), rank_(rank), size_(size) {}

Result<std::unique_ptr<CallBoard>> CallBoard::create(Rendezvous& rendezvous, Milliseconds timeout) {
    Result<std::unique_ptr<HeapMemory>> memory = make_host_memory();
    std::uint64_t stride = 0;
    Result<FileDescriptor> own = [&]() -> Result<FileDescriptor> {
        if (!memory) return memory.error();
        stride = std::max<std::uint64_t>((*memory)->granularity(), sizeof(Page));
        if (Status made = (*memory)->create(stride); !made) return made.error();
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
    if (Status mapped = (*memory)->map(rendezvous.rank(), std::move(peers).value(), {}); !mapped)
        return mapped.error();
    return std::unique_ptr<CallBoard>(
        new CallBoard(std::move(memory).value(), stride, rendezvous.rank(), rendezvous.size()));
}

CallBoard::Page& CallBoard::page(int rank) const {
    return *reinterpret_cast<Page*>(memory_->base() + static_cast<std::uint64_t>(rank) * stride_);
}

std::uint32_t CallBoard::begun(int rank) const { return load(page(rank).begun); }

std::uint32_t CallBoard::called(int rank) const { return later(load(page(rank).called), begun(rank)); }

void CallBoard::set_begun(std::uint32_t calls) {
    if (calls != begun(rank_)) store(page(rank_).begun, calls);
}

void CallBoard::add_call() { store(page(rank_).called, called(rank_) + 1); }

void CallBoard::declare(std::uint32_t event, std::string_view text) {
    Page& own = page(rank_);
    if (load(own.declared) != 0) return;
    const std::size_t size = std::min(text.size(), Page::kMostText - 1);
    std::memcpy(own.text, text.data(), size);
    own.text[size] = '\0';
    store(own.declared, event);
}

std::uint32_t CallBoard::declared() const {
    for (int rank = 0; rank < size_; ++rank) {
        if (const std::uint32_t event = load(page(rank).declared); event != 0) return event;
    }
    return 0;
}

std::string CallBoard::text() const {
    for (int rank = 0; rank < size_; ++rank) {
        Page& theirs = page(rank);
        if (load(theirs.declared) != 0) return theirs.text;
    }
    return "";
}

}  // namespace syncopate::runtime

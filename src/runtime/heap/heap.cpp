#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/round_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "runtime/heap/fields.hpp"
#include "runtime/heap/heap_memory.hpp"
#include "runtime/heap/process.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::runtime {
namespace {

Result<std::unique_ptr<HeapMemory>> make_memory(Device device) {
    return device.kind == Device::Kind::host ? make_host_memory() : make_cuda_memory(device.ordinal);
}

/// Of what the ranks have said of themselves, those of this node: bytes, kind, identity, process, ordinal.
HeapRanks ranks_of(const std::vector<Bytes>& of_all, const Rendezvous& rendezvous) {
    const auto first = of_all.begin() + rendezvous.first_of_node();
    const std::vector<Bytes> all(first, first + rendezvous.ranks_of_node());
    const int rank = rendezvous.rank() - rendezvous.first_of_node();
    HeapRanks ranks{.rank = rank};
    const auto field = [&](std::size_t of, std::size_t index) {
        std::vector<std::string_view> fields = fields_of(all[of]);
        fields.resize(5);
        return std::string(fields[index]);
    };
    for (std::size_t other = 0; other < all.size(); ++other) {
        ranks.identities.push_back(field(other, 2));
        if (field(other, 3) != field(static_cast<std::size_t>(rank), 3)) continue;
        ranks.here.push_back(static_cast<int>(other));
        const int ordinal = whole_number<int>(field(other, 4)).value_or(0);
        if (std::ranges::find(ranks.ordinals, ordinal) == ranks.ordinals.end())
            ranks.ordinals.push_back(ordinal);
    }
    return ranks;
}

/// What a rank says of itself, as ranks_of reads it.
Bytes words_of(std::uint64_t bytes, Device device, const HeapMemory& memory) {
    return fmt::format("{} {} {} {} {}", bytes, device.kind == Device::Kind::host ? "host" : "cuda",
                       memory.identity(), process_name(), device.ordinal);
}

/// What all ranks say of themselves, once they ask for memory of one kind, and those of a node for as much. Collective.
Result<std::vector<Bytes>> agree_on_size(Rendezvous& rendezvous, const Result<Bytes>& mine,
                                         Milliseconds timeout) {
    Result<std::vector<Bytes>> all = agree(rendezvous, "heap", mine, timeout);
    if (!all) return all;
    std::string sizes;
    bool same = true;
    const auto fields = [](const Bytes& of) {
        std::vector<std::string_view> words = fields_of(of);
        words.resize(2);  // bytes, kind
        return words;
    };
    const std::size_t of_node = at(rendezvous.ranks_of_node());
    for (std::size_t rank = 0; rank < all->size(); ++rank) {
        const std::vector<std::string_view> theirs = fields((*all)[rank]);
        const std::uint64_t size = whole_number<std::uint64_t>(theirs[0]).value_or(0);
        sizes += fmt::format("{}{} ({})", sizes.empty() ? "" : ", ", size, theirs[1]);
        same = same && theirs == fields((*all)[rank / of_node * of_node]) && theirs[1] == fields(*mine)[1];
    }
    if (same) return all;
    return Error{
        fmt::format(
            "the ranks ask for different heaps; bytes by rank: {}. All of a node must ask for the same",
            sizes),
        {.rank = rendezvous.rank()},
        ErrorClass::usage};
}

/// Maps what has been created on all ranks, everywhere, at the addresses that `memory` has or reserves now; `kept` is
/// then in it, and zeros. Collective, as each step is: a rank that cannot go on says so instead of staying away.
Status map_all(Rendezvous& rendezvous, HeapMemory& memory, const HeapRanks& ranks, std::uint64_t bytes,
               const KeptBytes& kept, Milliseconds timeout) {
    const bool reserves = memory.range() == nullptr;
    Result<FileDescriptor> own = memory.export_own();
    const std::string name = reserves && ranks.leads() ? random_hex(8) : "-";
    std::shared_ptr<void> offer;
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        if (!own) return own.error();
        if (name == "-") return name;
        SYNCOPATE_TRY(memory.reserve(ranks.identities.size()));
        offer = offer_range(name, memory.range());
        return name;
    }();
    SYNCOPATE_TAKE(const std::vector<Bytes> exported, agree(rendezvous, "export", mine, timeout));
    if (reserves && !ranks.leads()) memory.share(offered_range(exported[at(ranks.here.front())]));

    SYNCOPATE_TAKE(std::vector<FileDescriptor> peers, exchange_descriptors(rendezvous, *own, timeout));
    own->reset();
    Status ready = memory.map(ranks, std::move(peers), kept);
    const std::uint64_t first = memory.base() + static_cast<std::uint64_t>(ranks.rank) * bytes;
    if (ready) ready = memory.zero(first, bytes);
    for (const auto& [offset, content] : kept) {
        if (ready) ready = memory.write(first + offset, content.data(), content.size());
    }
    const auto mapped =
        agree(rendezvous, "mapped", ready ? Result<Bytes>("") : Result<Bytes>(ready.error()), timeout);
    return mapped ? Status(Done{}) : Status(mapped.error());
}

}  // namespace

Result<MemoryInfo> memory_info(Device device) {
    if (device.kind == Device::Kind::cuda) {
        SYNCOPATE_TAKE(std::shared_ptr<CudaContext> context, CudaContext::retain(device.ordinal));
        return context->memory();
    }
    MemoryInfo info;
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);) {
        const std::vector<std::string_view> fields = fields_of(line);
        if (fields.size() < 2) continue;
        const std::uint64_t kib = whole_number<std::uint64_t>(fields[1]).value_or(0);
        if (fields[0] == "MemTotal:") info.total = kib * 1024;
        if (fields[0] == "MemAvailable:") info.free = kib * 1024;
    }
    if (info.total == 0) return machine_error("/proc/meminfo says nothing about memory");
    return info;
}

SymmetricHeap::SymmetricHeap(Device device, std::shared_ptr<Rendezvous> rendezvous,
                             std::unique_ptr<HeapMemory> memory, std::uint64_t stride)
    : device_(device),
      rendezvous_(std::move(rendezvous)),
      memory_(std::move(memory)),
      base_(memory_->base() - static_cast<std::uint64_t>(rendezvous_->first_of_node()) * stride),
      stride_(stride) {}

SymmetricHeap::~SymmetricHeap() = default;

int SymmetricHeap::rank() const { return rendezvous_->rank(); }
int SymmetricHeap::size() const { return rendezvous_->size(); }
// [P39]
bool SymmetricHeap::maps(int rank) const { return rendezvous_->is_near(rank); }
int SymmetricHeap::first_mapped() const { return rendezvous_->first_of_node(); }
int SymmetricHeap::num_mapped() const { return rendezvous_->ranks_of_node(); }
const std::shared_ptr<CudaContext>& SymmetricHeap::cuda_context() const { return memory_->context; }

Result<std::shared_ptr<SymmetricHeap>> SymmetricHeap::create(Device device,
                                                             std::shared_ptr<Rendezvous> rendezvous,
                                                             std::uint64_t bytes_per_rank,
                                                             Milliseconds timeout) {
    if (rendezvous == nullptr) return usage_error("a heap needs a rendezvous");
    // Each step is taken by all ranks, or fails on all: a rank that cannot go on says so instead of staying
    // away.
    const std::uint64_t most = (std::uint64_t{1} << 46) / static_cast<std::uint64_t>(rendezvous->size());
    Result<std::unique_ptr<HeapMemory>> memory = make_memory(device);
    std::uint64_t bytes = 0;
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        if (!memory) return memory.error();
        if (bytes_per_rank == 0 || bytes_per_rank > most) {
            return usage_error(fmt::format("a heap of {} bytes per rank makes no sense", bytes_per_rank));
        }
        bytes = round_up(bytes_per_rank, (*memory)->granularity());
        if (const Status room = rendezvous->memory().require(bytes); !room) {
            Error error = room.error();
            if (!rendezvous->caller().empty())
                error.message = fmt::format("{}: {}", rendezvous->caller(), error.message);
            return error;
        }
        SYNCOPATE_TRY((*memory)->create(bytes));
        return words_of(bytes, device, **memory);
    }();
    SYNCOPATE_TAKE(const std::vector<Bytes> all, agree_on_size(*rendezvous, mine, timeout));
    HeapRanks ranks = ranks_of(all, *rendezvous);
    SYNCOPATE_TRY(map_all(rendezvous->within(), **memory, ranks, bytes, {}, timeout));
    std::shared_ptr<SymmetricHeap> heap(
        new SymmetricHeap(device, std::move(rendezvous), std::move(memory).value(), bytes));
    heap->ranks_ = std::make_unique<HeapRanks>(std::move(ranks));
    heap->rendezvous_->memory().add(heap);
    return heap;
}

void SymmetricHeap::keep(std::uint64_t offset, std::uint64_t bytes) { kept_[offset] = bytes; }

Status SymmetricHeap::release() {
    KeptBytes aside;
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        if (is_retired()) return is_away().error();
        if (released_) return usage_error("the heap has been released");
        for (const auto& [number, user] : users_) {
            SYNCOPATE_TRY(user->require_idle());
        }
        SYNCOPATE_TRY(memory_->synchronize());
        for (const auto& [offset, bytes] : kept_) {
            std::string& content = aside.emplace_back(offset, std::string(bytes, '\0')).second;
            SYNCOPATE_TRY(memory_->read(local(offset), content.data(), bytes));
        }
        return Bytes();
    }();
    SYNCOPATE_TRY(agree(*rendezvous_, "release", mine));
    aside_ = std::move(aside);
    released_ = true;
    memory_->unmap(*ranks_, aside_);
    // Memory is given back when all have let go of it.
    const auto all = agree(*rendezvous_, "released", Bytes());
    return all ? Status(Done{}) : Status(all.error());
}

Status SymmetricHeap::restore() {
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        if (is_retired()) return is_away().error();
        if (!released_) return usage_error("the heap has not been released");
        SYNCOPATE_TRY(memory_->create(stride_));
        return Bytes();
    }();
    const auto all = agree(*rendezvous_, "restore", mine);
    Status mapped = all ? map_all(rendezvous_->within(), *memory_, *ranks_, stride_, aside_, kOfGroup)
                        : Status(all.error());
    if (!mapped) {
        if (released_) memory_->unmap(*ranks_, aside_);
        return mapped;
    }
    released_ = false;
    aside_.clear();
    return Done{};
}

// [P36]
Status SymmetricHeap::renew(std::shared_ptr<Rendezvous> to, Milliseconds timeout) {
    memory_->unmap(*ranks_, {});
    released_ = true;
    retired_ = "was lost where its group went on after a fault";
    aside_.clear();
    rendezvous_ = std::move(to);
    const Result<Bytes> mine = [&]() -> Result<Bytes> {
        SYNCOPATE_TRY(memory_->create(stride_));
        return words_of(stride_, device_, *memory_);
    }();
    SYNCOPATE_TAKE(const std::vector<Bytes> all, agree_on_size(*rendezvous_, mine, timeout));
    *ranks_ = ranks_of(all, *rendezvous_);
    if (Status mapped = map_all(rendezvous_->within(), *memory_, *ranks_, stride_, {}, timeout); !mapped) {
        memory_->unmap(*ranks_, {});
        return mapped;
    }
    released_ = false;
    retired_.clear();
    return Done{};
}

Status SymmetricHeap::retire(bool stands_in, const std::string& why) {
    memory_->unmap(*ranks_, {});
    released_ = true;
    retired_ = why;
    aside_.clear();
    if (!stands_in) return Done{};
    SYNCOPATE_TRY(memory_->create(stride_));
    SYNCOPATE_TRY(memory_->map_alone(*ranks_));
    released_ = false;
    return memory_->zero(local(0), stride_);
}

const char* SymmetricHeap::put_aside(std::uint64_t address, std::uint64_t bytes) const {
    for (const auto& [offset, content] : aside_) {
        const std::uint64_t begin = local(offset);
        if (address >= begin && bytes <= content.size() && address - begin <= content.size() - bytes)
            return content.data() + (address - begin);
    }
    return nullptr;
}

Result<std::uint64_t> SymmetricHeap::allocate(std::uint64_t bytes, std::uint64_t alignment) {
    if (alignment == 0) return usage_error("an alignment of 0 bytes makes no sense");
    SYNCOPATE_TRY(require_there());
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

void SymmetricHeap::free(std::uint64_t offset) {
    const auto found = used_.find(offset);
    if (found == used_.end()) return;
    const auto inside = [&](const auto& one) { return one.first >= offset && one.first < found->second; };
    std::erase_if(kept_, inside);
    std::erase_if(aside_, inside);
    used_.erase(found);
}

std::uint64_t SymmetricHeap::bytes_allocated() const {
    std::uint64_t sum = 0;
    for (const auto& [begin, end] : used_) sum += end - begin;
    return sum;
}

Status SymmetricHeap::write(std::uint64_t address, const void* data, std::uint64_t bytes) {
    if (released_) return is_away();
    return memory_->write(address, data, bytes);
}
Status SymmetricHeap::read(std::uint64_t address, void* data, std::uint64_t bytes) const {
    if (!released_) return memory_->read(address, data, bytes);
    const char* const aside = put_aside(address, bytes);
    if (aside == nullptr) return is_away();
    std::memcpy(data, aside, bytes);
    return Done{};
}
Status SymmetricHeap::zero(std::uint64_t address, std::uint64_t bytes) {
    if (released_) return is_away();
    return memory_->zero(address, bytes);
}
Status SymmetricHeap::is_away() const {
    if (!is_retired())
        return Error{
            "the group's memory has been released: restore it first", {.rank = rank()}, ErrorClass::usage};
    return Error{fmt::format("the heap of {} bytes cannot be restored, as it {}", stride_, retired_),
                 {.rank = rank()},
                 ErrorClass::usage};
}

}  // namespace syncopate::runtime

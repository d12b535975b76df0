#include "runtime/cuda/streams/nccl.hpp"

#if SYNCOPATE_HAS_CUDA

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/cuda/streams/device_lists.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

/// What of NCCL's interface (2.10 and later) is called. Declared here, so that a build needs no header.
struct NcclApi {
    struct UniqueId {
        char bytes[128];
    };
    using Comm = void*;
    static constexpr int kOldest = 21700;  ///< of the configuration
    /// ncclConfig_t as of 2.17, which later ones take by its size and version.
    struct Config {
        std::size_t size = sizeof(Config);
        unsigned magic = 0xcafebeef;
        unsigned version = kOldest;
        int blocking = 1;
        int cga_cluster_size = INT_MIN;  // left open
        int min_ctas = 1;
        int max_ctas = 1;
        const char* net_name = nullptr;
    };
    int (*GetUniqueId)(UniqueId*) = nullptr;
    int (*CommInitRank)(Comm*, int, UniqueId, int) = nullptr;
    int (*CommInitRankConfig)(Comm*, int, UniqueId, int, Config*) = nullptr;  ///< 2.17 and later; else null
    int (*CommDestroy)(Comm) = nullptr;
    int (*CommAbort)(Comm) = nullptr;
    const char* (*GetErrorString)(int) = nullptr;
    int (*AllGather)(const void*, void*, std::size_t, int, Comm, CUstream) = nullptr;
    int (*ReduceScatter)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*AllReduce)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Broadcast)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Send)(const void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Recv)(void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*GroupStart)() = nullptr;
    int (*GroupEnd)() = nullptr;

    [[nodiscard]] Error error(const char* call, int code) const {
        return machine_error(fmt::format("nccl{} failed: {} ({})", call, GetErrorString(code), code));
    }
};

namespace {

#define SYNCOPATE_NCCL(api, name, ...)                                                               \
    do {                                                                                             \
        if (const int code_ = (api).name(__VA_ARGS__); code_ != 0) return (api).error(#name, code_); \
    } while (false)

Result<NcclApi> load_api() {
    // First the one that the process has already, as with PyTorch: two would be two sets of threads. Never
    // closed, as its kernels may be in use.
    std::string looked_for;
    void* library = nullptr;
    const auto try_open = [&](const char* file, int flags) {
        if (library != nullptr || file == nullptr) return;
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL | flags);
        if (library != nullptr || flags != 0) return;
        const char* why = dlerror();
        looked_for += fmt::format("{}{} ({})", looked_for.empty() ? "" : ", ", file,
                                  why == nullptr ? "cannot be opened" : why);
    };
    const char* named = std::getenv("SYNCOPATE_NCCL_LIBRARY");
    if (named != nullptr) {
        try_open(named, 0);
    } else {
        try_open("libnccl.so.2", RTLD_NOLOAD);
        try_open("libnccl.so.2", 0);
        try_open("libnccl.so", 0);
    }
    const std::string advice =
        "; install NCCL (pip install nvidia-nccl-cu12), set SYNCOPATE_NCCL_LIBRARY to its file, or expand "
        "the "
        "plan's collectives by a template (plan lower)";
    if (library == nullptr) return machine_error(fmt::format("no NCCL: looked for {}{}", looked_for, advice));
    NcclApi api;
    std::string missing;
    const auto load = [&](const char* name, auto& function) {
        void* address = dlsym(library, name);
        if (address == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    load("ncclGetUniqueId", api.GetUniqueId);
    load("ncclCommInitRank", api.CommInitRank);
    // Older ones have it for a shorter configuration, without the number of blocks.
    int version = 0;
    const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
    if (get_version != nullptr && get_version(&version) == 0 && version >= NcclApi::kOldest)
        api.CommInitRankConfig =
            reinterpret_cast<decltype(api.CommInitRankConfig)>(dlsym(library, "ncclCommInitRankConfig"));
    load("ncclCommDestroy", api.CommDestroy);
    load("ncclCommAbort", api.CommAbort);
    load("ncclGetErrorString", api.GetErrorString);
    load("ncclAllGather", api.AllGather);
    load("ncclReduceScatter", api.ReduceScatter);
    load("ncclAllReduce", api.AllReduce);
    load("ncclBroadcast", api.Broadcast);
    load("ncclSend", api.Send);
    load("ncclRecv", api.Recv);
    load("ncclGroupStart", api.GroupStart);
    load("ncclGroupEnd", api.GroupEnd);
    if (!missing.empty()) return machine_error(fmt::format("the NCCL found lacks {}{}", missing, advice));
    return api;
}

Result<const NcclApi*> nccl_api() {
    static const Result<NcclApi> api = load_api();
    if (!api) return api.error();
    return &api.value();
}

constexpr int kUint8 = 1;  ///< of ncclDataType_t

/// ncclDataType_t. What is only moved may be bytes.
struct DataType {
    int number = kUint8;
    std::uint64_t elements = 1;  ///< of that type, in one of the tensor's
};

DataType type_of(plan::DType dtype, bool reduces) {
    constexpr int kInt32 = 2, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
    if (reduces && dtype == plan::DType::bf16) return {kBfloat16, 1};
    if (reduces && dtype == plan::DType::fp16) return {kFloat16, 1};
    if (reduces && dtype == plan::DType::fp32) return {kFloat32, 1};
    if (reduces && dtype == plan::DType::int32) return {kInt32, 1};
    return {kUint8, plan::size_of(dtype)};
}

int place_of(const std::vector<std::int32_t>& list, std::int32_t rank) {
    return static_cast<int>(std::ranges::find(list, rank) - list.begin());
}

constexpr std::chrono::seconds kFreeing{2};  // freeing communicators takes milliseconds

/// Bytes from which on a block goes by all links: below, one is as fast.
constexpr std::uint64_t kLeastApart = std::uint64_t{1} << 18;

/// What of a block goes by `link`, from 1, on both of its sides.
Nccl::Block part_of(const Nccl::Block& block, int link) {
    constexpr std::uint64_t kAlignment = 512;
    Nccl::Block part = block;
    if (block.bytes < kLeastApart) {
        if (link > 1) part.bytes = 0;
        return part;
    }
    const auto up_to = [&](int links) {
        return links == fuse::kChannelBlocks ? block.bytes
                                             : block.bytes * static_cast<std::uint64_t>(links) /
                                                   fuse::kChannelBlocks / kAlignment * kAlignment;
    };
    part.address += up_to(link - 1);
    part.bytes = up_to(link) - up_to(link - 1);
    return part;
}

/// Every list of participants, in an order that all ranks have; those of the channel's links come last.
std::set<Nccl::Participants> lists_of(const fuse::Schedule& schedule) {
    std::set<Nccl::Participants> lists;
    std::set<std::int32_t> between;
    if (schedule.part) between = {schedule.part->channel_ranks.begin(), schedule.part->channel_ranks.end()};
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        for (const fuse::Transfer& transfer : rank.transfers) {
            if (transfer.channel() != nullptr) between.insert({transfer.src_rank, transfer.dst_rank});
            const fuse::Collective* collective = transfer.collective();
            if (collective == nullptr || executor_of(transfer) != Executor::library) continue;
            std::vector<std::int32_t> ranks;
            for (const fuse::Collective::Member& member : collective->members)
                ranks.push_back(member.op.rank);
            lists.insert({0, std::move(ranks)});
        }
    }
    for (int link = 1; link <= fuse::kChannelBlocks && !between.empty(); ++link)
        lists.insert({link, {between.begin(), between.end()}});
    return lists;
}

/// Sends a word to each peer and back: connections are made with the first one, and would otherwise be while a
/// kernel that waits for what they bring has the multiprocessors.
int connect(const std::shared_ptr<CudaContext>& context, const NcclApi& api, void* communicator,
            const std::vector<int>& peers) {
    constexpr std::size_t kBytes = 256;
    constexpr int kFailed = 1;
    const auto room = DeviceBuffer::create(context, 2 * kBytes * std::max<std::size_t>(peers.size(), 1));
    const auto stream = OwnedStream::create(context, false);
    if (!room || !stream) return kFailed;
    std::uint64_t at = (*room)->address();
    int code = api.GroupStart();
    for (const int peer : peers) {
        if (code == 0)
            code = api.Send(reinterpret_cast<const void*>(at), kBytes, kUint8, peer, communicator,
                            (*stream)->get());
        at += kBytes;
        if (code == 0)
            code =
                api.Recv(reinterpret_cast<void*>(at), kBytes, kUint8, peer, communicator, (*stream)->get());
        at += kBytes;
    }
    const int ended = api.GroupEnd();
    if (code == 0) code = ended;
    if (code == 0 && context->api().cuStreamSynchronize((*stream)->get()) != CUDA_SUCCESS) code = kFailed;
    return code;
}

/// A communicator of `size` ranks, of which this one is `place`; one of a channel is connected to `peers`. The
/// library waits for all of them, without a deadline: so it does in a thread of its own, which is left alone once
/// the time is over.
Result<void*> join(const std::shared_ptr<CudaContext>& context, const NcclApi& api, int size,
                   NcclApi::UniqueId id, int place, const std::optional<std::vector<int>>& peers,
                   Milliseconds timeout) {
    if (peers && api.CommInitRankConfig == nullptr)
        return machine_error(
            "between nodes NCCL 2.17 or a later one is needed: the one found takes as many multiprocessors "
            "as it will");
    std::promise<std::pair<int, void*>> promise;
    std::future<std::pair<int, void*>> joined = promise.get_future();
    std::thread([context, &api, size, id, place, peers, promise = std::move(promise)]() mutable {
        const CurrentContext current(*context);
        void* communicator = nullptr;
        NcclApi::Config config;
        int code = peers ? api.CommInitRankConfig(&communicator, size, id, place, &config)
                         : api.CommInitRank(&communicator, size, id, place);
        if (code == 0 && peers) code = connect(context, api, communicator, *peers);
        promise.set_value({code, communicator});
    }).detach();
    if (joined.wait_for(timeout) != std::future_status::ready)
        return machine_error(
            fmt::format("a communicator of nccl: some of its {} ranks have not joined within {} ms", size,
                        timeout.count()));
    const auto [code, communicator] = joined.get();
    if (code == 0) return communicator;
    if (communicator != nullptr) (void)api.CommAbort(communicator);
    return api.error(communicator == nullptr ? "CommInitRank" : "Send, to connect the ranks of the channel,",
                     code);
}

}  // namespace

Result<std::unique_ptr<Nccl>> Nccl::create(std::shared_ptr<CudaContext> context, Rendezvous& rendezvous,
                                           const fuse::Schedule& schedule, const std::string& name,
                                           Milliseconds timeout) {
    const std::set<Participants> lists = lists_of(schedule);
    if (lists.empty()) return std::unique_ptr<Nccl>();
    std::unique_ptr<Nccl> made(new Nccl(std::move(context), name, {lists.begin(), lists.end()}));
    std::set<std::int32_t> peers;
    for (const fuse::Transfer& transfer : schedule.ranks[at(rendezvous.rank())].transfers) {
        if (const fuse::Channel* const side = transfer.channel())
            peers.insert(side->sends ? transfer.dst_rank : transfer.src_rank);
    }
    made->peers_ = {peers.begin(), peers.end()};
    const Status opened = made->open_links();
    SYNCOPATE_TRY(made->renew(rendezvous, timeout));
    if (!opened) return opened.error();
    return made;
}

Status Nccl::open_links() {
    if (peers_.empty()) return Done{};
    SYNCOPATE_TAKE(std::unique_ptr<OwnedEvent> begun, OwnedEvent::create(context_));
    begun_ = std::move(begun);
    for (int link = 2; link <= fuse::kChannelBlocks; ++link) {
        SYNCOPATE_TAKE(Lane lane, Lane::create(context_));
        beside_.push_back(std::move(lane));
    }
    return Done{};
}

Status Nccl::renew(Rendezvous& rendezvous, Milliseconds timeout) {
    const int rank = rendezvous.rank();
    const CurrentContext current(*context_);
    abort();
    communicators_.clear();
    const Result<const NcclApi*> api = nccl_api();
    if (api) api_ = *api;
    // The first participant of each list makes its id; every rank hears of all of them.
    Result<Bytes> mine = api ? Result<Bytes>(Bytes()) : Result<Bytes>(api.error());
    for (const auto& [link, list] : lists_) {
        if (!mine || list.front() != rank) continue;
        NcclApi::UniqueId id{};
        if (const int code = api_->GetUniqueId(&id); code != 0) {
            mine = api_->error("GetUniqueId", code);
        } else {
            mine->append(id.bytes, sizeof(id.bytes));
        }
    }
    SYNCOPATE_TAKE(const std::vector<Bytes> all,
                   agree(rendezvous, fmt::format("op-{}-nccl", name_), mine, timeout));
    std::map<std::int32_t, std::size_t> taken;  // bytes, by the rank that made them
    for (const Participants& participants : lists_) {
        const auto& [link, list] = participants;
        std::size_t& at = taken[list.front()];
        NcclApi::UniqueId id{};
        std::memcpy(id.bytes, all[static_cast<std::size_t>(list.front())].data() + at, sizeof(id.bytes));
        at += sizeof(id.bytes);
        const int place = place_of(list, rank);
        if (place == std::ssize(list)) continue;
        std::optional<std::vector<int>> peers;
        if (link > 0) {
            peers.emplace();
            for (const std::int32_t peer : peers_) peers->push_back(place_of(list, peer));
        }
        SYNCOPATE_TAKE(void* communicator,
                       join(context_, *api_, static_cast<int>(list.size()), id, place, peers, timeout));
        communicators_[participants] = communicator;
    }
    return Done{};
}

/// The library frees a communicator, and returns from aborting it, when no captured graph holds a call of it. A graph
/// that the caller still has must hold nobody up: a thread of its own does it, if need be when the last graph is gone.
/// What is aborted ends at once. Of several each has a thread: a call may also wait for what the others have under way.
void Nccl::part(int (*how)(void*)) {
    std::vector<void*> left;
    {
        // A call that hangs in the library itself ends by this.
        const std::unique_lock lock(calling_, kFreeing);
        for (auto& [ranks, communicator] : communicators_) {
            if (communicator != nullptr) left.push_back(std::exchange(communicator, nullptr));
        }
    }
    if (left.empty()) return;
    struct Parting {
        std::atomic<std::size_t> left;
        std::promise<void> parted;
    };
    const auto parting = std::make_shared<Parting>();
    parting->left = left.size();
    {
        const std::lock_guard lock(parting_);
        parted_ = parting->parted.get_future().share();
        freed_by_ = std::chrono::steady_clock::now() + kFreeing;
    }
    for (void* communicator : left) {
        std::thread([context = context_, how, communicator, parting] {
            const CurrentContext current(*context);
            (void)how(communicator);
            if (parting->left.fetch_sub(1) == 1) parting->parted.set_value();
        }).detach();
    }
}

void Nccl::await_abort() {
    std::unique_lock lock(parting_);
    const std::shared_future<void> parted = parted_;
    const auto freed_by = freed_by_;
    lock.unlock();
    if (parted.valid()) (void)parted.wait_until(freed_by);
}

Nccl::~Nccl() {
    if (api_ == nullptr) return;
    part(api_->CommDestroy);
    await_abort();
}

void Nccl::begin_abort() {
    if (api_ != nullptr) part(api_->CommAbort);
}

void Nccl::abort() {
    begin_abort();
    await_abort();
}

Status Nccl::exchange_on(const Participants& link, std::span<const Block> blocks, CUstream stream) const {
    const auto found = communicators_.find(link);
    if (found == communicators_.end() || found->second == nullptr)
        return machine_error("the communicator between nodes has been given up");
    SYNCOPATE_NCCL(*api_, GroupStart);
    int code = 0;
    for (const Block& block : blocks) {
        const int peer = place_of(link.second, block.peer);
        if (code != 0) break;
        code = block.sends ? api_->Send(reinterpret_cast<const void*>(block.address), block.bytes, kUint8,
                                        peer, found->second, stream)
                           : api_->Recv(reinterpret_cast<void*>(block.address), block.bytes, kUint8, peer,
                                        found->second, stream);
    }
    SYNCOPATE_NCCL(*api_, GroupEnd);
    return code == 0 ? Status(Done{}) : Status(api_->error("Send or ncclRecv", code));
}

// [P40]
Status Nccl::exchange(std::span<const Block> blocks, CUstream stream) const {
    const std::lock_guard lock(calling_);
    const CudaApi& cuda = context_->api();
    const auto is_apart = [](const Block& block) { return block.bytes >= kLeastApart; };
    const bool apart = !beside_.empty() && std::ranges::any_of(blocks, is_apart);
    if (apart) SYNCOPATE_CUDA(cuda, cuEventRecord, begun_->get(), stream);
    for (const Participants& link : lists_) {
        if (link.first == 0 || (link.first > 1 && !apart)) continue;
        std::vector<Block> parts;
        for (const Block& block : blocks) {
            const Block part = part_of(block, link.first);
            if (part.bytes > 0) parts.push_back(part);
        }
        const bool first = link.first == 1;
        const CUstream by = first ? stream : beside_[at(link.first - 2)].stream();
        if (!first) SYNCOPATE_CUDA(cuda, cuStreamWaitEvent, by, begun_->get(), 0);
        SYNCOPATE_TRY(exchange_on(link, parts, by));
        if (!first) SYNCOPATE_CUDA(cuda, cuEventRecord, beside_[at(link.first - 2)].join(), by);
    }
    if (!apart) return Done{};
    for (const Lane& lane : beside_) SYNCOPATE_CUDA(cuda, cuStreamWaitEvent, stream, lane.join(), 0);
    return Done{};
}

Status Nccl::enqueue(const PreparedCollective& c, CUstream stream) const {
    const std::lock_guard lock(calling_);
    const auto found = communicators_.find({0, c.ranks});
    if (found == communicators_.end() || found->second == nullptr)
        return machine_error("its communicator has been given up");
    void* const communicator = found->second;
    const auto [type, elements] = type_of(c.dtype, c.reduce != plan::Reduce::none);
    const std::uint64_t count = c.count * elements;
    const auto* src = reinterpret_cast<const void*>(c.src[c.position]);
    auto* dst = reinterpret_cast<void*>(c.dst);
    const int sum_or_max = c.reduce == plan::Reduce::max ? 2 : 0;  // ncclRedOp_t
    using enum plan::CollectiveKind;
    switch (c.kind) {
        case all_gather: SYNCOPATE_NCCL(*api_, AllGather, src, dst, count, type, communicator, stream); break;
        case reduce_scatter:
            SYNCOPATE_NCCL(*api_, ReduceScatter, src, dst, count, type, sum_or_max, communicator, stream);
            break;
        case all_reduce:
            SYNCOPATE_NCCL(*api_, AllReduce, src, dst, count, type, sum_or_max, communicator, stream);
            break;
        case broadcast:
            SYNCOPATE_NCCL(*api_, Broadcast, src, dst, count, type, 0, communicator, stream);
            break;
        case all_to_all: {
            const std::uint64_t bytes = c.count * plan::size_of(c.dtype);
            SYNCOPATE_NCCL(*api_, GroupStart);
            int code = 0;
            for (std::size_t peer = 0; peer < c.ranks.size() && code == 0; ++peer) {
                code = api_->Send(static_cast<const char*>(src) + peer * bytes, bytes, 1,
                                  static_cast<int>(peer), communicator, stream);
                if (code == 0)
                    code = api_->Recv(static_cast<char*>(dst) + peer * bytes, bytes, 1,
                                      static_cast<int>(peer), communicator, stream);
            }
            SYNCOPATE_NCCL(*api_, GroupEnd);
            if (code != 0) return api_->error("Send", code);
            break;
        }
        default: return Error{"permute names no pairs of ranks"};
    }
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

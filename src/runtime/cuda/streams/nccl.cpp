#include "runtime/cuda/streams/nccl.hpp"

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/cuda/streams/device_lists.hpp"
#include "runtime/cuda/streams/nccl_api.hpp"
#include "runtime/cuda/streams/nccl_puts.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/runtime/call/channel_way.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

namespace {

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

/// Every list of participants, in an order that all ranks have; those of the channel's `links` come last.
std::set<Nccl::Participants> lists_of(const fuse::Schedule& schedule, int links) {
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
    for (int link = 1; link <= links && !between.empty(); ++link)
        lists.insert({link, {between.begin(), between.end()}});
    return lists;
}

constexpr char kSends = 's', kPuts = 'p';

/// Of what each rank begins with.
Status require_one_way(const std::vector<Bytes>& all) {
    const auto way = [](const Bytes& told) { return told.front(); };
    if (std::ranges::all_of(all, [&](const Bytes& told) { return way(told) == way(all.front()); }))
        return Done{};
    std::string ways;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        ways += fmt::format("{}rank {}: {}", rank == 0 ? "" : "; ", rank,
                            way(all[rank]) == kPuts ? "put" : "send");
    return usage_error("SYNCOPATE_CHANNEL differs: " + ways);
}

Error given_up() { return machine_error("the communicator between nodes has been given up"); }

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

/// A communicator, and the window of what it puts.
struct Joined {
    int code = 0;
    void* communicator = nullptr;
    void* window = nullptr;
};

/// A communicator of `size` ranks, of which this one is `place`; one of a channel is connected to `peers`, by its `puts` if it has
/// any. The library waits for all of them, without a deadline: so it does in a thread of its own, which is left alone once
/// the time is over.
Result<Joined> join(const std::shared_ptr<CudaContext>& context, const NcclApi& api, int size,
                    NcclApi::UniqueId id, int place, const std::optional<std::vector<int>>& peers,
                    const std::shared_ptr<NcclPuts>& puts, Milliseconds timeout) {
    if (peers && api.CommInitRankConfig == nullptr)
        return machine_error(
            "between nodes NCCL 2.17 or a later one is needed: the one found takes as many multiprocessors "
            "as it will");
    std::promise<Joined> promise;
    std::future<Joined> joined = promise.get_future();
    std::thread([context, &api, size, id, place, peers, puts, promise = std::move(promise)]() mutable {
        const CurrentContext current(*context);
        Joined made;
        NcclApi::Config config;
        made.code = peers ? api.CommInitRankConfig(&made.communicator, size, id, place, &config)
                          : api.CommInitRank(&made.communicator, size, id, place);
        if (made.code == 0 && peers)
            made.code = puts ? puts->open(made.communicator, *peers, made.window)
                             : connect(context, api, made.communicator, *peers);
        promise.set_value(made);
    }).detach();
    if (joined.wait_for(timeout) != std::future_status::ready)
        return machine_error(
            fmt::format("a communicator of nccl: some of its {} ranks have not joined within {} ms", size,
                        timeout.count()));
    const Joined made = joined.get();
    const bool lacks_window = peers && puts && made.window == nullptr;
    if (made.code == 0 && !lacks_window) return made;
    if (made.communicator == nullptr) return api.error("CommInitRank", made.code);
    (void)api.CommAbort(made.communicator);
    if (peers && puts)
        return puts->cannot(made.code == 0 ? "it registers no window" : api.GetErrorString(made.code));
    return api.error("Send, to connect the ranks of the channel,", made.code);
}

}  // namespace

Result<std::unique_ptr<Nccl>> Nccl::create(std::shared_ptr<CudaContext> context, Rendezvous& rendezvous,
                                           const fuse::Schedule& schedule, const std::string& name,
                                           Milliseconds timeout) {
    const Result<ChannelWay> way = channel_way();
    const bool by_puts = way && *way == ChannelWay::put;
    const std::set<Participants> lists = lists_of(schedule, by_puts ? 1 : fuse::kChannelBlocks);
    if (lists.empty()) return std::unique_ptr<Nccl>();
    std::unique_ptr<Nccl> made(new Nccl(std::move(context), name, {lists.begin(), lists.end()}));
    const bool has_channel = made->lists_.back().first > 0;
    if (has_channel && !way)
        return agree(rendezvous, fmt::format("op-{}-nccl", name), way.error(), timeout).error();
    std::set<std::int32_t> peers;
    for (const fuse::Transfer& transfer : schedule.ranks[at(rendezvous.rank())].transfers) {
        if (const fuse::Channel* const side = transfer.channel())
            peers.insert(side->sends ? transfer.dst_rank : transfer.src_rank);
    }
    made->peers_ = {peers.begin(), peers.end()};
    if (has_channel && by_puts)
        made->puts_ = std::make_shared<NcclPuts>(made->context_, schedule, rendezvous.rank());
    const Status opened = made->open_links();
    SYNCOPATE_TRY(made->renew(rendezvous, timeout));
    if (!opened) return opened.error();
    return made;
}

Status Nccl::open_links() {
    if (peers_.empty() || puts_ != nullptr) return Done{};
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
    // The first participant of each list makes its id; every rank hears of all of them. Before these, by which way each rank's
    // channel goes, and where what is put to it is to go.
    Result<Bytes> mine = api ? Result<Bytes>(Bytes(1, puts_ ? kPuts : kSends)) : Result<Bytes>(api.error());
    if (api && puts_) {
        puts_->tell(*mine);
        if (const std::string lacks = api_->lacks(); !lacks.empty())
            mine = machine_error(
                fmt::format("SYNCOPATE_CHANNEL=put: the NCCL found ({}) cannot put: {}; load another one "
                            "(SYNCOPATE_NCCL_LIBRARY), or use \"send\"",
                            api_->version(), lacks));
    }
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
    SYNCOPATE_TRY(require_one_way(all));
    std::vector<std::size_t> taken(all.size(), 1);  // bytes, by the rank that made them
    if (puts_) {
        SYNCOPATE_TRY(puts_->hear(all, taken));
        const bool takes_part = place_of(lists_.back().second, rank) < std::ssize(lists_.back().second);
        SYNCOPATE_TRY(
            puts_->make_room(*api_, rendezvous, fmt::format("op-{}-nccl-room", name_), takes_part, timeout));
    }
    for (const Participants& participants : lists_) {
        const auto& [link, list] = participants;
        const auto first = static_cast<std::size_t>(list.front());
        const auto id = taken_from<NcclApi::UniqueId>(all[first], taken[first]);
        const int place = place_of(list, rank);
        if (place == std::ssize(list)) continue;
        std::optional<std::vector<int>> peers;
        if (link > 0) {
            peers.emplace();
            for (const std::int32_t peer : peers_) peers->push_back(place_of(list, peer));
        }
        SYNCOPATE_TAKE(const Joined joined, join(context_, *api_, static_cast<int>(list.size()), id, place,
                                                 peers, puts_, timeout));
        communicators_[participants] = joined.communicator;
        if (link > 0) window_ = joined.window;
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
        std::thread([context = context_, how, communicator, parting, puts = puts_]() mutable {
            const CurrentContext current(*context);
            (void)how(communicator);
            puts.reset();  // whose room it knew
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
    if (found == communicators_.end() || found->second == nullptr) return given_up();
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
    if (puts_) {
        const Participants& link = lists_.back();
        const auto found = communicators_.find(link);
        if (found == communicators_.end() || found->second == nullptr) return given_up();
        return puts_->exchange(
            blocks, found->second, window_, [&](int peer) { return place_of(link.second, peer); }, stream);
    }
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

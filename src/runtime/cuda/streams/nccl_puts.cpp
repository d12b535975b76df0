#include "runtime/cuda/streams/nccl_puts.hpp"

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/runtime/cuda/driver/capture.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

constexpr std::uint64_t kWordAlignment = 16;  ///< of the last word, behind the bytes
constexpr std::uint64_t kPlaceAlignment = 512, kRoomAlignment = std::uint64_t{2} << 20;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

NcclPuts::NcclPuts(std::shared_ptr<CudaContext> context, const fuse::Schedule& schedule, int rank)
    : context_(std::move(context)) {
    const std::vector<fuse::Transfer>& transfers = schedule.ranks[at(rank)].transfers;
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const fuse::Transfer& transfer = transfers[index];
        const fuse::Channel* const channel = transfer.channel();
        if (channel == nullptr) continue;
        const plan::Chunk& chunk = channel->sends ? transfer.src : transfer.dst;
        const auto elements = static_cast<std::uint64_t>(plan::num_elements(chunk.region));
        const std::uint64_t bytes = elements * plan::size_of(schedule.tensors[at(chunk.tensor)].dtype);
        Side& side = sides_[index];
        side.block = {.sends = channel->sends,
                      .peer = channel->sends ? transfer.dst_rank : transfer.src_rank,
                      .address = needed_,
                      .bytes = round_up(bytes, kWordAlignment) + sizeof(std::uint32_t)};
        side.pair = channel->number;
        needed_ += round_up(side.block.bytes, kPlaceAlignment);
    }
}

NcclPuts::~NcclPuts() {
    if (room_ == nullptr) return;
    const CurrentContext current(*context_);
    (void)api_->MemFree(room_);
}

void NcclPuts::tell(Bytes& bytes) const {
    const auto received = [](const auto& one) { return !one.second.block.sends; };
    append(bytes, needed_);
    append(bytes, static_cast<std::uint64_t>(std::ranges::count_if(sides_, received)));
    for (const auto& [index, side] : sides_) {
        if (side.block.sends) continue;
        append(bytes, side.pair);
        append(bytes, side.block.address - reinterpret_cast<std::uint64_t>(room_));
    }
}

Status NcclPuts::hear(const std::vector<Bytes>& all, std::vector<std::size_t>& begins) {
    std::map<std::pair<int, std::int32_t>, std::uint64_t> places;  // by rank and pair
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::size_t& where = begins[rank];
        bytes_ = std::max(bytes_, round_up(taken_from<std::uint64_t>(all[rank], where), kRoomAlignment));
        for (auto left = taken_from<std::uint64_t>(all[rank], where); left > 0; --left) {
            const auto pair = taken_from<std::int32_t>(all[rank], where);
            places[{static_cast<int>(rank), pair}] = taken_from<std::uint64_t>(all[rank], where);
        }
    }
    for (auto& [index, side] : sides_) {
        if (!side.block.sends) continue;
        const auto place = places.find({side.block.peer, side.pair});
        if (place == places.end())
            return Error{fmt::format("rank {} awaits nothing by the pair of sides {}, which sends it",
                                     side.block.peer, side.pair)};
        side.there = place->second;
    }
    return Done{};
}

Status NcclPuts::make_room(const NcclApi& api, Rendezvous& rendezvous, const std::string& label,
                           bool takes_part, Milliseconds timeout) {
    api_ = &api;
    if (room_ != nullptr) takes_part = false;
    void* room = nullptr;
    const int code = takes_part ? api.MemAlloc(&room, bytes_) : 0;
    const Result<Bytes> mine =
        code == 0 ? Result<Bytes>(Bytes()) : Result<Bytes>(api.error("MemAlloc", code));
    if (room != nullptr) {
        room_ = room;
        for (auto& [index, side] : sides_) side.block.address += reinterpret_cast<std::uint64_t>(room);
    }
    SYNCOPATE_TAKE(const auto all, agree(rendezvous, label, mine, timeout));
    return Done{};
}

int NcclPuts::open(void* communicator, const std::vector<int>& peers, void*& window) const {
    constexpr int kFailed = 1, kSymmetric = 1;
    int code = api_->CommWindowRegister(communicator, room_, bytes_, &window, kSymmetric);
    if (code != 0 || window == nullptr) return code;
    const auto stream = OwnedStream::create(context_, false);
    if (!stream) return kFailed;
    std::vector<NcclApi::Awaited> awaited;
    for (const int peer : peers) {
        if (code == 0) code = api_->Signal(peer, 0, 0, 0, communicator, (*stream)->get());
        awaited.push_back({.peer = peer});
    }
    if (code == 0 && !awaited.empty())
        code = api_->WaitSignal(static_cast<int>(awaited.size()), awaited.data(), communicator,
                                (*stream)->get());
    if (code == 0 && context_->api().cuStreamSynchronize((*stream)->get()) != CUDA_SUCCESS) code = kFailed;
    return code;
}

Error NcclPuts::cannot(const std::string& why) const {
    return machine_error(fmt::format(
        "SYNCOPATE_CHANNEL=put: NCCL {} cannot put between these ranks ({}): it can by InfiniBand and the "
        "like, over sockets from 2.32.3 on with GDRCopy, with a driver of CUDA 12.5 or later; else use "
        "\"send\"",
        api_->version(), why));
}

std::uint64_t NcclPuts::there(const NcclBlock& block) const {
    const auto of_block = [&](const auto& one) { return one.second.block.address == block.address; };
    return std::ranges::find_if(sides_, of_block)->second.there;
}

// [P40]
Status NcclPuts::exchange(std::span<const NcclBlock> blocks, void* communicator, void* window,
                          const std::function<int(int)>& place_of, CUstream stream) const {
    if (api_->number < NcclApi::kPutsInGraphs &&
        capture_of(*context_, reinterpret_cast<CudaStream>(stream)) == Capture::on)
        return usage_error(
            fmt::format("SYNCOPATE_CHANNEL=put: NCCL {} is not known to put from graphs, as 2.32.3 does; use "
                        "\"send\", or no graph",
                        api_->version()));
    // This rank says that its places are free before it waits for anything.
    std::vector<NcclApi::Awaited> come;
    for (const NcclBlock& block : blocks) {
        if (block.sends) continue;
        SYNCOPATE_NCCL(*api_, Signal, place_of(block.peer), 0, 0, 0, communicator, stream);
        come.push_back({.peer = place_of(block.peer)});
    }
    for (const NcclBlock& block : blocks) {
        if (!block.sends) continue;
        NcclApi::Awaited free{.peer = place_of(block.peer)};
        SYNCOPATE_NCCL(*api_, WaitSignal, 1, &free, communicator, stream);
        SYNCOPATE_NCCL(*api_, PutSignal, reinterpret_cast<const void*>(block.address), block.bytes, kUint8,
                       place_of(block.peer), window, there(block), 0, 0, 0, communicator, stream);
    }
    if (!come.empty())
        SYNCOPATE_NCCL(*api_, WaitSignal, static_cast<int>(come.size()), come.data(), communicator, stream);
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

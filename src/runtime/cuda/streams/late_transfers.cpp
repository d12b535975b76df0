#include "runtime/cuda/streams/late_transfers.hpp"

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "runtime/cuda/streams/copy_stream.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

Status create_event(const CudaApi& api, CUevent& event) {
    SYNCOPATE_CUDA(api, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    return Done{};
}

}  // namespace

Result<std::unique_ptr<LateTransfers>> LateTransfers::create(std::shared_ptr<CudaContext> context,
                                                             SymmetricHeap& heap, const CallPlan& plan,
                                                             const fuse::RankSchedule& schedule,
                                                             const DeviceModule& module,
                                                             const StreamMover& mover, const Nccl* nccl,
                                                             const std::string& name) {
    const CurrentContext current(*context);
    std::unique_ptr<LateTransfers> made(
        new LateTransfers(context, heap, plan.control(), module, mover, nccl));
    SYNCOPATE_TRY(made->sort(plan, schedule, name));
    CUdevice device = 0;
    SYNCOPATE_CUDA(made->api_, cuCtxGetDevice, &device);
    int processors = 0;
    SYNCOPATE_CUDA(made->api_, cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                   device);
    made->processors_ = static_cast<unsigned>(processors);
    for (Late& late : made->late_) {
        Lane& lane = made->lane_of(late);
        if (lane.stream == nullptr) {
            SYNCOPATE_TRY(made->open(lane));
        }
        SYNCOPATE_TRY(made->follow(late));
    }
    SYNCOPATE_TRY(made->upload());
    return made;
}

LateTransfers::~LateTransfers() {
    const CurrentContext current(*context_);
    for (const Late& late : late_) {
        for (CUevent event : {late.done, late.opened}) {
            if (event != nullptr) api_.cuEventDestroy(event);
        }
    }
    for (const Lane& lane : lanes_) {
        if (lane.join != nullptr) api_.cuEventDestroy(lane.join);
    }
}

Status LateTransfers::follow(Late& late) {
    const auto add = [&](CUevent& event) -> Status {
        if (event == nullptr) {
            SYNCOPATE_TRY(create_event(api_, event));
        }
        late.follows.push_back(event);
        return Done{};
    };
    for (const std::size_t other : late.step().after) {
        SYNCOPATE_TRY(add(late_of(other).done));
    }
    return late.step().await_after ? add(late_of(*late.step().await_after).opened) : Status(Done{});
}

Status LateTransfers::open(Lane& lane) {
    SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> stream, OwnedStream::create(context_, true));
    lane.stream = std::move(stream);
    return create_event(api_, lane.join);
}

Status LateTransfers::sort(const CallPlan& plan, const fuse::RankSchedule& schedule,
                           const std::string& name) {
    lanes_.resize(schedule.num_streams);
    for (const PreparedTransfer& transfer : plan.transfers) {
        if (!transfer.step.follows_kernel()) continue;
        Late late{.transfer = transfer};
        if (const PreparedSide* side = transfer.side()) {
            SYNCOPATE_TRY(take_side(*side, late));
        }
        for (const Gate& gate : transfer.gates) add_gate(late, gate);
        if (late.sums()) {
            if (Status taken = take_sum(late, name); !taken)
                return error_at(schedule.transfers[transfer.index].op, taken.error().message);
        }
        place_of_[transfer.index] = late_.size();
        late_.push_back(std::move(late));
    }
    ends_call_ = schedule.ends_with_sum;
    if (ends_call_) {
        std::vector<std::uint64_t>& posts = late_.back().sum.posts;
        posts.insert(posts.end(), plan.end_posts.begin(), plan.end_posts.end());
    }
    return Done{};
}

Status LateTransfers::take_sum(Late& late, const std::string& name) const {
    StreamSum& sum = late.sum;
    sum.index = late.transfer.index;
    sum.sum = *late.transfer.sum();
    sum.posts = late.transfer.post_words;
    if (late.step().awaits_gate) {  // of which it has one
        sum.awaited_gate = late.gates[0].waitValue.address;
        sum.awaited_tiles = late.gates[0].waitValue.value;
        late.gates.clear();
    }
    for (const fuse::Wait& wait : late.step().awaited) {
        sum.waits.push_back({control_ + static_cast<std::uint64_t>(emit::control::word_of(wait.signal)) * 4,
                             static_cast<std::uint32_t>(wait.lag), wait.signal});
    }
    for (const SumPart& part : sum.sum.parts) {
        const std::uint64_t elements = part.slot.width * part.slot.height / plan::size_of(sum.sum.dtype);
        if (elements >= std::uint64_t{1} << 31) {
            return Error{fmt::format("op '{}': a sum of {} elements in one piece is too large; split it",
                                     name, elements)};
        }
    }
    return Done{};
}

/// What lies apart in memory is sent, and received, by way of a block.
Status LateTransfers::take_side(const PreparedSide& side, Late& late) {
    std::uint64_t address = side.copies.empty() ? 0 : side.copies.front().src;
    if (const NcclPuts* const puts = nccl_->puts()) {
        late.block = puts->of(late.transfer.index);
        late.packing = side.copies_by(late.block.address);
        late.told = late.block.address + late.block.bytes - sizeof(std::uint32_t);
        return side.sends ? Status(Done{}) : mirror(late);
    }
    if (!side.is_contiguous() && side.bytes > 0) {
        SYNCOPATE_TAKE(std::unique_ptr<DeviceBuffer> room, DeviceBuffer::create(context_, side.bytes));
        address = room->address();
        rooms_.push_back(std::move(room));
        late.packing = side.copies_by(address);
    }
    late.block = {side.sends, side.peer, address, side.bytes};
    if (side.sends) {
        late.told = control_ + 4 * emit::control::published;
        return Done{};
    }
    SYNCOPATE_TAKE(std::unique_ptr<DeviceBuffer> told, DeviceBuffer::create(context_, sizeof(std::uint32_t)));
    late.told = told->address();
    rooms_.push_back(std::move(told));
    return mirror(late);
}

Status LateTransfers::mirror(Late& late) {
    SYNCOPATE_TAKE(std::unique_ptr<PinnedWords> mirrored, PinnedWords::create(context_, 1));
    late.told_here = mirrored->host();
    words_.push_back(std::move(mirrored));
    return Done{};
}

/// The sides of a round, whose gates are open, go together, each with the sender's `published`, which the receiver posts [P42].
Status LateTransfers::enqueue_round(std::span<Late* const> round) {
    const CUstream stream = lane_of(*round.front()).stream->get();
    std::vector<Nccl::Block> blocks;
    const auto copy = [&](bool sends) -> Status {
        for (const Late* late : round) {
            if (late->block.sends != sends) continue;
            for (const StridedCopy& one : late->packing) {
                SYNCOPATE_TRY(enqueue_copy(api_, one, stream));
            }
        }
        return Done{};
    };
    for (const Late* late : round) {
        blocks.push_back(late->block);
        if (nccl_->puts() != nullptr) {  // with its word, which is copied to its end
            if (late->block.sends)
                SYNCOPATE_CUDA(api_, cuMemcpyDtoDAsync, late->told, control_ + 4 * emit::control::published,
                               sizeof(std::uint32_t), stream);
            continue;
        }
        blocks.push_back({late->block.sends, late->block.peer, late->told, sizeof(std::uint32_t)});
    }
    SYNCOPATE_TRY(copy(true));
    SYNCOPATE_TRY(nccl_->exchange(blocks, stream));
    SYNCOPATE_TRY(copy(false));
    for (const Late* late : round) {
        if (late->told_here != nullptr)
            SYNCOPATE_CUDA(api_, cuMemcpyDtoHAsync, late->told_here, late->told, 4, stream);
        const Status posted = late->told_here == nullptr
                                  ? mover_.post(late->transfer, stream)
                                  : mover_.post(late->transfer, stream, late->told, late->told_here);
        if (!posted) return posted;
        if (late->done != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, late->done, stream);
    }
    return Done{};
}

void LateTransfers::add_gate(Late& late, const Gate& gate) const {
    const CUdeviceptr word = control_ + static_cast<CUdeviceptr>(gate.word) * 4;
    CUstreamBatchMemOpParams opened{};
    opened.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    opened.waitValue.address = word;
    opened.waitValue.value = gate.relay ? ~0u : gate.value;
    opened.waitValue.flags = gate.relay ? CU_STREAM_WAIT_VALUE_AND : CU_STREAM_WAIT_VALUE_GEQ;
    CUstreamBatchMemOpParams closed{};
    closed.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    closed.writeValue.address = word;
    closed.writeValue.value = 0;
    closed.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    late.gates.push_back(opened);
    late.gates.push_back(closed);
}

/// What the kernels of the sums read.
Status LateTransfers::upload() {
    DeviceLists& lists = written_;
    struct Placed {
        StreamSum* sum;
        DeviceList<device::WaitEntry> waits;
        DeviceList<std::uint64_t> posts;
        DeviceList<std::uint32_t> finished;
    };
    std::vector<Placed> sums;
    for (Late& late : late_) {
        if (!late.sums()) continue;
        sums.push_back({&late.sum, lists.add(late.sum.waits), lists.add(late.sum.posts),
                        lists.add(std::vector<std::uint32_t>(1, 0))});
    }
    if (sums.empty()) return Done{};
    SYNCOPATE_TAKE(std::unique_ptr<DeviceBuffer> buffer, lists.upload(context_, heap_));
    lists_ = std::move(buffer);
    for (const Placed& placed : sums) {
        placed.sum->device_waits = placed.waits.address(*lists_);
        placed.sum->device_posts = placed.posts.address(*lists_);
        placed.sum->finished = placed.finished.address(*lists_);
    }
    return Done{};
}

Status LateTransfers::enqueue(CUevent fork, CUevent copies_before, const device::BoundaryArguments& end) {
    for (std::size_t stream = 0; stream < lanes_.size(); ++stream) {
        const Lane& lane = lanes_[stream];
        if (lane.stream == nullptr) continue;
        SYNCOPATE_CUDA(api_, cuStreamWaitEvent, lane.stream->get(), fork, 0);
        if (stream != fuse::kSums && copies_before != nullptr)
            SYNCOPATE_CUDA(api_, cuStreamWaitEvent, lane.stream->get(), copies_before, 0);
    }
    std::vector<Late*> round;
    for (Late& late : late_) {
        const CUstream stream = lane_of(late).stream->get();
        for (const CUevent event : late.follows) SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, event, 0);
        if (!late.gates.empty()) {
            SYNCOPATE_CUDA(api_, cuStreamBatchMemOp, stream, static_cast<unsigned>(late.gates.size()),
                           late.gates.data(), 0);
        }
        if (late.opened != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, late.opened, stream);
        if (const PreparedSide* const side = late.transfer.side()) {
            round.push_back(&late);
            if (!side->ends_round) continue;
            SYNCOPATE_TRY(enqueue_round(round));
            round.clear();
            continue;
        }
        if (late.sums()) {
            const bool ends = ends_call_ && &late == &late_.back();
            if (Status awaited = enqueue_await(module_, late.sum, control_, stream, ends ? &end : nullptr);
                !awaited)
                return awaited;
        }
        const Status done = late.sums() ? enqueue_sum(module_, late.sum, control_, processors_, stream)
                                        : mover_.enqueue(late.transfer, stream);
        if (!done) return done;
        if (late.done != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, late.done, stream);
    }
    for (const Lane& lane : lanes_) {
        if (lane.stream != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, lane.join, lane.stream->get());
    }
    return Done{};
}

Status LateTransfers::join(CUstream stream) {
    for (const Lane& lane : lanes_) {
        if (lane.stream != nullptr) SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, lane.join, 0);
    }
    return Done{};
}

Status LateTransfers::renew() {
    return lists_ == nullptr ? Status(Done{}) : written_.restore(heap_, *lists_);
}

PreparedSum* LateTransfers::sum_of(std::size_t index) {
    return place_of_.contains(index) && late_of(index).sums() ? &late_of(index).sum.sum : nullptr;
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

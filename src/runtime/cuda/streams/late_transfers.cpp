#include "runtime/cuda/streams/late_transfers.hpp"

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "runtime/cuda/streams/copy_stream.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/runtime/cuda/engine/engine_table.hpp"

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
                                                             const std::uint32_t* published, const Nccl* nccl,
                                                             const std::string& name) {
    const CurrentContext current(*context);
    std::unique_ptr<LateTransfers> made(new LateTransfers(context, heap, plan.control()));
    made->rank_ = plan.rank;
    made->module_ = &module;
    made->published_ = published;
    made->nccl_ = nccl;
    if (Status sorted = made->sort(plan, schedule, name); !sorted) return sorted.error();
    CUdevice device = 0;
    SYNCOPATE_CUDA(made->api_, cuCtxGetDevice, &device);
    int processors = 0;
    SYNCOPATE_CUDA(made->api_, cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                   device);
    made->processors_ = static_cast<unsigned>(processors);
    for (Step& step : made->steps_) {
        Lane& lane = made->lane_of(step);
        if (lane.stream == nullptr) {
            if (Status opened = made->open(lane); !opened) return opened.error();
        }
        for (const std::size_t other : step.after) {
            CUevent& done = made->steps_[other].done;
            if (done != nullptr) continue;
            if (Status created = create_event(made->api_, done); !created) return created.error();
        }
        if (step.await_after) {
            CUevent& opened = made->steps_[*step.await_after].opened;
            if (opened != nullptr) continue;
            if (Status created = create_event(made->api_, opened); !created) return created.error();
        }
    }
    if (Status uploaded = made->upload(); !uploaded) return uploaded.error();
    return made;
}

LateTransfers::~LateTransfers() {
    const CurrentContext current(*context_);
    for (const Step& step : steps_) {
        for (CUevent event : {step.done, step.opened}) {
            if (event != nullptr) api_.cuEventDestroy(event);
        }
    }
    for (const Lane& lane : lanes_) {
        if (lane.join != nullptr) api_.cuEventDestroy(lane.join);
    }
}

Status LateTransfers::open(Lane& lane) {
    Result<std::unique_ptr<OwnedStream>> stream = OwnedStream::create(context_, true);
    if (!stream) return stream.error();
    lane.stream = std::move(stream).value();
    return create_event(api_, lane.join);
}

Status LateTransfers::sort(const CallPlan& plan, const fuse::RankSchedule& schedule,
                           const std::string& name) {
    lanes_.resize(schedule.num_streams);
    for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
        const fuse::Transfer& transfer = schedule.transfers[i];
        const fuse::StreamStep& planned = transfer.step;
        if (!planned.follows_kernel()) continue;
        Step step{.index = i, .stream = planned.stream, .sums = planned.launch == fuse::Launch::sums};
        const PreparedTransfer& prepared = plan.transfers[i];
        if (const PreparedTransfer::Copies* copies = prepared.copies()) step.copies = *copies;
        if (const PreparedCollective* collective = prepared.collective()) step.collective = *collective;
        if (const PreparedSide* side = prepared.side()) {
            if (Status made = take_side(*side, step); !made) return made;
        }
        for (std::size_t p = 0; p < transfer.posts.size(); ++p) {
            const bool own = !step.sums && transfer.posts[p].rank == rank_;
            (step.sums ? step.sum.posts
             : own     ? step.own_posts
                       : step.posts)
                .push_back(prepared.post_words[p]);
        }
        step.sum.index = i;
        if (const PreparedSum* sum = prepared.sum()) step.sum.sum = *sum;
        for (const std::int32_t chunk : planned.gates) {
            const std::int32_t word =
                emit::counter_of(schedule, chunk) + emit::control::gate + (step.sums ? 1 : 0);
            const std::size_t count = schedule.chunks[static_cast<std::size_t>(chunk)].counting.size();
            add_gate(step, word, static_cast<std::uint32_t>(count), CU_STREAM_WAIT_VALUE_GEQ);
        }
        if (planned.relay >= 0) {  // open is what is not 0
            add_gate(step, emit::relay_gate_of(schedule, planned.relay), ~0u, CU_STREAM_WAIT_VALUE_AND);
        }
        if (planned.awaits_gate) {  // of which it has one
            step.sum.awaited_gate = step.gates[0].waitValue.address;
            step.sum.awaited_tiles = step.gates[0].waitValue.value;
            step.gates.clear();
        }
        if (planned.await_after) step.await_after = step_of_.at(*planned.await_after);
        for (const std::size_t other : planned.after) step.after.push_back(step_of_.at(other));
        for (const fuse::Wait& wait : planned.awaited) {
            step.sum.waits.push_back(
                {control_ + static_cast<std::uint64_t>(emit::control::word_of(wait.signal)) * 4,
                 static_cast<std::uint32_t>(wait.lag), wait.signal});
        }
        for (const SumPart& part : step.sum.sum.parts) {
            const std::uint64_t elements =
                part.slot.width * part.slot.height / plan::size_of(step.sum.sum.dtype);
            if (elements >= std::uint64_t{1} << 31) {
                return error_at(
                    transfer.op,
                    fmt::format("op '{}': a sum of {} elements in one piece is too large; split it", name,
                                elements));
            }
        }
        step_of_[i] = steps_.size();
        steps_.push_back(std::move(step));
    }
    ends_call_ = schedule.ends_with_sum;
    if (ends_call_) {
        std::vector<std::uint64_t>& posts = steps_.back().sum.posts;
        posts.insert(posts.end(), plan.end_posts.begin(), plan.end_posts.end());
    }
    return Done{};
}

/// What lies apart in memory is sent, and received, by way of a block.
Status LateTransfers::take_side(const PreparedSide& side, Step& step) {
    std::uint64_t address = side.copies.empty() ? 0 : side.copies.front().src;
    if (!side.is_contiguous() && side.bytes > 0) {
        Result<std::unique_ptr<DeviceBuffer>> room = DeviceBuffer::create(context_, side.bytes);
        if (!room) return room.error();
        address = (*room)->address();
        rooms_.push_back(std::move(room).value());
        step.copies = side.copies_by(address);
    }
    step.side = Nccl::Block{side.sends, side.peer, address, side.bytes};
    step.ends_round = side.ends_round;
    return Done{};
}

/// The sides of a round, whose gates are open, go together.
Status LateTransfers::enqueue_round(std::span<Step* const> round) {
    const CUstream stream = lane_of(*round.front()).stream->get();
    std::vector<Nccl::Block> blocks;
    const auto copy = [&](bool sends) -> Status {
        for (const Step* step : round) {
            for (const StridedCopy& one : step->copies) {
                if (step->side->sends != sends) break;
                if (Status copied = enqueue_copy(api_, one, stream); !copied) return copied;
            }
        }
        return Done{};
    };
    for (const Step* step : round) blocks.push_back(*step->side);
    if (Status packed = copy(true); !packed) return packed;
    if (Status exchanged = nccl_->exchange(blocks, stream); !exchanged) return exchanged;
    if (Status placed = copy(false); !placed) return placed;
    for (const Step* step : round) {
        if (Status posted = enqueue_posts(*step); !posted) return posted;
        if (step->done != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, step->done, stream);
    }
    return Done{};
}

void LateTransfers::add_gate(Step& step, std::int32_t word, std::uint32_t value, unsigned condition) const {
    const CUdeviceptr gate = control_ + static_cast<CUdeviceptr>(word) * 4;
    CUstreamBatchMemOpParams opened{};
    opened.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    opened.waitValue.address = gate;
    opened.waitValue.value = value;
    opened.waitValue.flags = condition;
    CUstreamBatchMemOpParams closed{};
    closed.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    closed.writeValue.address = gate;
    closed.writeValue.value = 0;
    closed.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    step.gates.push_back(opened);
    step.gates.push_back(closed);
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
    for (Step& step : steps_) {
        if (!step.sums) continue;
        sums.push_back({&step.sum, lists.add(step.sum.waits), lists.add(step.sum.posts),
                        lists.add(std::vector<std::uint32_t>(1, 0))});
    }
    if (sums.empty()) return Done{};
    Result<std::unique_ptr<DeviceBuffer>> buffer = lists.upload(context_, heap_);
    if (!buffer) return buffer.error();
    lists_ = std::move(buffer).value();
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
    std::vector<Step*> round;
    for (Step& step : steps_) {
        const CUstream stream = lane_of(step).stream->get();
        for (const std::size_t other : step.after)
            SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, steps_[other].done, 0);
        if (step.await_after)
            SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, steps_[*step.await_after].opened, 0);
        if (!step.gates.empty()) {
            SYNCOPATE_CUDA(api_, cuStreamBatchMemOp, stream, static_cast<unsigned>(step.gates.size()),
                           step.gates.data(), 0);
        }
        if (step.opened != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, step.opened, stream);
        if (step.side) {
            round.push_back(&step);
            if (!step.ends_round) continue;
            if (Status exchanged = enqueue_round(round); !exchanged) return exchanged;
            round.clear();
            continue;
        }
        if (step.sums) {
            const bool ends = ends_call_ && &step == &steps_.back();
            if (Status awaited = enqueue_await(*module_, step.sum, control_, stream, ends ? &end : nullptr);
                !awaited)
                return awaited;
        }
        const Status done =
            step.sums ? enqueue_sum(*module_, step.sum, control_, processors_, stream) : enqueue_copies(step);
        if (!done) return done;
        if (step.done != nullptr) SYNCOPATE_CUDA(api_, cuEventRecord, step.done, stream);
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

Status LateTransfers::enqueue_copies(const Step& step) {
    const CUstream stream = lane_of(step).stream->get();
    if (step.collective) {
        if (Status called = nccl_->enqueue(*step.collective, stream); !called) return called;
    }
    for (const StridedCopy& copy : step.copies) {
        if (Status copied = enqueue_copy(api_, copy, stream); !copied) return copied;
    }
    return enqueue_posts(step);
}

Status LateTransfers::enqueue_posts(const Step& step) {
    const CUstream stream = lane_of(step).stream->get();
    for (const std::uint64_t word : step.posts)
        SYNCOPATE_CUDA(api_, cuMemcpyDtoDAsync, word, control_ + 4 * emit::control::published, 4, stream);
    // From the mirror [P21].
    for (const std::uint64_t word : step.own_posts)
        SYNCOPATE_CUDA(api_, cuMemcpyHtoDAsync, word, published_, 4, stream);
    return Done{};
}

Status LateTransfers::renew() {
    return lists_ == nullptr ? Status(Done{}) : written_.restore(heap_, *lists_);
}

PreparedSum* LateTransfers::sum_of(std::size_t index) {
    const auto step = step_of_.find(index);
    return step == step_of_.end() || !steps_[step->second].sums ? nullptr : &steps_[step->second].sum.sum;
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

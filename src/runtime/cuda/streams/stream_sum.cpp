#include "runtime/cuda/streams/stream_sum.hpp"

#if SYNCOPATE_HAS_CUDA

#include <algorithm>

#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/runtime/cuda/engine/engine_table.hpp"
#include "syncopate/runtime/signals/control.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

constexpr unsigned kSumThreads = 128;
constexpr std::uint64_t kThreadBytes = 16;    // what a thread sums at a time (reduce.cu)
constexpr unsigned kBlocksPerProcessor = 16;  // of sy_reduce

}  // namespace

Status enqueue_await(const DeviceModule& module, const StreamSum& step, CUdeviceptr control, CUstream stream,
                     const device::BoundaryArguments* reports) {
    if (step.waits.empty() && step.awaited_gate == 0) return Done{};
    device::AwaitArguments await{.control = reinterpret_cast<std::uint32_t*>(control),
                                 .waits = reinterpret_cast<const device::WaitEntry*>(step.device_waits),
                                 .gate = reinterpret_cast<std::uint32_t*>(step.awaited_gate),
                                 .gate_value = step.awaited_tiles,
                                 .num_waits = static_cast<std::int32_t>(step.waits.size()),
                                 .where = emit::control::at_transfer(static_cast<std::int64_t>(step.index)),
                                 .reports = reports != nullptr ? 1 : 0};
    if (reports != nullptr) await.boundary = *reports;
    return module.launch(module.await, await, stream);
}

Status enqueue_sum(const DeviceModule& module, const StreamSum& step, CUdeviceptr control,
                   unsigned processors, CUstream stream) {
    const std::optional<device::SumType> type = sum_type_of(step.sum.dtype);
    if (!type) return Error{"a sum of a type that is not summed"};
    device::ReduceArguments a{.control = reinterpret_cast<const std::uint32_t*>(control),
                              .posts = reinterpret_cast<const std::uint64_t*>(step.device_posts),
                              .finished = reinterpret_cast<std::uint32_t*>(step.finished),
                              .slot_distance = step.sum.slot_distance,
                              .num_slots = step.sum.num_slots,
                              .own_place = step.sum.own,
                              .type = *type,
                              .largest = step.sum.reduce == plan::Reduce::max ? 1 : 0};
    static_assert(device::kMostSumCopies == fuse::kMostSumStores);
    a.num_copies = static_cast<std::int32_t>(step.sum.copies.size());
    std::ranges::copy(step.sum.copies, a.copies);
    static_assert(device::kMostSumSources == fuse::kMostSumSources);
    if (step.sum.places.size() > fuse::kMostSumSources) return Error{"a sum of too many contributions"};
    a.in_places = step.sum.places.empty() ? 0 : 1;
    const unsigned most = processors * kBlocksPerProcessor;
    const std::uint64_t element = plan::size_of(step.sum.dtype);
    for (std::size_t p = 0; p < step.sum.parts.size(); ++p) {
        const SumPart& part = step.sum.parts[p];
        const StridedCopy& box = part.slot;
        for (std::uint64_t plane = 0; plane < box.depth; ++plane) {
            a.slots = box.src + plane * box.src_plane;
            a.slot_pitch = box.src_pitch;
            a.own = box.dst + plane * box.dst_plane;
            a.own_pitch = box.dst_pitch;
            a.out = part.out == 0 ? a.own : part.out + plane * part.out_plane;
            a.out_pitch = part.out == 0 ? a.own_pitch : part.out_pitch;
            std::uint64_t odd = a.slots | a.own | a.out | box.width | a.slot_distance;
            if (box.height > 1) odd |= a.slot_pitch | a.own_pitch | a.out_pitch;
            for (std::size_t s = 0; s < step.sum.places.size(); ++s) {
                const StridedCopy& place = step.sum.places[s][p];
                a.sources[s] = {place.src + plane * place.src_plane, place.src_pitch};
                odd |= a.sources[s].base | (box.height > 1 ? a.sources[s].pitch : 0);
            }
            a.aligned = odd % 16 == 0 ? 1 : 0;
            a.rows = static_cast<std::uint32_t>(box.height);
            a.row_units = static_cast<std::uint32_t>(box.width / (a.aligned != 0 ? 16 : element));
            const bool last = p + 1 == step.sum.parts.size() && plane + 1 == box.depth;
            a.num_posts = last ? static_cast<std::int32_t>(step.posts.size()) : 0;
            // As many blocks whether aligned or not: the blocks are counted over all calls.
            const std::uint64_t wanted =
                (box.width * box.height + kThreadBytes * kSumThreads - 1) / (kThreadBytes * kSumThreads);
            const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(wanted, 1, most));
            SYNCOPATE_TRY(module.launch(module.reduce, a, stream, blocks, kSumThreads));
        }
    }
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

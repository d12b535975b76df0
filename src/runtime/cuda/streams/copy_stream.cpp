#include "runtime/cuda/streams/copy_stream.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/cuda/streams/copy_boxes.hpp"
#include "syncopate/try.hpp"

#if SYNCOPATE_HAS_CUDA

namespace syncopate::runtime {

namespace {

/// Whether cuMemcpy3D takes it: planes are whole rows apart, and do not lie in one another. Those of an array
/// whose axes are transposed do.
bool is_box(const StridedCopy& copy) {
    return copy.src_plane % copy.src_pitch == 0 && copy.dst_plane % copy.dst_pitch == 0 &&
           copy.src_plane / copy.src_pitch >= copy.height && copy.dst_plane / copy.dst_pitch >= copy.height;
}

/// As sy_copy_boxes takes it.
std::optional<device::CopyBox> box_of(const StridedCopy& copy) {
    constexpr std::uint64_t kUnit = 16, kMostUnits = std::numeric_limits<std::uint32_t>::max() / 2;
    std::uint64_t of_all = copy.src | copy.dst | copy.width;
    if (copy.height > 1) of_all |= copy.src_pitch | copy.dst_pitch;
    if (copy.depth > 1) of_all |= copy.src_plane | copy.dst_plane;
    if (of_all % kUnit != 0 || copy.bytes() / kUnit > kMostUnits) return std::nullopt;
    return device::CopyBox{.src = copy.src,
                           .dst = copy.dst,
                           .src_pitch = copy.src_pitch,
                           .dst_pitch = copy.dst_pitch,
                           .src_plane = copy.src_plane,
                           .dst_plane = copy.dst_plane,
                           .row_units = static_cast<std::uint32_t>(copy.width / kUnit),
                           .rows = static_cast<std::uint32_t>(copy.height),
                           .units = static_cast<std::uint32_t>(copy.bytes() / kUnit),
                           .end_pieces = 0};
}

Status launch(const CudaContext& context, const DeviceModule& module, device::CopyBoxesArguments& boxes,
              CUstream stream) {
    // So many blocks are at work on a multiprocessor at once.
    constexpr std::uint32_t kBlocks = 8;
    if (boxes.num_boxes == 0) return Done{};
    std::uint32_t pieces = 0;
    for (std::uint32_t i = 0; i < boxes.num_boxes; ++i) {
        pieces += (boxes.boxes[i].units + device::kCopyPiece - 1) / device::kCopyPiece;
        boxes.boxes[i].end_pieces = pieces;
    }
    const std::uint32_t most = kBlocks * static_cast<std::uint32_t>(context.multiprocessors());
    SYNCOPATE_TRY(
        module.launch(module.copy_boxes, boxes, stream, std::min(pieces, most), device::kCopyThreads));
    boxes.num_boxes = 0;
    return Done{};
}

}  // namespace

Status enqueue_copy(const CudaApi& api, const StridedCopy& copy, CUstream stream) {
    if (copy.contiguous()) {
        SYNCOPATE_CUDA(api, cuMemcpyDtoDAsync, copy.dst, copy.src, copy.width, stream);
        return Done{};
    }
    if (copy.depth == 1) {
        CUDA_MEMCPY2D two{};
        two.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        two.srcDevice = copy.src;
        two.srcPitch = copy.src_pitch;
        two.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        two.dstDevice = copy.dst;
        two.dstPitch = copy.dst_pitch;
        two.WidthInBytes = copy.width;
        two.Height = copy.height;
        SYNCOPATE_CUDA(api, cuMemcpy2DAsync, &two, stream);
        return Done{};
    }
    if (!is_box(copy)) {
        for (std::uint64_t plane = 0; plane < copy.depth; ++plane) {
            StridedCopy one = copy;
            one.src += plane * copy.src_plane;
            one.dst += plane * copy.dst_plane;
            one.depth = 1;
            SYNCOPATE_TRY(enqueue_copy(api, one, stream));
        }
        return Done{};
    }
    CUDA_MEMCPY3D three{};
    three.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    three.srcDevice = copy.src;
    three.srcPitch = copy.src_pitch;
    three.srcHeight = copy.src_plane / copy.src_pitch;
    three.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    three.dstDevice = copy.dst;
    three.dstPitch = copy.dst_pitch;
    three.dstHeight = copy.dst_plane / copy.dst_pitch;
    three.WidthInBytes = copy.width;
    three.Height = copy.height;
    three.Depth = copy.depth;
    SYNCOPATE_CUDA(api, cuMemcpy3DAsync, &three, stream);
    return Done{};
}

Status enqueue_local_copies(const CudaContext& context, const DeviceModule& module,
                            std::span<const StridedCopy* const> copies, CUstream stream) {
    // One alone that is small takes the driver's copy no longer than a kernel.
    constexpr std::uint64_t kLarge = 1 << 20;
    if ((copies.size() == 1 && copies.front()->bytes() < kLarge) || depend(copies)) {
        for (const StridedCopy* copy : copies) SYNCOPATE_TRY(enqueue_copy(context.api(), *copy, stream));
        return Done{};
    }
    device::CopyBoxesArguments boxes{};
    for (const StridedCopy* copy : copies) {
        const std::optional<device::CopyBox> box = box_of(*copy);
        if (!box) {
            SYNCOPATE_TRY(enqueue_copy(context.api(), *copy, stream));
            continue;
        }
        if (box->units == 0) continue;
        if (boxes.num_boxes == device::kMostBoxes) SYNCOPATE_TRY(launch(context, module, boxes, stream));
        boxes.boxes[boxes.num_boxes++] = *box;
    }
    return launch(context, module, boxes, stream);
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

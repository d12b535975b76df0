#include "runtime/cuda/streams/copy_stream.hpp"
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

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

// The two small kernels around the fused one: a warp that posts and waits [P10, P11, P12, P13].
#include "runtime/cuda/boundary/boundary.cuh"

namespace syncopate::runtime::device {

/// One warp. Posts, waits, and publishes the epoch; after a fault nothing. The fused kernel may start beside it
/// [P2].
extern "C" __global__ void __launch_bounds__(32) sy_begin(const BoundaryArguments a) {
    launch_next();
    const auto lane = static_cast<std::int32_t>(threadIdx.x);
    std::uint32_t fault = fault_of(a, lane);
    const std::uint32_t epoch = a.control[word::published] + 1u;
    if (fault == 0) {
        __syncwarp();
        post_all(a, epoch, lane);
        tell_begun(a, epoch, lane);
        for (std::int32_t i = lane; i < a.num_waits; i += 32)
            wait_for(a.control, a.waits[i], epoch, word::at_begin);
        __syncwarp();
        fault = fault_of(a, lane);
        if (fault == 0) publish(a, epoch, lane);
    }
    if (fault != 0) report_fault(a, fault, epoch, lane);
}

/// One warp. Waits, then posts; after a fault nothing [P30].
extern "C" __global__ void __launch_bounds__(32) sy_end(const BoundaryArguments a) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x);
    std::uint32_t fault = fault_of(a, lane);
    std::uint32_t epoch = 0;
    if (lane == 0) epoch = a.control[word::published];
    epoch = __shfl_sync(0xffffffffu, epoch, 0);
    if (fault == 0) {
        for (std::int32_t i = lane; i < a.num_waits; i += 32)
            wait_for(a.control, a.waits[i], epoch, word::at_end);
        __syncwarp();
        fault = fault_of(a, lane);
        if (fault == 0) post_all(a, epoch, lane);
    }
    if (fault != 0) report_fault(a, fault, epoch, lane);
    // Where the host looks whether calls that have begun have ended, after a fault, too [P25].
    if (a.tells_end != 0 && lane == 0)
        store_release(a.mirror + kMirrorEnded, fault == 0 ? epoch : load_relaxed(a.mirror + kMirrorBegun));
}

}  // namespace syncopate::runtime::device

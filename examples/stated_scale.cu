// A stated kernel in CUDA C++ (docs/kernels.md): y [M, N] = factor * x in tiles of BLOCK_M x BLOCK_N, which
// it is compiled for. examples/stated_cuda.py states it and fuses it.
#include "syncopate/emit/schedule_device.cuh"

extern "C" __global__ void scale(const float* x, float* y, int M, int N, float factor, long long sy_schedule,
                                 long long sy_control) {
    const syncopate::device::Schedule schedule(sy_schedule, sy_control);
    const int num_n = (N + BLOCK_N - 1) / BLOCK_N;
    for (int slot = static_cast<int>(blockIdx.x); slot < schedule.num_slots();
         slot += static_cast<int>(gridDim.x)) {
        const int tile = schedule.await(slot);
        const int row = tile / num_n * BLOCK_M;
        const int column = tile % num_n * BLOCK_N;
        for (int i = static_cast<int>(threadIdx.x); i < BLOCK_M * BLOCK_N;
             i += static_cast<int>(blockDim.x)) {
            const int r = row + i / BLOCK_N;
            const int c = column + i % BLOCK_N;
            if (r < M && c < N)
                y[static_cast<long long>(r) * N + c] = factor * x[static_cast<long long>(r) * N + c];
        }
        schedule.post(slot);
    }
    schedule.finish();
}

// A stated kernel in CUDA C++ that makes each call of schedule_device.cuh: c [M, N] = a [M, K] @ b [K, N], a
// thread for each element of a tile. Its loop over K follows the phases of its slot; it loads a, and stores
// c, where its slot says. stated_matmul_cuda.py states it.
#include "syncopate/emit/schedule_device.cuh"

using syncopate::device::Iterations;

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K,
                                  long long sy_schedule, long long sy_control, long long sy_own) {
    const syncopate::device::Schedule schedule(sy_schedule, sy_control);
    const int num_n = (N + BLOCK_N - 1) / BLOCK_N;
    const Iterations whole{0, (K + BLOCK_K - 1) / BLOCK_K};
    for (int slot = static_cast<int>(blockIdx.x); slot < schedule.num_slots();
         slot += static_cast<int>(gridDim.x)) {
        const int tile = schedule.await(slot);
        const int row = tile / num_n * BLOCK_M + static_cast<int>(threadIdx.x) / BLOCK_N;
        const int column = tile % num_n * BLOCK_N + static_cast<int>(threadIdx.x) % BLOCK_N;
        const float* from = a + (FETCHED ? schedule.load_offset(slot)
                                 : OWN   ? schedule.own_offset(slot, sy_own)
                                         : 0);
        float* to = c + (PUSHED ? schedule.store_offset(slot) : 0);
        const int phases = schedule.num_phases(slot);
        float sum = 0;
        for (int phase = 0; phase < max(phases, 1); ++phase) {
            const Iterations range = phases == 0 ? whole : schedule.await_phase(slot, phase);
            if (row >= M || column >= N) continue;
            for (int k = range.begin * BLOCK_K; k < min(range.end * BLOCK_K, K); ++k)
                sum += from[static_cast<long long>(row) * K + k] * b[static_cast<long long>(k) * N + column];
        }
        if (row < M && column < N) to[static_cast<long long>(row) * N + column] = sum;
        schedule.post(slot);
    }
    schedule.finish();
}

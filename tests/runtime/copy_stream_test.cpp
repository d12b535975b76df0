#include "runtime/cuda/streams/copy_stream.hpp"

#if SYNCOPATE_HAS_CUDA

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace syncopate::runtime {
namespace {

char* pointer(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

CUresult copy_line(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
    std::memcpy(pointer(to), pointer(from), bytes);
    return CUDA_SUCCESS;
}

CUresult copy_rows(const CUDA_MEMCPY2D* c, CUstream) {
    if (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t y = 0; y < c->Height; ++y)
        std::memcpy(pointer(c->dstDevice) + y * c->dstPitch, pointer(c->srcDevice) + y * c->srcPitch,
                    c->WidthInBytes);
    return CUDA_SUCCESS;
}

/// As the driver does it: planes are so many whole rows apart.
CUresult copy_planes(const CUDA_MEMCPY3D* c, CUstream) {
    for (std::size_t z = 0; z < c->Depth; ++z) {
        for (std::size_t y = 0; y < c->Height; ++y)
            std::memcpy(pointer(c->dstDevice) + (z * c->dstHeight + y) * c->dstPitch,
                        pointer(c->srcDevice) + (z * c->srcHeight + y) * c->srcPitch, c->WidthInBytes);
    }
    return CUDA_SUCCESS;
}

CudaApi on_host() {
    CudaApi api;
    api.cuMemcpyDtoDAsync = copy_line;
    api.cuMemcpy2DAsync = copy_rows;
    api.cuMemcpy3DAsync = copy_planes;
    return api;
}

/// An array [heads, rows, columns] of which the caller has rows before heads, or planes that are no whole
/// rows apart, to one with its axes in order and back.
TEST(CopyStream, TakesArraysWhoseAxesAreTransposedOrOddlyApart) {
    constexpr std::int64_t kHeads = 3, kRows = 5, kColumns = 4;
    const CudaApi api = on_host();
    const std::vector<std::vector<std::int64_t>> layouts{{kRows * kColumns, kColumns, 1},
                                                         {kColumns, kHeads * kColumns, 1},
                                                         {kRows * 2 * kColumns + 1, 2 * kColumns, 1},
                                                         {100, kColumns, 1}};
    for (const std::vector<std::int64_t>& strides : layouts) {
        std::vector<std::int32_t> user(400), heap(400, -1), back(400, -1);
        std::iota(user.begin(), user.end(), 0);
        const std::vector<std::int64_t> shape{kHeads, kRows, kColumns};
        const auto at = [&](std::vector<std::int32_t>& memory, const std::vector<std::int64_t>& steps) {
            return BoxView{reinterpret_cast<std::uint64_t>(memory.data()), shape, steps};
        };
        const BoxView whole = at(heap, {2 * kRows * kColumns, kColumns, 1});
        const auto run = [&](const BoxView& from, const BoxView& to) {
            const auto copies = copies_between(from, to, 4);
            ASSERT_TRUE(copies);
            for (const StridedCopy& copy : *copies) ASSERT_TRUE(enqueue_copy(api, copy, nullptr));
        };
        run(at(user, strides), whole);
        run(whole, at(back, strides));
        for (std::int64_t h = 0; h < kHeads; ++h) {
            for (std::int64_t r = 0; r < kRows; ++r) {
                for (std::int64_t c = 0; c < kColumns; ++c) {
                    const auto from = static_cast<std::size_t>(h * strides[0] + r * strides[1] + c);
                    const auto to = static_cast<std::size_t>((h * 2 * kRows + r) * kColumns + c);
                    ASSERT_EQ(heap[to], user[from]) << h << " " << r << " " << c;
                    ASSERT_EQ(back[from], user[from]) << h << " " << r << " " << c;
                }
            }
        }
    }
}

}  // namespace
}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

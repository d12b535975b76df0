// How a warp of the chunk engine adds up a piece: from its stage in shared memory, or from wherever the
// summands are.
#pragma once

#include "runtime/cuda/engine/summation.cuh"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime::device {
namespace {

/// From the stage, which holds the piece of one summand after that of another, to where the first one was. A
/// lane writes only what it alone has read.
template <typename Type, typename Combine>
__device__ __forceinline__ void sum_stage(const EngineOp& op, const EnginePiece& part, char* stage) {
    constexpr std::uint32_t kWarpBytes = 32 * kEngineUnit;
    constexpr std::uint32_t kUnits = 2;  // of a thread at once: the additions of one hide behind the other's
    const std::uint32_t num_sources = op.num_sources;
    const std::uint32_t bytes = part.rows * part.bytes;
    for (std::uint32_t at = threadIdx.x % 32 * kEngineUnit; at < bytes; at += kUnits * kWarpBytes) {
        char* from[kUnits];
        Totals<Type> totals[kUnits];
#pragma unroll
        for (std::uint32_t u = 0; u < kUnits; ++u) {
            from[u] = stage + (at + u * kWarpBytes < bytes ? at + u * kWarpBytes : at);
            add<Type, Combine>(totals[u], *reinterpret_cast<const uint4*>(from[u]), true);
        }
#pragma unroll 2
        for (std::uint32_t source = 1; source < num_sources; ++source) {
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u)
                add<Type, Combine>(totals[u], *reinterpret_cast<const uint4*>(from[u] + source * bytes),
                                   false);
        }
#pragma unroll
        for (std::uint32_t u = kUnits; u-- > 0;)
            *reinterpret_cast<uint4*>(from[u]) = narrowed<Type>(totals[u]);
    }
}

/// Where row `row` of summand `source` begins, for a piece; 0 past the last summand.
__device__ __forceinline__ std::uint64_t summand(const EngineOp& op, const EngineSource* boxes,
                                                 std::uint32_t source, std::uint32_t row,
                                                 std::uint64_t column) {
    return source < op.num_sources ? row_address(op, boxes[source], row) + column : 0;
}

/// From wherever the summands are: each thread has kAtOnce * kUnits loads on their way at once.
template <typename Type, typename Combine>
__device__ __forceinline__ void sum_boxes(const EngineOp& op, const EnginePiece& part,
                                          const EngineSource* boxes, const std::uint64_t* copies) {
    constexpr std::uint32_t kUnits = 1;
    constexpr std::uint32_t kAtOnce = 8;  // summands
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t units = part.bytes / kEngineUnit;
    const std::uint32_t num_sources = op.num_sources;
#pragma unroll 1
    for (std::uint32_t row = part.row; row < part.row + part.rows; ++row) {
        auto* dst = reinterpret_cast<uint4*>(row_address(op, op.dst, row) + part.column);
        std::uint64_t mine = summand(op, boxes, lane, row, part.column);  // of 32 summands, one a lane
#pragma unroll 1
        for (std::uint32_t first = 0; first < units; first += 32 * kUnits) {
            std::uint32_t at[kUnits];
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u) at[u] = min(first + 32 * u + lane, units - 1);
            Totals<Type> totals[kUnits];
#pragma unroll 1
            for (std::uint32_t source = 0; source < num_sources; source += kAtOnce) {
                if (num_sources > 32 && source % 32 == 0)
                    mine = summand(op, boxes, source + lane, row, part.column);
                uint4 values[kAtOnce][kUnits];
#pragma unroll
                for (std::uint32_t i = 0; i < kAtOnce; ++i) {
                    const auto* from = reinterpret_cast<const uint4*>(
                        __shfl_sync(0xffffffffu, mine, static_cast<int>((source + i) % 32)));
                    if (source + i >= num_sources) continue;
#pragma unroll
                    for (std::uint32_t u = 0; u < kUnits; ++u) values[i][u] = __ldcg(from + at[u]);
                }
#pragma unroll
                for (std::uint32_t i = 0; i < kAtOnce; ++i) {
                    if (source + i >= num_sources) continue;
#pragma unroll
                    for (std::uint32_t u = 0; u < kUnits; ++u)
                        add<Type, Combine>(totals[u], values[i][u], i == 0 && source == 0);
                }
            }
            // A unit past the end was the last one once more.
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u) {
                if (first + 32 * u + lane >= units) continue;
                const uint4 total = narrowed<Type>(totals[u]);
                dst[at[u]] = total;
                for (std::uint32_t i = 0; i < op.num_copies; ++i)
                    *reinterpret_cast<uint4*>(reinterpret_cast<std::uint64_t>(dst + at[u]) + copies[i]) =
                        total;
            }
        }
    }
}

}  // namespace
}  // namespace syncopate::runtime::device

// Running totals of 16 bytes of elements: widened (bf16 and fp16 to fp32), added or compared one after
// another, rounded once. The same arithmetic as runtime/call/reduction.hpp does with the CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace syncopate::runtime::device {
namespace {

struct Bf16 {
    using Total = float;
    static constexpr int kBytes = 2;
    static __device__ float widen(std::uint32_t bits) { return __uint_as_float(bits << 16); }
    static __device__ std::uint32_t narrow(float value) {
        return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
};
struct Fp16 {
    using Total = float;
    static constexpr int kBytes = 2;
    static __device__ float widen(std::uint32_t bits) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
    static __device__ std::uint32_t narrow(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
struct Fp32 {
    using Total = float;
    static constexpr int kBytes = 4;
    static __device__ float widen(std::uint32_t bits) { return __uint_as_float(bits); }
    static __device__ std::uint32_t narrow(float value) { return __float_as_uint(value); }
};
struct Int32 {
    using Total = std::int32_t;
    static constexpr int kBytes = 4;
    static __device__ std::int32_t widen(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }
    static __device__ std::uint32_t narrow(std::int32_t value) { return static_cast<std::uint32_t>(value); }
};

struct Sum {
    static __device__ float combine(float a, float b) { return a + b; }
    static __device__ std::int32_t combine(std::int32_t a, std::int32_t b) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
    }
};
struct Max {
    static __device__ float combine(float a, float b) { return a != a || a > b ? a : b; }
    static __device__ std::int32_t combine(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
};

/// 16 bytes as running totals.
template <typename Type>
struct Totals {
    static constexpr int kCount = 16 / Type::kBytes;
    typename Type::Total at[kCount];
};

template <typename Type, typename Combine>
__device__ __forceinline__ void add(Totals<Type>& totals, const uint4& unit, bool first) {
    const std::uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int i = 0; i < Totals<Type>::kCount; ++i) {
        const std::uint32_t word = words[i * Type::kBytes / 4];
        const std::uint32_t bits = Type::kBytes == 4 ? word : (i % 2 == 0 ? word & 0xffffu : word >> 16);
        const typename Type::Total value = Type::widen(bits);
        totals.at[i] = first ? value : Combine::combine(totals.at[i], value);
    }
}

template <typename Type>
__device__ __forceinline__ uint4 narrowed(const Totals<Type>& totals) {
    std::uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        if (Type::kBytes == 4) {
            words[w] = Type::narrow(totals.at[w]);
        } else {
            words[w] = Type::narrow(totals.at[2 * w % Totals<Type>::kCount]) |
                       (Type::narrow(totals.at[(2 * w + 1) % Totals<Type>::kCount]) << 16);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace
}  // namespace syncopate::runtime::device

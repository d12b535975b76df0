#include "bundle/c/dtypes.hpp"

#include "syncopate/c.h"

namespace syncopate::bundle::c {

static_assert(sizeof(DlTensor) == sizeof(sy_tensor) &&
              offsetof(DlTensor, shape) == offsetof(sy_tensor, shape) &&
              offsetof(DlTensor, byte_offset) == offsetof(sy_tensor, byte_offset));

DlType dtype_of(plan::DType dtype) {
    using plan::DType;
    constexpr std::uint8_t kBool = 6;
    constexpr std::uint8_t kFloat8E4m3Fnuz = 11, kFloat8E5m2 = 12, kFloat8E5m2Fnuz = 13;
    switch (dtype) {
        case DType::bf16: return {SY_BFLOAT, 16};
        case DType::fp16: return {SY_FLOAT, 16};
        case DType::fp32: return {SY_FLOAT, 32};
        case DType::fp64: return {SY_FLOAT, 64};
        case DType::fp8e4m3: return {SY_FLOAT8_E4M3FN, 8};
        case DType::fp8e5m2: return {kFloat8E5m2, 8};
        case DType::fp8e4m3fnuz: return {kFloat8E4m3Fnuz, 8};
        case DType::fp8e5m2fnuz: return {kFloat8E5m2Fnuz, 8};
        case DType::int8: return {SY_INT, 8};
        case DType::int16: return {SY_INT, 16};
        case DType::int32: return {SY_INT, 32};
        case DType::int64: return {SY_INT, 64};
        case DType::uint8: return {SY_UINT, 8};
        case DType::uint16: return {SY_UINT, 16};
        case DType::uint32: return {SY_UINT, 32};
        case DType::uint64: return {SY_UINT, 64};
        case DType::boolean: return {kBool, 8};
    }
    return {};
}

}  // namespace syncopate::bundle::c

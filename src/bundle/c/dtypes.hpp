// DLPack's tensor as it lies in memory, and its element types.
#pragma once

#include <cstdint>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::bundle::c {

/// As DLTensor of DLPack 0.8 and 1.x.
struct DlTensor {
    void* data;
    std::int32_t device_type;
    std::int32_t ordinal;
    std::int32_t ndim;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    const std::int64_t* shape;
    const std::int64_t* strides;
    std::uint64_t byte_offset;
};

struct DlType {
    std::uint8_t code;
    std::uint8_t bits;
};

[[nodiscard]] DlType dtype_of(plan::DType dtype);

}  // namespace syncopate::bundle::c

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::runtime {
namespace {

/// Nearest, ties to even, as PyFloat_Pack2 does.
std::uint16_t pack_fp16(double value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
    const double magnitude = std::fabs(value);
    if (magnitude >= 65520.0) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude == 0.0) return sign;
    int exponent = 0;
    (void)std::frexp(magnitude, &exponent);         // magnitude = m · 2^exponent, m in [0.5, 1)
    const int scale = std::max(exponent - 1, -14);  // exponent of the result's last-but-ten bit
    const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - scale)));
    // units is up to 2^11: a carry out of the fraction raises the exponent by itself.
    const std::uint32_t bits = units < 1024 ? units : (static_cast<std::uint32_t>(scale + 14) << 10) + units;
    return static_cast<std::uint16_t>(sign | bits);
}

std::uint16_t pack_bf16(double value) {  // cut off, as Triton's launcher does
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
}

}  // namespace

std::size_t KernelArguments::append(const void* value, std::size_t size) {
    const std::size_t alignment = std::min<std::size_t>(std::bit_ceil(size), 128);
    const std::size_t offset = (used_ + alignment - 1) / alignment * alignment;
    used_ = offset + size;
    blocks_.resize((used_ + sizeof(Block) - 1) / sizeof(Block));
    std::memcpy(bytes() + offset, value, size);
    places_.push_back({offset, size});
    return places_.size() - 1;
}

std::size_t KernelArguments::add_descriptor(const TensorMap& map, std::span<const std::int64_t> shape,
                                            std::span<const std::int64_t> strides) {
    const std::size_t index = add_tensor_map(map);
    for (const std::int64_t extent : shape) add(static_cast<std::int32_t>(extent));
    for (const std::int64_t stride : strides) add(stride);
    return index;
}

Result<std::size_t> KernelArguments::add_integer(std::string_view type, std::int64_t value) {
    if (type.starts_with('*')) return add(static_cast<std::uint64_t>(value));
    if (type == "i1" || type == "i8") return add(static_cast<std::int8_t>(value));
    if (type == "u1" || type == "u8") return add(static_cast<std::uint8_t>(value));
    if (type == "i16") return add(static_cast<std::int16_t>(value));
    if (type == "u16") return add(static_cast<std::uint16_t>(value));
    if (type == "i32") return add(static_cast<std::int32_t>(value));
    if (type == "u32") return add(static_cast<std::uint32_t>(value));
    if (type == "i64") return add(value);
    if (type == "u64") return add(static_cast<std::uint64_t>(value));
    return Error{fmt::format("a kernel argument of type {} takes no integer", type), {}, ErrorClass::usage};
}

Result<std::size_t> KernelArguments::add_float(std::string_view type, double value) {
    if (type == "fp16") return add(pack_fp16(value));
    if (type == "bf16") return add(pack_bf16(value));
    if (type == "fp32" || type == "f32") return add(static_cast<float>(value));
    if (type == "fp64") return add(value);
    return Error{fmt::format("a kernel argument of type {} takes no float", type), {}, ErrorClass::usage};
}

Status KernelArguments::set(std::size_t index, const void* value, std::size_t size) {
    if (index >= places_.size() || places_[index].bytes != size) {
        return Error{fmt::format("there is no argument {} of {} bytes", index, size), {}, ErrorClass::usage};
    }
    std::memcpy(bytes() + places_[index].offset, value, size);
    return Done{};
}

}  // namespace syncopate::runtime

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::runtime {

std::size_t KernelArguments::append(const void* value, std::size_t size) {
    const std::size_t alignment = std::min<std::size_t>(std::bit_ceil(size), 128);
    const std::size_t offset = (used_ + alignment - 1) / alignment * alignment;
    used_ = offset + size;
    blocks_.resize((used_ + sizeof(Block) - 1) / sizeof(Block));
    std::memcpy(bytes() + offset, value, size);
    fields_.push_back({offset, size});
    return fields_.size() - 1;
}

void KernelArguments::replace(std::size_t index, const void* value, std::size_t size) {
    assert(fields_[index].bytes == size);
    std::memcpy(bytes() + fields_[index].offset, value, size);
}

std::size_t KernelArguments::add_descriptor(const TensorMap& map, std::span<const std::int64_t> shape,
                                            std::span<const std::int64_t> strides) {
    const std::size_t index = add_tensor_map(map);
    for (const std::int64_t extent : shape) add(static_cast<std::int32_t>(extent));
    for (const std::int64_t stride : strides) add(stride);
    return index;
}

}  // namespace syncopate::runtime

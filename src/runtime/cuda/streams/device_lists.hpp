// Lists that the library's kernels read, gathered in host memory and put into device memory at once.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

/// One of the lists, wherever they come to be.
template <typename T>
struct DeviceList {
    std::size_t offset = 0;  ///< bytes from the address of all

    [[nodiscard]] CUdeviceptr address(const DeviceBuffer& lists) const { return lists.address() + offset; }
    [[nodiscard]] T* in(const DeviceBuffer& lists) const { return reinterpret_cast<T*>(address(lists)); }
};

class DeviceLists {
public:
    /// Each list begins at a multiple of 256 bytes.
    template <typename T>
    DeviceList<T> add(const std::vector<T>& values) {
        const std::size_t offset = (bytes_.size() + 255) / 256 * 256;
        const std::size_t size = values.size() * sizeof(T);
        bytes_.resize(offset + size);
        std::copy_n(reinterpret_cast<const std::byte*>(values.data()), size, bytes_.data() + offset);
        return {offset};
    }

    /// Device memory of its own, and in it what was added.
    [[nodiscard]] Result<std::unique_ptr<DeviceBuffer>> upload(const std::shared_ptr<CudaContext>& context,
                                                               SymmetricHeap& heap) const {
        SYNCOPATE_TAKE(auto lists, DeviceBuffer::create(context, std::max<std::size_t>(bytes_.size(), 1)));
        SYNCOPATE_TRY(heap.write(lists->address(), bytes_.data(), bytes_.size()));
        return lists;
    }
    /// What was added is in `lists` again, whatever kernels have written there.
    [[nodiscard]] Status restore(SymmetricHeap& heap, const DeviceBuffer& lists) const {
        return heap.write(lists.address(), bytes_.data(), bytes_.size());
    }

private:
    std::vector<std::byte> bytes_;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

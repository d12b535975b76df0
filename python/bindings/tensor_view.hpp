// torch's tensors read without a call into Python, by DLPack's exchange of C functions (dlpack.h 1.3, which a tensor type
// gives as __dlpack_c_exchange_api__; torch 2.10 on).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bindings {

/// A Python callable that threads without the GIL may hold and drop.
std::shared_ptr<nanobind::object> shared_callable(nanobind::object callable);

/// The clock of calls (call/cache.py): moves on.
std::uint64_t tick();

/// A tensor of torch's that Python holds. It borrows: Python's own must live.
struct PlainTensor {
    std::uint64_t address = 0;
    std::span<const std::int64_t> shape;
    std::span<const std::int64_t> strides;
    std::int32_t type = 0;    ///< dtype, as DLPack numbers it
    std::int32_t device = 0;  ///< its kind * 65536 + its number

    /// Whether it is a tensor, and of no other class than torch's own two, which may mean more by it.
    bool read(PyObject* object);
    /// The same, of any class.
    bool read_any(PyObject* object);
    [[nodiscard]] bool is_of(plan::DType dtype) const;
    /// Into which torch enqueues now on its device; 0 on host.
    [[nodiscard]] runtime::CudaStream current_stream() const;
};

/// The tensors of a call as an executable takes them. They borrow: Python's own must live.
class CallTensors {
public:
    /// torch.Tensor, and its Parameter.
    static void set_types(nanobind::handle type, nanobind::handle parameter);
    /// Whether `tensors`, a tuple or list, are torch's, one for each operand or None for an optional one, of its dtype and on its
    /// device.
    bool read(const runtime::Executable& executable, nanobind::handle tensors);
    [[nodiscard]] std::span<const runtime::CallTensor> all() const { return {tensors_.data(), count_}; }
    /// Into which torch enqueues now on their device; 0 on host.
    [[nodiscard]] runtime::CudaStream current_stream() const;

private:
    static constexpr std::size_t kMost = 64;
    std::array<runtime::CallTensor, kMost> tensors_{};
    std::size_t count_ = 0;
    std::int32_t device_ = -1;  ///< of cuda; -1: host
};

}  // namespace syncopate::bindings

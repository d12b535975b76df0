#include "tensor_view.hpp"

#include "bindings.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

// dlpack.h 1.3, as far as it is used.
struct DLDevice {
    std::int32_t type;
    std::int32_t id;
};
struct DLDataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    std::int32_t ndim;
    DLDataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
struct DLPackExchangeAPI {
    std::uint32_t major;
    std::uint32_t minor;
    void* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*tensor_from_object)(void* object, DLTensor* out);
    int (*current_work_stream)(std::int32_t type, std::int32_t id, void** out);
};
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr std::int32_t kCudaHost = 3;

const DLPackExchangeAPI* exchange = nullptr;
PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;

runtime::CudaStream stream_of(std::int32_t ordinal) {
    void* stream = nullptr;
    if (exchange->current_work_stream(kCuda, ordinal, &stream) != 0) nb::raise_python_error();
    return reinterpret_cast<runtime::CudaStream>(stream);
}

bool is_of(plan::DType dtype, DLDataType given) {
    enum : std::uint8_t {
        kInt = 0,
        kUInt = 1,
        kFloat = 2,
        kBfloat = 4,
        kBool = 6,
        kE4m3fn = 10,
        kE4m3fnuz = 11,
        kE5m2 = 12,
        kE5m2fnuz = 13
    };
    const auto is = [&](std::uint8_t code, int bits) { return given.code == code && given.bits == bits; };
    switch (dtype) {
        case plan::DType::bf16: return is(kBfloat, 16);
        case plan::DType::fp16: return is(kFloat, 16);
        case plan::DType::fp32: return is(kFloat, 32);
        case plan::DType::fp64: return is(kFloat, 64);
        case plan::DType::int8: return is(kInt, 8);
        case plan::DType::int16: return is(kInt, 16);
        case plan::DType::int32: return is(kInt, 32);
        case plan::DType::int64: return is(kInt, 64);
        case plan::DType::uint8: return is(kUInt, 8);
        case plan::DType::uint16: return is(kUInt, 16);
        case plan::DType::uint32: return is(kUInt, 32);
        case plan::DType::uint64: return is(kUInt, 64);
        case plan::DType::boolean: return is(kBool, 8);
        case plan::DType::fp8e4m3: return is(kE4m3fn, 8);
        case plan::DType::fp8e4m3fnuz: return is(kE4m3fnuz, 8);
        case plan::DType::fp8e5m2: return is(kE5m2, 8);
        case plan::DType::fp8e5m2fnuz: return is(kE5m2fnuz, 8);
    }
    return false;
}

/// Whether its values are the negatives of what its memory holds: torch negates lazily what it takes of a conjugate.
bool is_negated(PyObject* tensor) {
    static PyObject* const name = PyUnicode_InternFromString("is_neg");
    PyObject* const answer = PyObject_VectorcallMethod(name, &tensor, 1, nullptr);
    if (answer == nullptr) nb::raise_python_error();
    Py_DECREF(answer);  // there is one of each
    return answer == Py_True;
}

}  // namespace

void CallTensors::set_types(nb::handle type, nb::handle parameter) {
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
    const auto* found =
        static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (found == nullptr) nb::raise_python_error();
    if (found->major != 1)
        throw Raised(machine_error("this torch exchanges tensors by another version of DLPack than 1"));
    exchange = found;
    tensor_type = reinterpret_cast<PyTypeObject*>(type.ptr());
    parameter_type = reinterpret_cast<PyTypeObject*>(parameter.ptr());
}

bool PlainTensor::read(PyObject* object) {
    return (Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type) && read_any(object);
}

bool PlainTensor::read_any(PyObject* object) {
    DLTensor view{};
    if (exchange == nullptr || !PyObject_TypeCheck(object, tensor_type)) return false;
    if (exchange->tensor_from_object(object, &view) != 0) {
        PyErr_Clear();
        return false;
    }
    if (is_negated(object)) return false;
    const auto axes = static_cast<std::size_t>(view.ndim);
    address = reinterpret_cast<std::uint64_t>(view.data) + view.byte_offset;
    shape = {view.shape, axes};
    strides = {view.strides, axes};
    type = view.dtype.code * 65536 + view.dtype.bits;
    device = view.device.type * 65536 + view.device.id;
    return true;
}

bool PlainTensor::is_of(plan::DType dtype) const {
    return bindings::is_of(
        dtype, {static_cast<std::uint8_t>(type / 65536), static_cast<std::uint8_t>(type % 65536), 1});
}

runtime::CudaStream PlainTensor::current_stream() const {
    return device / 65536 == kCuda ? stream_of(device % 65536) : 0;
}

bool CallTensors::read(const runtime::Executable& executable, nb::handle tensors) {
    const std::vector<runtime::Operand>& operands = executable.operands();
    if (exchange == nullptr || !(PyTuple_Check(tensors.ptr()) || PyList_Check(tensors.ptr())) ||
        static_cast<std::size_t>(PySequence_Fast_GET_SIZE(tensors.ptr())) != operands.size() ||
        operands.size() > kMost)
        return false;
    const runtime::Device on = executable.device();
    device_ = on.kind == runtime::Device::Kind::cuda ? on.ordinal : -1;
    count_ = operands.size();
    PyObject** items = PySequence_Fast_ITEMS(tensors.ptr());
    for (std::size_t i = 0; i < count_; ++i) {
        tensors_[i] = {};
        if (items[i] == Py_None && operands[i].optional) continue;
        PlainTensor tensor;
        if (!tensor.read_any(items[i])) return false;
        const std::int32_t kind = tensor.device / 65536;
        const bool here = device_ >= 0 ? kind == kCuda && tensor.device % 65536 == device_
                                       : kind == kCpu || kind == kCudaHost;
        if (!here || !tensor.is_of(operands[i].dtype)) return false;
        tensors_[i] = {tensor.address, tensor.shape, tensor.strides};
    }
    return true;
}

runtime::CudaStream CallTensors::current_stream() const { return device_ < 0 ? 0 : stream_of(device_); }

}  // namespace syncopate::bindings

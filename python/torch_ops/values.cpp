#include "values.hpp"

#include <bit>
#include <stdexcept>

namespace syncopate::torch_ops {
namespace {

StableIValue as_value(const void* pointer) { return reinterpret_cast<StableIValue>(pointer); }

AtenTensorHandle tensor_in(StableIValue given) { return reinterpret_cast<AtenTensorHandle>(given); }

/// Takes what an optional argument holds, if anything.
std::optional<StableIValue> held(StableIValue given) {
    auto* boxed = reinterpret_cast<StableIValue*>(given);
    if (boxed == nullptr) return std::nullopt;
    const StableIValue value = *boxed;
    if (torch_api().torch_delete_stable_ivalue != nullptr)
        require(torch_api().torch_delete_stable_ivalue(boxed), "freeing an argument");
    else
        delete boxed;
    return value;
}

/// `read` makes an element.
template <typename Read>
auto list_in(StableIValue given, Read read) {
    const TorchApi& api = torch_api();
    auto* list = reinterpret_cast<StableListHandle>(given);
    std::size_t size = 0;
    require(api.torch_list_size(list, &size), "reading a list");
    std::vector<decltype(read(given))> elements;
    for (std::size_t i = 0; i < size; ++i) {
        StableIValue element = 0;
        require(api.torch_list_get_item(list, i, &element), "reading a list");
        elements.push_back(read(element));
    }
    require(api.torch_delete_list(list), "freeing a list");
    return elements;
}

std::vector<Tensor> tensors_in(StableIValue given) {
    return list_in(given, [](StableIValue element) { return Tensor(tensor_in(element)); });
}

std::int64_t integer_in(StableIValue given) { return static_cast<std::int64_t>(given); }

std::string text_in(StableIValue given) {
    const TorchApi& api = torch_api();
    auto* text = reinterpret_cast<StringHandle>(given);
    std::size_t length = 0;
    const char* data = nullptr;
    require(api.torch_string_length(text, &length), "reading a text");
    require(api.torch_string_c_str(text, &data), "reading a text");
    std::string made(data, length);
    require(api.torch_delete_string(text), "freeing a text");
    return made;
}

/// `give` makes an element.
template <typename Elements, typename Give>
StableIValue give_list(const Elements& elements, Give give) {
    const TorchApi& api = torch_api();
    StableListHandle list = nullptr;
    require(api.torch_new_list_reserve_size(elements.size(), &list), "making a list");
    for (const auto& element : elements)
        require(api.torch_list_push_back(list, give(element)), "making a list");
    return as_value(list);
}

/// Of an argument that may be none.
StableIValue boxed(StableIValue value) { return as_value(new StableIValue(value)); }

}  // namespace

void Tensor::give_back() { (void)torch_api().aoti_torch_delete_tensor_object(handle_); }

Tensor Tensor::another() const {
    AtenTensorHandle made = nullptr;
    require(torch_api().aoti_torch_new_tensor_handle(handle_, &made), "referring to a tensor");
    return Tensor(made);
}

bool Tensor::is_defined() const {
    return known_.device_type >= 0 ||
           torch_api().aoti_torch_get_device_type(handle_, &known_.device_type) == 0;
}

std::span<const std::int64_t> Tensor::sizes() const {
    if (known_.sizes == nullptr) {
        require(torch_api().aoti_torch_get_dim(handle_, &known_.axes), "reading a tensor's shape");
        require(torch_api().aoti_torch_get_sizes(handle_, &known_.sizes), "reading a tensor's shape");
    }
    return {known_.sizes, static_cast<std::size_t>(known_.axes)};
}

std::span<const std::int64_t> Tensor::strides() const {
    if (known_.strides == nullptr)
        require(torch_api().aoti_torch_get_strides(handle_, &known_.strides), "reading a tensor's strides");
    return {known_.strides, sizes().size()};
}

std::int32_t Tensor::dtype() const {
    if (known_.dtype < 0)
        require(torch_api().aoti_torch_get_dtype(handle_, &known_.dtype), "reading a tensor's dtype");
    return known_.dtype;
}

std::int32_t Tensor::device_type() const {
    if (known_.device_type < 0)
        require(torch_api().aoti_torch_get_device_type(handle_, &known_.device_type),
                "reading a tensor's device");
    return known_.device_type;
}

std::int32_t Tensor::device_index() const {
    if (known_.device_index == -2)
        require(torch_api().aoti_torch_get_device_index(handle_, &known_.device_index),
                "reading a tensor's device");
    return known_.device_index;
}

std::uint64_t Tensor::address() const {
    if (known_.address == nullptr)
        require(torch_api().aoti_torch_get_data_ptr(handle_, &known_.address), "reading a tensor's address");
    return reinterpret_cast<std::uint64_t>(known_.address);
}

void Tensor::ask() const {
    (void)strides();
    (void)dtype();
    (void)device_type();
    (void)device_index();
    (void)address();
}

Tensor empty(std::span<const std::int64_t> sizes, std::int32_t dtype, std::int32_t device_type,
             std::int32_t device_index) {
    std::int64_t strides[8] = {};
    if (sizes.size() > 8) throw std::runtime_error("a tensor of more than 8 axes");
    std::int64_t apart = 1;
    for (std::size_t axis = sizes.size(); axis-- > 0; apart *= sizes[axis] > 1 ? sizes[axis] : 1)
        strides[axis] = apart;
    AtenTensorHandle made = nullptr;
    require(torch_api().aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(),
                                                 strides, dtype, device_type, device_index, &made),
            "allocating a tensor");
    return Tensor(made);
}

Value take(char kind, StableIValue given) {
    const auto maybe = [&](auto read) {
        const std::optional<StableIValue> value = held(given);
        return value ? Value(read(*value)) : Value();
    };
    switch (kind) {
        case 'T': return Tensor(tensor_in(given));
        case 't': return maybe([](StableIValue value) { return Tensor(tensor_in(value)); });
        case 'L': return tensors_in(given);
        case 'l': return maybe(tensors_in);
        case 's': return text_in(given);
        case 'b': return (given & 1) != 0;
        case 'j': return maybe(integer_in);
        case 'n': return maybe([](StableIValue value) { return list_in(value, integer_in); });
        case 'f': return maybe([](StableIValue value) { return std::bit_cast<double>(value); });
        default: return integer_in(given);
    }
}

StableIValue give_tensor(const Tensor& tensor) { return as_value(tensor.another().release()); }

StableIValue give_text(const std::string& text) {
    StringHandle made = nullptr;
    require(torch_api().torch_new_string_handle(text.data(), text.size(), &made), "making a text");
    return as_value(made);
}

StableIValue give(char kind, const Value& value) {
    if (std::holds_alternative<std::monostate>(value)) return 0;
    switch (kind) {
        case 'T': return give_tensor(std::get<Tensor>(value));
        case 't': return boxed(give_tensor(std::get<Tensor>(value)));
        case 'L': return give_list(std::get<std::vector<Tensor>>(value), give_tensor);
        case 'l': return boxed(give_list(std::get<std::vector<Tensor>>(value), give_tensor));
        case 's': return give_text(std::get<std::string>(value));
        case 'b': return std::get<bool>(value) ? 1 : 0;
        case 'j': return boxed(static_cast<StableIValue>(std::get<std::int64_t>(value)));
        case 'n':
            return boxed(give_list(std::get<std::vector<std::int64_t>>(value),
                                   [](std::int64_t one) { return static_cast<StableIValue>(one); }));
        case 'f': return boxed(std::bit_cast<StableIValue>(std::get<double>(value)));
        default: return static_cast<StableIValue>(std::get<std::int64_t>(value));
    }
}

void call(const char* name, const char* overload, std::span<StableIValue> stack) {
    require(torch_api().torch_call_dispatcher(name, overload, stack.data(), kTorchVersion), name);
}

}  // namespace syncopate::torch_ops

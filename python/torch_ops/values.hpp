// Arguments and results of ops as C++ values that own what torch hands over.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torch_api.hpp"

namespace syncopate::torch_ops {

/// A reference of a tensor's.
class Tensor {
public:
    Tensor() = default;
    explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
    Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Tensor& operator=(Tensor&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Tensor();
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    explicit operator bool() const { return handle_ != nullptr; }
    [[nodiscard]] AtenTensorHandle get() const { return handle_; }
    [[nodiscard]] AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
    [[nodiscard]] Tensor another() const;  ///< one more reference

    [[nodiscard]] bool is_defined() const;
    [[nodiscard]] std::span<const std::int64_t> sizes() const;
    [[nodiscard]] std::span<const std::int64_t> strides() const;
    [[nodiscard]] std::int32_t dtype() const;
    [[nodiscard]] std::int32_t device_type() const;
    [[nodiscard]] std::int32_t device_index() const;
    [[nodiscard]] std::uint64_t address() const;

private:
    AtenTensorHandle handle_ = nullptr;
};

/// Contiguous.
Tensor empty(std::span<const std::int64_t> sizes, std::int32_t dtype, std::int32_t device_type,
             std::int32_t device_index);

/// What an argument of a schema may be here.
using Value = std::variant<std::monostate, Tensor, std::vector<Tensor>, std::int64_t, bool, std::string,
                           double, std::vector<std::int64_t>>;

/// Kinds of a schema's arguments, a letter each: T a tensor, t maybe one, L tensors, l maybe some, s a text, i an integer,
/// j maybe one, n maybe integers, f maybe a float, b a truth value.
Value take(char kind, StableIValue given);
/// The same way back, for a call: a new reference of each.
StableIValue give(char kind, const Value& value);

StableIValue give_tensor(const Tensor& tensor);
StableIValue give_text(const std::string& text);

/// An op of torch's. `stack`: its arguments, owned, and room for its results; on failure throws what `describe` says.
void call(const char* name, const char* overload, std::span<StableIValue> stack);

}  // namespace syncopate::torch_ops

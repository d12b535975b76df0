// Arguments and results of ops as C++ values that own what torch hands over.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torch_api.hpp"

namespace syncopate::torch_ops {

/// A reference of a tensor's. What it says of itself is asked of torch once: nobody changes it during a call.
class Tensor {
public:
    Tensor() = default;
    explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
    Tensor(Tensor&& other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), known_(std::exchange(other.known_, {})) {}
    Tensor& operator=(Tensor&& other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(known_, other.known_);
        return *this;
    }
    ~Tensor() {
        if (handle_ != nullptr) give_back();
    }
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
    /// Asks torch for all of that now: of one that several threads read.
    void ask() const;

private:
    /// What torch has said so far.
    struct Known {
        std::int64_t* sizes = nullptr;
        std::int64_t* strides = nullptr;
        void* address = nullptr;
        std::int64_t axes = 0;
        std::int32_t dtype = -1;
        std::int32_t device_type = -1;
        std::int32_t device_index = -2;  ///< torch's -1: no index
    };
    void give_back();

    AtenTensorHandle handle_ = nullptr;
    mutable Known known_;
};

/// A few values in place, as a call has; more of them in memory of their own.
template <typename T, std::size_t kInPlace>
class Few {
public:
    explicit Few(std::size_t size = 0) : size_(size) {
        if (size > kInPlace) many_.resize(size);
    }
    void push_back(T value) {
        if (many_.empty() && size_ == kInPlace) {
            many_.reserve(2 * kInPlace);
            for (T& one : few_) many_.push_back(std::move(one));
        }
        if (many_.empty())
            few_[size_] = std::move(value);
        else
            many_.push_back(std::move(value));
        ++size_;
    }
    [[nodiscard]] std::size_t size() const { return size_; }
    T* begin() { return many_.empty() ? few_.data() : many_.data(); }
    T* end() { return begin() + size_; }
    [[nodiscard]] const T* begin() const { return many_.empty() ? few_.data() : many_.data(); }
    [[nodiscard]] const T* end() const { return begin() + size_; }
    T& operator[](std::size_t index) { return begin()[index]; }
    const T& operator[](std::size_t index) const { return begin()[index]; }

private:
    std::array<T, kInPlace> few_{};
    std::vector<T> many_;
    std::size_t size_;
};

/// What a call gives back.
using Results = Few<Tensor, 4>;

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

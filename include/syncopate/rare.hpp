// A value that is nearly always its type's default: one word then.
#pragma once

#include <memory>
#include <utility>

namespace syncopate {

/// Reads as a T, and is set as a whole. Copies are deep.
template <typename T>
class Rare {
public:
    Rare() = default;
    Rare(T value) { set(std::move(value)); }  // NOLINT(google-explicit-constructor)
    Rare(const Rare& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
    Rare(Rare&&) noexcept = default;
    Rare& operator=(const Rare& other) {
        if (this != &other) *this = Rare(other);
        return *this;
    }
    Rare& operator=(Rare&&) noexcept = default;
    ~Rare() = default;

    [[nodiscard]] const T& operator*() const {
        static const T kNone{};
        return value_ ? *value_ : kNone;
    }
    [[nodiscard]] const T* operator->() const { return &**this; }
    bool operator==(const Rare& other) const { return **this == *other; }

private:
    void set(T value) {
        if (value != T{}) value_ = std::make_unique<T>(std::move(value));
    }

    std::unique_ptr<T> value_;
};

}  // namespace syncopate

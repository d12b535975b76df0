// A list of few numbers, in the object itself: tens of thousands of boxes are made, copied and dropped
// without the allocator, and lie beside each other. It reads and writes like a std::vector.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace syncopate::plan {

/// Up to `kInside` elements without an allocation. What invalidates iterators of a std::vector does so here,
/// and moving one does, too. No bounds are checked.
template <typename T, std::size_t kInside>
class ShortList {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    using value_type = T;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using reference = T&;
    using const_reference = const T&;
    using iterator = T*;
    using const_iterator = const T*;

    ShortList() {}  // NOLINT(modernize-use-equals-default): it would set the elements, too
    explicit ShortList(std::size_t count, const T& value = T()) { resize(count, value); }
    ShortList(std::initializer_list<T> items) { assign(items.begin(), items.end()); }
    ShortList(const std::vector<T>& items) {  // NOLINT(google-explicit-constructor)
        assign(items.begin(), items.end());
    }
    template <std::input_iterator Iterator>
    ShortList(Iterator first, Iterator last) {
        assign(first, last);
    }
    ShortList(const ShortList& other) { assign(other.begin(), other.end()); }
    ShortList(ShortList&& other) noexcept { take(other); }
    ShortList& operator=(const ShortList& other) {
        if (this != &other) assign(other.begin(), other.end());
        return *this;
    }
    ShortList& operator=(ShortList&& other) noexcept {
        if (this == &other) return *this;
        drop();
        take(other);
        return *this;
    }
    ~ShortList() { drop(); }

    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] T* data() { return is_outside() ? outside_ : inside_.data(); }
    [[nodiscard]] const T* data() const { return is_outside() ? outside_ : inside_.data(); }
    [[nodiscard]] iterator begin() { return data(); }
    [[nodiscard]] iterator end() { return data() + size_; }
    [[nodiscard]] const_iterator begin() const { return data(); }
    [[nodiscard]] const_iterator end() const { return data() + size_; }
    T& operator[](std::size_t i) { return data()[i]; }
    const T& operator[](std::size_t i) const { return data()[i]; }
    [[nodiscard]] T& front() { return data()[0]; }
    [[nodiscard]] const T& front() const { return data()[0]; }
    [[nodiscard]] T& back() { return data()[size_ - 1]; }
    [[nodiscard]] const T& back() const { return data()[size_ - 1]; }

    void clear() { size_ = 0; }
    void reserve(std::size_t count) {
        if (count <= capacity_) return;
        T* larger = new T[count];
        std::copy_n(data(), size_, larger);
        drop();
        outside_ = larger;
        capacity_ = static_cast<std::uint32_t>(count);
    }
    void resize(std::size_t count, const T& value = T()) {
        if (count > capacity_) reserve(std::max<std::size_t>(count, 2 * std::size_t{capacity_}));
        for (std::size_t i = size_; i < count; ++i) data()[i] = value;
        size_ = static_cast<std::uint32_t>(count);
    }
    void push_back(T value) { resize(size_ + 1, value); }
    template <typename... Arguments>
    T& emplace_back(Arguments&&... arguments) {
        push_back(T{std::forward<Arguments>(arguments)...});
        return back();
    }
    void pop_back() { --size_; }
    iterator erase(const_iterator first, const_iterator last) {
        const iterator to = begin() + (first - begin());
        size_ = static_cast<std::uint32_t>(std::copy(last, const_iterator(end()), to) - begin());
        return to;
    }
    /// Before `at`, items of another list; returns where the first of them is then.
    template <std::input_iterator Iterator>
    iterator insert(const_iterator at, Iterator first, Iterator last) {
        const std::ptrdiff_t place = at - begin();
        const auto before = static_cast<std::ptrdiff_t>(size_);
        for (; first != last; ++first) push_back(*first);
        std::rotate(begin() + place, begin() + before, end());
        return begin() + place;
    }
    template <std::input_iterator Iterator>
    void assign(Iterator first, Iterator last) {
        clear();
        if constexpr (std::forward_iterator<Iterator>) {
            const auto count = static_cast<std::size_t>(std::distance(first, last));
            reserve(count);
            std::copy(first, last, data());
            size_ = static_cast<std::uint32_t>(count);
        } else {
            for (; first != last; ++first) push_back(*first);
        }
    }
    void assign(std::size_t count, const T& value) {
        clear();
        resize(count, value);
    }

    bool operator==(const ShortList& other) const {
        return size_ == other.size_ && std::equal(begin(), end(), other.begin());
    }

private:
    [[nodiscard]] bool is_outside() const { return capacity_ > kInside; }
    void drop() {
        if (is_outside()) delete[] outside_;
    }
    void take(ShortList& other) noexcept {
        capacity_ = std::exchange(other.capacity_, std::uint32_t{kInside});
        size_ = std::exchange(other.size_, 0U);
        if (is_outside()) {
            outside_ = other.outside_;
        } else {
            std::copy_n(other.inside_.data(), size_, inside_.data());
        }
    }

    std::uint32_t size_ = 0;
    std::uint32_t capacity_ = kInside;
    union {
        std::array<T, kInside> inside_;  // not set beyond size_
        T* outside_;                     // of a larger capacity
    };
};

template <typename T, std::size_t kInside, typename Condition>
void erase_if(ShortList<T, kInside>& list, const Condition& condition) {
    list.erase(std::remove_if(list.begin(), list.end(), condition), list.end());
}

}  // namespace syncopate::plan

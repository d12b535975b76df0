// What a tile has for some of its kernel's parameters: a map from names, kept in the tile itself where it is small,
// since there are tens of thousands of tiles and few parameters.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncopate::kernel {

/// As std::map<std::string, T>, ordered by name. Adding an entry and moving the map invalidate iterators. Up to `kFew`
/// entries are kept in the map itself.
template <typename T, std::size_t kFew>
class ByParameter {
public:
    using value_type = std::pair<std::string, T>;
    using iterator = value_type*;
    using const_iterator = const value_type*;

    ByParameter() = default;
    ByParameter(const ByParameter&) = default;
    ByParameter& operator=(const ByParameter&) = default;
    ByParameter(ByParameter&& other) noexcept
        : few_(std::move(other.few_)),
          num_few_(std::exchange(other.num_few_, 0)),
          many_(std::move(other.many_)) {}
    ByParameter& operator=(ByParameter&& other) noexcept {
        few_ = std::move(other.few_);
        num_few_ = std::exchange(other.num_few_, 0);
        many_ = std::move(other.many_);
        return *this;
    }
    ~ByParameter() = default;

    [[nodiscard]] iterator begin() { return many_.empty() ? few_.data() : many_.data(); }
    [[nodiscard]] iterator end() { return begin() + size(); }
    [[nodiscard]] const_iterator begin() const { return many_.empty() ? few_.data() : many_.data(); }
    [[nodiscard]] const_iterator end() const { return begin() + size(); }
    [[nodiscard]] std::size_t size() const { return many_.empty() ? num_few_ : many_.size(); }
    [[nodiscard]] bool empty() const { return size() == 0; }
    void reserve(std::size_t count) {
        if (count > kFew) many_.reserve(count);
    }

    [[nodiscard]] const_iterator find(std::string_view name) const {
        const const_iterator at = place(begin(), end(), name);
        return at != end() && at->first == name ? at : end();
    }
    [[nodiscard]] bool contains(std::string_view name) const { return find(name) != end(); }
    /// Throws std::out_of_range where there is none, as std::map does.
    [[nodiscard]] const T& at(std::string_view name) const {
        const const_iterator found = find(name);
        if (found == end()) throw std::out_of_range("no entry for parameter " + std::string(name));
        return found->second;
    }
    T& operator[](std::string_view name) {
        const iterator at = place(begin(), end(), name);
        if (at != end() && at->first == name) return at->second;
        return add(at - begin(), name);
    }

private:
    template <typename Iterator>
    static Iterator place(Iterator first, Iterator last, std::string_view name) {
        return std::lower_bound(first, last, name,
                                [](const value_type& e, std::string_view n) { return e.first < n; });
    }

    T& add(std::ptrdiff_t at, std::string_view name) {
        if (many_.empty() && num_few_ < kFew) {
            const iterator place = few_.data() + at;
            std::move_backward(place, few_.data() + num_few_, few_.data() + num_few_ + 1);
            ++num_few_;
            place->first = name;
            place->second = T();
            return place->second;
        }
        if (many_.empty()) {
            many_.assign(std::move_iterator(few_.begin()), std::move_iterator(few_.end()));
            num_few_ = 0;
        }
        return many_.emplace(many_.begin() + at, std::string(name), T())->second;
    }

    std::array<value_type, kFew> few_;
    std::size_t num_few_ = 0;  // 0 once there are many
    std::vector<value_type> many_;
};

}  // namespace syncopate::kernel

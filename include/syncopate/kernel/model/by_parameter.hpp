// What a tile has for some of its kernel's parameters: a map from names, kept in one piece, since there are
// tens of thousands of tiles and few parameters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncopate::kernel {

/// As std::map<std::string, T>, ordered by name. Adding an entry invalidates iterators.
template <typename T>
class ByParameter {
public:
    using value_type = std::pair<std::string, T>;
    using iterator = typename std::vector<value_type>::iterator;
    using const_iterator = typename std::vector<value_type>::const_iterator;

    [[nodiscard]] iterator begin() { return entries_.begin(); }
    [[nodiscard]] iterator end() { return entries_.end(); }
    [[nodiscard]] const_iterator begin() const { return entries_.begin(); }
    [[nodiscard]] const_iterator end() const { return entries_.end(); }
    [[nodiscard]] std::size_t size() const { return entries_.size(); }
    [[nodiscard]] bool empty() const { return entries_.empty(); }
    void reserve(std::size_t count) { entries_.reserve(count); }

    [[nodiscard]] const_iterator find(std::string_view name) const {
        const const_iterator at = place(entries_, name);
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
        const iterator at = place(entries_, name);
        if (at != end() && at->first == name) return at->second;
        return entries_.emplace(at, std::string(name), T())->second;
    }

private:
    template <typename Entries>
    static auto place(Entries& entries, std::string_view name) {
        return std::lower_bound(entries.begin(), entries.end(), name,
                                [](const value_type& e, std::string_view n) { return e.first < n; });
    }

    std::vector<value_type> entries_;
};

}  // namespace syncopate::kernel

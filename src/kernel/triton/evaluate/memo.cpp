#include "kernel/triton/evaluate/memo.hpp"

#include <algorithm>

namespace syncopate::kernel::triton {
namespace {

template <typename T>
Memo::Entry::Range append(std::vector<T>& pool, std::span<const T> items) {
    const auto begin = static_cast<std::uint32_t>(pool.size());
    pool.insert(pool.end(), items.begin(), items.end());
    return {begin, static_cast<std::uint32_t>(pool.size())};
}

}  // namespace

std::uint64_t Memo::hash_of(Key key) {
    // Two sums side by side: the multiplications of one do not wait for those of the other.
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
    std::uint64_t even = key.size(), odd = 0;
    std::size_t i = 0;
    for (; i + 1 < key.size(); i += 2) {
        even = (even ^ key[i]) * kOdd;
        odd = (odd ^ key[i + 1]) * kOdd;
        even ^= even >> 29;
        odd ^= odd >> 31;
    }
    if (i < key.size()) even = (even ^ key[i]) * kOdd;
    const std::uint64_t hash = even ^ (odd << 17 | odd >> 47);
    return hash ^ hash >> 32;
}

const Memo::Entry* Memo::find(Key key) const {
    if (places_.empty()) return nullptr;
    const std::uint64_t hash = hash_of(key);
    for (std::size_t at = hash & (places_.size() - 1);; at = (at + 1) & (places_.size() - 1)) {
        if (places_[at] == 0) return nullptr;
        const Entry& entry = entries_[places_[at] - 1];
        if (entry.hash == hash && entry.key.end - entry.key.begin == key.size() &&
            std::equal(key.begin(), key.end(), keys_.begin() + entry.key.begin))
            return &entry;
    }
}

void Memo::add(Key key, std::span<const Value> new_values, std::span<const Touch> new_touched,
               std::span<const std::pair<std::int32_t, PendingAdvance>> new_advances, std::int64_t stores,
               const Coordinates& coord) {
    if (bytes() > kMost) return;
    if (2 * (entries_.size() + 1) > places_.size()) grow();
    Entry entry;
    entry.hash = hash_of(key);
    entry.key = append(keys_, key);
    entry.values = append(values, new_values);
    entry.touched = append(touched, new_touched);
    entry.advances = append(advances, new_advances);
    entry.stores = stores;
    entry.coord = coord;
    std::size_t at = entry.hash & (places_.size() - 1);
    while (places_[at] != 0) at = (at + 1) & (places_.size() - 1);
    entries_.push_back(entry);
    places_[at] = static_cast<std::uint32_t>(entries_.size());
}

void Memo::grow() {
    std::vector<std::uint32_t> larger(std::max<std::size_t>(1024, 2 * places_.size()));
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        std::size_t at = entries_[i].hash & (larger.size() - 1);
        while (larger[at] != 0) at = (at + 1) & (larger.size() - 1);
        larger[at] = static_cast<std::uint32_t>(i + 1);
    }
    places_ = std::move(larger);
}

void Memo::clear() {
    entries_.clear();
    keys_.clear();
    places_.clear();
    values.clear();
    touched.clear();
    advances.clear();
}

std::size_t Memo::bytes() const {
    return entries_.size() * sizeof(Entry) + keys_.size() * sizeof(std::uint64_t) +
           values.size() * sizeof(Value) + touched.size() * sizeof(Touch) +
           advances.size() * sizeof(Advances::value_type);
}

}  // namespace syncopate::kernel::triton

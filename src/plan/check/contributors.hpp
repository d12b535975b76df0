// Sets of ranks that have contributed to a reduction.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace syncopate::plan {

/// A set of contributing ranks.
class Contributors {
public:
    Contributors() = default;
    explicit Contributors(const std::vector<std::int32_t>& ranks) {
        for (const std::int32_t rank : ranks) insert(rank);
    }

    void insert(std::int32_t rank) {
        const std::size_t word = static_cast<std::size_t>(rank) / 64;
        if (word >= words_.size()) words_.resize(word + 1, 0);
        words_[word] |= std::uint64_t{1} << (rank % 64);
    }
    [[nodiscard]] Contributors join(const Contributors& other) const {
        Contributors all = *this;
        all.words_.resize(std::max(words_.size(), other.words_.size()), 0);
        for (std::size_t i = 0; i < other.words_.size(); ++i) all.words_[i] |= other.words_[i];
        return all;
    }
    /// The members that are (with `in`) or are not (without) in `other`, rising.
    [[nodiscard]] std::vector<std::int32_t> select(const Contributors& other, bool in) const {
        std::vector<std::int32_t> ranks;
        for (std::size_t word = 0; word < words_.size(); ++word) {
            const std::uint64_t others = word < other.words_.size() ? other.words_[word] : 0;
            for (std::uint64_t left = words_[word] & (in ? others : ~others); left != 0; left &= left - 1) {
                ranks.push_back(static_cast<std::int32_t>(word * 64) + std::countr_zero(left));
            }
        }
        return ranks;
    }
    [[nodiscard]] std::vector<std::int32_t> ranks() const { return select({}, false); }
    [[nodiscard]] bool intersects(const Contributors& other) const {
        for (std::size_t word = 0; word < std::min(words_.size(), other.words_.size()); ++word) {
            if ((words_[word] & other.words_[word]) != 0) return true;
        }
        return false;
    }
    [[nodiscard]] std::size_t count() const {
        std::size_t bits = 0;
        for (const std::uint64_t word : words_) bits += static_cast<std::size_t>(std::popcount(word));
        return bits;
    }
    [[nodiscard]] std::size_t num_words() const { return words_.size(); }
    bool operator==(const Contributors&) const = default;  // words_ never ends in 0

    struct Hash {
        std::size_t operator()(const Contributors& set) const {
            std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, a word at a time
            for (const std::uint64_t word : set.words_) {
                hash = (hash ^ word) * 0x100000001b3U;
                hash ^= hash >> 32;
            }
            return hash;
        }
    };

private:
    std::vector<std::uint64_t> words_;
};

/// "rank 3", "ranks 0, 1 and 5 more": for messages.
inline std::string describe_ranks(const std::vector<std::int32_t>& ranks) {
    constexpr std::size_t kShown = 8;
    if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
    std::string text = "ranks ";
    for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i)
        text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
    return text;
}

}  // namespace syncopate::plan

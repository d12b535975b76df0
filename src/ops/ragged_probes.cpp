#include "ops/ragged_probes.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::ops {
namespace {

constexpr int kRandom = 3;

std::vector<std::int64_t> lengths(std::int64_t bound, const std::vector<std::int64_t>& blocks) {
    std::vector<std::int64_t> made{0, 1, 2, 3, bound - 1, bound};
    for (const std::int64_t block : blocks) {
        for (const std::int64_t about : {block, 2 * block})
            made.insert(made.end(), {about - 1, about, about + 1});
    }
    std::ranges::sort(made);
    made.erase(std::unique(made.begin(), made.end()), made.end());
    std::erase_if(made, [&](std::int64_t length) { return length < 0 || length > bound; });
    return made;
}

class Probes {
public:
    /// `most`: rows of all experts.
    Probes(std::int64_t experts, std::int64_t bound, std::int64_t most)
        : experts_(experts), bound_(bound), most_(most) {}

    /// As long as there are rows left.
    template <typename LengthOf>
    void add(LengthOf length_of) {
        Offsets offsets{0};
        for (std::int64_t expert = 0; expert < experts_; ++expert)
            offsets.push_back(std::min(offsets.back() + length_of(expert), most_));
        if (offsets.back() > 0) made_.push_back(std::move(offsets));
    }

    void add_usual(const std::vector<std::int64_t>& blocks) {
        const std::vector<std::int64_t> all = lengths(bound_, blocks);
        for (std::size_t shift = 0; shift < all.size(); ++shift)
            add([&](std::int64_t expert) { return all[(at(expert) * 5 + shift) % all.size()]; });
        std::uint64_t state = 59;
        for (int i = 0; i < kRandom; ++i) {
            add([&](std::int64_t) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(bound_ + 1));
            });
        }
    }

    std::vector<Offsets> take() { return std::move(made_); }

private:
    std::int64_t experts_, bound_, most_;
    std::vector<Offsets> made_;
};

}  // namespace

std::vector<Offsets> offsets_by_expert(std::int64_t experts, std::int64_t bound,
                                       const std::vector<std::int64_t>& blocks) {
    Probes probes(experts, bound, experts * bound);
    probes.add_usual(blocks);
    return probes.take();
}

std::vector<Offsets> offsets_together(std::int64_t experts, std::int64_t bound,
                                      const std::vector<std::int64_t>& blocks) {
    Probes probes(experts, bound, bound);
    for (const std::int64_t all : std::set<std::int64_t>{0, experts / 2, experts - 1})
        probes.add([&](std::int64_t expert) { return expert == all ? bound : 0; });
    std::set<std::int64_t> tried{16, 32, 64, 128, 256};
    tried.insert(blocks.begin(), blocks.end());
    for (const std::int64_t block : tried) {
        // A row in a tile of its own of each expert, and of the rest whole tiles but for one row.
        const std::int64_t rest = bound - (experts - 1);
        if (rest < 1) break;
        probes.add(
            [&](std::int64_t expert) { return expert + 1 < experts ? 1 : (rest - 1) / block * block + 1; });
    }
    probes.add([&](std::int64_t) { return std::max<std::int64_t>(1, bound / experts); });
    probes.add_usual(blocks);
    return probes.take();
}

std::string lengths_of(const Offsets& offsets) {
    constexpr std::size_t kMost = 8;
    std::string text;
    for (std::size_t i = 0; i + 1 < offsets.size() && i < kMost; ++i)
        text += fmt::format("{}{}", i == 0 ? "" : ", ", offsets[i + 1] - offsets[i]);
    return offsets.size() - 1 > kMost ? text + ", …" : text;
}

}  // namespace syncopate::ops

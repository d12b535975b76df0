#include "ops/ragged_probes.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::ops {
namespace {

constexpr int kRandom = 3;

/// `made` and those about blocks, up to `bound`.
std::vector<std::int64_t> lengths(std::vector<std::int64_t> made, std::int64_t bound,
                                  const std::vector<std::int64_t>& blocks) {
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
    Probes(std::int64_t experts, std::int64_t most) : experts_(experts), most_(most) {}

    /// As long as there are rows left.
    template <typename LengthOf>
    void add(LengthOf length_of) {
        Offsets offsets{0};
        for (std::int64_t expert = 0; expert < experts_; ++expert)
            offsets.push_back(std::min(offsets.back() + length_of(expert), most_));
        if (offsets.back() > 0) made_.push_back(std::move(offsets));
    }

    /// Each of `all` of each expert, or of every `step`-th of them in turn.
    void add_each(const std::vector<std::int64_t>& all, std::size_t step = 1) {
        // Mostly coprime to how many there are: as many experts then have all of them.
        const std::size_t apart = all.size() % 5 == 0 ? 7 : 5;
        for (std::size_t shift = 0; shift < all.size(); shift += step)
            add([&](std::int64_t expert) { return all[(at(expert) * apart + shift) % all.size()]; });
    }

    /// Up to `most` each.
    void add_random(std::int64_t most) {
        std::uint64_t state = 59;
        for (int i = 0; i < kRandom; ++i) {
            add([&](std::int64_t) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(most + 1));
            });
        }
    }

    std::vector<Offsets> take() { return std::move(made_); }

private:
    std::int64_t experts_, most_;
    std::vector<Offsets> made_;
};

}  // namespace

std::vector<Offsets> offsets_by_expert(std::int64_t experts, std::int64_t bound,
                                       const std::vector<std::int64_t>& blocks) {
    Probes probes(experts, experts * bound);
    probes.add_each(lengths({0, 1, 2, 3, bound - 1, bound}, bound, blocks));
    probes.add_random(bound);
    return probes.take();
}

std::vector<Offsets> offsets_together(std::int64_t experts, std::int64_t bound,
                                      const std::vector<std::int64_t>& blocks,
                                      const std::set<std::int64_t>& most_of) {
    Probes probes(experts, bound);
    for (const std::int64_t all : std::set<std::int64_t>{experts / 2, experts - 1})
        if (all > 0) probes.add([&](std::int64_t expert) { return expert == all ? bound : 0; });
    probes.add([&](std::int64_t expert) { return expert == 0 ? bound - 1 : 1; });
    for (const std::int64_t block : most_of) {
        // A row in a tile of its own of each expert, and of the rest whole tiles but for one row.
        const std::int64_t rest = bound - (experts - 1);
        if (rest < 1) break;
        probes.add(
            [&](std::int64_t expert) { return expert + 1 < experts ? 1 : (rest - 1) / block * block + 1; });
    }
    probes.add([&](std::int64_t) { return std::max<std::int64_t>(1, bound / experts); });
    const std::vector<std::int64_t> all = lengths({0, 1, 2, 3}, bound, blocks);
    probes.add_each(all, at(experts) > all.size() ? 2 : 1);
    probes.add_random(ceil_div(bound, experts));
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

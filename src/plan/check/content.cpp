#include "plan/check/content.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

auto key(const Origin& origin) { return std::tie(origin.tensor, origin.shift, origin.value); }

bool is_value(Content content) { return content->origins.size() == 1 && content->origins.front().value; }

constexpr std::int64_t kStepsOfMove = 32;  // hashing and allocating

std::size_t mix(std::size_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
    return hash ^ (hash >> 29);
}

/// The terms of both, by origin.
std::vector<Origin> united(const std::vector<Origin>& a, const std::vector<Origin>& b) {
    std::vector<Origin> all;
    auto left = a.begin();
    auto right = b.begin();
    while (left != a.end() || right != b.end()) {
        if (right == b.end() || (left != a.end() && key(*left) < key(*right))) {
            all.push_back(*left++);
        } else if (left == a.end() || key(*right) < key(*left)) {
            all.push_back(*right++);
        } else {
            all.push_back(*left++);
            if (!all.back().value) all.back().ranks = all.back().ranks.join(right->ranks);
            ++right;
        }
    }
    return all;
}

}  // namespace

std::size_t ContentPool::Hash::operator()(const Terms& terms) const {
    std::size_t hash = static_cast<std::size_t>(terms.form);
    for (const Origin& origin : terms.origins) {
        hash = mix(
            hash, static_cast<std::uint64_t>(origin.tensor) << 32 | static_cast<std::uint32_t>(origin.shift));
        hash = mix(hash, origin.value ? 1 : Contributors::Hash()(origin.ranks));
    }
    return hash;
}

std::size_t ContentPool::Hash::operator()(const std::vector<std::int64_t>& numbers) const {
    std::size_t hash = numbers.size();
    for (const std::int64_t number : numbers) hash = mix(hash, static_cast<std::uint64_t>(number));
    return hash;
}

Content ContentPool::keep(Terms terms) {
    const auto [place, fresh] = terms_.insert(std::move(terms));
    if (fresh) {
        place->number = static_cast<std::int64_t>(terms_.size());
        for (const Origin& origin : place->origins)
            budget_.spend(1 + static_cast<std::int64_t>(origin.ranks.num_words()));
    }
    return &*place;
}

Content ContentPool::value(std::int32_t tensor) { return keep({Form::one, {{tensor, 0, true, {}}}, 0}); }

Content ContentPool::contribution(std::int32_t tensor, std::int32_t rank) {
    return keep({Form::one, {{tensor, 0, false, Contributors({rank})}}, 0});
}

Content ContentPool::moved(Content content, const std::vector<std::int64_t>& displacement) {
    if (std::all_of(displacement.begin(), displacement.end(), [](std::int64_t by) { return by == 0; }))
        return content;
    Terms terms = *content;
    budget_.spend(kStepsOfMove * static_cast<std::int64_t>(terms.origins.size()));
    for (Origin& origin : terms.origins) origin.shift = shift_by(origin.shift, displacement);
    std::sort(terms.origins.begin(), terms.origins.end(),
              [](const Origin& a, const Origin& b) { return key(a) < key(b); });
    return keep(std::move(terms));
}

std::int32_t ContentPool::shift_by(std::int32_t shift, const std::vector<std::int64_t>& displacement) {
    std::vector<std::int64_t> sum = shifts_[at(shift)];
    sum.resize(displacement.size(), 0);
    bool any = false;
    for (std::size_t axis = 0; axis < sum.size(); ++axis) {
        sum[axis] += displacement[axis];
        any |= sum[axis] != 0;
    }
    if (!any) return 0;
    const auto [place, fresh] = shift_index_.emplace(sum, static_cast<std::int32_t>(shifts_.size()));
    if (fresh) shifts_.push_back(std::move(sum));
    return place->second;
}

Content ContentPool::joined(Content a, Content b, Reduce reduce) {
    // Adding to the value itself is an error wherever it occurs; going on with the value hides what follows.
    if (reduce == Reduce::sum && is_value(a)) return a;
    if (reduce == Reduce::sum && is_value(b)) return b;
    if (reduce == Reduce::max && a == b) return a;
    const auto fits = [&](Form form) {
        return form == Form::one || form == (reduce == Reduce::sum ? Form::sum : Form::max);
    };
    Terms terms;
    budget_.spend(static_cast<std::int64_t>(8 * (a->origins.size() + b->origins.size())));
    terms.origins = united(a->origins, b->origins);
    terms.form = !fits(a->form) || !fits(b->form) ? Form::mixed
                 : reduce == Reduce::sum          ? Form::sum
                                                  : Form::max;
    return keep(std::move(terms));
}

std::optional<Duplicate> duplicate_in_sum(Content a, Content b) {
    for (const Content side : {a, b}) {
        for (const Origin& origin : side->origins) {
            if (origin.value) return Duplicate{&origin, {}};
        }
    }
    for (const Origin& left : a->origins) {
        for (const Origin& right : b->origins) {
            if (key(left) == key(right) && left.ranks.intersects(right.ranks))
                return Duplicate{nullptr, left.ranks.select(right.ranks, true)};
        }
    }
    return std::nullopt;
}

}  // namespace syncopate::plan

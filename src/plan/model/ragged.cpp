#include "syncopate/plan/model/ragged.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::plan {
namespace {

std::int64_t rounded(std::int64_t rows, std::int64_t align) {
    return static_cast<std::int64_t>(
        round_up(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(align)));
}

}  // namespace

std::int64_t rows_for(std::int64_t bound, std::int64_t runs, std::int64_t align) {
    return rounded(bound + std::min(runs, bound) * (align - 1), align);
}

std::vector<Interval> lay_groups(std::span<const std::int64_t> counts, const GroupLayout& layout) {
    std::vector<Interval> places;
    std::int64_t at = 0;
    std::int64_t left = layout.bound;
    for (std::size_t group = 0; group < counts.size(); ++group) {
        if (group % static_cast<std::size_t>(layout.run) == 0) at = rounded(at, layout.align);
        const std::int64_t taken = std::min(counts[group], left);
        places.push_back({at, at + taken});
        at += taken;
        left -= taken;
    }
    return places;
}

std::string ragged_objection(const Tensor& tensor) {
    if (!tensor.ragged) return {};
    const Ragged& ragged = *tensor.ragged;
    if (ragged.groups.empty()) return "its ragged axis has no groups";
    for (std::size_t i = 0; i < ragged.groups.size(); ++i) {
        if (std::find(ragged.groups.begin(), ragged.groups.begin() + static_cast<std::ptrdiff_t>(i),
                      ragged.groups[i]) != ragged.groups.begin() + static_cast<std::ptrdiff_t>(i))
            return fmt::format("its ragged axis has two groups called {}", ragged.groups[i]);
    }
    if (ragged.axis < 0 || static_cast<std::size_t>(ragged.axis) + ragged.groups.size() > tensor.shape.size())
        return fmt::format("its ragged axis is {}, which it does not have", ragged.axis);
    if (ragged.bound < 1 || ragged.rows < ragged.bound)
        return fmt::format("its bound is {} rows, and it has memory for {}; expected 1 to that", ragged.bound,
                           ragged.rows);
    std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    for (const std::int64_t size : tensor.memory_shape()) {
        if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return "its bytes do not fit 64 bits";
    }
    return {};
}

std::string region_text(const Tensor& tensor, const Region& region) {
    const std::size_t axes = region.size();
    if (!tensor.ragged || axes != tensor.shape.size()) return tensor.name + to_string(region);
    std::string text;
    for (std::size_t axis = 0; axis < axes; ++axis) {
        const auto group = static_cast<std::int64_t>(axis) - tensor.ragged->axis;
        const bool named = group >= 0 && group < static_cast<std::int64_t>(tensor.ragged->groups.size());
        if (axis > 0) text += ", ";
        if (named) text += tensor.ragged->groups[at(group)] + " ";
        text += named && region[axis].size() == 1
                    ? std::to_string(region[axis].begin)
                    : fmt::format("{}:{}", region[axis].begin, region[axis].end);
    }
    return fmt::format("{}[{}]", tensor.name, text);
}

}  // namespace syncopate::plan

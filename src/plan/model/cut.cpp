#include "plan/model/cut.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

Status judge_axis(std::string_view what, std::int32_t axis, const Tensor& tensor) {
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (axis >= 0 && axis < axes) return Done{};
    return usage_error(fmt::format("{} {} is not an axis of tensor {}; expected 0 to {}", what, axis,
                                   tensor.name, axes - 1));
}

Status judge_sizes(const Cut& cut, std::int64_t extent) {
    if (cut.minor_sizes.empty()) return Done{};
    if (cut.minor_split != 1) return usage_error("minor_split and minor_sizes both say how to cut: give one");
    const Error others = usage_error(fmt::format("minor_sizes {} are not the {} elements of axis {} together",
                                                 fmt::join(cut.minor_sizes, " + "), extent, cut.minor_axis));
    std::int64_t left = extent;
    for (const std::int64_t size : cut.minor_sizes) {
        if (size < 1) return usage_error(fmt::format("minor_sizes has {}; expected at least 1", size));
        if (size > left) return others;
        left -= size;
    }
    if (left > 0) return others;
    return Done{};
}

}  // namespace

std::vector<Interval> split_evenly(std::int64_t begin, std::int64_t end, std::int32_t parts) {
    assert(begin <= end && parts >= 1);
    const std::int64_t base = (end - begin) / parts;
    const std::int64_t longer = (end - begin) % parts;
    std::vector<Interval> intervals;
    intervals.reserve(static_cast<std::size_t>(parts));
    for (std::int32_t part = 0; part < parts; ++part) {
        const std::int64_t next = begin + base + (part < longer ? 1 : 0);
        intervals.push_back({begin, next});
        begin = next;
    }
    return intervals;
}

std::vector<Interval> split_nonempty(const Interval& whole, std::int32_t parts) {
    if (whole.empty()) return {};
    return split_evenly(whole.begin, whole.end,
                        static_cast<std::int32_t>(std::min<std::int64_t>(parts, whole.size())));
}

Region with_axis(Region region, std::int32_t axis, const Interval& interval) {
    region[at(axis)] = interval;
    return region;
}

std::int32_t Cut::num_slices(std::int64_t extent) const {
    if (minor_axis < 0) return 1;
    if (!minor_sizes.empty()) return static_cast<std::int32_t>(minor_sizes.size());
    return static_cast<std::int32_t>(std::min<std::int64_t>(minor_split, extent));
}

std::int64_t Cut::num_chunks(const Region& piece) const {
    if (is_empty(piece)) return 0;
    std::int64_t count = std::min<std::int64_t>(split, piece[at(axis)].size());
    if (minor_axis < 0) return count;
    const std::int32_t slices = num_slices(piece[at(minor_axis)].size());
    if (__builtin_mul_overflow(count, slices, &count)) return std::numeric_limits<std::int64_t>::max();
    return count;
}

Status judge(const Tensor& tensor) {
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (axes < 1 || axes > kMaxAxes)
        return usage_error(fmt::format("the tensor has {} axes; expected 1 to {}", axes, kMaxAxes));
    for (const std::int64_t size : tensor.shape) {
        if (size < 1)
            return usage_error(
                fmt::format("tensor {} has an axis of size {}; expected at least 1", tensor.name, size));
    }
    return Done{};
}

Status judge(const Cut& cut, const Tensor& tensor) {
    SYNCOPATE_TRY(judge_axis("axis", cut.axis, tensor));
    if (cut.split < 1) return usage_error(fmt::format("split is {}; expected at least 1", cut.split));
    if (cut.minor_split < 1)
        return usage_error(fmt::format("minor_split is {}; expected at least 1", cut.minor_split));
    if (cut.minor_axis == -1) {
        if (cut.minor_split != 1) return usage_error("minor_split needs minor_axis: the axis to cut along");
        if (!cut.minor_sizes.empty())
            return usage_error("minor_sizes needs minor_axis: the axis to cut along");
        return Done{};
    }
    SYNCOPATE_TRY(judge_axis("minor_axis", cut.minor_axis, tensor));
    if (cut.minor_axis == cut.axis) {
        return usage_error(
            fmt::format("minor_axis and axis are both {}; use split to cut shards finer", cut.axis));
    }
    return judge_sizes(cut, tensor.shape[at(cut.minor_axis)]);
}

std::vector<Chunk> Cut::chunks(const Chunk& piece, std::int32_t slice) const {
    std::vector<Chunk> chunks;
    if (is_empty(piece.region)) return chunks;
    Region region = piece.region;
    if (minor_axis >= 0) {
        const Interval range = region[at(minor_axis)];
        const std::int32_t slices = num_slices(range.size());
        if (slice >= slices) return chunks;
        if (minor_sizes.empty()) {
            // The slice-th interval of split_evenly, without making the others.
            const std::int64_t base = range.size() / slices;
            const std::int64_t longer = range.size() % slices;
            const std::int64_t begin = range.begin + slice * base + std::min<std::int64_t>(slice, longer);
            region[at(minor_axis)] = {begin, begin + base + (slice < longer ? 1 : 0)};
        } else {
            const std::int64_t begin =
                std::accumulate(minor_sizes.begin(), minor_sizes.begin() + slice, range.begin);
            region[at(minor_axis)] = {begin, begin + minor_sizes[at(slice)]};
        }
    } else if (slice > 0) {
        return chunks;
    }
    if (split == 1) return {{piece.tensor, std::move(region)}};
    for (const Interval& interval : split_nonempty(region[at(axis)], split))
        chunks.push_back({piece.tensor, with_axis(region, axis, interval)});
    return chunks;
}

}  // namespace syncopate::plan

#include "cut.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

namespace syncopate::plan {

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
    region[static_cast<std::size_t>(axis)] = interval;
    return region;
}

std::int32_t Cut::num_slices(std::int64_t extent) const {
    if (minor_axis < 0) return 1;
    if (!minor_sizes.empty()) return static_cast<std::int32_t>(minor_sizes.size());
    return static_cast<std::int32_t>(std::min<std::int64_t>(minor_split, extent));
}

std::int64_t Cut::num_chunks(const Region& piece) const {
    if (is_empty(piece)) return 0;
    std::int64_t count = std::min<std::int64_t>(split, piece[static_cast<std::size_t>(axis)].size());
    if (minor_axis < 0) return count;
    const std::int32_t slices = num_slices(piece[static_cast<std::size_t>(minor_axis)].size());
    if (__builtin_mul_overflow(count, slices, &count)) return std::numeric_limits<std::int64_t>::max();
    return count;
}

std::vector<Chunk> Cut::chunks(const Chunk& piece, std::int32_t slice) const {
    std::vector<Chunk> chunks;
    if (is_empty(piece.region)) return chunks;
    Region region = piece.region;
    if (minor_axis >= 0) {
        const Interval range = region[static_cast<std::size_t>(minor_axis)];
        const std::int32_t slices = num_slices(range.size());
        if (slice >= slices) return chunks;
        if (minor_sizes.empty()) {
            // The slice-th interval of split_evenly, without making the others.
            const std::int64_t base = range.size() / slices;
            const std::int64_t longer = range.size() % slices;
            const std::int64_t begin = range.begin + slice * base + std::min<std::int64_t>(slice, longer);
            region[static_cast<std::size_t>(minor_axis)] = {begin, begin + base + (slice < longer ? 1 : 0)};
        } else {
            const std::int64_t begin =
                std::accumulate(minor_sizes.begin(), minor_sizes.begin() + slice, range.begin);
            region[static_cast<std::size_t>(minor_axis)] = {
                begin, begin + minor_sizes[static_cast<std::size_t>(slice)]};
        }
    } else if (slice > 0) {
        return chunks;
    }
    if (split == 1) return {{piece.tensor, std::move(region)}};
    for (const Interval& interval : split_nonempty(region[static_cast<std::size_t>(axis)], split))
        chunks.push_back({piece.tensor, with_axis(region, axis, interval)});
    return chunks;
}

}  // namespace syncopate::plan

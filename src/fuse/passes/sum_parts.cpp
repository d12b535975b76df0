#include "syncopate/fuse/passes/sum_parts.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/plan/templates/template_options.hpp"

namespace syncopate::fuse {
namespace {

using plan::Interval;
using plan::Region;

/// Of the tiles that make a part before the one that another tile has begun: more, and the cut is refused.
constexpr double kMostDisorder = 0.1;

/// What of the chunk each of its tiles makes, in the kernel's order.
std::vector<Region> pieces_of(const kernel::Kernel& kernel, const std::string& parameter,
                              const Region& chunk) {
    std::vector<Region> pieces;
    for (std::size_t position = 0; position < kernel.tiles.size(); ++position) {
        const kernel::Tile& tile = kernel.tiles[at(kernel.tile_at(position))];
        Region piece;
        for (const Region& box : kernel::boxes_written(tile, parameter)) {
            if (const std::optional<Region> part = intersect(box, chunk))
                piece = piece.empty() ? *part : bounding_box(piece, *part);
        }
        if (!piece.empty()) pieces.push_back(std::move(piece));
    }
    return pieces;
}

/// `interval` in `count` parts, cut where tiles begin.
std::vector<Interval> cut_at_tiles(const Interval& interval, std::int64_t count,
                                   const std::set<std::int64_t>& begins) {
    std::vector<Interval> parts;
    std::int64_t begin = interval.begin;
    for (const Interval& even :
         plan::split_evenly(interval.begin, interval.end, static_cast<std::int32_t>(count))) {
        const auto next = begins.lower_bound(even.end);
        const std::int64_t end = next == begins.end() ? interval.end : *next;
        if (end > begin) parts.push_back({begin, end});
        begin = std::max(begin, end);
    }
    return parts;
}

/// An axis that the tiles cut, and where they begin on it.
struct Axis {
    std::size_t number = 0;
    std::set<std::int64_t> begins;
};

/// The first two axes that the tiles cut.
std::vector<Axis> cut_axes(const Region& chunk, const std::vector<Region>& pieces) {
    std::vector<Axis> axes;
    for (std::size_t number = 0; number < chunk.size() && axes.size() < 2; ++number) {
        Axis axis{number, {}};
        for (const Region& piece : pieces) axis.begins.insert(piece[number].begin);
        if (axis.begins.size() > 1) axes.push_back(std::move(axis));
    }
    return axes;
}

/// The chunk in `outer` parts along the first axis, each in `inner` along the second.
std::vector<Region> cut(const Region& chunk, const std::vector<Axis>& axes, std::int64_t outer,
                        std::int64_t inner) {
    std::vector<Region> parts;
    for (const Interval& rows : cut_at_tiles(chunk[axes[0].number], outer, axes[0].begins)) {
        Region part = chunk;
        part[axes[0].number] = rows;
        if (axes.size() < 2) {
            parts.push_back(part);
            continue;
        }
        for (const Interval& columns : cut_at_tiles(chunk[axes[1].number], inner, axes[1].begins)) {
            part[axes[1].number] = columns;
            parts.push_back(part);
        }
    }
    return parts;
}

/// How many of the tiles make a part after one of a later part.
std::int64_t disorder(const std::vector<Region>& pieces, const std::vector<Region>& parts) {
    std::int64_t late = 0;
    std::size_t furthest = 0;
    for (const Region& piece : pieces) {
        std::size_t part = 0;
        while (part + 1 < parts.size() && !overlaps(piece, parts[part])) ++part;
        if (part < furthest) ++late;
        furthest = std::max(furthest, part);
    }
    return late;
}

/// How many of the tiles make some of the box.
std::int64_t count_in(const std::vector<Region>& pieces, const Region& box) {
    return std::ranges::count_if(pieces, [&](const Region& piece) { return overlaps(piece, box); });
}

/// Cuts the last of the parts where the last round of the kernel's programs begins, if it takes them more
/// than one and that changes the order of few tiles.
void cut_last_round(std::vector<Region>& parts, const std::vector<Region>& pieces,
                    const std::vector<Axis>& axes, std::int64_t programs) {
    const Region whole = parts.back();
    if (count_in(pieces, whole) <= programs) return;
    std::vector<Region> best;
    std::int64_t least = 0;
    for (const Axis& axis : axes) {
        const Interval& along = whole[axis.number];
        for (auto begin =
                 axis.begins.upper_bound(along.begin);  // the first cut with a round at most behind it
             begin != axis.begins.end() && *begin < along.end; ++begin) {
            std::vector<Region> cut = parts;
            cut.back()[axis.number].end = *begin;
            cut.push_back(whole);
            cut.back()[axis.number].begin = *begin;
            if (count_in(pieces, cut.back()) > programs) continue;
            const std::int64_t found = disorder(pieces, cut);
            if (best.empty() || found < least) {
                best = std::move(cut);
                least = found;
            }
            break;
        }
    }
    if (!best.empty() && static_cast<double>(least) <= kMostDisorder * static_cast<double>(pieces.size()))
        parts = std::move(best);
}

}  // namespace

std::vector<Region> sum_parts(const Stage& stage, const std::string& tensor_name, const Region& chunk,
                              std::int64_t programs, bool last_round, const Costs& costs) {
    const auto bound = std::find_if(stage.bindings.begin(), stage.bindings.end(), [&](const auto& binding) {
        const kernel::Param* param = stage.kernel.find_param(binding.first);
        return binding.second == tensor_name && param != nullptr && param->written;
    });
    if (bound == stage.bindings.end()) return {chunk};
    const std::vector<Region> pieces = pieces_of(stage.kernel, bound->first, chunk);
    const double rounds =
        static_cast<double>(pieces.size()) / static_cast<double>(std::max<std::int64_t>(programs, 1));
    const auto wanted = static_cast<std::int64_t>(std::lround(rounds / costs.part_rounds));
    const std::vector<Axis> axes = cut_axes(chunk, pieces);
    if (axes.empty()) return {chunk};
    const auto finished = [&](std::vector<Region> parts) {
        if (last_round && static_cast<std::int64_t>(parts.size()) < kMostSumParts)
            cut_last_round(parts, pieces, axes, programs);
        return parts;
    };
    for (std::int64_t count = std::min(wanted, kMostSumParts); count > 1; --count) {
        std::vector<Region> best;
        std::int64_t least = 0;
        for (std::int64_t outer = count; outer > 0; --outer) {  // among equals, long pieces of memory
            if (count % outer != 0 || (axes.size() < 2 && outer != count)) continue;
            std::vector<Region> parts = cut(chunk, axes, outer, count / outer);
            const std::int64_t found = disorder(pieces, parts);
            if (static_cast<std::int64_t>(parts.size()) == count && (best.empty() || found < least)) {
                best = std::move(parts);
                least = found;
            }
        }
        if (!best.empty() && static_cast<double>(least) <= kMostDisorder * static_cast<double>(pieces.size()))
            return finished(std::move(best));
    }
    return finished({chunk});
}

}  // namespace syncopate::fuse

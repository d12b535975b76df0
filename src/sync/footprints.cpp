#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sync/block_values.hpp"
#include "syncopate/at.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/try.hpp"

namespace syncopate::sync {
namespace {

/// A range of one axis, at many blocks.
struct BlockRange {
    BlockRange(const affine::Range& range, std::int64_t extent_of) : extent(extent_of), single(range.single) {
        if (range.begin) begin.emplace(*range.begin);
        if (range.end) end.emplace(*range.end);
    }

    /// Clipped to the axis; empty where nothing is left.
    [[nodiscard]] Result<plan::Interval> at(const Block& block) const {
        plan::Interval interval{0, extent};
        if (begin) {
            SYNCOPATE_TAKE(const std::int64_t value, begin->at(block));
            interval.begin = value;
        }
        if (single) {
            interval.end = interval.begin + 1;
        } else if (end) {
            SYNCOPATE_TAKE(const std::int64_t value, end->at(block));
            interval.end = value;
        }
        if (interval.end < interval.begin)
            return Error{fmt::format("its range {}:{} is reversed", interval.begin, interval.end)};
        return plan::Interval{std::max<std::int64_t>(interval.begin, 0), std::min(interval.end, extent)};
    }

    std::optional<BlockExpression> begin, end;
    std::int64_t extent;
    bool single;
};

Result<std::vector<std::vector<plan::Region>>> boxes_of(const std::vector<BoxText>& texts,
                                                        const ChainStage& stage, const std::string& tensor,
                                                        const std::vector<std::int64_t>& extents) {
    std::vector<std::vector<plan::Region>> boxes(static_cast<std::size_t>(stage.num_blocks()));
    for (const BoxText& text : texts) {
        std::vector<BlockRange> ranges;
        for (std::size_t axis = 0; axis < extents.size(); ++axis)
            ranges.emplace_back(text[axis], extents[axis]);
        bool any = false;
        for (std::int64_t block = 0; block < stage.num_blocks(); ++block) {
            const Block at = stage.block(block);
            plan::Region region;
            for (const BlockRange& range : ranges) {
                const Result<plan::Interval> interval = range.at(at);
                if (!interval) {
                    return Error{fmt::format("stage {}, tensor {}, block ({}, {}, {}): {}", stage.name,
                                             tensor, at[0], at[1], at[2], interval.error().message)};
                }
                region.push_back(*interval);
            }
            if (plan::is_empty(region)) continue;
            boxes[static_cast<std::size_t>(block)].push_back(std::move(region));
            any = true;
        }
        if (!any) {
            return Error{
                fmt::format("stage {}, tensor {}: in no block does its box hold an element of the tensor",
                            stage.name, tensor)};
        }
    }
    return boxes;
}

}  // namespace

Result<Footprints> footprints(const Chain& chain, const ChainStage& stage, const std::string& tensor) {
    Footprints made;
    const std::vector<std::int64_t>& extents = chain.tensors.at(tensor);
    const auto fill = [&](const auto& touched, std::vector<std::vector<plan::Region>>& boxes) -> Status {
        const auto found = touched.find(tensor);
        if (found == touched.end()) return Done{};
        SYNCOPATE_TAKE(auto evaluated, boxes_of(found->second, stage, tensor, extents));
        boxes = std::move(evaluated);
        return Done{};
    };
    SYNCOPATE_TRY(fill(stage.reads, made.reads));
    SYNCOPATE_TRY(fill(stage.writes, made.writes));
    return made;
}

}  // namespace syncopate::sync

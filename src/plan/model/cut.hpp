// How a piece of a tensor (a shard, or a whole) is cut into the chunks that travel.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// split_evenly without the empty intervals at its end.
[[nodiscard]] std::vector<Interval> split_nonempty(const Interval& whole, std::int32_t parts);

/// `region` with one axis replaced.
[[nodiscard]] Region with_axis(Region region, std::int32_t axis, const Interval& interval);

/// Pieces of equal extents are cut alike, so the n-th chunk of one corresponds to the n-th of another.
struct Cut {
    std::int32_t axis = 0;
    std::int32_t split = 1;
    std::int32_t minor_axis = -1;  ///< -1: none
    std::int32_t minor_split = 1;
    std::vector<std::int64_t> minor_sizes{};  ///< instead of minor_split, if not empty

    /// Slices along the minor axis of a piece whose extent there is `extent`.
    [[nodiscard]] std::int32_t num_slices(std::int64_t extent) const;
    /// How many chunks a piece has in all its slices together; 0 for an empty one, at most INT64_MAX.
    [[nodiscard]] std::int64_t num_chunks(const Region& piece) const;
    /// The chunks of one slice of a piece; none of an empty piece, or of one with fewer slices.
    [[nodiscard]] std::vector<Chunk> chunks(const Chunk& piece, std::int32_t slice) const;
};

/// Whether a tensor can be moved at all, and cut so. Fails (ErrorClass::usage) with what is wrong.
[[nodiscard]] Status judge(const Tensor& tensor);
[[nodiscard]] Status judge(const Cut& cut, const Tensor& tensor);

}  // namespace syncopate::plan

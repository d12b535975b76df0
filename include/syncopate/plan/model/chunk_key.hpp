// A chunk as the key of a map or a set.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

using ChunkKey = std::vector<std::int64_t>;

/// The tensor, and where the box begins and ends on each axis: equal for equal chunks only.
[[nodiscard]] inline ChunkKey key_of(const Chunk& chunk) {
    ChunkKey key;
    key.reserve(1 + 2 * chunk.region.size());
    key.push_back(chunk.tensor);
    for (const Interval& interval : chunk.region) {
        key.push_back(interval.begin);
        key.push_back(interval.end);
    }
    return key;
}

}  // namespace syncopate::plan

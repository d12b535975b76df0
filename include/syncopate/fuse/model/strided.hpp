// Strided boxes: what one copy of a copy engine, and one op of the chunk engine, can express. A transfer
// between two regions is a run of contiguous elements, repeated along up to two strides; the chunk engine
// also wants every run to begin and end at a multiple of 16 bytes.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

/// Nested loops that a copy between the two regions needs, the contiguous run included (1: contiguous on both
/// sides); 0 if the two are not boxes of the same extents and not both contiguous.
[[nodiscard]] std::int32_t strided_levels(const plan::Plan& plan, const plan::Chunk& src,
                                          const plan::Chunk& dst);

/// Why `backend` cannot copy `src` to `dst` as one box of at most three strided levels; empty if it can.
[[nodiscard]] std::string level_objection(const plan::Plan& plan, const plan::Chunk& src,
                                          const plan::Chunk& dst, plan::Backend backend);

/// Why the chunk engine cannot move `src` to `dst` (for a sum: one slot of it to `dst`) by `backend`; empty
/// if it can. Tensors begin at a multiple of 16 bytes.
[[nodiscard]] std::string engine_objection(const plan::Plan& plan, const plan::Chunk& src,
                                           const plan::Chunk& dst, plan::Backend backend);

}  // namespace syncopate::fuse

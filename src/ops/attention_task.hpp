// What the problem of attention, or of its backward, comes to.
#pragma once

#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/plan/templates/attention.hpp"

namespace syncopate::ops {

/// Of its ranks, with their nodes.
[[nodiscard]] plan::Mesh mesh_of(const AttentionTask& task);

/// Who sends what to whom, and how runs of rows are cut, forward and back. Rows are left out.
[[nodiscard]] plan::AttentionOptions moved_by(const AttentionTask& task);

/// Of a bounded task: as many rows of K and V are there at once, at most.
[[nodiscard]] std::int64_t most_at_once(const AttentionTask& task);

/// Of a bounded task: the fewest passes in which no more rows are there at once. Fails where a bound is too small.
[[nodiscard]] Result<std::int32_t> least_passes(const AttentionTask& task);

}  // namespace syncopate::ops

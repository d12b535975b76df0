// One collective as transfers.
#pragma once

#include <vector>

#include "syncopate/plan/check/collectives.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// What `options` say is to become of a collective.
[[nodiscard]] Lowering lowering_for(const Plan& plan, const CollectiveGroup& members,
                                    const LowerOptions& options);

/// Whether `options` fit the plan and its collectives; fails with ErrorClass::usage.
Status judge(const LowerOptions& options, const std::vector<CollectiveGroup>& groups, const Plan& plan);

/// The algorithm that `options` choose for a collective of this kind.
[[nodiscard]] Algorithm algorithm_for(CollectiveKind kind, const LowerOptions& options);

/// Appends the transfers of a collective, which must not stay direct, to the program. They read all sources
/// as they are at this point of the program, and touch nothing but sources, destinations and staging tensors
/// that they add. Fails at the first participant's rank and op.
Status expand(Builder& builder, const Plan& plan, const CollectiveGroup& members,
              const LowerOptions& options);

}  // namespace syncopate::plan

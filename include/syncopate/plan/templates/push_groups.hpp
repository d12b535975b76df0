// Rows in groups to the ranks of their experts, of which only a call knows how many rows they have; and back.
//
//     rank 0: A[0, e0 e1 | e2 e3]           rank 0 has experts e0 and e1: A[0, e0 e1], A[1, e0 e1]
//     rank 1: A[1, e0 e1 | e2 e3]    ──►    rank 1 has experts e2 and e3: A[0, e2 e3], A[1, e2 e3]
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

struct PushGroupsOptions {
    std::int64_t experts = 0;      ///< of all ranks, a multiple of them: each has an equal share, in order
    std::optional<Tensor> more{};  ///< a second tensor of the same rows, which comes with them
    std::optional<Tensor> back{};  ///< what kernels make of the rows, row by row: it goes back to their ranks
    bool keep = false;             ///< what comes is the user's until the next call
    std::string counts = "counts";  ///< the tensor [ranks, experts] of which each rank begins with its row
};

/// `rows` [bound, columns]: as many as come to a rank at most. Each rank begins with its own, grouped by expert, and pushes
/// those of another rank's experts there, one op for each rank. What goes back is as long. Fails on tensors of other shapes,
/// and where experts are no multiple of ranks.
[[nodiscard]] Result<Plan> push_groups(const Mesh& mesh, const Tensor& rows,
                                       const PushGroupsOptions& options);

}  // namespace syncopate::plan

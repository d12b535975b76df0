// A plan as a table that a person can read.
#pragma once

#include <cstddef>
#include <string>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

struct TableOptions {
    std::size_t max_ranks = 8;      ///< ranks listed, from rank 0
    std::size_t max_ops = 32;       ///< ops listed per rank
    std::size_t max_holdings = 16;  ///< entries listed of each of initial, produced and final
};

/// Mesh, tensors, holdings, and each rank's ops: index, kind, peer, source, destination, bytes, after,
/// backend. What a limit leaves out is counted in a line of its own. Works on plans that check() refuses.
[[nodiscard]] std::string to_table(const Plan& plan, const TableOptions& options = {});

}  // namespace syncopate::plan

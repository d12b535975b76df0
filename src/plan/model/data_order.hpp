// The order that data demands: from a program, the ops of all ranks in one sequence, to `after` edges.
#pragma once

#include <span>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// `plan` with edges added to `after`, so that every order which they allow gives what `program` gives when
/// its ops run one at a time. An op waits for the earlier ops (of `program`, which names each op at most
/// once) that wrote what it reads, or read or wrote what it writes; a reducing op reads its destination too.
/// Each list is sorted and has no repeats; an edge is left out where another edge's op has it itself.
/// `joins`: those of the reducing ops that do not wait for each other where they are of one kind. The ops of
/// a collective must follow each other in `program`, and all chunks lie inside their tensors.
[[nodiscard]] Plan with_data_order(Plan plan, std::span<const OpRef> program, std::vector<OpRef> joins = {});

}  // namespace syncopate::plan

// How a kernel over rows in groups is told where an expert's rows lie: tables that each call makes of the counts. Four groups
// of 3, 0, 2 and 1 rows, in blocks of 2 rows:
//
//     counts, .offsets   0 3 3 5 6
//     counts.begins      0 3 3 5
//     counts.ends        3 3 5 6
//     counts.sizes       3 0 2 1
//     counts.experts[2]  0 0 2 3                by block of places: each expert's begin with a block of their own
//     counts.rows[2]     0 1 2 - 3 4 5 -        by place; -: the bound, which is no row
//     counts.padded[2]   8                      places
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/ragged_probes.hpp"
#include "syncopate/kernel/model/arguments.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// What `tensor` says, to which a parameter is bound: "counts.ends", "counts.rows[BM]" with a number, or a parameter that is
/// one. nullopt: it is not about `counts`.
[[nodiscard]] Result<std::optional<RaggedTold>> told_by(const std::string& param, const std::string& tensor,
                                                        const std::string& counts,
                                                        const kernel::Arguments& arguments);

/// Whether its entries follow from the counts of all experts before.
[[nodiscard]] bool is_by_block(RaggedForm form);

/// The table, where experts' rows lie so.
[[nodiscard]] kernel::TensorArgument table_of(const RaggedTold& told, const Offsets& offsets,
                                              std::int64_t bound);

/// Which entries are of an expert alone, of a table by expert.
[[nodiscard]] plan::Interval entries_of(RaggedForm form, std::int64_t expert);

/// Blocks of so many rows that `experts` experts of `bound` rows together take, at most.
[[nodiscard]] std::int64_t most_blocks(std::int64_t experts, std::int64_t bound, std::int64_t block);

}  // namespace syncopate::ops

// Verification of a plan (DESIGN.md §3.2): symbolic execution over all ranks, independent of message timing.
//
// What is judged:
//   malformed               mesh, tensors, regions, sizes, dtypes, peers, `after`, `of`, backends, and
//   collectives
//                           whose participants do not match
//   cycle                   ops that wait for each other; a collective waits for whatever any participant
//   waits for early_read              a source region that is neither held at the start (initial, produced)
//   nor written by ops
//                           that certainly come before
//   duplicate_contribution  a sum that adds a rank's contribution twice, or adds the value itself
//   missing_contribution    a `final` reduction that lacks, or has too many, contributors
//   final_not_reached       a `final` region that does not arrive, or arrives as something else
//
// Not judged yet, so that a plan without a finding may still be wrong in these ways: two unordered ops that
// write overlapping regions (write_race), a write over a region that another op may still read (overwrite).
// Without such races every order of execution gives the result that is judged here. A collective of kind
// permute is refused: the schema has no pairs for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/plan.hpp"

namespace syncopate::plan {

/// One thing wrong with a plan.
struct Finding {
    enum class Kind : std::uint8_t {
        malformed,
        cycle,
        early_read,
        write_race,
        overwrite,
        duplicate_contribution,
        missing_contribution,
        final_not_reached,
    };
    Kind kind = Kind::malformed;
    std::int32_t rank = -1;  ///< -1: about the plan as a whole
    std::int32_t op = -1;    ///< index in the rank's list; -1: not about one op
    std::string message;     ///< what is wrong and what would be right, without rank and op
    bool operator==(const Finding&) const = default;

    /// "rank R op I: KIND: message", with the parts that are known.
    [[nodiscard]] std::string to_string() const;
};

/// As in `plan check --json`: "malformed", "early_read", …
[[nodiscard]] std::string_view name_of(Finding::Kind kind);

/// Everything wrong with `plan`, in order of kind, rank and op; empty if nothing is. A plan that is malformed
/// or cyclic is not executed, so such findings hide the later kinds. Never fails; needs memory for about
/// twice the plan. Time is near-linear in ops for plans whose regions are few per rank and place (1 M ops:
/// seconds).
[[nodiscard]] std::vector<Finding> check(const Plan& plan);

}  // namespace syncopate::plan

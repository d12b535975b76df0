// Verification of a plan. No finding means: whatever the timing, every op runs, none races
// with another, none reads what has not arrived, and every rank ends with what `final` asks for.
//
// The semantics:
//
// Order. An op starts at any time after every op in its `after` has completed, and takes any time. Its
// place in the list orders nothing. The n-th collective of a kind over a list of ranks, on each of them, is
// one event: it starts when whatever any participant waits for has completed, and completes for all at
// once. One op comes before another if a chain of waits leads from the other to it. Two ops of which neither
// comes before the other are unordered: in some run they overlap in time.
//
// Transfers are not atomic: between its start and its completion an op reads and writes the elements of its
// regions at any time. A collective reads all of its sources before it writes.
//
// Reductions of one kind into one place are atomic with one another, element by element, and may be
// unordered: here sums commute (what fixes the bits is the executor's order of additions, §5). A plain
// write, a read, and a reduction of the other kind must be ordered with them.
//
// Equal writes are writes: unordered ops that write the same value to one place race, and so does a read
// with a write of what was there before. Memory may hold anything while it is being written.
//
// `initial` is there at the start. `produced` is written by the kernel, once, tile by tile, each element at
// its own time. An op that reads it (a source, or what a reduction adds to) starts only after what it reads
// of it has been written: executors see to that. Nothing else waits for the kernel, so a plain write over a
// produced element is right only after an op that has read that element, or in a collective that does.
// Where both are given, what is produced replaces what is initial. What the kernel reads, and that it may
// wait for ops, is no part of a plan: fuse judges that.
//
// Contents. An element holds nothing, or the value of one element of a tensor, or contributions of ranks to
// one, by sum or by max; transfers carry this to wherever they go. A sum that meets the same contribution
// twice, or a value, is wrong wherever it happens. At the end an element must hold its own value, or exactly
// the contributions asked for, by sum or by max but not both. An element that no rank holds at the start (of a
// tensor that only receives) has no value of its own. A tensor is one global array, so such an element may end as
// anything that is the same wherever `final` asks for it. Only where `final` asks for what is "of" one rank, its
// own contribution, may it differ from place to place (an all-to-all of buffers).
//
// The kinds of findings:
//
//   malformed               mesh, tensors, regions, dtypes, peers, `after`, `of`, backends, collectives, or
//                           holdings make no sense
//   cycle                   ops wait for each other; a collective waits for all that any participant does
//   early_read              a source, or what a reduction adds to, that is not held at the start and not
//                           written by ops that come before; a read unordered with a reduction
//   write_race              two unordered ops write one place, and do not both reduce by the same kind
//   overwrite               a write unordered with an op that reads what was there; a write over what the
//                           kernel may still produce
//   duplicate_contribution  a sum adds a rank's contribution twice, or adds the value itself
//   missing_contribution    a `final` reduction lacks contributors
//   final_not_reached       a `final` region does not arrive, or arrives as something else
//
// A collective of kind permute is refused: the schema has no pairs for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

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

/// What is wrong with `plan`, in order of kind, rank and op; empty if nothing is. A plan that is malformed or
/// cyclic is not executed, so such findings hide the later kinds; after 10,000 ops that are out of order the
/// rest is not looked at.
///
/// Never fails. Time is near-linear in ops for plans as people and compilers write them (a million ops over
/// 1,024 ranks: 3 to 7 s; bench/plan_check.cpp), memory about that of the plan. For plans made to be hard it
/// is bounded by about a thousand steps for each op; if that does not suffice, a finding (`malformed`) says
/// so.
[[nodiscard]] std::vector<Finding> check(const Plan& plan);

}  // namespace syncopate::plan

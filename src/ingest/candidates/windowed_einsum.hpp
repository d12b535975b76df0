// Windowed einsums: loops in which XLA has hidden an all-gather or a reduce-scatter beside a matrix product.
// In each step a collective-permute passes shards on around the ring while a dot works on the shard that is
// there:
//
//     all-gather, parallel      out[at(q)] = dot(shard q, W)              shard <- permute(shard)
//     all-gather, contracted    out += dot(shard q, W[at(q)])             shard <- permute(shard)
//     reduce-scatter            acc <- permute(acc) + dot(X[at(q)], W)
//
// Nothing is guessed from names: the loop is executed for every rank at once, with whole numbers known,
// arrays as tokens that tell whose shard they are, and everything else unknown. It is one of the above if
// every rank's steps then cover each shard of its ring exactly once, each at the same place on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ingest/candidates/dataflow.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"

namespace syncopate::ingest {

struct WindowedEinsum {
    bool reduces = false;  ///< a reduce-scatter; else an all-gather
    std::int64_t trips = 0;
    std::int32_t num_ranks = 0;
    std::vector<std::vector<std::int32_t>> groups;  ///< of ranks, in the order of their parts along `axis`
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;  ///< who sends to whom, in every step
    std::string tensor;
    std::int64_t axis = 0;  ///< gathered, or scattered
    Shape shard, whole;

    Site dot;          ///< the first of those in the loop
    std::string dots;  ///< names of all of them, "dot.2, dot.3"
    DotUse::Side side = DotUse::Side::lhs;
    std::int64_t dot_axis = 0;  ///< of that side
    std::vector<Site> permutes;
};

struct WindowedEinsums {
    std::vector<WindowedEinsum> found;
    std::vector<Site> permutes;  ///< all collective-permutes of the loop, computations that it calls included
    std::string why_none;        ///< if it has permutes and none was found
};

/// Those in the `while` at `loop`; none if it is something else, or longer to execute than `budget`, from
/// which what was executed is subtracted.
[[nodiscard]] WindowedEinsums windowed_einsums(const TensorProgram& program, const Dataflow& flow, Site loop,
                                               std::int64_t& budget);

/// How often the body of the `while` runs, by executing its counter; -1 if that depends on data or exceeds
/// `budget`.
[[nodiscard]] std::int64_t trip_count(const TensorProgram& program, const Dataflow& flow, Site loop,
                                      std::int64_t& budget);

/// Values that one program's loops may compute together: instructions × ranks × trips.
inline constexpr std::int64_t kMaxWindowSteps = std::int64_t{1} << 20;

}  // namespace syncopate::ingest

// Executes a `while` of a tensor program for all ranks at once, as far as whole numbers and the whereabouts
// of arrays go (see windowed_einsum.hpp, which reads the result).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingest/candidates/dataflow.hpp"

namespace syncopate::ingest {

struct LoopValue;
using LoopValues = std::vector<LoopValue>;

/// One product that was added or written: which dot, of whose shard, at which place.
struct Contribution {
    Site dot;
    std::int32_t rank = -1;    ///< that computed it
    std::int32_t shard = -1;   ///< element of the loop's tuple whose shard it read; -1: none
    std::int32_t origin = -1;  ///< whose shard that was
    bool shard_is_rhs = false;
    std::int32_t sliced = -1;  ///< element of the loop's tuple of which it read a slice; -1: none
    bool slice_is_rhs = false;
    std::vector<std::int64_t> slice_at;  ///< where that slice begins
    std::vector<Site> reshaped;          ///< what reshaped or transposed the product, first to last
};

/// What one rank knows of one value.
struct LoopValue {
    enum class Kind : std::uint8_t {
        unknown,
        integers,  ///< a scalar or a small array of whole numbers
        array,     ///< element `element` of the loop's tuple as rank `origin` had it before the loop
        slice,     ///< a part of an `array`, beginning at `integers`
        product,   ///< a dot's result; one contribution for each operand that may be a shard
        sum,       ///< an `array` and what was added to it since
        tuple,
    };
    Kind kind = Kind::unknown;
    std::vector<std::int64_t> integers;
    /// Of what is unknown, and of an `array` of whole numbers: the first instruction on the way here that is not
    /// computed.
    Site because;
    std::int32_t element = -1;
    std::int32_t origin = -1;
    std::vector<Contribution> contributions;  // shared by no two values: sums stay short (one entry a step)
    LoopValues children;                      // of a tuple
};

/// A dynamic-update-slice of a product into an element of the loop's tuple.
struct LoopWrite {
    std::int32_t into = -1;  ///< element of the loop's tuple
    Site site;               ///< the dynamic-update-slice
    std::vector<std::int64_t> at;
    Contribution product;
};

/// An instruction whose result is unknown though a shard, or a product of one, goes into it.
struct LoopLoss {
    Site site;
    Site
        because;  ///< the instruction that is not computed: `site` itself, or where a place to write comes from
    bool of_product = false;    ///< else of a shard
    std::int32_t element = -1;  ///< of the loop's tuple, whose shard it was
    auto operator<=>(const LoopLoss&) const = default;
};

struct LoopExecution {
    std::string problem;  ///< not empty: the loop was not executed to its end, and why
    std::int64_t trips = 0;
    std::int32_t num_ranks = 0;
    std::vector<LoopWrite> writes;            ///< of all ranks
    std::vector<LoopValues> results;          ///< per rank: the tuple after the loop
    std::vector<Site> permutes;               ///< collective-permutes that ran
    std::vector<std::int32_t> permuted;       ///< elements of the tuple whose shards they moved
    std::vector<std::int32_t> permuted_sums;  ///< … and those that they moved as sums
    std::vector<LoopLoss> losses;             ///< in the order of execution, each once
};

/// Executes the loop on `num_ranks` ranks; with `by_partition`, partition-id is the rank, else replica-id is.
/// Whole numbers that go into it are computed from what is outside. Stops, with a problem, if its condition
/// depends on what is not known, or it takes more than `budget`, from which what it took is subtracted.
[[nodiscard]] LoopExecution execute_loop(const TensorProgram& program, const Dataflow& flow, Site loop,
                                         std::int32_t num_ranks, bool by_partition, std::int64_t& budget);

}  // namespace syncopate::ingest

// What XLA's HLO text and StableHLO say alike: functions of instructions on arrays, as one device runs them
// (SPMD). Both readers make this; everything that looks for collectives looks here.
//
// Opcodes are HLO's ("all-gather", "dynamic-update-slice") in both, in one spelling where HLO has several
// ("optimization-barrier" is also "opt-barrier"; "dot-start", "call-start" are what they start). Only what bears on the movement of data
// is decoded; the rest of an instruction's attributes is skipped over, whatever it says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// The type of a value: an array, a tuple, or something that holds no data ("token", "opaque", "future").
struct Shape {
    /// As HLO names it: "bf16", "f8e4m3fn", "s32", "c64". Of what it has no name for as MLIR writes it:
    /// "quant.uniform<i8:f32, 0.5>", and with its '!' if it is no array. Empty: not known, or a tuple.
    std::string dtype;
    std::vector<std::int64_t> dims;  ///< in elements, axis 0 first; -1: not known until the program runs
    bool tuple = false;
    std::vector<Shape> elements;  ///< of a tuple

    [[nodiscard]] bool is_array() const {
        return !tuple && !dtype.empty() && dtype != "token" && dtype[0] != '!';
    }
    bool operator==(const Shape&) const = default;
    /// "bf16[128,64]", "(f32[], s32[4])"
    [[nodiscard]] std::string to_string() const;
};

/// Which axes of a dot are multiplied along, and which run in parallel on both sides.
struct DotAxes {
    std::vector<std::int64_t> lhs_batch, rhs_batch, lhs_contracting, rhs_contracting;
};

/// Who takes part in a collective: lists of ids, in order. No list at all means everybody, in order of id.
struct ReplicaGroups {
    std::vector<std::vector<std::int32_t>> groups;
    std::string problem;  ///< not empty: a form that this reader does not take, and why
};

struct Instruction {
    std::string name;
    std::string opcode;
    Shape shape;
    std::vector<std::int32_t> operands;  ///< instructions of the same computation, each before this one
    /// Computations: while: condition, body; fusion, call, reductions: one.
    std::vector<std::int32_t> called;
    Location where;
    std::string source;  ///< the user's line that it was made of, "/home/me/model.py:31"; empty: not said

    std::vector<std::int64_t> dimensions;  ///< transpose, concatenate, all-gather, all-to-all, broadcast, …
    std::vector<std::int64_t> sizes;       ///< dynamic-slice: the extents; slice: the starts
    std::optional<DotAxes> dot;
    std::optional<ReplicaGroups> groups;
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;  ///< collective-permute: source, target
    std::int64_t channel = 0;                                  ///< 0: none
    bool global_ids = false;
    std::int64_t index = -1;             ///< of get-tuple-element; of parameter its number
    bool in_slices = false;              ///< collective-permute: of slices, whose places are operands too
    std::int64_t split_count = -1;       ///< all-to-all of StableHLO: into how many parts; -1: not said
    std::int64_t concat_dimension = -1;  ///< all-to-all of StableHLO; -1: the one that is split
    std::vector<std::int64_t> literal;   ///< constant: its elements, if they are whole numbers and few
    bool literal_known = false;
    std::string direction;         ///< compare: "LT", …
    std::int64_t trip_count = -1;  ///< while: as its backend_config says
    std::string target;            ///< custom-call: whom it calls
    /// What a call of cuBLAS does with the product before it gives it: "epilogue GELU"; empty: nothing.
    std::string after_dot;
    /// "captured", which stands in a region for a value from outside: its computation and instruction.
    std::pair<std::int32_t, std::int32_t> outer{-1, -1};
    /// Of the result in memory, its axes from major to minor; empty: row-major, or the text does not say.
    std::vector<std::int64_t> layout;
};

struct Computation {
    std::string name;
    std::vector<Instruction> instructions;
    std::int32_t root = -1;  ///< the instruction whose value is the result
    Location where;
};

struct TensorProgram {
    std::string name;
    std::vector<std::string> modules;  ///< StableHLO: names of the modules that were read
    std::vector<Computation> computations;
    std::int32_t entry = -1;      ///< -1: none is marked; each stands for itself
    std::int64_t replicas = 0;    ///< 0: the text does not say
    std::int64_t partitions = 0;  ///< 0: the text does not say
    std::int64_t devices = 0;     ///< if it says neither: how many the caller says there are; 0: not said
};

/// Bounds of both readers; a text beyond them is refused at the place where it passes them.
inline constexpr std::size_t kMaxProgramBytes = std::size_t{1} << 28;
inline constexpr std::size_t kMaxInstructions = std::size_t{1} << 21;
inline constexpr int kMaxProgramNesting = 64;             ///< of tuples, brackets and regions
inline constexpr std::size_t kMaxLiteral = 4096;          ///< elements of a constant that are kept
inline constexpr std::size_t kMaxShapeAxes = 64;          ///< of one array
inline constexpr std::size_t kMaxParticipants = 1 << 20;  ///< ids in the groups of one collective

/// The number of the module that `module` names, by its name or by its number in the text, from 0. Empty: the
/// only one. Fails, with all modules listed, if that is none or several.
[[nodiscard]] Result<std::size_t> choose_module(const std::vector<std::string_view>& names,
                                                std::string_view module);

/// Whether `opcode` is a collective, with or without "-start".
[[nodiscard]] bool is_collective(std::string_view opcode);

}  // namespace syncopate::ingest

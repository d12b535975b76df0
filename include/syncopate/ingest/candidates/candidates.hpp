// The collectives of a tensor program, and the matrix products that they feed or drain: from what is said
// here a fused operator can be made.
//
// A **candidate** is one collective instruction, or one loop that gathers or reduces shard by shard around a
// ring (XLA's "windowed einsum"). Each array it moves is an **exchange**; a dot that reads what it delivers
// is **fed** by it, a dot whose result it takes is **drained**.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/ingest/ingest.hpp"
#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// A dot at one end of an exchange.
struct DotUse {
    enum class Side : std::uint8_t { lhs, rhs, result };
    enum class Role : std::uint8_t { unknown, batch, rows, columns, contracted };  // rows: M, columns: N

    std::string name;
    Location where;
    std::string source;  ///< the user's line, "/home/me/model.py:31"; empty: the text does not say
    bool feeds = true;   ///< else it is drained
    Side side = Side::lhs;
    /// The axis of that side along which the exchange's chunks are boxes; -1: they are none.
    std::int64_t axis = -1;
    Role role = Role::unknown;
    std::int64_t batch = 1, m = 1, n = 1, k = 1;  ///< of the dot as one device runs it, in elements
    std::string dtype;                            ///< of the side that is exchanged
    bool plain = false;                           ///< lhs[…, K] × rhs[K, …], no batch
    std::vector<std::string> through;             ///< what lies between: "transpose", "convert", …
    std::string
        after;  ///< what the instruction does with the product that is fed: "epilogue GELU"; empty: nothing
};

/// One array of a collective.
struct Exchange {
    std::string tensor;             ///< the name of the instruction that makes what is exchanged
    Shape before, after;            ///< as one device holds it
    std::int64_t axis = -1;         ///< gathered, scattered or split along; -1: none (all-reduce, permute)
    std::int64_t concat_axis = -1;  ///< all-to-all: the axis along which what arrives is joined
    std::vector<DotUse> dots;
};

struct Candidate {
    std::string kind;  ///< HLO's name: "all-gather", …
    std::string name;  ///< of the instruction; of a loop, of the while
    std::string computation;
    Location where;
    std::string source;  ///< the user's line, "/home/me/model.py:31"; empty: the text does not say
    bool async = false;
    bool windowed = false;  ///< a loop of collective-permutes that amounts to `kind`
    bool in_loop = false;
    std::int64_t trips = -1;  ///< of the loop that it is or stands in; -1: not known, or no loop
    std::int32_t num_ranks = 0;
    std::vector<std::vector<std::int32_t>> groups;             ///< of ranks; none for a permute
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;  ///< permute and loops: who sends to whom
    plan::Reduce reduce = plan::Reduce::none;
    std::string
        reduced_by;  ///< of a reduction: the opcode, "add", "maximum", "multiply"; empty: it is no single one
    std::int64_t chunks = 1;  ///< into which each array falls: one a rank, or one a step
    std::vector<Exchange> exchanges;
    std::string problem;  ///< not empty: no plan can be made of it, and why
    /// Why it stands alone beside a dot, or why the loop that it stands in is no gather; empty: it does neither.
    std::vector<std::string> why;

    /// "AG-GEMM", "GEMM-RS", "GEMM-AR", "A2A-GEMM", "GEMM-A2A", …, "GEMM-RS by max"; empty without a dot.
    [[nodiscard]] std::string operator_name() const;
    /// What `syncopate run` takes, if one of its operators is exactly this; else empty.
    [[nodiscard]] std::string spec() const;
};

/// Every collective in the order of the text, with loops in the place of the collectives that they consist
/// of.
[[nodiscard]] std::vector<Candidate> list_candidates(const TensorProgram& program);

/// "model.py:31" of a source; empty for an empty one.
[[nodiscard]] std::string short_source(const std::string& source);

/// One line for each candidate and dot, for people.
[[nodiscard]] std::string candidates_table(const std::vector<Candidate>& candidates);
/// The same for programs: {"candidates": [{"number", "kind", "name", …}]}.
[[nodiscard]] std::string candidates_json(const std::vector<Candidate>& candidates);

/// The candidate as a plan. Collectives stay collectives, in place in one logical tensor per exchange:
///
///     all-gather, reduce-scatter   the tensor is the whole; rank i of a group has the i-th part along the
///     axis all-reduce                   the tensor is what each rank has broadcast                    the
///     same; one push from the first rank of a group to each other all-to-all                   split along
///     one axis, joined along another: before, each rank has a part along
///                                  the second, afterwards along the first. If both are the same, an axis 0
///                                  is added that tells whose it was
///     permute                      an axis 0 is added that tells whose it was; one push for each pair
///     a loop                       as what it amounts to, pushed around the ring step by step
///
/// If a dot is drained, its result is `produced`, else `initial`. Groups of ranks are exchanges of their own:
/// the tensor stands for each group's own array. Fails with the candidate's problem.
[[nodiscard]] Result<plan::Plan> plan_of(const Candidate& candidate);

/// The candidates in `text`, which is HLO or StableHLO (automatic: detect). Of the options only `ranks` is
/// used. Fails as the reader does, and for a format that has no candidates.
[[nodiscard]] Result<std::vector<Candidate>> list_candidates(std::string_view text,
                                                             const std::string& file_name,
                                                             Format format = Format::automatic,
                                                             const ImportOptions& options = {});

/// The candidate that options.pick names, or the only one, as a plan. options.tensor gives the (one) array
/// another name; its shape and dtype must be those of the plan's tensor. Fails as list_candidates and plan_of
/// do, and if there is no such candidate.
[[nodiscard]] Result<Import> import_hlo(std::string_view text, const std::string& file_name,
                                        const ImportOptions& options = {});
[[nodiscard]] Result<Import> import_stablehlo(std::string_view text, const std::string& file_name,
                                              const ImportOptions& options = {});

}  // namespace syncopate::ingest

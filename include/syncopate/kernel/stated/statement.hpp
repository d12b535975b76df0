// A stated kernel: one in a language that no front end reads (Gluon, CUDA C++), whose author says what a
// front end would have found. Its JSON, schema `syncopate.kernel/1`:
//
//   {"schema": "syncopate.kernel/1", "kernel": "gluon_matmul", "file": "gluon_matmul.py",
//    "parameters": ["a_desc", "b_desc", "c_desc", "M", "N", "K", "sy_schedule", "sy_control", "BM", "BN", "BK"],
//    "tiles":  {"m": "cdiv(M, BM)", "n": "cdiv(N, BN)"},
//    "reads":  {"a_desc": ["m*BM : (m+1)*BM", "k*BK : (k+1)*BK"], "b_desc": ["k*BK : (k+1)*BK", "n*BN : (n+1)*BN"]},
//    "writes": {"c_desc": ["m*BM : (m+1)*BM", "n*BN : (n+1)*BN"]},
//    "constants": ["BM", "BN", "BK"],   optional: those known when it is compiled
//    "loops": {"k": "cdiv(K, BK)"},     optional
//    "any_order": [],                   optional: loops of which ranges may run in any order
//    "placed": ["a_desc", "c_desc"],    optional
//    "source": "…"}                     optional: the text of `file`, else it is read
//
// Expressions are those of affine.hpp, over the kernel's whole-number arguments, the tiles' coordinates and,
// in ranges, the loops' iterations; table[4*m] is an element of an integer tensor whose values the host
// knows. Tiles are numbered row-major over the axes in the order stated, the last one fastest. A range is clipped
// to its tensor. A tensor that is accessed in several boxes has a list of lists.
//
// A loop that is stated is one that the kernel begins before all its data is there: it awaits the phases of
// its slot. Its count may differ from tile to tile (causal attention); phases count iterations from the
// tile's first one. A tensor in `placed` is loaded, or stored, where the slot says (sy_load_row, sy_row, …).
//
// `sums` names a constant. Where it is not 0, the kernel's programs add up so many contributions to a reduction
// once they have made their tiles (table::sums). `head_start` names a constant with which the kernel's first
// programs run more tiles than the others (sy_head_start). `sends` has the parameters that the kernel itself
// stores at the ranks to which the plan sends them. `ragged` is of a kernel whose tiles a call makes: the tiles
// stated are groups of tiles that wait and post alike, and `ragged` gives the most tiles of a call
// (emit/layout.hpp). `starts_next` is of such a kernel that lets the next one start at once (sy_start_next): that
// one then awaits what this one makes. `operations` says how many a tile does, about, where it is no product of
// what it reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/kernel/model/explained.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::stated {

/// A name and the text of an expression.
using Count = std::pair<std::string, std::string>;

/// What one access touches through a parameter: a range for each axis of the tensor.
struct Access {
    std::string param;
    std::vector<std::string> ranges;
};

struct Statement {
    std::string kernel;  ///< the function's name
    std::string file;    ///< that has it
    std::string source;  ///< its text
    std::vector<std::string> parameters;
    std::vector<std::string> constants{};  ///< of the parameters
    std::vector<Count> tiles;              ///< axes, how many along each
    std::vector<Count> loops{};            ///< inside a tile, iterations of each
    std::vector<std::string> any_order{};  ///< of the loops
    std::vector<Access> reads;
    std::vector<Access> writes;
    std::vector<std::string> placed{};  ///< parameters
    std::string split = "1";            ///< programs that share a tile
    std::vector<std::string> order{};   ///< what tiles are sorted by when they run by themselves
    /// The kernel's own numbers are places in `order`, not row-major ones. The JSON cannot say it: of kernels that
    /// the front end reads as well (ops/statements.hpp).
    bool numbered_by_order = false;
    std::string sums{};                ///< the parameter, or none: it sums nothing
    std::string head_start{};          ///< likewise
    std::vector<std::string> sends{};  ///< parameters
    std::string ragged{};              ///< the most slots of a call; none: the tiles are those stated
    bool starts_next = false;          ///< the JSON cannot say it
    std::string operations{};          ///< of a tile, about; none: those of a product of what it reads
};

/// Tiles, boxes and iterations: some seconds.
inline constexpr std::int64_t kMostWork = 40'000'000;

inline constexpr std::string_view kLanguage = "stated";
inline constexpr std::string_view kSuffix = ".kernel.json";

/// What `emit` needs of a stated kernel: its text, as it is.
struct Text final : Origin {
    std::string source;

    [[nodiscard]] std::string_view language() const override { return kLanguage; }
};

/// Strict. `file`: of the JSON, for messages and to find the kernel's file beside it. Fails with its line and
/// column.
[[nodiscard]] Result<Statement> statement_from_json(std::string_view text, const std::string& file);

/// What the statement comes to for these arguments: every tile with its exact footprint. Without a grid there
/// is a program for each tile; program p of P runs the slots p, p + P, …. Fails, naming parameter, axis and
/// column, where an expression is wrong, a name has no value, or a statement does not fit its tensor; and
/// where there are more than `most_work` parts to look at.
[[nodiscard]] Result<Kernel> analyse(const Statement& statement, const Arguments& arguments,
                                     std::int64_t most_work = kMostWork);

/// The same of a statement's JSON. `name`, unless empty, is that of the kernel.
[[nodiscard]] Result<Kernel> analyse(const std::string& json, std::string file, const std::string& name,
                                     const Arguments& arguments);
[[nodiscard]] Result<Explained> analyse_and_explain(const std::string& json, std::string file,
                                                    const std::string& name, const Arguments& arguments);

/// Of a kernel in Python, as kernel/triton finds them; else none.
[[nodiscard]] Result<std::vector<ImportedFile>> imported_files(const std::string& json,
                                                               const std::string& file);

}  // namespace syncopate::kernel::stated

// A problem: an operator, its extents, its dtype, and the ranks that it runs on. Everything that is given and
// nothing that is chosen.
//
//     all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16     a SPEC, as the command line takes it
//     all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16,ranks=8,sms=132     the key of a problem
//     …,dtype=fp8e4m3,out=bf16,scales=row,…                                 of fp8, what it is to become too
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// One extent of a problem, in elements ("M", 8192).
struct Extent {
    std::string name;
    std::int64_t value = 0;
    bool operator==(const Extent&) const = default;
};

/// One option that is a word ("kind", "ring").
struct Word {
    std::string name;
    std::string value;
    bool operator==(const Word&) const = default;
};

/// (M, N, K) of a product x [M, K] @ w [K, N].
struct ProductShape {
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    bool operator==(const ProductShape&) const = default;
};

/// The fp32 factors of a product x [M, K] @ w [K, N] of fp8: none; one for each row of x and each column of
/// w; or one for each 128 elements of a row of x, and each 128 x 128 of w.
enum class Scales : std::uint8_t { none, row, block };
inline constexpr std::array<std::string_view, 3> kScalesNames{"none", "row", "block"};
/// Elements along K, and along N, that share a scale of a block.
inline constexpr std::int64_t kScaled = 128;

/// What a product multiplies.
struct Operands {
    plan::DType dtype = plan::DType::bf16;
    Scales scales = Scales::none;
    [[nodiscard]] double item() const { return static_cast<double>(plan::size_of(dtype)); }  ///< bytes
    bool operator==(const Operands&) const = default;
};

struct Problem {
    std::string op;               ///< "all_gather_matmul": a row of operators() (operators.hpp)
    std::vector<Extent> extents;  ///< in the order of the operator's row; all of them
    std::vector<Word> words;      ///< options that are words, in the order of the operator's row
    plan::DType dtype = plan::DType::bf16;
    plan::DType out = plan::DType::bf16;  ///< of what products make; dtype, unless that is fp8e4m3
    Scales scales = Scales::none;         ///< by which products of fp8 are multiplied
    std::int32_t ranks = 1;
    std::int32_t nodes = 1;    ///< of ranks / nodes ranks each, which do not map other nodes' memory
    std::int32_t num_sms = 0;  ///< multiprocessors of a rank's device; 0: those of the machine

    /// The extent of this name; 0 where the problem has none.
    [[nodiscard]] std::int64_t extent(std::string_view name) const;
    [[nodiscard]] std::string_view word(std::string_view name) const;  ///< "" where there is none
    /// The extent of its rows: "M", or "S" of a sequence; "" where it has neither.
    [[nodiscard]] std::string_view rows_name() const;
    /// The extent that differs from call to call: that, or the tokens "T" of a rank.
    [[nodiscard]] std::string_view calls_name() const;
    /// The same with so many of that.
    [[nodiscard]] Problem with_rows(std::int64_t rows) const;
    /// Whether it is a mixture of experts: a row of operators() that routes rows.
    [[nodiscard]] bool is_mixture() const;
    [[nodiscard]] Operands operands() const { return {dtype, scales}; }
    [[nodiscard]] double item() const { return operands().item(); }         ///< bytes of what is multiplied
    [[nodiscard]] double out_item() const { return Operands{out}.item(); }  ///< bytes of what is made
    /// The products of one rank, one after another; none for what is no operator of products.
    [[nodiscard]] std::vector<ProductShape> products() const;
    /// A block's operators, which follow each other; none of what is one operator.
    [[nodiscard]] std::vector<Problem> parts() const;
    /// Canonical: equal problems have equal keys, and parse_problem gives an equal problem back.
    [[nodiscard]] std::string key() const;
    /// Of it what its tensors are of: "dtype=bf16", "dtype=fp8e4m3,out=bf16,scales=row".
    [[nodiscard]] std::string dtypes() const;
    bool operator==(const Problem&) const = default;
};

/// A problem from a SPEC or a key. What the text leaves open is taken from the arguments; `dtype` is bf16 by
/// default. Fails (ErrorClass::usage), naming the part that is wrong: an unknown operator or key, an extent
/// that is missing, given twice or not positive, or rows that the operator cannot divide.
[[nodiscard]] Result<Problem> parse_problem(std::string_view text, std::int32_t ranks = 1,
                                            std::int32_t num_sms = 0);

/// Why no operator of the library can do the problem; "" where one can. Extents and dtype are as the kernels
/// take them: bf16, fp16 or fp32, or fp8e4m3 for a result of 16 bits, and rows of whole 16 bytes along N and
/// K. Two extents together span at most 2^42 elements.
[[nodiscard]] std::string problem_objection(const Problem& problem);

}  // namespace syncopate::ops

// Abstract values. Scalars are exact. A block (tl.arange and what is made of it) is separable: its element at
// index (i, j, …) is base + f0(i) + f1(j) + …, each f piecewise affine:
//
//      pid * BM + tl.arange(0, BM)                 base = pid * BM,  f0(i) = i
//      (pid * BM + tl.arange(0, BM)) % M           f0(i) = pid * BM + i for i < M - pid * BM, then i - (M -
//      pid * BM) a_ptr + offs_m[:, None] * s + offs_k[None]  f0(i) = (…) * s,  f1(j) = j;  param = a_ptr
//
// Inside a loop that is evaluated once for all of its iterations, numbers are affine in the iteration
// (`Affine`). Values are plain and live in an arena: thousands of evaluations allocate nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernel/triton/evaluate/integer_type.hpp"
#include "kernel/triton/evaluate/types.hpp"
#include "kernel/triton/syntax/syntax.hpp"

namespace syncopate::kernel::triton {

/// Bump allocation of trivially destructible things; `release` goes back to an earlier `mark`.
class Arena {
public:
    struct Mark {
        std::size_t block = 0;
        std::size_t used = 0;
    };
    template <typename T>
    T* make(std::size_t count = 1) {
        static_assert(std::is_trivially_destructible_v<T>);
        T* result = static_cast<T*>(allocate(count * sizeof(T)));
        for (std::size_t i = 0; i < count; ++i) new (result + i) T();
        return result;
    }
    [[nodiscard]] Mark mark() const { return {block_, used_}; }
    void release(Mark mark) { block_ = mark.block, used_ = mark.used; }
    [[nodiscard]] std::size_t bytes() const { return (block_ + 1) * kBlock; }
    [[nodiscard]] std::size_t used() const { return block_ * kBlock + used_; }

private:
    static constexpr std::size_t kBlock = std::size_t{1} << 20;
    void* allocate(std::size_t bytes);

    std::vector<std::unique_ptr<std::byte[]>> blocks_;
    std::size_t block_ = 0;
    std::size_t used_ = kBlock;
};

inline constexpr int kSymbols = 3;  ///< nested loops evaluated at once; programs along an axis are one, too
inline constexpr int kRank = 5;     ///< Triton's blocks and descriptors have at most five axes

/// constant + Σ slope[s] * iteration[s]. Arithmetic wraps around at 64 bits (no address is that large).
struct Affine {
    std::int64_t constant = 0;
    std::array<std::int64_t, kSymbols> slope{};

    [[nodiscard]] bool is_constant() const { return slope == std::array<std::int64_t, kSymbols>{}; }
    bool operator==(const Affine&) const = default;
};

__extension__ typedef __int128 Wide;  ///< for checks that products stay in range

/// Rounded down.
inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

inline std::int64_t wrap_add(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t wrap_multiply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
inline Affine operator+(Affine a, const Affine& b) {
    a.constant = wrap_add(a.constant, b.constant);
    for (int s = 0; s < kSymbols; ++s) a.slope[s] = wrap_add(a.slope[s], b.slope[s]);
    return a;
}
inline Affine operator*(Affine a, std::int64_t factor) {
    a.constant = wrap_multiply(a.constant, factor);
    for (std::int64_t& slope : a.slope) slope = wrap_multiply(slope, factor);
    return a;
}
inline Affine operator-(const Affine& a, const Affine& b) { return a + b * -1; }
inline Affine operator+(Affine a, std::int64_t b) {
    a.constant = wrap_add(a.constant, b);
    return a;
}

/// f(i) = base + step * i for indices i in [begin, end).
struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Affine base;
    std::int64_t step = 0;
};
/// One axis of a block. No pieces: the block does not vary along it.
struct BlockAxis {
    std::int64_t extent = 1;
    const Piece* pieces = nullptr;
    std::int32_t count = 0;
};
struct Block {
    std::int32_t param = -1;  ///< pointers: the kernel's parameter that they point into
    std::int32_t rank = 0;    ///< 0: a scalar
    Affine base;
    std::array<BlockAxis, kRank> axes;
};

/// Along one axis, the indices that a mask lets through: the largest lower to the smallest upper bound.
struct MaskAxis {
    static constexpr int kBounds = 2;
    std::int64_t extent = 1;
    std::int32_t lower_count = 0;
    std::int32_t upper_count = 0;
    std::array<Affine, kBounds> lower;
    std::array<Affine, kBounds> upper;  ///< exclusive
};
struct Lazy;
/// A box of indices that contains all for which the condition holds. Too large is sound, too small is not.
struct Mask {
    std::int32_t rank = 0;
    bool never = false;
    bool exact = true;     ///< false: some index inside the box may fail the condition
    Lazy* form = nullptr;  ///< not exact, yet no data decides: what the condition is
    std::array<MaskAxis, kRank> axes;
};

struct Value;
struct Tuple {
    std::int32_t size = 0;
    Value* items = nullptr;
};

/// A tensor descriptor, or (with offsets) a block pointer.
struct Descriptor {
    std::int32_t param = -1;
    std::int32_t rank = 0;
    bool host = false;           ///< a parameter, or all of one: axes are the tensor's
    const Expr* made = nullptr;  ///< the call that makes it; nullptr: a parameter
    bool known = true;           ///< a parameter whose tensor was not given is not
    Affine base;                 ///< in elements from the parameter
    std::array<std::int64_t, kRank> shape{};
    std::array<std::int64_t, kRank> strides{};
    std::array<std::int64_t, kRank> block{};
    std::array<Affine, kRank> offsets{};
};

struct LostPointer {
    std::int32_t param = -1;
    const Expr* why = nullptr;
};

enum class ValueKind : std::uint8_t {
    undefined,
    missing,
    none,
    boolean,
    integer,
    real,     ///< exactly this number
    between,  ///< a real number at run time of which an interval is known; see reals.hpp
    text,
    block,
    mask,
    pointer,
    lost_pointer,
    descriptor,
    block_pointer,
    tuple,
    iterable,
    function,
    lazy,
    opaque,
};

/// A block that is no sum of functions of one index each: what it is computed from. Its elements are worked
/// out one by one where an address needs them.
struct Lazy {
    enum class What : std::uint8_t {
        arithmetic,  ///< from[0] op from[1]
        comparison,  ///< from[0] op from[1]: 0 or 1
        both,        ///< from[0] and from[1]
        either,
        invert,
        where,  ///< from[0] ? from[1] : from[2]
        least,  ///< of from[0] and from[1]
        most,
        look_up,  ///< from[1] ? the element of tensor `axis` at the address from[0] : from[2]
        absolute,
        permute,     ///< axis j is axis `axes[j]` of from[0]; -1: a new one
        reshape,     ///< the elements of from[0] in the same order
        flip,        ///< from[0] backwards along `axis`
        join,        ///< from[0] and from[1] along a new last axis
        split,       ///< element `axis` of the last axis of from[0]
        cat,         ///< from[0], then from[1]
        interleave,  ///< from[0] and from[1] in turn, along the last axis
        gather,      ///< from[0] at the indices from[1] along `axis`
        sum,         ///< along `axis`; -1: of all
        lowest,
        highest,
        running,  ///< sums of what comes before and itself along `axis`
    };
    What what = What::arithmetic;
    Operator op = Operator::add;
    std::int32_t param = -1;  ///< of a block of pointers
    std::int32_t rank = 0;
    std::array<std::int64_t, kRank> extents{};
    std::array<std::int32_t, kRank> axes{};
    std::int32_t axis = -1;
    std::int32_t count = 0;
    /// What its elements must be found to fit once they are worked out; python: they do.
    IntegerType type = IntegerType::python;
    const Value* from = nullptr;
    const Expr* e = nullptr;
    std::int32_t made = -1;   ///< its elements, once worked out: an entry of the evaluator's list
    std::int32_t round = -1;  ///< … while this is the list's number
};

struct Iterable {
    Affine start;
    Affine stop;
    std::int64_t step = 1;
    bool unrolled = false;
    bool known = true;
    const Expr* why = nullptr;               ///< why it is not known
    std::uint64_t taint = 0;                 ///< of the programs' ids that its bounds follow from
    IntegerType type = IntegerType::python;  ///< of its variable
};

/// `taint` holds one bit for each source (a program id, a tile loop, …) that the value was computed from.
struct Value {
    ValueKind kind = ValueKind::undefined;
    bool runtime = false;                    ///< not a compile-time constant: integer division truncates
    IntegerType type = IntegerType::python;  ///< of an integer, or of the elements of a block; see type_of()
    Element element = kNoElement;            ///< that of data and of real numbers; see element_of_value()
    std::uint32_t extents = 0;               ///< of data: its shape, as known_shape() gives it; 0: not known
    std::uint64_t taint = 0;
    union {
        std::int64_t integer = 0;  ///< also the index of a `missing` parameter or of a function
        bool boolean;
        double real;
        struct {
            float least, most;
        } between;
        const std::string* text;
        const Block* block;  ///< block, pointer
        const Mask* mask;
        const Descriptor* descriptor;
        const Tuple* tuple;
        const Iterable* iterable;
        const LostPointer* lost;
        Lazy* lazy;
        const Expr* why;  ///< opaque: the expression that cannot be known
    };
};

[[nodiscard]] inline Value make_integer(std::int64_t value, bool runtime, std::uint64_t taint,
                                        IntegerType type = IntegerType::python) {
    Value made;
    made.kind = ValueKind::integer;
    made.runtime = runtime;
    made.type = type;
    made.taint = taint;
    made.integer = value;
    return made;
}

/// A whole-number function of one axis index, as affine pieces; `values` are its results for 0, 1, ….
[[nodiscard]] BlockAxis compress(Arena& arena, std::span<const std::int64_t> values);
/// The results for each index of an axis; false when they change with the iteration.
[[nodiscard]] bool expand(const BlockAxis& axis, std::vector<std::int64_t>& values);

}  // namespace syncopate::kernel::triton

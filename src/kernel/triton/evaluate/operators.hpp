// What the operators on abstract values share: which values are numbers and which blocks, and how the axes of
// operands of different rank are matched. Internal to the evaluator, so that scalars, blocks and masks can
// each have a file.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <optional>

#include "kernel/triton/evaluate/reals.hpp"
#include "kernel/triton/evaluate/value.hpp"

namespace syncopate::kernel::triton {

inline constexpr std::int64_t kLargestExpanded = 1 << 16;  ///< indices of an axis looked at one by one

/// A value of this kind that follows from a and b; what it is remains to be set.
inline Value with(ValueKind kind, const Value& a, const Value& b) {
    Value made;
    made.kind = kind;
    made.runtime = a.runtime || b.runtime;
    made.taint = a.taint | b.taint;
    return made;
}

/// `made` as the result of an operation on a and b.
inline Value of_both(Value made, const Value& a, const Value& b) {
    made.runtime = a.runtime || b.runtime;
    made.taint = a.taint | b.taint;
    return made;
}

inline bool is_block(const Value& v) { return v.kind == ValueKind::block || v.kind == ValueKind::pointer; }
inline bool is_number(const Value& v) { return v.kind == ValueKind::integer || v.kind == ValueKind::boolean; }
inline std::int64_t number_of(const Value& v) {
    return v.kind == ValueKind::boolean ? (v.boolean ? 1 : 0) : v.integer;
}

/// The type of its elements; a condition is of one bit, unless it was cast.
inline IntegerType type_of(const Value& v) {
    const bool holds = v.kind == ValueKind::mask || (v.kind == ValueKind::boolean && v.runtime);
    return holds && v.type == IntegerType::python ? IntegerType::int1 : v.type;
}

/// Whether it has elements that a type says something of: addresses have none.
inline bool has_type(const Value& v) {
    return is_number(v) || v.kind == ValueKind::block || v.kind == ValueKind::mask ||
           (v.kind == ValueKind::lazy && v.lazy->param < 0);
}

inline bool is_real(const Value& v) { return v.kind == ValueKind::real || v.kind == ValueKind::between; }
/// A value that counts nothing, in an operation on whole numbers.
inline bool is_no_count(const Value& v) {
    return is_real(v) || v.kind == ValueKind::text || v.kind == ValueKind::none;
}
inline bool is_real_or_number(const Value& v) { return is_real(v) || is_number(v); }
inline double real_of(const Value& v) {
    return v.kind == ValueKind::real ? v.real : static_cast<double>(number_of(v));
}

/// Of a number at run time, or of a constant that meets one.
inline Interval interval_of(const Value& v) {
    if (v.kind == ValueKind::between) return {v.between.least, v.between.most};
    if (v.kind == ValueKind::real && v.runtime) return {v.real, v.real};
    return as_fp32(real_of(v));
}

/// The real number at run time that lies in an interval.
inline Value real_value(const Interval& interval) {
    Value made;
    made.runtime = true;
    if (interval.is_one() && !(std::abs(interval.least) <= FLT_MAX && !is_fp32(interval.least))) {
        made.kind = ValueKind::real;
        made.real = interval.least;
    } else {
        made.kind = ValueKind::between;
        made.between = {static_cast<float>(as_fp32(interval.least).least),
                        static_cast<float>(as_fp32(interval.most).most)};
    }
    return made;
}

inline std::int32_t rank_of(const Value& v) {
    return is_block(v)                 ? v.block->rank
           : v.kind == ValueKind::mask ? v.mask->rank
           : v.kind == ValueKind::lazy ? v.lazy->rank
                                       : 0;
}

/// With axes of extent 1 in front, so that there are `rank`.
inline Block aligned(const Block& block, std::int32_t rank) {
    Block made = block;
    const std::int32_t shift = rank - block.rank;
    for (std::int32_t j = 0; j < rank; ++j) made.axes[j] = j < shift ? BlockAxis{} : block.axes[j - shift];
    made.rank = rank;
    return made;
}

inline Mask aligned(const Mask& mask, std::int32_t rank) {
    Mask made = mask;
    const std::int32_t shift = rank - mask.rank;
    for (std::int32_t j = 0; j < rank; ++j) made.axes[j] = j < shift ? MaskAxis{} : mask.axes[j - shift];
    made.rank = rank;
    return made;
}

/// What a condition is that is the same for all indices; nullopt: it is not, or not known to be.
inline std::optional<bool> constant_of(const Mask& mask) {
    if (mask.never) return false;
    for (std::int32_t j = 0; j < mask.rank; ++j)
        if (mask.axes[j].lower_count + mask.axes[j].upper_count > 0) return std::nullopt;
    return mask.exact ? std::optional(true) : std::nullopt;
}

/// The one axis along which a and b vary; -1 for none, -2 for several.
inline std::int32_t varying_axis(const Block& a, const Block& b) {
    std::int32_t found = -1;
    for (std::int32_t j = 0; j < a.rank; ++j) {
        if (a.axes[j].count == 0 && b.axes[j].count == 0) continue;
        if (found >= 0) return -2;
        found = j;
    }
    return found;
}

}  // namespace syncopate::kernel::triton

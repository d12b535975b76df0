// The types of whole numbers, and Triton's rules for what an operation on two of them is of
// (triton/language/semantic.py: integer_promote_impl, computation_type_impl, to_tensor):
//
//      int32 + int64        int64        the wider one
//      int32 + uint32       uint32       of two as wide, the unsigned one
//      int8 + 100           int8         a number of Python's takes the other's type
//      B * 2                Python's     of two constants: a whole number of any size
//      x = B * 2            int32        what is assigned to a variable is no constant any more
#pragma once

#include <cstdint>
#include <string_view>

namespace syncopate::kernel::triton {

enum class IntegerType : std::uint8_t {
    python,  ///< a constant, of any size; also what is no whole number
    int1,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
};

/// What a type holds, as far as 64 signed bits do.
struct IntegerRange {
    std::int64_t least = INT64_MIN;
    std::int64_t most = INT64_MAX;
};
[[nodiscard]] IntegerRange limits_of(IntegerType type);
[[nodiscard]] std::int32_t bits_of(IntegerType type);      ///< 64 for Python's
[[nodiscard]] bool is_unsigned(IntegerType type);          ///< int1 is
[[nodiscard]] std::string_view text_of(IntegerType type);  ///< "int32"

/// Of "int8", "uint32", …; python for other names.
[[nodiscard]] IntegerType integer_type(std::string_view name);
/// That which a constant takes where it becomes a variable.
[[nodiscard]] IntegerType type_of_constant(std::int64_t number);
/// That of an operation on two numbers that have one, or on one of Python's and another.
[[nodiscard]] IntegerType promoted(IntegerType a, IntegerType b);
/// That of a sum of many: 32 bits at least.
[[nodiscard]] IntegerType type_of_sum(IntegerType type);

}  // namespace syncopate::kernel::triton

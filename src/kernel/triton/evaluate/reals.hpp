// Real numbers at run time. A GPU computes them in fp32, divides with an error of up to 2 ulp, and may leave
// out the rounding between a product and a sum; Triton's interpreter keeps scalar arguments in double. So
// what is known of a result is an interval that holds it wherever it is computed:
//
//      scale = 0.29            [0.29, 0.29000002]: no number of fp32, so the two around it
//      scale * 100             [28.999994, 29.000006]: whether it is 29 is not known
//      scale * 50              [14.499997, 14.500003]: 14, as a whole number
//      0.25 * 100              25: all that is exact in fp32 stays one number
#pragma once

#include <cstdint>
#include <optional>

#include "kernel/triton/syntax/syntax.hpp"

namespace syncopate::kernel::triton {

struct Interval {
    double least = 0;
    double most = 0;

    [[nodiscard]] bool is_one() const { return least == most; }
};

/// Whether fp32 holds exactly this number.
[[nodiscard]] bool is_fp32(double number);
/// A number as it enters a kernel: itself, or the two of fp32 around it.
[[nodiscard]] Interval as_fp32(double number);
/// + - * /; nullopt where the result may be infinite or no number, and for other operators.
[[nodiscard]] std::optional<Interval> computed(Operator op, const Interval& a, const Interval& b);
/// A comparison; nullopt where it may hold or not.
[[nodiscard]] std::optional<bool> compared(Operator op, const Interval& a, const Interval& b);
/// The whole number that a cast makes of it; nullopt where it is not known, or 64 bits may not hold it.
[[nodiscard]] std::optional<std::int64_t> truncated(const Interval& a);

}  // namespace syncopate::kernel::triton

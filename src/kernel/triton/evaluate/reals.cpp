#include "kernel/triton/evaluate/reals.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace syncopate::kernel::triton {
namespace {

/// A result that may be off by some ulp of fp32; one that fp32 holds exactly, of operands that are known
/// exactly, is not.
std::optional<Interval> rounded(const Interval& exact, double relative) {
    const auto off = [&](double number) { return std::max(std::abs(number) * relative, double{FLT_MIN}); };
    const Interval made{exact.least - off(exact.least), exact.most + off(exact.most)};
    const bool fits = made.least >= -FLT_MAX && made.most <= FLT_MAX;  // false for what is no number
    return fits ? std::optional(made) : std::nullopt;
}

/// Of both ends of both operands.
template <typename Operation>
Interval of_ends(const Interval& a, const Interval& b, Operation operation) {
    const auto [least, most] = std::minmax({operation(a.least, b.least), operation(a.least, b.most),
                                            operation(a.most, b.least), operation(a.most, b.most)});
    return {least, most};
}

bool is_power_of_two(double number) {
    int exponent = 0;
    return std::abs(std::frexp(number, &exponent)) == 0.5;
}

}  // namespace

bool is_fp32(double number) {
    return std::abs(number) <= FLT_MAX && static_cast<double>(static_cast<float>(number)) == number;
}

Interval as_fp32(double number) {
    if (is_fp32(number) || !(std::abs(number) <= FLT_MAX)) return {number, number};
    const auto nearest = static_cast<float>(number);
    const bool below = static_cast<double>(nearest) < number;
    const float other = std::nextafter(nearest, below ? INFINITY : -INFINITY);
    return {std::min(nearest, other), std::max(nearest, other)};
}

std::optional<Interval> computed(Operator op, const Interval& a, const Interval& b) {
    constexpr double kUlp = 0x1p-23;
    Interval exact;
    double relative = 2 * kUlp;
    bool is_exact = a.is_one() && b.is_one();
    switch (op) {
        case Operator::add: exact = {a.least + b.least, a.most + b.most}; break;
        case Operator::subtract: exact = {a.least - b.most, a.most - b.least}; break;
        case Operator::multiply: exact = of_ends(a, b, [](double x, double y) { return x * y; }); break;
        case Operator::divide:
            if (!(b.least > 0 || b.most < 0)) return std::nullopt;
            exact = of_ends(a, b, [](double x, double y) { return x / y; });
            relative = 4 * kUlp;
            is_exact = is_exact && is_power_of_two(b.least);
            break;
        default: return std::nullopt;
    }
    if (is_exact && is_fp32(exact.least)) return exact;
    return rounded(exact, relative);
}

std::optional<bool> compared(Operator op, const Interval& a, const Interval& b) {
    switch (op) {
        case Operator::less:
            if (a.most < b.least) return true;
            if (a.least >= b.most) return false;
            return std::nullopt;
        case Operator::less_equal:
            if (a.most <= b.least) return true;
            if (a.least > b.most) return false;
            return std::nullopt;
        case Operator::greater: return compared(Operator::less, b, a);
        case Operator::greater_equal: return compared(Operator::less_equal, b, a);
        case Operator::equal:
        case Operator::is:
            if (a.most < b.least || b.most < a.least) return false;
            if (a.is_one() && b.is_one()) return true;
            return std::nullopt;
        case Operator::not_equal:
        case Operator::is_not: {
            const std::optional<bool> same = compared(Operator::equal, a, b);
            return same ? std::optional(!*same) : std::nullopt;
        }
        default: return std::nullopt;
    }
}

std::optional<std::int64_t> truncated(const Interval& a) {
    constexpr double kMost = 9e15;
    if (!(std::abs(a.least) < kMost && std::abs(a.most) < kMost)) return std::nullopt;
    const auto least = static_cast<std::int64_t>(a.least), most = static_cast<std::int64_t>(a.most);
    return least == most ? std::optional(least) : std::nullopt;
}

}  // namespace syncopate::kernel::triton

#include "ingest/candidates/whole_numbers.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "syncopate/whole_number.hpp"

namespace syncopate::ingest {
namespace {

/// An element type of whole numbers.
struct Type {
    bool pred = false;
    bool is_signed = false;
    int bits = 0;  ///< 0: no such type
};

Type type_of(const std::string& dtype) {
    if (dtype == "pred") return {true, false, 1};
    if (dtype.size() < 2 || (dtype[0] != 's' && dtype[0] != 'u')) return {};
    const int bits = whole_number<int>(std::string_view(dtype).substr(1)).value_or(0);
    if (bits < 1 || bits > 64) return {};
    return {false, dtype[0] == 's', bits};
}

std::uint64_t mask(int bits) { return bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1; }

/// The number that the low bits mean; nothing for an unsigned one that an int64 cannot hold.
std::optional<std::int64_t> wrapped(std::uint64_t value, const Type& type) {
    if (type.bits == 0) return std::nullopt;
    const std::uint64_t low = value & mask(type.bits);
    const bool top = (low >> (type.bits - 1)) != 0;
    if (type.is_signed) return static_cast<std::int64_t>(top ? low | ~mask(type.bits) : low);
    if (type.bits == 64 && top) return std::nullopt;
    return static_cast<std::int64_t>(low);
}

std::optional<std::int64_t> unary(const std::string& op, std::int64_t a, const Type& type) {
    const auto bits = static_cast<std::uint64_t>(a);
    if (op == "negate") return wrapped(0 - bits, type);
    if (op == "not") return type.pred ? std::optional<std::int64_t>(a == 0) : wrapped(~bits, type);
    if (op == "abs") return wrapped(a < 0 ? 0 - bits : bits, type);
    if (op == "sign") return (a > 0) - (a < 0);
    if (op == "popcnt") return std::popcount(bits & mask(type.bits));
    if (op == "count-leading-zeros" || op == "clz")
        return std::countl_zero(bits & mask(type.bits)) - (64 - type.bits);
    return std::nullopt;
}

std::optional<std::int64_t> shift(const std::string& op, std::int64_t a, std::int64_t by, const Type& type) {
    const auto bits = static_cast<std::uint64_t>(a);
    const bool out = by < 0 || by >= type.bits;  // all of it
    if (op == "shift-left") return out ? 0 : wrapped(bits << by, type);
    if (op == "shift-right-arithmetic") return out ? (a < 0 ? -1 : 0) : a >> by;
    return out ? 0 : wrapped((bits & mask(type.bits)) >> by, type);
}

std::optional<std::int64_t> power(std::int64_t base, std::int64_t exponent, const Type& type) {
    if (exponent < 0) return std::nullopt;
    std::uint64_t result = 1;
    for (auto factor = static_cast<std::uint64_t>(base); exponent != 0; exponent >>= 1, factor *= factor) {
        if ((exponent & 1) != 0) result *= factor;
    }
    return wrapped(result, type);
}

std::optional<std::int64_t> binary(const Instruction& by, std::int64_t a, std::int64_t b, const Type& type) {
    const std::string& op = by.opcode;
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (op == "add") return type.pred ? std::optional<std::int64_t>((x | y) & 1) : wrapped(x + y, type);
    if (op == "subtract") return wrapped(x - y, type);
    if (op == "multiply") return wrapped(x * y, type);
    const bool divides = b != 0 && !(a == std::numeric_limits<std::int64_t>::min() && b == -1);
    if (op == "remainder") return divides ? std::optional(a % b) : std::nullopt;
    if (op == "divide") return divides ? wrapped(static_cast<std::uint64_t>(a / b), type) : std::nullopt;
    if (op == "minimum") return std::min(a, b);
    if (op == "maximum") return std::max(a, b);
    if (op == "and") return wrapped(x & y, type);
    if (op == "or") return wrapped(x | y, type);
    if (op == "xor") return wrapped(x ^ y, type);
    if (op == "power") return power(a, b, type);
    if (op.starts_with("shift-")) return shift(op, a, b, type);
    if (op == "compare") {
        if (by.direction == "EQ") return a == b;
        if (by.direction == "NE") return a != b;
        if (by.direction == "LT") return a < b;
        if (by.direction == "LE") return a <= b;
        if (by.direction == "GT") return a > b;
        if (by.direction == "GE") return a >= b;
    }
    return std::nullopt;
}

std::optional<std::int64_t> ternary(const std::string& op, std::int64_t a, std::int64_t b, std::int64_t c) {
    if (op == "select") return a != 0 ? b : c;
    if (op == "clamp") return std::min(std::max(a, b), c);
    return std::nullopt;
}

/// How many elements; nothing if that is not known or too many.
std::optional<std::size_t> count_of(const Shape& shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape.dims) {
        if (size < 0 || __builtin_mul_overflow(count, size, &count)) return std::nullopt;
    }
    if (shape.tuple || count > static_cast<std::int64_t>(kMaxLiteral)) return std::nullopt;
    return static_cast<std::size_t>(count);
}

/// Element by element; a scalar stands beside an array for all of it.
std::optional<WholeNumbers> elementwise(const Instruction& by, const std::vector<const WholeNumbers*>& of,
                                        std::size_t count) {
    const Type type = type_of(by.shape.dtype);
    WholeNumbers values;
    for (std::size_t i = 0; i < count; ++i) {
        std::int64_t at[3] = {};
        for (std::size_t k = 0; k < of.size(); ++k) at[k] = (*of[k])[of[k]->size() == 1 ? 0 : i];
        const auto value = of.size() == 1   ? unary(by.opcode, at[0], type)
                           : of.size() == 2 ? binary(by, at[0], at[1], type)
                                            : ternary(by.opcode, at[0], at[1], at[2]);
        if (!value) return std::nullopt;
        values.push_back(*value);
    }
    return values;
}

std::optional<WholeNumbers> converted(const Instruction& by, const WholeNumbers& from) {
    const Type type = type_of(by.shape.dtype);
    WholeNumbers values;
    for (const std::int64_t value : from) {
        const auto made = type.pred ? std::optional<std::int64_t>(value != 0)
                                    : wrapped(static_cast<std::uint64_t>(value), type);
        if (!made) return std::nullopt;
        values.push_back(*made);
    }
    return values;
}

/// A part of an array of one axis, `count` elements from `start` on, which is clamped as XLA clamps it.
std::optional<WholeNumbers> part(const WholeNumbers& from, std::int64_t start, std::size_t count) {
    const auto size = static_cast<std::int64_t>(from.size());
    const auto length = static_cast<std::int64_t>(count);
    if (length < 1 || length > size) return std::nullopt;
    const auto begin = from.begin() + std::clamp<std::int64_t>(start, 0, size - length);
    return WholeNumbers(begin, begin + length);
}

bool one_axis(const std::vector<const Shape*>& shapes) {
    return std::all_of(shapes.begin(), shapes.end(), [](const Shape* s) { return s->dims.size() == 1; });
}

}  // namespace

bool is_whole(const std::string& dtype) { return type_of(dtype).bits != 0; }

std::optional<WholeNumbers> compute_whole(const Instruction& by, const std::vector<const WholeNumbers*>& of,
                                          const std::vector<const Shape*>& shapes) {
    const std::string& op = by.opcode;
    const auto count = count_of(by.shape);
    if (!count || !is_whole(by.shape.dtype)) return std::nullopt;
    if (op == "iota" && of.empty() && by.shape.dims.size() == 1) {
        WholeNumbers values(*count);
        for (std::size_t i = 0; i < *count; ++i) values[i] = static_cast<std::int64_t>(i);
        return values;
    }
    if (of.empty()) return std::nullopt;
    const WholeNumbers& first = *of[0];
    if (op == "convert") return converted(by, first);
    if (op == "copy" || op == "reshape" || op == "bitcast" || op == "optimization-barrier")
        return first.size() == *count ? std::optional(first) : std::nullopt;
    if (op == "transpose") return first.size() == 1 ? std::optional(first) : std::nullopt;
    if (op == "broadcast" || op == "broadcast-in-dim" || op == "dynamic-broadcast-in-dim")
        return first.size() == 1 ? std::optional(WholeNumbers(*count, first[0])) : std::nullopt;
    if (op == "concatenate") {
        if (!one_axis(shapes)) return std::nullopt;
        WholeNumbers values;
        for (const WholeNumbers* each : of) values.insert(values.end(), each->begin(), each->end());
        return values.size() == *count ? std::optional(values) : std::nullopt;
    }
    if (op == "dynamic-slice" && of.size() == 2 && shapes[0]->dims.size() == 1 && of[1]->size() == 1)
        return part(first, (*of[1])[0], *count);
    if (of.size() > 3) return std::nullopt;
    for (const WholeNumbers* each : of) {
        if (each->size() != 1 && each->size() != *count) return std::nullopt;
    }
    return elementwise(by, of, *count);
}

}  // namespace syncopate::ingest

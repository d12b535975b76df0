#include "kernel/triton/evaluate/integer_type.hpp"
#include "syncopate/at.hpp"

#include <array>
#include <cstddef>

namespace syncopate::kernel::triton {
namespace {

struct Traits {
    std::string_view name;
    std::int32_t bits;
    bool is_unsigned;
};

constexpr std::array<Traits, 10> kTraits{{{"int", 64, false},
                                          {"int1", 1, true},
                                          {"int8", 8, false},
                                          {"int16", 16, false},
                                          {"int32", 32, false},
                                          {"int64", 64, false},
                                          {"uint8", 8, true},
                                          {"uint16", 16, true},
                                          {"uint32", 32, true},
                                          {"uint64", 64, true}}};

constexpr std::array<IntegerRange, kTraits.size()> kRanges = [] {
    std::array<IntegerRange, kTraits.size()> ranges{};
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const auto [name, bits, is_unsigned] = kTraits[i];
        if (is_unsigned) ranges[i].least = 0;
        if (bits == 64) continue;
        const std::int64_t values = std::int64_t{1} << bits;
        ranges[i] = is_unsigned ? IntegerRange{0, values - 1} : IntegerRange{-values / 2, values / 2 - 1};
    }
    return ranges;
}();

const Traits& traits(IntegerType type) { return kTraits[at(type)]; }

}  // namespace

IntegerRange limits_of(IntegerType type) { return kRanges[at(type)]; }
std::int32_t bits_of(IntegerType type) { return traits(type).bits; }
bool is_unsigned(IntegerType type) { return traits(type).is_unsigned; }
std::string_view text_of(IntegerType type) { return traits(type).name; }

IntegerType integer_type(std::string_view name) {
    for (std::size_t i = 1; i < kTraits.size(); ++i)
        if (kTraits[i].name == name) return static_cast<IntegerType>(i);
    return IntegerType::python;
}

IntegerType type_of_constant(std::int64_t number) {
    if (number >= INT32_MIN && number <= INT32_MAX) return IntegerType::int32;
    return number >= 0 && number <= UINT32_MAX ? IntegerType::uint32 : IntegerType::int64;
}

IntegerType promoted(IntegerType a, IntegerType b) {
    if (a == b || b == IntegerType::python) return a;
    if (a == IntegerType::python) return b;
    const Traits &x = traits(a), &y = traits(b);
    if (x.is_unsigned == y.is_unsigned) return x.bits > y.bits ? a : b;
    const bool takes_a = x.is_unsigned ? x.bits >= y.bits : x.bits > y.bits;
    return takes_a ? a : b;
}

IntegerType type_of_sum(IntegerType type) {
    if (type == IntegerType::python || bits_of(type) >= 32) return type;
    return is_unsigned(type) ? IntegerType::uint32 : IntegerType::int32;
}

}  // namespace syncopate::kernel::triton

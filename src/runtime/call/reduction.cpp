#include "syncopate/runtime/call/reduction.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/signals/turns.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

template <typename Bits>
Bits load(const std::byte* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof(Bits));
    return bits;
}

template <typename Bits>
void store(std::byte* to, Bits bits) {
    std::memcpy(to, &bits, sizeof(Bits));
}

float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

/// out[i] = combine of the widened elements, narrowed.
template <typename Bits, typename Widen, typename Combine, typename Narrow>
void reduce_with(std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
                 const Widen& widen, const Combine& combine, const Narrow& narrow) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = i * sizeof(Bits);
        auto total = widen(load<Bits>(sources[0] + at));
        for (std::size_t s = 1; s < sources.size(); ++s)
            total = combine(total, widen(load<Bits>(sources[s] + at)));
        store<Bits>(out + at, narrow(total));
    }
}

template <typename Bits, typename Widen, typename Narrow>
void reduce_floats(plan::Reduce reduce, std::span<const std::byte* const> sources, std::byte* out,
                   std::size_t count, const Widen& widen, const Narrow& narrow) {
    if (reduce == plan::Reduce::max) {
        reduce_with<Bits>(sources, out, count, widen, larger, narrow);
    } else {
        reduce_with<Bits>(sources, out, count, widen, [](float a, float b) { return a + b; }, narrow);
    }
}

/// Cut into the same rows.
bool alike(const StridedCopy& a, const StridedCopy& b) {
    return a.width == b.width && a.height == b.height && a.depth == b.depth;
}

}  // namespace

float bf16_to_float(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float fp16_to_float(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);  // zero or subnormal
    return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t float_to_fp16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above
    if (magnitude < 0x38800000u) {  // below the smallest normal number: fixed point of 2^-24
        const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;  // exact
        return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

void reduce_elements(plan::DType dtype, plan::Reduce reduce, std::span<const std::byte* const> sources,
                     std::byte* out, std::size_t count) {
    switch (dtype) {
        case plan::DType::bf16:
            reduce_floats<std::uint16_t>(reduce, sources, out, count, bf16_to_float, float_to_bf16);
            return;
        case plan::DType::fp16:
            reduce_floats<std::uint16_t>(reduce, sources, out, count, fp16_to_float, float_to_fp16);
            return;
        case plan::DType::fp32: {
            const auto same = [](float value) { return value; };
            reduce_floats<float>(reduce, sources, out, count, same, same);
            return;
        }
        default: break;
    }
    const auto same = [](std::uint32_t value) { return value; };
    if (reduce == plan::Reduce::max) {
        const auto larger_of = [](std::uint32_t a, std::uint32_t b) {
            return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
        };
        reduce_with<std::uint32_t>(sources, out, count, same, larger_of, same);
    } else {
        reduce_with<std::uint32_t>(
            sources, out, count, same, [](std::uint32_t a, std::uint32_t b) { return a + b; }, same);
    }
}

BoxView first_slot(const BoxView& staging) {
    return {staging.address,
            {staging.shape.begin() + 1, staging.shape.end()},
            {staging.strides.begin() + 1, staging.strides.end()}};
}

Result<PreparedSum> prepare_sum(const BoxView& staging, const BoxView& destination, plan::DType dtype,
                                plan::Reduce reduce, std::int32_t own) {
    PreparedSum sum{.dtype = dtype, .reduce = reduce, .own = own};
    sum.num_slots = static_cast<std::int32_t>(staging.shape.front());
    sum.slot_distance = static_cast<std::uint64_t>(staging.strides.front()) * plan::size_of(dtype);
    SYNCOPATE_TAKE(const std::vector<StridedCopy> copies,
                   copies_between(first_slot(staging), destination, plan::size_of(dtype)));
    for (const StridedCopy& copy : copies) sum.parts.push_back({copy});
    return sum;
}

Result<PreparedSum> prepare_sum(const std::vector<BoxView>& sources, const BoxView& destination,
                                plan::DType dtype, plan::Reduce reduce, std::int32_t own) {
    PreparedSum sum{.dtype = dtype, .reduce = reduce, .own = own};
    sum.num_slots = static_cast<std::int32_t>(sources.size());
    for (const BoxView& source : sources) {
        SYNCOPATE_TAKE(std::vector<StridedCopy> copies,
                       copies_between(source, destination, plan::size_of(dtype)));
        const auto& first = sum.places.empty() ? copies : sum.places.front();
        if (!std::ranges::equal(copies, first, alike))
            return Error{"its sources lie in memory in different ways; stage them, or cut them into rows"};
        sum.places.push_back(std::move(copies));
    }
    if (sum.places.empty()) return Error{"a sum of nothing"};
    for (const StridedCopy& copy : sum.places.front()) sum.parts.push_back({copy});
    return sum;
}

void PreparedSum::bring_home() {
    for (SumPart& part : parts) part.out = 0;
}

StridedCopy slot_of(const PreparedSum& sum, std::size_t part, std::int32_t slot) {
    if (!sum.places.empty()) return sum.places[at(slot)][part];
    StridedCopy box = sum.parts[part].slot;
    box.src += static_cast<std::uint64_t>(slot) * sum.slot_distance;
    return box;
}

bool redirect(PreparedSum& sum, const BoxView& staging, const BoxView& out) {
    const Result<std::vector<StridedCopy>> away =
        copies_between(staging.shape.size() > out.shape.size() ? first_slot(staging) : staging, out,
                       plan::size_of(sum.dtype));
    if (!away || away->size() != sum.parts.size()) return false;
    for (std::size_t i = 0; i < away->size(); ++i) {
        if (!alike((*away)[i], sum.parts[i].slot)) return false;
    }
    for (std::size_t i = 0; i < away->size(); ++i) {
        sum.parts[i].out = (*away)[i].dst;
        sum.parts[i].out_pitch = (*away)[i].dst_pitch;
        sum.parts[i].out_plane = (*away)[i].dst_plane;
    }
    return true;
}

void sum_on_host(const PreparedSum& sum) {
    Turns* const turns = Turns::of_thread();
    const std::size_t element = plan::size_of(sum.dtype);
    std::vector<const std::byte*> sources;
    for (std::size_t p = 0; p < sum.parts.size(); ++p) {
        const SumPart& part = sum.parts[p];
        const StridedCopy& box = part.slot;
        std::vector<StridedCopy> slots;
        for (std::int32_t slot = 0; slot < sum.num_slots; ++slot) slots.push_back(slot_of(sum, p, slot));
        for (std::uint64_t plane = 0; plane < box.depth; ++plane) {
            for (std::uint64_t row = 0; row < box.height; ++row) {
                const std::uint64_t to = box.dst + plane * box.dst_plane + row * box.dst_pitch;
                sources.clear();
                for (std::int32_t slot = 0; slot <= sum.num_slots; ++slot) {
                    if (slot == sum.own) sources.push_back(reinterpret_cast<const std::byte*>(to));
                    if (slot == sum.num_slots) break;
                    const StridedCopy& from = slots[at(slot)];
                    sources.push_back(reinterpret_cast<const std::byte*>(from.src + plane * from.src_plane +
                                                                         row * from.src_pitch));
                }
                const std::uint64_t out =
                    part.out == 0 ? to : part.out + plane * part.out_plane + row * part.out_pitch;
                reduce_elements(sum.dtype, sum.reduce, sources, reinterpret_cast<std::byte*>(out),
                                box.width / element);
                if (turns != nullptr) {
                    for (const std::byte* source : sources)
                        turns->read(reinterpret_cast<std::uint64_t>(source), box.width);
                    turns->write(out, box.width);
                    for (const std::uint64_t distance : sum.copies) turns->write(to + distance, box.width);
                }
                for (const std::uint64_t distance : sum.copies)
                    std::memcpy(reinterpret_cast<void*>(to + distance), reinterpret_cast<const void*>(out),
                                box.width);
            }
        }
    }
}

}  // namespace syncopate::runtime

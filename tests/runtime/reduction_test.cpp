#include "syncopate/runtime/call/reduction.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace syncopate::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Reduction, EveryBf16AndFp16SurvivesTheWayToFp32AndBack) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        const float wide = bf16_to_float(half);
        if (std::isnan(wide)) {
            EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(wide))));
        } else {
            EXPECT_EQ(float_to_bf16(wide), half);
        }
        const float half_wide = fp16_to_float(half);
        if (std::isnan(half_wide)) {
            EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(half_wide))));
        } else {
            EXPECT_EQ(float_to_fp16(half_wide), half) << bits;
        }
    }
}

/// The 16-bit number nearest to `value`, ties to even, found among all by its definition.
template <typename Widen>
std::uint16_t nearest(float value, const Widen& widen) {
    std::uint16_t low = 0;  // the largest magnitude not above |value|
    std::uint16_t step = 0x4000;
    for (; step != 0; step = static_cast<std::uint16_t>(step / 2)) {
        const auto next = static_cast<std::uint16_t>(low + step);
        if (widen(next) <= std::fabs(value)) low = next;
    }
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double below = static_cast<double>(std::fabs(value)) - static_cast<double>(widen(low));
    const double limit = std::isinf(widen(high))
                             ? 2.0 * widen(low) - widen(static_cast<std::uint16_t>(low - 1))
                             : static_cast<double>(widen(high));
    const double above = limit - static_cast<double>(std::fabs(value));
    const bool up = below > above || (below == above && low % 2 == 1);
    return static_cast<std::uint16_t>((up ? high : low) | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Reduction, RoundsToNearestTiesToEven) {
    std::mt19937 random(1);
    for (int n = 0; n < 200'000; ++n) {
        auto bits = static_cast<std::uint32_t>(random());
        if (n % 4 == 0) bits &= 0xfffff000U;  // ties, and close to them
        const auto value = std::bit_cast<float>(bits);
        if (std::isnan(value) || std::isinf(value)) continue;
        EXPECT_EQ(float_to_bf16(value), nearest(value, bf16_to_float)) << value;
        const auto modest = std::ldexp(value, n % 2 == 0 ? 0 : -static_cast<int>((bits >> 23) & 0xff) + 120);
        EXPECT_EQ(float_to_fp16(modest), nearest(modest, fp16_to_float)) << modest;
    }
    EXPECT_EQ(float_to_fp16(65504.0F), 0x7bff);
    EXPECT_EQ(float_to_fp16(65519.9F), 0x7bff);
    EXPECT_EQ(float_to_fp16(65520.0F), 0x7c00);
    EXPECT_EQ(float_to_fp16(-kInfinity), 0xfc00);
    EXPECT_EQ(float_to_fp16(0x1p-24F), 1);
    EXPECT_EQ(float_to_fp16(0x1p-25F), 0) << "halfway to the smallest, and 0 is even";
    EXPECT_EQ(float_to_fp16(-0.0F), 0x8000);
    EXPECT_EQ(float_to_bf16(kInfinity), 0x7f80);
}

template <typename T>
std::vector<T> reduced(plan::DType dtype, plan::Reduce reduce, const std::vector<std::vector<T>>& values) {
    std::vector<const std::byte*> sources;
    for (const auto& list : values) sources.push_back(reinterpret_cast<const std::byte*>(list.data()));
    std::vector<T> out(values.front().size());
    reduce_elements(dtype, reduce, sources, reinterpret_cast<std::byte*>(out.data()), out.size());
    return out;
}

TEST(Reduction, AddsBf16AsFp32AndRoundsOnce) {
    const std::uint16_t one = float_to_bf16(1.0F);
    const std::uint16_t tiny = float_to_bf16(0x1p-8F);  // 1 + tiny is 1 in bf16; four of them are not lost
    const auto sum =
        reduced<std::uint16_t>(plan::DType::bf16, plan::Reduce::sum, {{one}, {tiny}, {tiny}, {tiny}, {tiny}});
    EXPECT_EQ(bf16_to_float(sum[0]), 1.0F + 0x1p-6F);
}

TEST(Reduction, AddsInTheOrderGiven) {
    const std::vector<std::vector<float>> values{{1e8F}, {1.0F}, {-1e8F}};
    EXPECT_EQ(reduced<float>(plan::DType::fp32, plan::Reduce::sum, values)[0], (1e8F + 1.0F) - 1e8F);
    EXPECT_EQ(reduced<float>(plan::DType::fp32, plan::Reduce::sum, {{1e8F}, {-1e8F}, {1.0F}})[0], 1.0F);
}

TEST(Reduction, Int32WrapsAroundAndIsExact) {
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    const auto sum =
        reduced<std::int32_t>(plan::DType::int32, plan::Reduce::sum, {{kMost, 16777217}, {1, 1}, {0, -3}});
    EXPECT_EQ(sum, (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), 16777215}));
    EXPECT_EQ(reduced<std::int32_t>(plan::DType::int32, plan::Reduce::max, {{-5}, {-7}, {-6}})[0], -5);
}

TEST(Reduction, TheMaximumOfANumberAndANanIsANan) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(reduced<float>(plan::DType::fp32, plan::Reduce::max, {{1.0F}, {nan}, {2.0F}})[0]));
    EXPECT_TRUE(std::isnan(reduced<float>(plan::DType::fp32, plan::Reduce::max, {{nan}, {2.0F}})[0]));
    EXPECT_EQ(reduced<float>(plan::DType::fp32, plan::Reduce::max, {{1.0F}, {3.0F}, {-2.0F}})[0], 3.0F);
}

/// A tensor [rows, columns] of fp32 with staging [slots, rows, columns] for the box [1:3, 1:4].
class SumOfABox : public ::testing::Test {
protected:
    static constexpr std::int64_t kRows = 4, kColumns = 5, kSlots = 3;
    void SetUp() override {
        for (std::size_t i = 0; i < staging_.size(); ++i) staging_[i] = static_cast<float>(i);
    }
    static std::uint64_t address(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
    BoxView slots() {
        return view_of({"S", {kSlots, 2, 3}, plan::DType::fp32}, {{0, kSlots}, {0, 2}, {0, 3}},
                       address(staging_.data()));
    }
    BoxView box() {
        return view_of({"C", {kRows, kColumns}, plan::DType::fp32}, {{1, 3}, {1, 4}}, address(c_.data()));
    }
    /// Element (row, column) of the box: the three slots, and `own`.
    static float expected(std::int64_t row, std::int64_t column, float own) {
        const auto first = static_cast<float>(row * 3 + column);
        return 3 * first + 6 + 12 + own;
    }
    std::vector<float> staging_ = std::vector<float>(kSlots * 2 * 3);
    std::vector<float> c_ = std::vector<float>(kRows * kColumns, 100);
};

TEST_F(SumOfABox, TakesItsPlaceAmongOtherElements) {
    const auto sum = prepare_sum(slots(), box(), plan::DType::fp32, plan::Reduce::sum, 1);
    ASSERT_TRUE(sum.ok()) << sum.error().to_string();
    sum_on_host(*sum);
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t column = 0; column < kColumns; ++column) {
            const bool inside = row >= 1 && row < 3 && column >= 1 && column < 4;
            EXPECT_EQ(c_[static_cast<std::size_t>(row * kColumns + column)],
                      inside ? expected(row - 1, column - 1, 100) : 100);
        }
    }
}

TEST_F(SumOfABox, GoesElsewhereWhenAskedAndLeavesTheHeapAlone) {
    auto sum = prepare_sum(slots(), box(), plan::DType::fp32, plan::Reduce::sum, -1);
    ASSERT_TRUE(sum.ok());
    std::vector<float> out(2 * 8, -1);
    ASSERT_TRUE(redirect(*sum, slots(), {address(out.data()), {2, 3}, {8, 1}}));
    sum_on_host(*sum);
    EXPECT_EQ(c_, std::vector<float>(kRows * kColumns, 100));
    EXPECT_EQ(out[8 + 2], expected(1, 2, 0));
    EXPECT_EQ(out[3], -1);
    EXPECT_FALSE(redirect(*sum, slots(), {address(out.data()), {2, 3}, {3, 1}})) << "one run, not two rows";
    EXPECT_FALSE(redirect(*sum, slots(), {address(out.data()), {2, 2}, {8, 1}})) << "another shape";
}

TEST_F(SumOfABox, RefusesAnotherShape) {
    const BoxView other{address(c_.data()), {3, 2}, {5, 1}};
    EXPECT_FALSE(prepare_sum(slots(), other, plan::DType::fp32, plan::Reduce::sum, -1).ok());
}

}  // namespace
}  // namespace syncopate::runtime

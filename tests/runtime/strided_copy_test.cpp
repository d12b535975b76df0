#include "syncopate/runtime/call/strided_copy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <numeric>

#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::runtime {
namespace {

const plan::Tensor kMatrix{"A", {8, 16}, plan::DType::bf16};

std::vector<StridedCopy> copies(const plan::Tensor& tensor, const plan::Region& region) {
    auto made = copies_between(view_of(tensor, region, 1000), view_of(tensor, region, 5000),
                               plan::size_of(tensor.dtype));
    return made ? *made : std::vector<StridedCopy>{};
}

TEST(StridedCopy, OfWholeRowsIsOneRun) {
    const auto made = copies(kMatrix, {{2, 4}, {0, 16}});
    ASSERT_EQ(made.size(), 1u);
    EXPECT_TRUE(made[0].contiguous());
    EXPECT_EQ(made[0].src, 1000u + 2 * 32);
    EXPECT_EQ(made[0].dst, 5000u + 2 * 32);
    EXPECT_EQ(made[0].width, 64u);
}

TEST(StridedCopy, OfPartsOfRowsHasAPitch) {
    const auto made = copies(kMatrix, {{2, 5}, {4, 8}});
    ASSERT_EQ(made.size(), 1u);
    EXPECT_EQ(made[0].width, 8u);
    EXPECT_EQ(made[0].height, 3u);
    EXPECT_EQ(made[0].src_pitch, 32u);
    EXPECT_EQ(made[0].depth, 1u);
}

TEST(StridedCopy, OfThreeAxesHasPlanesAndOfFourIsSeveral) {
    const plan::Tensor four{"B", {2, 4, 6, 8}, plan::DType::fp32};
    const auto three = copies(four, {{1, 2}, {1, 3}, {1, 4}, {2, 5}});
    ASSERT_EQ(three.size(), 1u);
    EXPECT_EQ(three[0].depth, 2u);
    EXPECT_EQ(three[0].src_plane, 6u * 8 * 4);
    EXPECT_EQ(copies(four, {{0, 2}, {1, 3}, {1, 4}, {2, 5}}).size(), 2u);
    EXPECT_TRUE(copies(four, {{0, 2}, {0, 4}, {0, 6}, {0, 8}})[0].contiguous());
}

TEST(StridedCopy, OfNothingIsNone) { EXPECT_TRUE(copies(kMatrix, {{2, 2}, {0, 16}}).empty()); }

TEST(StridedCopy, OfOneColumnIsElementByElement) {
    const auto made = copies(kMatrix, {{0, 8}, {3, 4}});
    ASSERT_EQ(made.size(), 1u);
    EXPECT_EQ(made[0].width, 2u);
    EXPECT_EQ(made[0].height, 8u);
}

TEST(StridedCopy, LeavesAxesOfOneElementAside) {
    const BoxView src{0, {1, 4, 1, 8}, {999, 8, 7, 1}};
    const BoxView dst{0, {4, 8}, {16, 1}};
    const auto made = copies_between(src, dst, 2);
    ASSERT_TRUE(made);
    EXPECT_EQ((*made)[0].height, 4u);
    EXPECT_EQ((*made)[0].dst_pitch, 32u);
    EXPECT_FALSE(copies_between(src, BoxView{0, {8, 4}, {4, 1}}, 2));
    EXPECT_FALSE(copies_between(src, BoxView{0, {4, 8}, {-16, 1}}, 2));
}

TEST(StridedCopy, MovesExactlyTheBox) {
    const plan::Tensor tensor{"B", {3, 4, 5, 6}, plan::DType::uint8};
    const plan::Region region{{0, 2}, {1, 4}, {2, 4}, {1, 5}};
    std::vector<std::uint8_t> src(360);
    std::iota(src.begin(), src.end(), std::uint8_t{1});
    std::vector<std::uint8_t> dst(360, 0);
    const auto made = copies_between(view_of(tensor, region, reinterpret_cast<std::uint64_t>(src.data())),
                                     view_of(tensor, region, reinterpret_cast<std::uint64_t>(dst.data())), 1);
    ASSERT_TRUE(made);
    for (const StridedCopy& copy : *made) copy_on_host(copy);
    for (std::int64_t i = 0; i < 360; ++i) {
        const plan::Region element{{i / 120, i / 120 + 1},
                                   {i / 30 % 4, i / 30 % 4 + 1},
                                   {i / 6 % 5, i / 6 % 5 + 1},
                                   {i % 6, i % 6 + 1}};
        const auto k = static_cast<std::size_t>(i);
        EXPECT_EQ(dst[k], plan::contains(region, element) ? src[k] : 0) << i;
    }
}

TEST(StridedCopy, IsMadeInOrderWhereAnotherMayReadWhatItWrites) {
    const StridedCopy rows{
        .src = 1000, .dst = 5000, .width = 16, .height = 4, .src_pitch = 32, .dst_pitch = 64};
    const auto with = [&](std::uint64_t src, std::uint64_t dst, std::uint64_t width) {
        const StridedCopy other{.src = src, .dst = dst, .width = width};
        const std::array<const StridedCopy*, 2> copies{&rows, &other}, reversed{&other, &rows};
        EXPECT_EQ(depend(copies), depend(reversed));
        return depend(copies);
    };
    EXPECT_FALSE(with(2000, 6000, 100));
    EXPECT_FALSE(with(1000, 6000, 100)) << "both may read the same";
    EXPECT_TRUE(with(5191, 6000, 100)) << "reads the last row";
    EXPECT_FALSE(with(5208, 6000, 100)) << "begins behind it";
    EXPECT_TRUE(with(4000, 6000, 1001));
    EXPECT_FALSE(with(4000, 6000, 1000));
    EXPECT_TRUE(with(2000, 1100, 8)) << "writes what the rows are read from";
    EXPECT_FALSE(with(5000, 6000, 0)) << "of nothing";
    const std::array<const StridedCopy*, 1> alone{&rows};
    EXPECT_FALSE(depend(alone));
    EXPECT_FALSE(depend({}));
}

TEST(KernelArguments, AreLaidOutAsTheLauncherPassesThem) {
    KernelArguments arguments;
    EXPECT_EQ(arguments.add_pointer(0x1234), 0u);
    EXPECT_EQ(arguments.add(std::int32_t{-5}), 1u);
    EXPECT_EQ(arguments.add(std::int8_t{1}), 2u);
    TensorMap map;
    map.words[15] = 77;
    EXPECT_EQ(
        arguments.add_descriptor(map, std::vector<std::int64_t>{8, 16}, std::vector<std::int64_t>{16, 1}),
        3u);
    ASSERT_EQ(arguments.size(), 8u);
    EXPECT_EQ(arguments.bytes_of(2), 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arguments.data(3)) % 128, 0u);
    EXPECT_EQ(static_cast<const TensorMap*>(arguments.data(3))->words[15], 77u);
    EXPECT_EQ(arguments.bytes_of(4), 4u);
    EXPECT_EQ(arguments.bytes_of(6), 8u);
    EXPECT_EQ(*static_cast<const std::int32_t*>(arguments.data(1)), -5);
}

}  // namespace
}  // namespace syncopate::runtime

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

fuse::Schedule schedule_of(std::vector<plan::Tensor> tensors) {
    fuse::Schedule schedule;
    schedule.tensors = std::move(tensors);
    return schedule;
}

TEST(HeapBytes, HoldTheTensorsAndWhatTheOpNeedsBesides) {
    const auto schedule =
        schedule_of({{"A", {1024, 1024}, plan::DType::fp32}, {"B", {3}, plan::DType::bf16}});
    EXPECT_EQ(heap_bytes(schedule), 10 * kMiB);
    EXPECT_TRUE(tensors_by_row(schedule).empty());
}

TEST(HeapBytes, AreWholeRowsWhereTheKernelAddressesRowsInAllHeaps) {
    auto schedule = schedule_of({{"A", {8, 300}, plan::DType::fp32}, {"C", {8, 100}, plan::DType::bf16}});
    schedule.stores = fuse::StoreForm{.tensor = 1, .by_row = true};
    EXPECT_EQ(tensors_by_row(schedule), std::vector<std::string>{"C"});
    EXPECT_EQ(heap_bytes(schedule) % 200, 0U);
    EXPECT_EQ(heap_bytes(schedule) % (2 * kMiB), 0U);
    schedule.loads = fuse::LoadForm{.tensor = 0, .by_row = true, .own = true};
    EXPECT_EQ(tensors_by_row(schedule), std::vector<std::string>{"C"})
        << "the own part has a place of its own";
    schedule.loads->own = false;
    EXPECT_EQ(tensors_by_row(schedule), (std::vector<std::string>{"C", "A"}));
    EXPECT_EQ(heap_bytes(schedule) % 1200, 0U);
}

}  // namespace
}  // namespace syncopate::runtime

#include "syncopate/fuse/passes/heap.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Schedule schedule_of(std::vector<plan::Tensor> tensors) {
    Schedule schedule;
    schedule.tensors = std::move(tensors);
    return schedule;
}

TEST(HeapLayout, GivesTensorsAndControlBlockPlacesOneAfterAnother) {
    const Schedule schedule =
        lay_out_heap(schedule_of({{"A", {1024, 1024}, plan::DType::fp32}, {"B", {3}, plan::DType::bf16}}));
    EXPECT_EQ(schedule.heap.tensors, (std::vector<std::uint64_t>{0, 4 * kMiB}));
    EXPECT_EQ(schedule.heap.control, 4 * kMiB + 1024);
    EXPECT_EQ(schedule.heap.bytes, schedule.heap.control + 4 * 32) << "no rank has a signal";
    EXPECT_EQ(heap_bytes(schedule), 6 * kMiB) << "whole pages";
    EXPECT_EQ(heap_objection(schedule), "");
}

TEST(HeapLayout, HasRoomForTheSignalsAndCountersOfTheRankWithMost) {
    Schedule schedule = schedule_of({});
    schedule.ranks.resize(2);
    schedule.ranks[0].signals.resize(3);
    schedule.ranks[1].signals.resize(2);
    schedule.ranks[1].chunks.resize(2);
    EXPECT_EQ(lay_out_heap(schedule).heap.control_words, 32 + 4 * 8);
}

TEST(HeapLayout, LiesInWholeRowsWhereTheKernelAddressesRowsInAllHeaps) {
    Schedule schedule = schedule_of({{"A", {8, 300}, plan::DType::fp32}, {"C", {8, 100}, plan::DType::bf16}});
    EXPECT_TRUE(tensors_by_row(schedule).empty());
    schedule.stages.front().stores = Reach{.tensor = 1, .by_row = true};
    EXPECT_EQ(tensors_by_row(schedule), std::vector<std::int32_t>{1});
    schedule = lay_out_heap(schedule);
    EXPECT_EQ(schedule.heap.tensors[1] % 200, 0U);
    EXPECT_EQ(heap_bytes(schedule) % 200, 0U);
    EXPECT_EQ(heap_bytes(schedule) % (2 * kMiB), 0U);
    schedule.stages.front().loads = Reach{.tensor = 0, .by_row = true, .own = true};
    EXPECT_EQ(tensors_by_row(schedule), std::vector<std::int32_t>{1})
        << "the own part has a place of its own";
    schedule.stages.front().loads->own = false;
    EXPECT_EQ(tensors_by_row(schedule), (std::vector<std::int32_t>{1, 0}));
    EXPECT_NE(heap_objection(schedule).find("cannot lie at multiples of"), std::string::npos);
    EXPECT_EQ(heap_bytes(lay_out_heap(schedule)) % 1200, 0U);
}

TEST(HeapLayout, IsPartOfWhatFuseMakesAndOfItsJson) {
    const Schedule schedule = fuse(sample::all_gather_gemm({2, 4, 16, 2, 2, 2}, 2, {})).value();
    EXPECT_EQ(schedule.heap, lay_out_heap(schedule).heap);
    EXPECT_EQ(schedule_from_json(to_json(schedule)).value().heap, schedule.heap);
}

TEST(HeapLayout, IsRefusedWhereItsPartsDoNotFit) {
    const Schedule good =
        lay_out_heap(schedule_of({{"A", {1024}, plan::DType::fp32}, {"B", {1024}, plan::DType::fp32}}));
    const auto refuses = [&](const auto& change, const std::string& why) {
        Schedule bad = good;
        change(bad.heap);
        EXPECT_NE(heap_objection(bad).find(why), std::string::npos) << heap_objection(bad);
    };
    refuses([](Heap& heap) { heap.tensors[1] = heap.tensors[0]; }, "overlap");
    refuses([](Heap& heap) { heap.control = heap.tensors[1]; }, "overlap");
    refuses([](Heap& heap) { heap.bytes -= 4; }, "overlap others, or the end");
    refuses([](Heap& heap) { heap.tensors.pop_back(); }, "1 tensors have a place in the heap, of 2");
    refuses([](Heap& heap) { heap.tensors[1] += 4; }, "B does not lie at a multiple of 1024");
    refuses([](Heap& heap) { heap.control += 4; }, "control block does not lie");
    refuses([](Heap& heap) { heap.control_words = 8; }, "too small");
    refuses([](Heap& heap) { heap.alignment = 512; }, "multiples of 512");
}

}  // namespace
}  // namespace syncopate::fuse

#include "fuse/passes/memory_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace syncopate::fuse {
namespace {

using plan::Region;

/// The ops of the entries that share an element with `box`, as the index visits them.
std::vector<NodeId> found(const MemoryIndex& index, std::int32_t tensor, const Region& box) {
    std::vector<NodeId> ops;
    index.any_overlap(tensor, box, [&](const MemoryIndex::Entry& entry) {
        ops.push_back(entry.op);
        return false;
    });
    return ops;
}

TEST(MemoryIndexTest, FindsWhatGoingThroughAllFinds) {
    std::mt19937 random(7);
    const auto below = [&](std::int64_t limit) {
        return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random);
    };
    const auto any_box = [&](std::int32_t tensor) {  // some are empty, some as long as the tensor
        Region box;
        for (std::int32_t axis = 0; axis <= tensor; ++axis) {
            const std::int64_t begin = below(4) == 0 ? 0 : below(60);
            box.push_back({begin, begin + (below(8) == 0 ? 60 : below(9))});
        }
        return box;
    };
    for (int round = 0; round < 40; ++round) {
        std::vector<Region> boxes;
        std::vector<std::int32_t> tensors;
        for (std::int64_t count = below(40); count > 0; --count) {
            tensors.push_back(static_cast<std::int32_t>(below(3)));
            boxes.push_back(any_box(tensors.back()));
        }
        std::vector<MemoryIndex::Entry> entries;
        for (std::size_t i = 0; i < boxes.size(); ++i)
            entries.push_back({tensors[i], static_cast<NodeId>(i), &boxes[i]});
        const MemoryIndex index(entries);
        for (int query = 0; query < 40; ++query) {
            const auto tensor = static_cast<std::int32_t>(below(4));  // the last one has nothing
            const Region box = any_box(tensor);
            std::vector<NodeId> expected;
            for (const MemoryIndex::Entry& entry : entries) {
                if (entry.tensor == tensor && overlaps(*entry.region, box)) expected.push_back(entry.op);
            }
            std::vector<NodeId> ops = found(index, tensor, box);
            std::ranges::sort(ops);
            ASSERT_EQ(ops, expected);
            ASSERT_EQ(index.any_overlap({tensor, box}), !expected.empty());
        }
    }
}

TEST(MemoryIndexTest, VisitsInTheOrderOfBeginsAlongTheAxisThatTellsBoxesApartAndEqualsAsGiven) {
    const Region late{{0, 8}, {6, 8}}, early{{0, 8}, {0, 2}}, whole{{0, 8}, {0, 8}};
    const MemoryIndex index({{0, 1, &late}, {0, 2, &whole}, {0, 3, &early}});
    EXPECT_EQ(found(index, 0, whole), (std::vector<NodeId>{2, 3, 1}));
    EXPECT_EQ(found(index, 0, {{0, 8}, {2, 6}}), (std::vector<NodeId>{2}));
}

TEST(MemoryIndexTest, StopsWhereVisitSaysSo) {
    const Region box{{0, 4}};
    const MemoryIndex index({{0, 1, &box}, {0, 2, &box}});
    int visited = 0;
    EXPECT_TRUE(index.any_overlap(0, box, [&](const auto&) { return ++visited == 1; }));
    EXPECT_EQ(visited, 1);
}

TEST(MemoryIndexTest, TakesAScalarForABoxOfOneElement) {
    const Region scalar;
    const MemoryIndex index({{5, 1, &scalar}});
    EXPECT_TRUE(index.any_overlap({5, scalar}));
    EXPECT_FALSE(index.any_overlap({4, scalar}));
    EXPECT_FALSE(MemoryIndex().any_overlap({5, scalar}));
}

}  // namespace
}  // namespace syncopate::fuse

// The list that boxes are made of: it behaves as a std::vector does, within the object and beyond it.
#include "syncopate/plan/model/short_list.hpp"

#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace syncopate::plan {
namespace {

using List = ShortList<int, 4>;

std::vector<int> items(const List& list) { return {list.begin(), list.end()}; }

List counted(int count) {
    List made;
    for (int i = 0; i < count; ++i) made.push_back(i);
    return made;
}

TEST(ShortList, HoldsFewElementsAndMany) {
    for (const int count : {0, 1, 4, 5, 17}) {
        std::vector<int> expected;
        for (int i = 0; i < count; ++i) expected.push_back(i);
        EXPECT_EQ(items(counted(count)), expected);
    }
}

TEST(ShortList, CopiesAreTheirOwn) {
    for (const int count : {3, 9}) {
        const List original = counted(count);
        List copy = original;
        EXPECT_EQ(copy, original);
        copy[0] = 7;
        copy.push_back(8);
        EXPECT_EQ(items(original), items(counted(count)));
        EXPECT_EQ(copy[0], 7);
        EXPECT_EQ(copy.back(), 8);
        List& itself = copy;
        copy = itself;
        EXPECT_EQ(copy.size(), static_cast<std::size_t>(count) + 1);
    }
}

TEST(ShortList, IsEmptyAfterItHasBeenMoved) {
    for (const int count : {3, 9}) {
        List from = counted(count);
        List to = std::move(from);
        EXPECT_EQ(items(to), items(counted(count)));
        EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move): what it promises
        from.push_back(5);
        to = std::move(from);
        EXPECT_EQ(items(to), std::vector<int>{5});
    }
}

TEST(ShortList, FollowsAVectorThroughRandomChanges) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        List list;
        std::vector<int> vector;
        for (int i = 0; i < 40; ++i) {
            const auto size = static_cast<std::size_t>(random() % 12);
            switch (random() % 9) {
                case 0: list.push_back(i), vector.push_back(i); break;
                case 1:
                    if (!vector.empty()) list.pop_back(), vector.pop_back();
                    break;
                case 2: list.resize(size, i), vector.resize(size, i); break;
                case 3: list.assign(size, i), vector.assign(size, i); break;
                case 4: {
                    const auto at = static_cast<std::ptrdiff_t>(random() % (vector.size() + 1));
                    const std::vector<int> more{i, i + 1, i + 2};
                    EXPECT_EQ(*list.insert(list.begin() + at, more.begin(), more.end()), i);
                    vector.insert(vector.begin() + at, more.begin(), more.end());
                    break;
                }
                case 5: {
                    auto first = static_cast<std::ptrdiff_t>(random() % (vector.size() + 1));
                    auto last = static_cast<std::ptrdiff_t>(random() % (vector.size() + 1));
                    if (first > last) std::swap(first, last);
                    EXPECT_EQ(list.erase(list.begin() + first, list.begin() + last) - list.begin(), first);
                    vector.erase(vector.begin() + first, vector.begin() + last);
                    break;
                }
                case 6: {
                    const auto is_odd = [](int item) { return item % 2 != 0; };
                    erase_if(list, is_odd);
                    std::erase_if(vector, is_odd);
                    break;
                }
                case 7: list = vector; break;
                default: list = List(vector.begin(), vector.end());
            }
            ASSERT_EQ(items(list), vector);
        }
    }
}

}  // namespace
}  // namespace syncopate::plan

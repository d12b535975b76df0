// Covering programs by lines: each is run once, whatever the lines have in common, and by few of them.
#include "kernel/triton/footprints/cover.hpp"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace syncopate::kernel::triton::test {
namespace {

struct Covered {
    std::vector<int> runs;  ///< of each program
    int lines = 0;
    int alone = 0;
};

/// Covers `count` programs, of which a line may be run where its first, stride and count say so.
template <typename Fits>
Covered covered(std::int64_t count, const Fits& fits) {
    Covered made;
    made.runs.resize(static_cast<std::size_t>(count));
    Cover cover(
        [&](std::int64_t first, std::int64_t stride, std::int64_t length, LineHint& hint) {
            if (!fits(first, stride, length, hint)) return false;
            ++made.lines;
            for (std::int64_t i = 0; i < length; ++i)
                ++made.runs[static_cast<std::size_t>(first + i * stride)];
            return true;
        },
        [&](std::int64_t program) -> Status {
            ++made.alone;
            ++made.runs[static_cast<std::size_t>(program)];
            return Done{};
        });
    EXPECT_TRUE(cover.all(count).ok());
    return made;
}

void expect_each_once(const Covered& made) {
    for (std::size_t i = 0; i < made.runs.size(); ++i) EXPECT_EQ(made.runs[i], 1) << "program " << i;
}

TEST(Cover, RunsRowsOfARowMajorOrder) {
    // Programs of one row of 100 have a common form.
    const Covered made =
        covered(930, [](std::int64_t first, std::int64_t stride, std::int64_t count, LineHint& hint) {
            hint.fewer = (100 - first % 100 + stride - 1) / stride;
            hint.every = 100 / std::gcd(stride, std::int64_t{100});
            return count <= hint.fewer;
        });
    expect_each_once(made);
    EXPECT_EQ(made.lines, 10);
    EXPECT_EQ(made.alone, 0);
}

TEST(Cover, RunsEveryNthWhereNeighboursDiffer) {
    // Every 8th program does.
    const Covered made = covered(803, [](std::int64_t, std::int64_t stride, std::int64_t, LineHint& hint) {
        hint.fewer = 1;
        hint.every = 8 / std::gcd(stride, std::int64_t{8});
        return stride % 8 == 0;
    });
    expect_each_once(made);
    EXPECT_LE(made.lines, 9);
    EXPECT_LE(made.alone, 3);
}

TEST(Cover, RunsAloneWhatNoLineHolds) {
    const Covered made = covered(50, [](auto, auto, auto, LineHint&) { return false; });
    expect_each_once(made);
    EXPECT_EQ(made.alone, 50);
    // Some programs in the middle are like no other.
    const Covered some =
        covered(60, [](std::int64_t first, std::int64_t stride, std::int64_t count, LineHint& hint) {
            for (std::int64_t i = 0; i < count; ++i) {
                if (first + i * stride != 20 && first + i * stride != 41) continue;
                hint.fewer = i;
                return false;
            }
            return true;
        });
    expect_each_once(some);
    EXPECT_EQ(some.alone, 2);
}

TEST(Cover, EndsAtTheFirstFailure) {
    int alone = 0;
    Cover cover([](auto, auto, auto, LineHint&) { return false; },
                [&](std::int64_t program) -> Status {
                    ++alone;
                    return program == 3 ? Status(Error{"no"}) : Status(Done{});
                });
    EXPECT_FALSE(cover.all(10).ok());
    EXPECT_EQ(alone, 4);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test

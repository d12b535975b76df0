// Which way a chain keeps after a measurement.
#include "syncopate/sync/way.hpp"

#include <gtest/gtest.h>

namespace syncopate::sync {
namespace {

TEST(Way, IsTileByTileWhereThatWinsMostRoundsByMoreThanClocksDo) {
    EXPECT_EQ(faster({{90, 91, 92, 101}, {100, 100, 100, 100}}), Way::tiles);  // three rounds of four
    EXPECT_EQ(faster({{90, 91, 101, 101}, {100, 100, 100, 100}}), Way::stream);
    EXPECT_EQ(faster({{99.5, 99.5, 99.5}, {100, 100, 100}}), Way::stream);  // by less than 1 %
    EXPECT_EQ(faster({{98.9, 98.9, 98.9}, {100, 100, 100}}), Way::tiles);
    EXPECT_EQ(faster({{120, 120, 120}, {100, 100, 100}}), Way::stream);
}

TEST(Way, IsStreamOrderWhereNothingWasMeasured) {
    EXPECT_EQ(faster({}), Way::stream);
    EXPECT_EQ(faster({{1, 2}, {}}), Way::stream);
}

}  // namespace
}  // namespace syncopate::sync

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

TEST(Way, IsTheFastestOfThoseThatWin) {
    const std::vector<double> stream(4, 10.0);
    EXPECT_EQ(fastest({{Way::tiles, {9, 9, 9}}, {Way::programmatic, {8, 8, 8}}, {Way::stream, stream}}),
              Way::programmatic);
    EXPECT_EQ(fastest({{Way::tiles, {9, 9, 9}}, {Way::programmatic, {11, 11, 11}}, {Way::stream, stream}}),
              Way::tiles);
    EXPECT_EQ(fastest({{Way::tiles, {9.95, 9.95}}, {Way::programmatic, {9.97, 9.97}}, {Way::stream, stream}}),
              Way::programmatic)
        << "tile by tile wins by too little";
    EXPECT_EQ(fastest({{Way::programmatic, {9.97, 9.97, 10.1, 10.1}}, {Way::stream, stream}}), Way::stream);
    EXPECT_EQ(fastest({{Way::tiles, {9, 9}}}), Way::stream) << "stream order was not measured";
}

TEST(Way, HasTheNameThatPythonGivesIt) {
    EXPECT_EQ(name_of(Way::programmatic), "programmatic");
    EXPECT_EQ(name_of(Way::stream), "stream");
}

}  // namespace
}  // namespace syncopate::sync

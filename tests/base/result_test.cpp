#include "syncopate/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace syncopate {
namespace {

TEST(Location, OfNothingIsEmpty) { EXPECT_EQ(Location{}.to_string(), ""); }

TEST(Location, NamesFileLineAndColumn) {
    EXPECT_EQ((Location{.file = "kernel.py", .line = 12, .column = 5}).to_string(), "kernel.py:12:5");
    EXPECT_EQ((Location{.file = "kernel.py", .line = 12}).to_string(), "kernel.py:12");
    EXPECT_EQ((Location{.file = "-"}).to_string(), "-");
}

TEST(Location, WithoutAFileNamesTheLine) {
    EXPECT_EQ((Location{.line = 3, .column = 1}).to_string(), "line 3:1");
}

TEST(Location, NamesRankAndOp) {
    EXPECT_EQ((Location{.rank = 3, .op = 0}).to_string(), "rank 3 op 0");
    EXPECT_EQ((Location{.rank = 3}).to_string(), "rank 3");
    EXPECT_EQ((Location{.file = "plan.json", .rank = 1, .op = 7}).to_string(), "plan.json: rank 1 op 7");
}

TEST(Error, PutsTheLocationBeforeTheMessage) {
    EXPECT_EQ((Error{"no such tensor", {.rank = 0, .op = 2}}).to_string(), "rank 0 op 2: no such tensor");
    EXPECT_EQ((Error{"no such tensor"}).to_string(), "no such tensor");
}

TEST(Error, IsAboutTheInputUnlessSaidOtherwise) { EXPECT_EQ(Error{}.error_class, ErrorClass::input); }

TEST(Result, HoldsAValue) {
    const Result<int> result = 7;
    ASSERT_TRUE(result);
    EXPECT_EQ(*result, 7);
}

TEST(Result, HoldsAnError) {
    const Result<int> result = Error{"too small"};
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "too small");
}

TEST(Result, MovesItsValueOut) {
    Result<std::unique_ptr<std::string>> result = std::make_unique<std::string>("chunk");
    const std::unique_ptr<std::string> taken = std::move(result).value();
    EXPECT_EQ(*taken, "chunk");
}

TEST(Status, IsDoneOrAnError) {
    EXPECT_TRUE(Status{Done{}});
    EXPECT_FALSE(Status{Error{"not done"}});
}

}  // namespace
}  // namespace syncopate

#include "syncopate/nesting.hpp"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(Nesting, CountsWhatIsOpenAtOnce) {
    EXPECT_EQ(json_nesting("1"), 0u);
    EXPECT_EQ(json_nesting("[[], {\"a\": [1]}, []]"), 3u);
    EXPECT_EQ(json_nesting("[[[["), 4u);
    EXPECT_EQ(json_nesting("]]]["), 1u);
}

TEST(Nesting, BracketsInStringsDoNotCount) {
    EXPECT_EQ(json_nesting(R"(["[[[\"[[", 1])"), 1u);
    EXPECT_EQ(json_nesting("\"[["), 0u);
    EXPECT_EQ(json_nesting("\"\\"), 0u);
}

}  // namespace
}  // namespace syncopate

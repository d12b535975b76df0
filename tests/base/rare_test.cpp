#include "syncopate/rare.hpp"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace syncopate {
namespace {

using Text = Rare<std::string>;

TEST(Rare, IsItsTypesDefaultUntilItIsSet) {
    Text text;
    EXPECT_TRUE(text->empty());
    EXPECT_EQ(text, Text(std::string()));
    text = std::string("set");
    EXPECT_EQ(*text, "set");
    text = std::string();
    EXPECT_EQ(text, Text());
    EXPECT_EQ(sizeof(text), sizeof(void*));
}

TEST(Rare, CopiesAreTheirOwn) {
    Text text(std::string("one"));
    Text copy = text;
    EXPECT_EQ(copy, text);
    text = std::string("two");
    EXPECT_EQ(*copy, "one");
    Text& itself = copy;
    copy = itself;
    EXPECT_EQ(*copy, "one");
    copy = std::move(text);
    EXPECT_EQ(*copy, "two");
    EXPECT_NE(copy, Text());
}

}  // namespace
}  // namespace syncopate

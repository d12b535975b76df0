#include "syncopate/names.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(Escaped, ShowsWhatATerminalWouldActOnAsItsBytes) {
    EXPECT_EQ(escaped("a b"), "a b");
    EXPECT_EQ(escaped("a\n\x7f\xc3"), "a\\x0a\\x7f\\xc3");
    EXPECT_EQ(escaped("\xc2\x9b"
                      "31m"),
              "\\xc2\\x9b31m");                             // C1: a terminal's escape
    EXPECT_EQ(escaped("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
}

TEST(Escaped, LeavesNamesInAnyScriptAsTheyAre) { EXPECT_EQ(escaped("é 全归约 🙂"), "é 全归约 🙂"); }

TEST(Escaped, CutsBetweenCharacters) {
    EXPECT_EQ(escaped("abcd", 3), "abc…");
    EXPECT_EQ(escaped("abcd", 4), "abcd");
    EXPECT_EQ(escaped("a全b", 3), "a…");
    EXPECT_EQ(escaped("a全b", 4), "a全…");
}

TEST(DidYouMean, NamesWhatIsClose) {
    const std::vector<std::string> known{"after", "before"};
    EXPECT_EQ(did_you_mean("aftr", known), "; did you mean \"after\"?");
    EXPECT_EQ(did_you_mean("unlike", known), "");
    EXPECT_EQ(did_you_mean(std::string(1000, 'a'), known), "");
    EXPECT_EQ(did_you_mean("befroe", known), "; did you mean \"before\"?");
}

TEST(DidYouMean, TakesCaseForTheSmallestDifference) {
    const std::vector<std::string> known{"M", "N", "a_ptr", "w_ptr"};
    EXPECT_EQ(did_you_mean("n", known), "; did you mean \"N\"?");
    EXPECT_EQ(did_you_mean("W_PTR", known), "; did you mean \"w_ptr\"?");
    EXPECT_EQ(did_you_mean("w_prt", known), "; did you mean \"w_ptr\"?");
}

TEST(DidYouMean, NamesNothingThatHasNoCharacterInCommon) {
    EXPECT_EQ(did_you_mean("q", std::vector<std::string>{"M", "N"}), "");
    EXPECT_EQ(did_you_mean("xy", std::vector<std::string>{"M", "ab"}), "");
}

TEST(DidYouMean, FindsTheNameThatBeginsWithTheWord) {
    EXPECT_EQ(did_you_mean("w", std::vector<std::string>{"M", "w_ptr", "w_scale"}),
              "; did you mean \"w_ptr\"?");
}

TEST(EditDistance, CountsAnExchangeOfNeighboursOnce) {
    EXPECT_EQ(edit_distance("ptr", "prt"), 1U);
    EXPECT_EQ(edit_distance("abc", "cab"), 2U);
    EXPECT_EQ(edit_distance("", "abc"), 3U);
}

}  // namespace
}  // namespace syncopate

#include "syncopate/names.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(Escaped, ShowsAnyBytesAsPlainAscii) {
    EXPECT_EQ(escaped("a b"), "a b");
    EXPECT_EQ(escaped("a\n\x7f\xc3"), "a\\x0a\\x7f\\xc3");
    EXPECT_EQ(escaped("abcd", 3), "abc…");
}

TEST(DidYouMean, NamesWhatIsClose) {
    const std::vector<std::string> known{"after", "before"};
    EXPECT_EQ(did_you_mean("aftr", known), "; did you mean \"after\"?");
    EXPECT_EQ(did_you_mean("unlike", known), "");
    EXPECT_EQ(did_you_mean(std::string(1000, 'a'), known), "");
}

}  // namespace
}  // namespace syncopate

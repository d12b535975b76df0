#include "syncopate/json_text.hpp"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(JsonQuoted, EscapesWhatJsonEscapesAndReplacesWhatIsNoUtf8) {
    EXPECT_EQ(json_quoted("a\"\n\x01"), R"("a\"\n\u0001")");
    EXPECT_EQ(json_quoted("名\xff"), "\"名\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace syncopate

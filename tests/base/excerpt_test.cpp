#include "syncopate/excerpt.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace syncopate {
namespace {

/// The excerpt about `part` of `text`.
std::string about(const std::string& text, const std::string& part) {
    const std::size_t begin = text.find(part);
    EXPECT_NE(begin, std::string::npos);
    return excerpt(text, begin, begin + part.size());
}

TEST(Excerpt, ShowsTheLineAndUnderlinesTheRange) {
    EXPECT_EQ(about("a = 1\nb = load(x)\nc = 2\n", "load(x)"), "b = load(x)\n    ^~~~~~~");
    EXPECT_EQ(about("b", "b"), "b\n^");
}

TEST(Excerpt, OfARangeOverSeveralLinesShowsTheFirst) {
    EXPECT_EQ(about("x = f(a,  \n      b)\n", "f(a,  \n      b)"), "x = f(a,  \n    ^~~~");
}

TEST(Excerpt, RepeatsTabsBeforeTheCaret) {
    EXPECT_EQ(about("\tif x:\t\ty = bad\n", "bad"), "\tif x:\t\ty = bad\n\t     \t\t    ^~~");
    EXPECT_EQ(about("f(a,\tb)\n", "a,\tb"), "f(a,\tb)\n  ^~\t~");
}

TEST(Excerpt, CountsTheColumnsThatCharactersFill) {
    EXPECT_EQ(about("名前 = bad\n", "bad"), "名前 = bad\n       ^~~");
    EXPECT_EQ(about("é = '日本'\n", "'日本'"), "é = '日本'\n    ^~~~~~");
    EXPECT_EQ(about("e\xcc\x81 = bad\n", "bad"), "e\xcc\x81 = bad\n    ^~~");  // a combining accent
}

TEST(Excerpt, ShowsNoByteThatATerminalWouldActOn) {
    EXPECT_EQ(about("a\x1b[31m\x07 = bad\xff\n", "bad"), "a?[31m? = bad?\n          ^~~");
    EXPECT_EQ(about("a\xe2\x80\xae = bad\r\n", "bad"), "a? = bad\n     ^~~");  // right-to-left override
}

TEST(Excerpt, CutsLongLinesAroundTheCaret) {
    const std::string line = std::string(500, 'a') + "bad" + std::string(500, 'b');
    const std::string shown = about(line, "bad");
    EXPECT_EQ(shown, "…" + std::string(60, 'a') + "bad" + std::string(97, 'b') + "…\n" +
                         std::string(61, ' ') + "^~~");
    const std::string at_start = excerpt(line, 0, 1);
    EXPECT_EQ(at_start, std::string(160, 'a') + "…\n^");
}

TEST(Excerpt, OfTheEndOfATextStandsBehindIt) {
    EXPECT_EQ(excerpt("ab", 2, 2), "ab\n  ^");
    EXPECT_EQ(excerpt("ab\n", 3, 3), "\n^");
    EXPECT_EQ(excerpt("", 0, 0), "\n^");
    EXPECT_EQ(excerpt("ab", 90, 95), "ab\n  ^");
}

TEST(Excerpt, HoldsForAnyBytes) {
    std::mt19937 random(3);
    for (int round = 0; round < 2000; ++round) {
        std::string text(random() % 300, ' ');
        for (char& c : text)
            c = static_cast<char>(random() % 4 == 0 ? random() % 256 : "\n\t ab\xe6"[random() % 6]);
        const std::size_t begin = random() % (text.size() + 2);
        const std::string shown = excerpt(text, begin, begin + random() % 40);
        EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 1);
        EXPECT_EQ(std::count(shown.begin(), shown.end(), '^') > 0, true);
        EXPECT_GE(column_of(text, begin), 1);
        EXPECT_EQ(printable(text).find('\n'), std::string::npos);
    }
}

TEST(Column, CountsCharactersFromOne) {
    EXPECT_EQ(column_of("abc", 0), 1);
    EXPECT_EQ(column_of("x\n\tab", 4), 3);
    EXPECT_EQ(column_of("名前x", 6), 3);
}

TEST(Printable, IsOneShortLine) {
    EXPECT_EQ(printable("  a +\n\t b  "), "a + b");
    EXPECT_EQ(printable("名前名前", 3), "名前名…");
    EXPECT_EQ(printable("abc", 3), "abc");
    EXPECT_EQ(printable("a\x1b"), "a?");
}

}  // namespace
}  // namespace syncopate

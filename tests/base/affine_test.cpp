#include "syncopate/affine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace syncopate::affine {
namespace {

/// x and y are coordinates, N is 100, B is 16.
Names names() {
    return {{"x", Form::coordinate(0)},
            {"y", Form::coordinate(1)},
            {"N", Form::number(100)},
            {"B", Form::number(16)}};
}

Form form_of(const std::string& text) {
    const auto expression = Expression::parse(text, "it");
    EXPECT_TRUE(expression.ok()) << (expression.ok() ? "" : expression.error().message);
    if (!expression) return {};
    const auto form = expression->bind(names());
    EXPECT_TRUE(form.ok()) << (form.ok() ? "" : form.error().message);
    return form ? *form : Form{};
}

std::string error_of(const std::string& text) {
    const auto expression = Expression::parse(text, "it");
    if (!expression) return expression.error().message;
    const auto form = expression->bind(names());
    EXPECT_FALSE(form.ok()) << text;
    return form ? "" : form.error().message;
}

TEST(Affine, NumbersAreWorkedOutAsPythonDoes) {
    EXPECT_EQ(form_of("2 + 3*4 - 5"), Form::number(9));
    EXPECT_EQ(form_of("-(7) // 2"), Form::number(-4));
    EXPECT_EQ(form_of("-7 % 4"), Form::number(1));
    EXPECT_EQ(form_of("cdiv(N, B)"), Form::number(7));
    EXPECT_EQ(form_of("min(N, B, 20) + max(1, 2)"), Form::number(18));
    EXPECT_EQ(form_of("20 - 5 - 5"), Form::number(10)) << "from left to right";
}

TEST(Affine, CoordinatesKeepTheirCoefficients) {
    EXPECT_EQ(form_of("(x + 1)*B - 2*y"), (Form{16, {16, -2}}));
    EXPECT_EQ(form_of("B*x - x*16"), Form::number(0)) << "what cancels is gone";
    EXPECT_EQ(form_of("(6*x + 13) // 3"), (Form{4, {2}}));
    EXPECT_EQ(form_of("cdiv(6*x + 13, 3)"), (Form{5, {2}}));
    EXPECT_EQ(form_of("max(x, x + 1)"), (Form{1, {1}}));
    const std::array<std::int64_t, 2> at{3, 5};
    EXPECT_EQ(form_of("128*y + x - 1").at(at), 642);
}

TEST(Affine, WhatIsNotAffineIsRefusedWithItsColumn) {
    EXPECT_EQ(error_of("1 + x*y"), "it, column 5: `x*y` is not affine: it multiplies coordinates");
    EXPECT_EQ(error_of("x // 2"), "it, column 1: `x // 2` is not affine: it divides coordinates");
    EXPECT_EQ(error_of("x % 2"), "it, column 1: `x % 2` is not affine: it divides coordinates");
    EXPECT_EQ(error_of("min(x, N)"),
              "it, column 1: `min(x, N)` is not affine: which one it is follows from coordinates");
    EXPECT_EQ(error_of("N // (B - 16)"), "it, column 1: `(B - 16)` must be a number above 0 to divide by");
    EXPECT_EQ(error_of("N // x"), "it, column 1: `x` must be a number above 0 to divide by");
}

TEST(Affine, NamesWithoutAValueAreNamed) {
    EXPECT_EQ(error_of("2*BB"), "it, column 3: `BB` has no value here; did you mean \"B\"?");
    EXPECT_EQ(error_of("2*zzzz"), "it, column 3: `zzzz` has no value here");
}

TEST(Affine, WhatIsNoExpressionIsRefusedWithItsColumn) {
    EXPECT_EQ(error_of(""), "it, column 1: expected a number, a name or `(`, found the end");
    EXPECT_EQ(error_of("(x + 1"), "it, column 7: expected `)`, found the end");
    EXPECT_EQ(error_of("x ** 2"), "it, column 3: expected an operator or the end, found `*`");
    EXPECT_EQ(error_of("x / 2"), "it, column 3: expected an operator or the end, found `/`");
    EXPECT_EQ(error_of("x 2"), "it, column 3: expected an operator or the end, found `2`");
    EXPECT_EQ(error_of("ceil(x)"), "it, column 1: there is no function ceil; there are cdiv, min and max");
    EXPECT_EQ(error_of("cdiv(x)"), "it, column 1: cdiv takes two values");
    EXPECT_EQ(error_of("min(x)"), "it, column 1: min takes two values or more");
    EXPECT_EQ(error_of("x + \x01"), "it, column 5: expected a number, a name or `(`, found `\\x01`");
}

TEST(Affine, ElementsOfKnownListsAreNumbers) {
    const Lists lists{{"cuts", {0, 137, 2178}}, {"none", {}}};
    const auto found = [&](const std::string& text) {
        const auto expression = Expression::parse(text, "it");
        EXPECT_TRUE(expression.ok()) << (expression.ok() ? "" : expression.error().message);
        const auto form = expression->bind(names(), lists);
        return form ? std::to_string(form->constant) : form.error().message;
    };
    EXPECT_EQ(found("cuts[1] + 1"), "138");
    EXPECT_EQ(found("cuts[ (N - 98) // 1 ] // B"), "136");
    EXPECT_EQ(found("cuts[cuts[0]]"), "0");
    EXPECT_EQ(found("cuts[3]"), "it, column 1: `cuts[3]` is element 3 of 3");
    EXPECT_EQ(found("cuts[-1]"), "it, column 1: `cuts[-1]` is element -1 of 3");
    EXPECT_EQ(found("cuts[x]"),
              "it, column 1: `cuts[x]` is not affine: which element it is follows from coordinates");
    EXPECT_EQ(found("2 * cut[1]"), "it, column 5: the elements of `cut` are not known here");
    EXPECT_EQ(found("none[0]"), "it, column 1: the elements of `none` are not known here");
    EXPECT_EQ(error_of("cuts[1"), "it, column 7: expected `]`, found the end");
}

TEST(Affine, AnErrorShowsTheText) {
    const auto expression = Expression::parse("BM*(m + ", "the count of tile axis m");
    ASSERT_FALSE(expression.ok());
    EXPECT_EQ(expression.error().excerpt, "BM*(m + \n        ^");
}

TEST(Affine, LargeNumbersAreRefusedAndDeepTextsEnd) {
    EXPECT_EQ(error_of("99999999999999999999"), "it, column 1: the number is too large");
    EXPECT_EQ(error_of("2305843009213693952 * 2"), "it, column 1: `2305843009213693952 * 2` is too large");
    EXPECT_NE(error_of(std::string(100000, '(')).find("nested more than 64 deep"), std::string::npos);
    const std::vector<std::int64_t> far{std::int64_t{1} << 60};
    EXPECT_EQ((Form{0, {1000}}).at(far), std::int64_t{1} << 61) << "it stays at the limit";
}

TEST(Affine, RangesHaveTwoEndsOrLeaveThemOpen) {
    const auto bound = [](const std::string& text) {
        const auto range = Range::parse(text, "it");
        EXPECT_TRUE(range.ok()) << text;
        const auto made = range->bind(names(), 300);
        EXPECT_TRUE(made.ok()) << text;
        return std::pair(made->begin, made->end);
    };
    EXPECT_EQ(bound("x*B : (x+1)*B"), std::pair(Form{0, {16}}, Form{16, {16}}));
    EXPECT_EQ(bound("128*y:128*y+128"), std::pair(Form{0, {0, 128}}, Form{128, {0, 128}}));
    EXPECT_EQ(bound(":"), std::pair(Form::number(0), Form::number(300)));
    EXPECT_EQ(bound("N:"), std::pair(Form::number(100), Form::number(300)));
    EXPECT_EQ(bound(" : N "), std::pair(Form::number(0), Form::number(100)));
    EXPECT_EQ(bound("x + 2"), std::pair(Form{2, {1}}, Form{3, {1}})) << "one element";
}

TEST(Affine, RangesThatAreNoneAreRefused) {
    const auto error = [](const std::string& text) {
        const auto range = Range::parse(text, "axis 0");
        EXPECT_FALSE(range.ok()) << text;
        return range ? "" : range.error().message;
    };
    EXPECT_EQ(error("0:1:2"), "axis 0, column 4: expected an operator or the end, found `:`");
    EXPECT_EQ(error("x y"), "axis 0, column 3: expected an operator, `:` or the end, found `y`");
    EXPECT_EQ(error("0:*"), "axis 0, column 3: expected a number, a name or `(`, found `*`");
}

}  // namespace
}  // namespace syncopate::affine

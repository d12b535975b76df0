// Lines, blocks and written-out arguments of the text that is rewritten, whatever its line ends.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "emit/triton/edits.hpp"
#include "emit/triton/source_text.hpp"

namespace syncopate::emit::triton {
namespace {

/// A kernel of which only the text counts: all of it is the function.
kernel::Kernel of(std::string source) {
    kernel::Kernel kernel;
    kernel.file = "k.py";
    const auto text = std::make_shared<kernel::triton::Text>();
    text->source = std::move(source);
    text->sites.function = {0, static_cast<std::uint32_t>(text->source.size()), 1};
    kernel.origin = text;
    return kernel;
}

Span find(const kernel::Kernel& kernel, std::string_view what) {
    const std::size_t at = kernel::triton::text_of(kernel).source.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + what.size())};
}

TEST(SourceText, FindsArgumentsByKeywordOrPositionAndListsThatAreWrittenOut) {
    const kernel::Kernel kernel = of("def f(d, r):\n    d.store([r, 2 * r], value=d)\n    d.load(r)\n");
    const SourceText text(kernel);
    const Span store = find(kernel, "d.store([r, 2 * r], value=d)");
    EXPECT_EQ(text.of(text.argument_of(store, "value", 1)), "d");
    const List* offsets = text.find_list(text.argument_of(store, "offsets", 0));
    ASSERT_NE(offsets, nullptr);
    EXPECT_EQ(text.of(offsets->items.at(1)), "2 * r");
    const Span load = find(kernel, "d.load(r)");
    EXPECT_EQ(text.find_list(text.argument_of(load, "offsets", 0)), nullptr) << "a variable";
    EXPECT_EQ(text.argument_of(load, "value", 1).end, 0U);
    EXPECT_EQ(text.find_list(text.argument_of(load, "value", 1)), nullptr);
}

TEST(Edits, AddLinesInOrderAndEndAFileThatEndsInTheMiddleOfALine) {
    for (const std::string end : {"", "\n"}) {
        const kernel::Kernel kernel = of("def f():\n    pass" + end);
        const SourceText text(kernel);
        Edits edits(text);
        const Span pass = find(kernel, "pass");
        edits.add_line_before(pass.begin, "    " + edits.use("sy_tile", 2) + "()");
        edits.add_line_after(pass.end, "    " + edits.use("sy_tile", 1) + "()");
        edits.replace(pass, "...");
        EXPECT_EQ(edits.apply(), "def f():\n    sy_tile_2d()\n    ...\n    sy_tile()" + end);
        EXPECT_EQ(edits.used(), (std::set<std::string>{"sy_tile", "sy_tile_2d"}));
    }
}

TEST(SourceText, NamesTheLineOfAStatementThatSharesIt) {
    const kernel::Kernel kernel = of("def f():\n    a(); b()\n    c()  # alone\n");
    const SourceText text(kernel);
    EXPECT_TRUE(text.check_ends_its_line(find(kernel, "c()").end, "c"));
    const Status status = text.check_ends_its_line(find(kernel, "a()").end, "the call");
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().to_string().find("k.py:2"), std::string::npos) << status.error().to_string();
}

}  // namespace
}  // namespace syncopate::emit::triton

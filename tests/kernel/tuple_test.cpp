// Parameters that are tuples: what a launch gives item by item.
#include "kernel/support.hpp"
#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/evaluate/effort.hpp"

namespace syncopate::kernel::triton::test {
namespace {

const std::string kEach =
    "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
    "    for i in tl.static_range(len(xs)):\n"
    "        tl.store(ys[i] + at, tl.load(xs[i] + at, mask=at < sizes[i][0]), mask=at < sizes[i][0])\n";

Arguments two() {
    return arguments("B=8,sizes[0][0]=20,sizes[1][0]=9",
                     {"xs[0]=20:fp32", "xs[1]=9:fp32", "ys[0]=20:fp32", "ys[1]=9:fp32"});
}

TEST(Tuple, ItemsHaveFootprintsOfTheirOwn) {
    Arguments args = two();
    args.grid = {3, 1, 1};
    const Kernel k = analysed(source("xs, ys, sizes, B: tl.constexpr", kEach), args);
    ASSERT_EQ(k.tiles.size(), 3U);
    EXPECT_EQ(k.tiles[1].reads.at("xs[0]"), (plan::Region{{8, 16}}));
    EXPECT_EQ(k.tiles[1].writes.at("ys[1]"), (plan::Region{{8, 9}}));
    EXPECT_FALSE(k.tiles[2].writes.contains("ys[1]"));
    EXPECT_EQ(k.tiles[2].write_boxes.at("ys[0]"), (std::vector<plan::Region>{{{16, 20}}}));
}

TEST(Tuple, ItemsAreParameters) {
    Arguments args = two();
    args.grid = {3, 1, 1};
    const Kernel k = analysed(source("xs, ys, sizes, B: tl.constexpr", kEach), args);
    std::string names;
    for (const Param& param : k.params) names += param.name + " ";
    EXPECT_EQ(names, "xs[0] xs[1] ys[0] ys[1] sizes[0][0] sizes[1][0] B ");
    ASSERT_NE(k.find_param("xs[1]"), nullptr);
    EXPECT_EQ(k.find_param("xs[1]")->kind, ParamKind::pointer);
    EXPECT_TRUE(k.find_param("xs[1]")->read);
    EXPECT_TRUE(k.find_param("ys[0]")->written);
    EXPECT_EQ(k.find_param("sizes[0][0]")->kind, ParamKind::scalar);
}

TEST(Tuple, TheGridFollowsFromTheLongestItem) {
    EXPECT_EQ(analysed(source("xs, ys, sizes, B: tl.constexpr", kEach), two()).grid[0], 3);
}

TEST(Tuple, ALoopThatIsNotUnrolledTakesAnItemARound) {
    Arguments args = arguments("", {"ys[0]=64:fp32", "ys[1]=64:fp32"});
    args.grid = {1, 1, 1};
    const Kernel k =
        analysed(source("ys", "    for i in range(2):\n        tl.store(ys[i] + i, 1.0)\n"), args);
    ASSERT_EQ(k.tiles.size(), 1U);
    EXPECT_EQ(k.tiles[0].writes.at("ys[0]"), (plan::Region{{0, 1}}));
    EXPECT_EQ(k.tiles[0].writes.at("ys[1]"), (plan::Region{{1, 2}}));
}

TEST(Tuple, DescriptorsMayBeItems) {
    Arguments args = arguments("", {"descs[0]=64x32:fp32@16x16", "y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    const Kernel k =
        analysed(source("descs, y_ptr", "    tl.store(y_ptr, tl.sum(descs[0].load([16, 16])))\n"), args);
    ASSERT_EQ(k.tiles.size(), 1U);
    EXPECT_EQ(k.tiles[0].reads.at("descs[0]"), box(16, 32, 16, 32));
    EXPECT_EQ(k.find_param("descs[0]")->kind, ParamKind::descriptor);
}

TEST(Tuple, ADirectiveStatesTheFootprintOfAnItem) {
    Arguments args = arguments("", {"xs[0]=64:fp32", "xs[1]=64:fp32", "y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    const std::string body =
        "    # @sy.reads xs[1][0:32]\n"
        "    i = tl.load(xs[0])\n    tl.store(y_ptr, tl.load(xs[1] + i.to(tl.int32)))\n";
    const Kernel k = analysed(source("xs, y_ptr", body), args);
    ASSERT_EQ(k.tiles.size(), 1U);
    EXPECT_EQ(k.tiles[0].reads.at("xs[0]"), (plan::Region{{0, 1}}));
    EXPECT_EQ(k.tiles[0].reads.at("xs[1]"), (plan::Region{{0, 32}}));
}

TEST(Tuple, WhatTheLaunchLeavesOutIsNamed) {
    const std::string text = source("xs, y_ptr", "    tl.store(y_ptr, tl.load(xs[0]))\n");
    EXPECT_EQ(
        error_of(text, arguments("", {"xs[1]=64:fp32", "y_ptr=64:fp32"})),
        "kernel.py:6:7: `xs` is given an item 1 but no `xs[0]`: give --args xs[0]=… or --tensor xs[0]=…");
    EXPECT_EQ(error_of(text, arguments("xs=3", {"xs[0]=64:fp32", "y_ptr=64:fp32"})),
              "kernel.py:6:7: parameter `xs` is given both as one and by its items: leave one out");
    EXPECT_EQ(
        error_of(source("x_ptrs, y_ptr", "    tl.store(y_ptr, tl.load(x_ptrs[0]))\n"),
                 arguments("", {"x_ptrs=64:fp32", "y_ptr=64:fp32"})),
        "kernel.py:7:29: `x_ptrs[0]` takes an item of a pointer: if `x_ptrs` is a tuple, give its tensors, "
        "as in --tensor x_ptrs[0]=512x256:bf16");
    EXPECT_EQ(error_of(source("xs, y_ptr", "    # @sy.reads xs[2][0:1]\n    tl.store(y_ptr, 1.0)\n"),
                       arguments("", {"xs[0]=64:fp32", "y_ptr=64:fp32"})),
              "kernel.py:7:7: the launch gives no tensor `xs[2]`: state footprints of those that it gives");
}

TEST(Tuple, NamesThatAreNoItemsAreUnknownParameters) {
    const std::string text = source("xs, y_ptr", "    tl.store(y_ptr, 1.0)\n");
    for (const std::string name :
         {"xs[", "xs[]", "xs[a]", "xs[-1]", "xs[0", "xs[0]x", "xs[0][0][0][0][0]", "zs[0]"}) {
        Arguments args = arguments("", {"y_ptr=64:fp32"});
        args.scalars[name] = std::int64_t{1};
        EXPECT_NE(error_of(text, args).find("has no parameter `" + name + "`"), std::string::npos) << name;
    }
}

TEST(Tuple, MemoryThatIsOneOfTwoCannotBeStatedForOneOfThem) {
    Arguments args = arguments("", {"x_ptr=64:fp32", "z_ptr=64:fp32", "y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    const std::string body =
        "    # @sy.reads x_ptr[:]\n    p = x_ptr\n    if tl.load(y_ptr) > 0:\n        p = z_ptr\n"
        "    tl.store(y_ptr, tl.load(p))\n";
    EXPECT_NE(error_of(source("x_ptr, z_ptr, y_ptr", body), args).find("cannot be known"), std::string::npos);
}

TEST(Effort, AnAnalysisGivesUpWhereItIsTold) {
    const std::string text = source("y_ptr, n", "    tl.store(y_ptr + tl.program_id(0), 1.0)\n");
    Arguments args = arguments("n=64", {"y_ptr=100000:fp32"});
    args.grid = {100000, 1, 1};
    EXPECT_TRUE(analyse(text, "kernel.py", "", args, Effort{}).ok());
    const auto few_steps = analyse(text, "kernel.py", "", args, Effort{.steps = 1000, .steps_a_program = 0});
    ASSERT_FALSE(few_steps.ok());
    EXPECT_NE(few_steps.error().message.find("too many iterations"), std::string::npos);
    const auto one_by_one =
        analyse(text, "kernel.py", "", args, Effort{.steps = 1000, .steps_a_program = 0, .lines = false});
    ASSERT_FALSE(one_by_one.ok());
    EXPECT_NE(one_by_one.error().message.find("; the 100000 programs take more than 1000 steps"),
              std::string::npos)
        << one_by_one.error().message;
    const auto few_boxes = analyse(text, "kernel.py", "", args, Effort{.boxes = 1000});
    ASSERT_FALSE(few_boxes.ok());
    EXPECT_NE(few_boxes.error().message.find("too many iterations"), std::string::npos);
    EXPECT_NE(few_boxes.error().message.find("; the 100000 programs touch more than 1000 boxes"),
              std::string::npos)
        << few_boxes.error().message;
    const auto few_programs = analyse(text, "kernel.py", "", args, Effort{.programs = 1000});
    ASSERT_FALSE(few_programs.ok());
    EXPECT_NE(few_programs.error().message.find("from 1 to 1000 programs"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test

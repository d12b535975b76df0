#include "syncopate/ops/strategy.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "syncopate/ops/attention.hpp"

namespace syncopate::ops {
namespace {

/// Strategies of which each differs from the first in one field.
std::vector<Strategy> one_field_each() {
    std::vector<Strategy> made(1);
    const auto add = [&](auto change) { change(made.emplace_back()); };
    add([](Strategy& s) { s.placement = Placement::unfused; });
    add([](Strategy& s) { s.kernel = ProductKernel::gluon; });
    add([](Strategy& s) { s.tiles = {TileConfig{}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{}, TileConfig{}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.block_m = 64}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.block_n = 64}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.block_k = 128}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.stages = 6}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.warps = 4}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.split_k = 4}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.num_wide = 0}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.group_m = 4}}; });
    add([](Strategy& s) { s.tiles = {TileConfig{.precision = "ieee"}}; });
    add([](Strategy& s) { s.programs = 128; });
    add([](Strategy& s) { s.chunking.rows = 2; });
    add([](Strategy& s) { s.chunking.num_slices = 2; });
    add([](Strategy& s) { s.chunking.slices = {2}; });
    add([](Strategy& s) { s.chunking.slices = {384, 1536}; });
    add([](Strategy& s) { s.chunking.peer_by_peer = true; });
    add([](Strategy& s) { s.split = 1; });
    add([](Strategy& s) { s.split = 2; });
    add([](Strategy& s) { s.split_axis = 1; });
    add([](Strategy& s) { s.pull = true; });
    add([](Strategy& s) { s.stored = 2; });
    add([](Strategy& s) { s.one_step = true; });
    add([](Strategy& s) { s.kernel_sums = true; });
    add([](Strategy& s) { s.together = true; });
    add([](Strategy& s) { s.engine_blocks = 16; });
    for (std::size_t i = 1; i < plan::kNumBackends; ++i)
        add([&](Strategy& s) { s.backend = static_cast<plan::Backend>(i); });
    for (const std::string_view kind : kAttentionKinds) add([&](Strategy& s) { s.kind = kind; });
    add([](Strategy& s) { s.inner = 2; });
    add([](Strategy& s) { s = {.kind = "double_ring", .inner = 2}; });
    add([](Strategy& s) { s.head_parts = 2; });
    add([](Strategy& s) { s.placement = Placement::apart; });
    add([](Strategy& s) {
        s = {.placement = Placement::apart,
             .parts = {{.pull = true}, {.placement = Placement::unfused, .split = 2}}};
    });
    return made;
}

TEST(Strategy, HasANameOfItsOwn) {
    std::set<std::string> names;
    for (const Strategy& strategy : one_field_each()) {
        EXPECT_TRUE(names.insert(name_of(strategy)).second) << name_of(strategy);
    }
}

TEST(Strategy, IsNamedForPeople) {
    EXPECT_EQ(name_of(Strategy{}), "fused");
    EXPECT_EQ(name_of(Strategy{.placement = Placement::unfused}), "unfused");
    EXPECT_EQ(name_of(Strategy{.tiles = {{.block_m = 64, .block_n = 128, .block_k = 128}},
                               .backend = plan::Backend::ldst_dedicated,
                               .engine_blocks = 32}),
              "ldst_dedicated:32/64x128x128s4");
    EXPECT_EQ(
        name_of(Strategy{.placement = Placement::apart,
                         .programs = 132,
                         .parts = {{.kernel_sums = true}, {.placement = Placement::unfused, .split = 1}}}),
        "apart[kernel_sums + unfused]");
}

TEST(Strategy, IsTheSameAfterJson) {
    for (const Strategy& strategy : one_field_each()) {
        const Result<Strategy> again = strategy_from_json(to_json(strategy));
        ASSERT_TRUE(again) << to_json(strategy) << ": " << again.error().to_string();
        EXPECT_EQ(*again, strategy) << to_json(strategy);
    }
}

TEST(Strategy, LeavesTheKernelOpenWhereItNamesNeitherKernelNorTiles) {
    const auto kernel_of = [](const std::string& text) { return strategy_from_json(text).value().kernel; };
    EXPECT_EQ(kernel_of(R"({"split": 2})"), std::nullopt);
    EXPECT_EQ(kernel_of(R"({"kernel": "plain"})"), ProductKernel::plain);
    const std::string tiled = to_json({.tiles = {TileConfig{}}});
    EXPECT_EQ(tiled.find("kernel"), std::string::npos) << tiled;
    EXPECT_EQ(kernel_of(tiled), ProductKernel::plain);
    for (const std::optional<ProductKernel> kernel :
         {std::optional<ProductKernel>(), std::optional(ProductKernel::plain),
          std::optional(ProductKernel::gluon)}) {
        const Strategy strategy{.kernel = kernel, .split = 2};
        EXPECT_EQ(strategy_from_json(to_json(strategy)).value(), strategy) << to_json(strategy);
    }
}

TEST(Strategy, IsRefusedWithThePathOfWhatIsWrong) {
    const auto message = [](const char* text) {
        const Result<Strategy> strategy = strategy_from_json(text, "s.json");
        EXPECT_FALSE(strategy) << text;
        return strategy ? std::string() : strategy.error().to_string();
    };
    EXPECT_NE(message(R"({"placement": "somewhere"})").find("s.json:1:15: placement is \"somewhere\""),
              std::string::npos);
    EXPECT_NE(message(R"({"sums": 2})").find("sums"), std::string::npos);
    EXPECT_NE(message(R"({"tiles": [{"block_m": 0}]})").find("tiles[0]"), std::string::npos);
    EXPECT_NE(message(R"({"split": 0})").find("split is 0"), std::string::npos);
    EXPECT_NE(message(R"({"chunking": {"slices": [0]}})").find("chunking.slices[0]"), std::string::npos);
    EXPECT_NE(message(R"({"kind": "circle"})").find("kind is \"circle\""), std::string::npos);
    EXPECT_NE(message("[]").find("object"), std::string::npos);
    EXPECT_NE(message(R"({"parts": [{"split": 0}]})").find("parts[0].split is 0"), std::string::npos);
    EXPECT_NE(message(R"({"parts": [{"parts": []}]})").find("parts[0].parts are those of one operator"),
              std::string::npos);
    EXPECT_NE(message(R"({"parts": [{}, {}, {}]})").find("parts"), std::string::npos);
}

TEST(Strategy, OfBeforeIsReadWhereItSaysNothingOfWhatWasTakenOutAndElseRefused) {
    const Result<Strategy> read = strategy_from_json(
        R"({"placement": "fused", "pulled": 0, "phases": true, "tile_order": "kernel", "sum_parts": 8, "split": 2})");
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(*read, (Strategy{.kernel = std::nullopt, .split = 2}));
    for (const char* meant : {R"({"pulled": 1})", R"({"sum_parts": 1})", R"({"phases": false})",
                              R"({"tile_order": "columns"})", R"({"placement": "after"})"}) {
        const Result<Strategy> refused = strategy_from_json(meant);
        ASSERT_FALSE(refused) << meant;
        EXPECT_NE(refused.error().message.find("taken out"), std::string::npos) << refused.error().message;
        EXPECT_NE(refused.error().message.find("tune anew"), std::string::npos) << refused.error().message;
    }
}

}  // namespace
}  // namespace syncopate::ops

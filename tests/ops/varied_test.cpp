#include "syncopate/ops/varied.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace syncopate::ops {
namespace {

std::vector<std::string> names(const std::vector<std::string>& texts) {
    std::vector<std::string> made;
    const std::vector<Variation> all = variations(texts).value();
    for (const Variation& one : all) made.push_back(one.name);
    return made;
}

std::string message(const std::vector<std::string>& texts) {
    const auto made = variations(texts);
    return made ? std::string() : made.error().message;
}

TEST(Variations, AreAllCombinations) {
    EXPECT_EQ(names({}), std::vector<std::string>{});
    EXPECT_EQ(names({"split=1,2", "backend=copy_engine,tma_inline"}),
              (std::vector<std::string>{"split=1,backend=copy_engine", "split=1,backend=tma_inline",
                                        "split=2,backend=copy_engine", "split=2,backend=tma_inline"}));
}

TEST(Variations, AreRefusedByTheNameOfWhatIsWrong) {
    EXPECT_EQ(message({"split"}), "--vary split: expected KEY=VALUE,VALUE,…, such as split=1,2,4");
    EXPECT_EQ(message({"split="}), "--vary split=: expected KEY=VALUE,VALUE,…, such as split=1,2,4");
    for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
             {"spilt=1", "did you mean \"split\"?"},
             {"split=1,0", "--vary split=0: "},
             {"split=a", "split is the string \"a\""},
             {"backend=warp", "is \"warp\", not a known backend"},
             {"chunking.row=2", "did you mean \"rows\"?"},
             {"tiles.group=2", "did you mean \"group_m\"?"},
             {"pull.x=1", "pull"},
             {"kernel=triton", "kernel"}}) {
        EXPECT_NE(message({text}).find(why), std::string::npos) << message({text});
    }
}

TEST(Varied, ChangesAMemberOneOfTheChunkingOrOneOfEveryTile) {
    const Strategy usual{.tiles = {TileConfig{}, TileConfig{.block_m = 64}}, .programs = 120};
    const Strategy made = varied(usual, std::vector<Word>{{"split", "4"},
                                                          {"pull", "1"},
                                                          {"one_step", "true"},
                                                          {"chunking.rows", "2"},
                                                          {"chunking.peer_by_peer", "1"},
                                                          {"tiles.group_m", "4"}})
                              .value();
    EXPECT_EQ(made.split, 4);
    EXPECT_TRUE(made.pull && made.one_step && made.chunking.peer_by_peer);
    EXPECT_EQ(made.chunking.rows, 2);
    EXPECT_EQ(made.tiles[0].group_m, 4);
    EXPECT_EQ(made.tiles[1].group_m, 4);
    EXPECT_EQ(made.tiles[1].block_m, 64);
    EXPECT_EQ(made.programs, 120) << "nothing of it follows from these";
}

TEST(Varied, OpensWhatFollowsFromAChangedValue) {
    const Strategy usual{
        .tiles = {TileConfig{}}, .programs = 120, .backend = plan::Backend::copy_engine, .engine_blocks = 8};
    const Strategy same = varied(usual, std::vector<Word>{{"backend", "copy_engine"}}).value();
    EXPECT_EQ(same, usual);
    const Strategy other = varied(usual, std::vector<Word>{{"backend", "tma_dedicated"}}).value();
    EXPECT_FALSE(other.engine_blocks || other.programs);
    const Strategy given =
        varied(usual, std::vector<Word>{{"backend", "tma_dedicated"}, {"engine_blocks", "4"}}).value();
    EXPECT_EQ(given.engine_blocks, 4);
    EXPECT_FALSE(varied(usual, std::vector<Word>{{"engine_blocks", "4"}})->programs);
    EXPECT_FALSE(varied(usual, std::vector<Word>{{"together", "1"}})->programs);
    EXPECT_TRUE(varied(usual, std::vector<Word>{{"kernel", "gluon"}})->tiles.empty());
}

TEST(Varied, IsFusedUnlessItIsAskedForAnotherPlacement) {
    const Strategy pair{.placement = Placement::unfused};
    EXPECT_EQ(varied(pair, {})->placement, Placement::fused);
    EXPECT_EQ(varied(pair, std::vector<Word>{{"unfused", "true"}})->placement, Placement::unfused);
    EXPECT_EQ(varied(pair, std::vector<Word>{{"apart", "1"}})->placement, Placement::apart);
    EXPECT_EQ(varied(pair, std::vector<Word>{{"apart", "0"}})->placement, Placement::fused);
}

}  // namespace
}  // namespace syncopate::ops

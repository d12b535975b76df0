// A stated kernel is what its statement says, tile by tile.
#include "syncopate/kernel/stated/statement.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "syncopate/io.hpp"
#include "syncopate/kernel/model/compare.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"

namespace syncopate::kernel::stated {
namespace {

using plan::Region;

Statement gemm() {
    return {.kernel = "gemm",
            .file = "gemm.py",
            .source = "import x\n\ndef gemm(a_desc):\n    pass\n",
            .parameters = {"a_desc", "b_desc", "c_desc", "M", "N", "K", "sy_schedule", "sy_control", "BM",
                           "BN", "BK"},
            .constants = {"BM", "BN", "BK"},
            .tiles = {{"m", "cdiv(M, BM)"}, {"n", "cdiv(N, BN)"}},
            .loops = {{"k", "cdiv(K, BK)"}},
            .reads = {{"a_desc", {"m*BM : (m+1)*BM", "k*BK : (k+1)*BK"}},
                      {"b_desc", {"k*BK : (k+1)*BK", "n*BN : (n+1)*BN"}}},
            .writes = {{"c_desc", {"m*BM : (m+1)*BM", "n*BN : (n+1)*BN"}}}};
}

Arguments arguments(const std::string& scalars, const std::vector<std::string>& tensors) {
    Arguments made;
    made.scalars = *parse_scalars(scalars);
    for (const std::string& tensor : tensors) made.tensors.insert(*parse_tensor(tensor));
    return made;
}

Arguments of_gemm() {
    return arguments("M=100,N=96,K=72,BM=32,BN=32,BK=16",
                     {"a_desc=100x72:bf16@32x16", "b_desc=72x96:bf16@16x32", "c_desc=100x96:bf16@32x32"});
}

Kernel analysed(const Statement& statement, const Arguments& given) {
    Result<Kernel> kernel = analyse(statement, given);
    EXPECT_TRUE(kernel.ok()) << (kernel.ok() ? "" : kernel.error().to_string());
    return kernel.ok() ? *std::move(kernel) : Kernel{};
}

std::string error_of(const Statement& statement, const Arguments& given) {
    const Result<Kernel> kernel = analyse(statement, given);
    EXPECT_FALSE(kernel.ok());
    return kernel.ok() ? "" : kernel.error().location.to_string() + ": " + kernel.error().message;
}

TEST(Stated, TilesAreNumberedRowMajorInTheOrderStated) {
    const Kernel kernel = analysed(gemm(), of_gemm());
    ASSERT_EQ(kernel.tiles.size(), 12U);
    EXPECT_EQ(kernel.tiles[4].coord, (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(kernel.axes[1].name, "n");
    EXPECT_EQ(kernel.axes[1].count, 3);
    EXPECT_EQ(kernel.axes[1].block, 32);
    EXPECT_TRUE(kernel.persistent);
    EXPECT_EQ(kernel.line, 3);
}

TEST(Stated, FootprintsAreClippedToTheirTensors) {
    const Tile tile = analysed(gemm(), of_gemm()).tiles[10];  // m = 3, n = 1
    EXPECT_EQ(tile.reads.at("a_desc"), (Region{{96, 100}, {0, 72}}));
    EXPECT_EQ(tile.reads.at("b_desc"), (Region{{0, 72}, {32, 64}}));
    EXPECT_EQ(tile.writes.at("c_desc"), (Region{{96, 100}, {32, 64}}));
    EXPECT_TRUE(tile.inexact_reads.empty());
}

TEST(Stated, ALoopSaysWhatEachIterationReads) {
    const Kernel kernel = analysed(gemm(), of_gemm());
    ASSERT_EQ(kernel.loops.size(), 1U);
    EXPECT_EQ(kernel.loops[0].trips, 5);
    EXPECT_TRUE(kernel.loops[0].divisible);
    ASSERT_EQ(kernel.loops[0].slices.size(), 2U);
    const LoopSlice& a = kernel.loops[0].slices[0];
    EXPECT_EQ(a.param, "a_desc");
    EXPECT_EQ(a.dim, 1);
    EXPECT_EQ(a.step, 16);
    EXPECT_EQ(a.extent, 16);
}

TEST(Stated, AGridIsWalkedByItsPrograms) {
    Arguments given = of_gemm();
    given.grid = {5, 1, 1};
    const Kernel kernel = analysed(gemm(), given);
    EXPECT_EQ(kernel.num_programs(), 5);
    EXPECT_EQ(kernel.tiles[7].program, 2);
    EXPECT_EQ(analysed(gemm(), of_gemm()).num_programs(), 12) << "one tile each";
}

TEST(Stated, ProgramsMayShareTiles) {
    Statement statement = gemm();
    statement.parameters.emplace_back("SPLIT");
    statement.split = "SPLIT";
    Arguments given = of_gemm();
    given.scalars["SPLIT"] = std::int64_t{2};
    given.grid = {10, 1, 1};
    const Kernel kernel = analysed(statement, given);
    EXPECT_EQ(kernel.num_programs(), 5) << "five pairs";
    EXPECT_EQ(kernel.grid[0], 10);
    EXPECT_EQ(kernel.tiles[7].program, 2);
    given.grid = {9, 1, 1};
    EXPECT_EQ(error_of(statement, given),
              "gemm.py:3: statement of gemm: a grid of 9 programs, of which 2 share each tile, has to be a "
              "multiple of "
              "that");
}

TEST(Stated, TilesRunInTheOrderThatItNames) {
    Statement statement = gemm();
    statement.order = {"m // 2", "n", "m"};
    Arguments given = of_gemm();
    given.grid = {5, 1, 1};
    const Kernel kernel = analysed(statement, given);
    EXPECT_EQ(kernel.traversal, (std::vector<std::int64_t>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
    EXPECT_EQ(kernel.tiles[9].program, 2) << "it runs as the eighth";
    statement.order = {"k"};
    EXPECT_EQ(error_of(statement, given),
              "gemm.py:3: statement of gemm: order, column 1: `k` has no value here; did you mean \"K\"?");
}

/// The same product, found by the front end of Triton and stated: nothing differs, but what Triton says of
/// its text.
TEST(Stated, IsWhatTheFrontEndFindsInTheSameKernel) {
    const auto source = read_file(std::string(SYNCOPATE_SOURCE_DIR) + "/python/syncopate/kernels/matmul.py");
    ASSERT_TRUE(source.ok());
    Arguments given = of_gemm();
    given.scalars = *parse_scalars(
        "M=100,N=96,K=72,BLOCK_M=32,BLOCK_N=32,BLOCK_K=16,GROUP_M=1,NUM_SMS=5,B_TRANSPOSED=False,SPLIT_STORE="
        "1,"
        "PRECISION=ieee");
    given.grid = {5, 1, 1};
    const auto inferred = triton::analyse(*source, "matmul.py", "matmul", given);
    ASSERT_TRUE(inferred.ok()) << inferred.error().to_string();
    given.scalars = *parse_scalars("M=100,N=96,K=72,BM=32,BN=32,BK=16");
    const Kernel kernel = analysed(gemm(), given);
    ASSERT_EQ(kernel.tiles.size(), inferred->tiles.size());
    for (std::size_t t = 0; t < kernel.tiles.size(); ++t) {
        const Tile &one = kernel.tiles[t], &other = inferred->tiles[t];
        EXPECT_EQ(one.program, other.program);
        EXPECT_EQ(one.reads.at("a_desc"), other.reads.at("a_desc"));
        EXPECT_EQ(one.read_boxes.at("b_desc"), other.read_boxes.at("b_desc"));
        EXPECT_EQ(one.write_boxes.at("c_desc"), other.write_boxes.at("c_desc"));
    }
    ASSERT_EQ(inferred->loops.size(), 1U);
    EXPECT_EQ(kernel.loops[0].trips, inferred->loops[0].trips);
    EXPECT_EQ(kernel.loops[0].slices.size(), inferred->loops[0].slices.size());
}

TEST(Stated, GapsBetweenIterationsStayGaps) {
    Statement statement = gemm();
    statement.reads = {{"a_desc", {"m*BM : (m+1)*BM", "2*k*BK : (2*k+1)*BK"}}};
    const Tile tile = analysed(statement, of_gemm()).tiles[0];
    EXPECT_EQ(tile.reads.at("a_desc"), (Region{{0, 32}, {0, 72}}));
    EXPECT_EQ(tile.read_boxes.at("a_desc"),
              (std::vector<Region>{{{0, 32}, {0, 16}}, {{0, 32}, {32, 48}}, {{0, 32}, {64, 72}}}));
}

TEST(Stated, ALoopAlongADiagonalTouchesItsBoxesOnly) {
    Statement statement = gemm();
    statement.reads = {{"a_desc", {"k*16 : k*16 + 16", "k*BK : (k+1)*BK"}}};
    const Kernel kernel = analysed(statement, of_gemm());
    EXPECT_EQ(kernel.tiles[0].read_boxes.at("a_desc").size(), 5U);
    EXPECT_TRUE(kernel.tiles[0].inexact_reads.empty());
    EXPECT_TRUE(kernel.loops[0].slices.empty()) << "it walks two axes";
}

/// Causal attention, and query heads that share a head of keys.
TEST(Stated, CountsAndRangesMayFollowFromTheTile) {
    Statement statement = gemm();
    statement.tiles = {{"h", "4"}, {"m", "cdiv(M, BM)"}};
    statement.loops = {{"k", "min(cdiv((m+1)*BM, BK), cdiv(K, BK))"}};
    statement.reads = {{"a_desc", {"(h // 2)*50 : (h // 2)*50 + 50", "k*BK : (k+1)*BK"}}};
    statement.writes = {{"c_desc", {"m*BM : (m+1)*BM", "h*24 : (h+1)*24"}}};
    const Kernel kernel = analysed(statement, of_gemm());
    ASSERT_EQ(kernel.tiles.size(), 16U);
    EXPECT_EQ(kernel.tiles[4].reads.at("a_desc"), (Region{{0, 50}, {0, 32}}));
    EXPECT_EQ(kernel.tiles[13].reads.at("a_desc"), (Region{{50, 100}, {0, 64}}));
    EXPECT_EQ(kernel.loops[0].trips, 5);
    EXPECT_TRUE(kernel.tiles_differ);
    EXPECT_TRUE(kernel.loops[0].divisible) << "each tile's phases have its own end";
    EXPECT_FALSE(kernel.loops[0].any_order);
    EXPECT_EQ(kernel.trips_of(kernel.tiles[4], 0), 2);
    EXPECT_EQ(kernel.trips_of(kernel.tiles[7], 0), 5);
    const LoopRead& read = kernel.tiles[13].loop_reads.at("a_desc")->front();
    EXPECT_EQ(read, (LoopRead{0, 1, 0, 16, 16, {{{50, 100}, {0, 64}}}}));
}

/// Attention under a window: a tile's first iteration is not the tensor's first block, and some tiles have
/// none.
TEST(Stated, ALoopMayBeginElsewhereInEachTileAndRunInAnyOrder) {
    Statement statement = gemm();
    statement.tiles = {{"m", "cdiv(M, BM)"}};
    statement.loops = {{"k", "min(2*m, 3)"}};
    statement.any_order = {"k"};
    statement.reads = {
        {"a_desc", {"m*BM : (m+1)*BM", "(max(m - 1, 0) + k)*BK : (max(m - 1, 0) + k + 1)*BK"}}};
    statement.writes = {{"c_desc", {"m*BM : (m+1)*BM", ":"}}};
    const Kernel kernel = analysed(statement, of_gemm());
    EXPECT_TRUE(kernel.loops[0].any_order);
    EXPECT_EQ(kernel.tiles[0].trips, nullptr);
    EXPECT_FALSE(kernel.tiles[0].loop_reads.contains("a_desc"));
    EXPECT_EQ(kernel.trips_of(kernel.tiles[3], 0), 3);
    const LoopRead& read = kernel.tiles[2].loop_reads.at("a_desc")->front();
    EXPECT_EQ(read, (LoopRead{0, 1, 16, 16, 16, {{{64, 96}, {16, 64}}}}));
}

TEST(Stated, ATensorMayBeTouchedInSeveralBoxes) {
    Statement statement = gemm();
    statement.reads = {{"a_desc", {"m*BM : (m+1)*BM", "0:10"}}, {"a_desc", {"m*BM : (m+1)*BM", "5:20"}}};
    const Kernel kernel = analysed(statement, of_gemm());
    EXPECT_EQ(kernel.tiles[0].read_boxes.at("a_desc"),
              (std::vector<Region>{{{0, 32}, {0, 10}}, {{0, 32}, {10, 20}}}));
    EXPECT_EQ(kernel.tiles[0].reads.at("a_desc"), (Region{{0, 32}, {0, 20}}));
}

TEST(Stated, WhatIsNotPlacedIsNotSentElsewhere) {
    Kernel kernel = analysed(gemm(), of_gemm());
    ASSERT_EQ(kernel.accesses.size(), 3U);
    EXPECT_EQ(kernel.accesses[2].fixed,
              "gemm does not state that it stores c_desc where its slot says: add it to `placed` if it does");
    Statement statement = gemm();
    statement.placed = {"a_desc", "c_desc"};
    statement.parameters.emplace_back("sy_own");
    kernel = analysed(statement, of_gemm());
    EXPECT_EQ(kernel.accesses[2].fixed, "");
    EXPECT_EQ(kernel.accesses[2].rows, 32);
    EXPECT_TRUE(kernel.accesses[0].given);
}

TEST(Stated, WhatIsWrongIsNamed) {
    const std::string at = "gemm.py:3: statement of gemm: ";
    Statement statement = gemm();
    statement.tiles[0].second = "cdiv(M, BW)";
    EXPECT_EQ(error_of(statement, of_gemm()),
              at + "the count of tile axis m, column 9: `BW` has no value here; did you mean \"BK\"?");
    statement = gemm();
    statement.reads[0].ranges[1] = "k*BK : (k+1*BK";
    EXPECT_EQ(error_of(statement, of_gemm()),
              at + "reads of a_desc, axis 1, column 15: expected `)`, found the end");
    statement = gemm();
    statement.writes[0].ranges.pop_back();
    EXPECT_EQ(error_of(statement, of_gemm()),
              at + "writes of c_desc: 1 ranges are stated, and the tensor has 2 axes");
    statement = gemm();
    statement.tiles[1].second = "N - 96";
    EXPECT_EQ(error_of(statement, of_gemm()),
              at + "the count of tile axis n: `N - 96` is 0; there are from 1 to 1048576 tiles");
    statement = gemm();
    statement.reads[0].ranges[0] = "k*m : k*m + 1";
    EXPECT_EQ(analysed(statement, of_gemm()).tiles[11].reads.at("a_desc"), (Region{{0, 13}, {0, 72}}))
        << "affine in each tile";
    statement.reads[0].ranges[0] = "k*k : k*k + 1";
    EXPECT_EQ(error_of(statement, of_gemm()),
              at + "reads of a_desc, axis 0, column 1: `k*k` is not affine: it multiplies coordinates");
}

TEST(Stated, AnalysingEnds) {
    Statement statement = gemm();
    statement.reads = {{"a_desc", {"k*16 : k*16 + 16", "k*BK + n : (k+1)*BK"}}};
    EXPECT_TRUE(analyse(statement, of_gemm()).ok());
    const auto refused = analyse(statement, of_gemm(), 10);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(
        refused.error().message,
        "statement of gemm: its footprints have too many parts: state larger tiles, or fewer iterations");
}

TEST(Stated, IsHeldAgainstAKernelOfTheSameTiles) {
    const Kernel kernel = analysed(gemm(), of_gemm());
    Statement columns_first = gemm();
    columns_first.tiles = {{"n", "cdiv(N, BN)"}, {"m", "cdiv(M, BM)"}};
    columns_first.kernel = "other";
    columns_first.writes = {{"c_desc", {"m*BM : (m+1)*BM", "n*BN : n*BN + 16"}},
                            {"c_desc", {"m*BM : (m+1)*BM", "n*BN + 16 : (n+1)*BN"}}};
    EXPECT_TRUE(require_same_footprints(kernel, analysed(columns_first, of_gemm())).ok())
        << "in another order, stored in halves";
    Statement wrong = gemm();
    wrong.reads[0].ranges[1] = "k*BK : k*BK + 8";
    const Status reads = require_same_footprints(analysed(wrong, of_gemm()), kernel);
    ASSERT_FALSE(reads.ok());
    EXPECT_EQ(reads.error().to_string(),
              "gemm.py:3: statement of gemm: tile 0 (m = 0, n = 0) is stated to read [0:32, 0:8] and [0:32, "
              "16:24] and "
              "[0:32, 32:40] and [0:32, 48:56] and [0:32, 64:72] of a_desc, and gemm reads [0:32, 0:72]");
    wrong = gemm();
    wrong.writes[0].ranges[0] = "m*BM : (m+1)*BM - 1";
    const Status writes = require_same_footprints(analysed(wrong, of_gemm()), kernel);
    ASSERT_FALSE(writes.ok());
    EXPECT_EQ(writes.error().message,
              "statement of gemm: tile 0 (m = 0, n = 0) is stated to write [0:31, 0:32] of c_desc, and no "
              "tile of gemm "
              "does");
}

constexpr const char* kJson = R"json({"schema": "syncopate.kernel/1", "kernel": "copy", "file": "copy.cu",
 "parameters": ["x", "y", "n", "sy_schedule", "sy_control"], "source": "void copy(",
 "tiles": {"i": "cdiv(n, 64)"}, "reads": {"x": ["64*i : 64*i + 64"]}, "writes": {"y": [["64*i : 64*i + 64"], ["0"]]}})json";

TEST(Stated, JsonSaysTheSame) {
    const auto kernel =
        analyse(kJson, "copy.kernel.json", "", arguments("n=100", {"x=100:fp32", "y=100:fp32"}));
    ASSERT_TRUE(kernel.ok()) << kernel.error().to_string();
    EXPECT_EQ(kernel->name, "copy");
    EXPECT_EQ(kernel->file, "copy.cu");
    ASSERT_EQ(kernel->tiles.size(), 2U);
    EXPECT_EQ(kernel->tiles[1].reads.at("x"), (Region{{64, 100}}));
    EXPECT_EQ(kernel->tiles[1].write_boxes.at("y"), (std::vector<Region>{{{64, 100}}, {{0, 1}}}));
}

TEST(Stated, SaysThatItSumsWhereItNamesTheParameter) {
    EXPECT_FALSE(analysed(gemm(), of_gemm()).sums);
    std::string text = kJson;
    text.insert(text.find("\"tiles\""), "\"sums\": \"n\", ");
    const auto statement = statement_from_json(text, "k.json");
    ASSERT_TRUE(statement.ok()) << statement.error().to_string();
    EXPECT_EQ(statement->sums, "n");
    EXPECT_TRUE(analysed(*statement, arguments("n=100", {"x=100:fp32", "y=100:fp32"})).sums);
}

TEST(Stated, SaysThatItTakesAHeadStartWhereItNamesTheParameterAndSharesNoTile) {
    EXPECT_FALSE(analysed(gemm(), of_gemm()).head_start);
    Statement statement = gemm();
    statement.head_start = "BM";
    EXPECT_TRUE(analysed(statement, of_gemm()).head_start);
    statement.split = "2";
    EXPECT_FALSE(analysed(statement, of_gemm()).head_start);
}

TEST(Stated, JsonThatIsWrongIsRefusedWithItsPlace) {
    const auto error = [](const std::string& from, const std::string& to) {
        std::string text = kJson;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        text.replace(at, from.size(), to);
        const auto statement = statement_from_json(text, "k.json");
        EXPECT_FALSE(statement.ok()) << to;
        return statement ? "" : statement.error().to_string();
    };
    EXPECT_EQ(error("\"tiles\"", "\"tilez\""),
              "k.json:3:2: the statement has an unknown key \"tilez\"; did you mean \"tiles\"?");
    EXPECT_EQ(error("\"reads\": {\"x\"", "\"reads\": {\"z\""),
              "k.json:3:43: reads.z is \"z\", which is no parameter of copy");
    EXPECT_EQ(error("{\"i\":", "{\"n\":"),
              "k.json:3:12: tiles.n is also the name of a parameter: take another one");
    EXPECT_EQ(error("\"cdiv(n, 64)\"", "3"), "k.json:3:17: tiles.i is the number 3; expected a string");
    EXPECT_EQ(error("kernel/1", "kernel/2"),
              "k.json:1:12: schema is \"syncopate.kernel/2\"; this version reads \"syncopate.kernel/1\"");
    EXPECT_EQ(error("\"tiles\"", "\"sums\": \"SUMS\", \"tiles\""),
              "k.json:3:10: sums is \"SUMS\", which is no parameter of copy");
    EXPECT_EQ(error("\"tiles\"", "\"head_start\": \"HEAD\", \"tiles\""),
              "k.json:3:16: head_start is \"HEAD\", which is no parameter of copy");
    EXPECT_EQ(error("\"tiles\"", "\"sums\": 2, \"tiles\""),
              "k.json:3:10: sums is the number 2; expected a string");
    EXPECT_EQ(error(", \"source\": \"void copy(\"", ""),
              "copy.cu: cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace syncopate::kernel::stated

// Loop IR: shifting loops become transfers from who worked on a shard before to who works on it next.
#include "syncopate/ingest/loops/loop_ir.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "syncopate/io.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::ingest {
namespace {

using Lines = std::vector<std::string>;

std::string nest(const std::string& mesh, const std::string& tensors, const std::string& loops,
                 const std::string& points) {
    return R"({"schema": "syncopate.loop/1", "mesh": )" + mesh + R"(, "tensors": )" + tensors +
           R"(, "loops": )" + loops + R"(, "communicate": )" + points + "}";
}

plan::Plan plan_from(const std::string& text) {
    const Result<Import> import = import_loop_nest(text, "l.json");
    EXPECT_TRUE(import) << import.error().to_string();
    return import ? import->plan : plan::Plan{};
}

std::string error_of(const std::string& text) {
    const Result<Import> import = import_loop_nest(text, "l.json");
    return import ? "no error" : import.error().to_string();
}

Lines findings(const plan::Plan& plan) {
    Lines lines;
    for (const plan::Finding& finding : plan::check(plan)) lines.push_back(finding.to_string());
    return lines;
}

const std::string kRing = R"([["gpu", 4]])";
const std::string kK = R"({"K": {"shape": [32, 2], "dtype": "bf16", "shard": [["gpu"], []]}})";
const std::string kStep = R"([{"name": "step", "over": "gpu", "shift": -1}])";
const std::string kMove = R"([{"tensor": "K", "at": "step"}])";

TEST(Loop, ARingPassesEachShardOnAfterItHasArrived) {
    const plan::Plan plan = plan_from(nest(kRing, kK, kStep, kMove));
    EXPECT_EQ(findings(plan), Lines{});
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        const auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(ops.size(), 3U);
        for (std::int32_t step = 0; step < 3; ++step) {
            const plan::Op& op = ops[static_cast<std::size_t>(step)];
            EXPECT_EQ(op.peer, (rank + 1) % 4);
            EXPECT_EQ(op.src.region[0].begin, 8 * ((rank - step + 4) % 4));
            const std::vector<plan::OpRef> after =
                step == 0 ? std::vector<plan::OpRef>{} : std::vector<plan::OpRef>{{(rank + 3) % 4, step - 1}};
            EXPECT_EQ(op.after, after);
        }
    }
}

TEST(Loop, BlocksAreGroupedIntoChunksOfTheChosenGranularity) {
    const std::string loops =
        R"([{"name": "step", "over": "gpu", "shift": 1}, {"name": "b", "tile": {"K": 0}, "size": 3}])";
    // Shards of 8 rows in blocks of 3: 3, 3, 2; two blocks a chunk: 6, 2.
    const plan::Plan plan =
        plan_from(nest(kRing, kK, loops, R"([{"tensor": "K", "at": "step", "chunk": {"b": 2}}])"));
    EXPECT_EQ(findings(plan), Lines{});
    ASSERT_EQ(plan.ranks[0].size(), 6U);
    EXPECT_EQ(plan.ranks[0][0].src.region[0], (plan::Interval{0, 6}));
    EXPECT_EQ(plan.ranks[0][1].src.region[0], (plan::Interval{6, 8}));
    EXPECT_EQ(plan.ranks[0][0].peer, 3);
}

TEST(Loop, FewerStepsThanTheRingMoveFewerShards) {
    const plan::Plan plan =
        plan_from(nest(kRing, kK, R"([{"name": "step", "over": "gpu", "shift": -1, "steps": 2}])", kMove));
    EXPECT_EQ(findings(plan), Lines{});
    EXPECT_EQ(plan.ranks[0].size(), 1U);
    EXPECT_EQ(plan.final.size(), 8U);  // two shards on each rank
}

TEST(Loop, MoreStepsThanTheRingMoveNothingTwice) {
    const plan::Plan plan =
        plan_from(nest(kRing, kK, R"([{"name": "step", "over": "gpu", "shift": -1, "steps": 9}])", kMove));
    EXPECT_EQ(findings(plan), Lines{});
    EXPECT_EQ(plan.ranks[0].size(), 3U);
}

TEST(Loop, ADoubleRingCrossesNodesWhileTheInnerRingTurns) {
    const plan::Plan plan = plan_from(nest(
        R"([["node", 2], ["gpu", 2]])",
        R"({"K": {"shape": [32], "dtype": "bf16", "shard": [["node", "gpu"]]}})",
        R"([{"name": "outer", "over": "node", "shift": -1}, {"name": "inner", "over": "gpu", "shift": -1}])",
        R"([{"tensor": "K", "at": "outer"}, {"tensor": "K", "at": "inner"}])"));
    EXPECT_EQ(findings(plan), Lines{});
    // Rank 0: its own shard to its neighbour and at once to the other node; what came from there, to its
    // neighbour.
    ASSERT_EQ(plan.ranks[0].size(), 3U);
    EXPECT_EQ(plan.ranks[0][0].peer, 1);
    EXPECT_EQ(plan.ranks[0][1].peer, 2);
    EXPECT_TRUE(plan.ranks[0][1].after.empty());
    EXPECT_EQ(plan.ranks[0][2].peer, 1);
    EXPECT_EQ(plan.ranks[0][2].src.region[0], (plan::Interval{16, 24}));
    EXPECT_EQ(plan.ranks[0][2].after, (std::vector<plan::OpRef>{{2, 1}}));
}

TEST(Loop, ACarriedTensorIsSummedOnItsWayAndEndsAtItsOwner) {
    const plan::Plan plan = plan_from(
        nest(kRing, R"({"dK": {"shape": [32], "dtype": "fp32", "shard": [["gpu"]], "carry": "sum"}})",
             R"([{"name": "step", "over": "gpu", "shift": -1, "start": -1}])",
             R"([{"tensor": "dK", "at": "step"}])"));
    EXPECT_EQ(findings(plan), Lines{});
    EXPECT_EQ(plan.initial.size(), 0U);
    EXPECT_EQ(plan.produced.size(), 16U);
    ASSERT_EQ(plan.final.size(), 4U);
    EXPECT_TRUE(plan.final[1].of_all);
    EXPECT_EQ(plan.final[1].chunk.region[0], (plan::Interval{8, 16}));
    EXPECT_EQ(plan.ranks[0][0].reduce, plan::Reduce::sum);
}

TEST(Loop, ACarriedTensorOnADoubleRingGoesOnWhenTheInnerRingHasEnded) {
    const plan::Plan plan = plan_from(nest(
        R"([["node", 2], ["gpu", 3]])",
        R"({"dK": {"shape": [36], "dtype": "fp32", "shard": [["node", "gpu"]], "carry": "sum"}})",
        R"([{"name": "outer", "over": "node", "shift": -1}, {"name": "inner", "over": "gpu", "shift": 1}])",
        R"([{"tensor": "dK", "at": "outer"}, {"tensor": "dK", "at": "inner"}])"));
    EXPECT_EQ(findings(plan), Lines{});
    EXPECT_EQ(plan.final.size(), 6U);
    for (const plan::Holding& holding : plan.final) EXPECT_TRUE(holding.of_all);
}

TEST(Loop, EveryStartShiftAndShapeVerifies) {
    for (const char* shift : {"-1", "1", "3", "-2"}) {
        for (const char* start : {"0", "1", "-1"}) {
            for (const char* size : {"30", "3", "7"}) {
                const plan::Plan plan = plan_from(nest(
                    R"([["node", 2], ["gpu", 5]])",
                    std::string(R"({"K": {"shape": [)") + size +
                        R"(], "dtype": "bf16", "shard": [["node", "gpu"]]},
                            "Q": {"shape": [8], "dtype": "bf16", "shard": [["gpu"]]}})",
                    std::string(R"([{"name": "o", "over": "node", "shift": 1, "start": )") + start +
                        R"(}, {"name": "i", "over": "gpu", "shift": )" + shift + R"(, "start": )" + start +
                        "}]",
                    R"([{"tensor": "K", "at": "o"}, {"tensor": "K", "at": "i"}, {"tensor": "Q", "at": "i"}])"));
                EXPECT_EQ(findings(plan), Lines{}) << shift << " " << start << " " << size;
            }
        }
    }
}

TEST(Loop, TheExamplesVerify) {
    for (const char* name : {"ring_attention", "double_ring_attention", "ring_attention_backward"}) {
        const auto text = read_file(std::string(SYNCOPATE_SOURCE_DIR) + "/examples/" + name + ".json");
        ASSERT_TRUE(text) << name;
        EXPECT_EQ(findings(plan_from(*text)), Lines{}) << name;
    }
}

/// "l.json:1:C: ", the column of `marker` in the text.
std::string at(const std::string& text, const std::string& marker) {
    return "l.json:1:" + std::to_string(text.find(marker) + 1) + ": ";
}

TEST(LoopError, NamesThePathAndThePlaceOfWhatIsWrong) {
    std::string text = nest(kRing, kK, kStep, R"([{"tensor": "k", "at": "step"}])");
    EXPECT_EQ(error_of(text),
              at(text, R"("k")") + R"(communicate[0].tensor names an unknown tensor "k"; did you mean "K"?)");
    text = nest(kRing, kK, kStep, R"([{"tensor": "K", "at": "stop"}])");
    EXPECT_EQ(error_of(text), at(text, R"("stop")") +
                                  R"(communicate[0].at names an unknown loop "stop"; did you mean "step"?)");
    text = nest(kRing, kK, kStep, "[ ]");
    EXPECT_EQ(error_of(text), at(text, "[ ]") + "communicate is empty; nothing would move");
    text = nest(kRing, kK, R"([{"name": "step", "over": "gpu", "shift": 44}])", kMove);
    EXPECT_EQ(error_of(text), at(text, "44") + "loops[0].shift moves nothing on a ring of 4");
    text = nest(kRing, kK, R"([{"name": "step", "over": "gpu"}])", kMove);
    EXPECT_EQ(error_of(text),
              at(text, R"({"name")") + R"(loops[0] lacks "shift", by how many places each step moves on)");
    text = nest(kRing, kK, R"([{"name": "b", "tile": {"K": 77}, "size": 8}])", kMove);
    EXPECT_EQ(error_of(text), at(text, "77") + "loops[0].tile.K is 77; expected 0 to 1");
    text = nest(kRing, kK, R"([{"name": "b", "tile": {}, "size": 8}])", kMove);
    EXPECT_EQ(error_of(text), at(text, "{}") + "loops[0].tile is empty; nothing would be cut");
    text =
        nest(kRing, kK, R"([{"name": "b", "over": "gpu", "shift": 1, "tile": {"K": 0}, "size": 8}])", kMove);
    EXPECT_EQ(error_of(text),
              at(text, R"({"name")") +
                  R"(loops[0] needs either "over", a mesh axis, or "tile", the tensor axes it cuts)");
    text = nest(R"([["node", 2], ["gpu", 2]])",
                R"({"K": {"shape": [32], "dtype": "bf16", "shard": [["node", "gpu"]]}})",
                R"([{"name": "o", "over": "node", "shift": 1}, {"name": "i", "over": "gpu", "shift": 1}])",
                R"([{"tensor": "K", "at": "i"}])");
    EXPECT_EQ(error_of(text), at(text, R"([{"tensor")") +
                                  R"(communicate does not move K at loop "o", which shifts its shard)");
    text = nest(kRing, R"({"C": {"shape": [32], "dtype": "bf16", "shard": [["gpu"]], "carry": "sum"}})",
                R"([{"name": "step", "over": "gpu", "shift": 1, "steps": 5}])",
                R"([{"tensor": "C", "at": "step"}])");
    EXPECT_EQ(error_of(text),
              "l.json: tensors.C: rank 0 works on the shard of rank 0 a second time in the loops; its "
              "contribution would count twice");
}

TEST(LoopError, APlanThatWouldBeTooLargeIsRefused) {
    EXPECT_EQ(
        error_of(nest(R"([["gpu", 4096]])", kK, R"([{"name": "step", "over": "gpu", "shift": 1}])", kMove)),
        "l.json: loops: the ranks would work on more than 4194304 shards");
}

}  // namespace
}  // namespace syncopate::ingest

#include "syncopate/fuse/model/json.hpp"

#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::fuse {
namespace {

std::string sample_json(bool along_k = true) {
    const sample::Gemm g{2, 4, 16, 2, 2, 2};
    return to_json(fuse(sample::all_gather_gemm(g, 2, {.axis = along_k ? 1 : 0, .pull = along_k})).value());
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << text;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(ScheduleJson, ReadsBackWhatItWrote) {
    for (const bool along_k : {false, true}) {
        const std::string text = sample_json(along_k);
        const auto schedule = schedule_from_json(text);
        ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
        EXPECT_EQ(to_json(*schedule), text);
        EXPECT_EQ(schedule->stages[0].phased, along_k);
    }
}

TEST(ScheduleJson, NamesThePathOfWhatIsWrong) {
    const std::string text = sample_json();
    const auto message = [](const std::string& json) {
        const auto result = schedule_from_json(json, "s.json");
        return result.ok() ? std::string() : result.error().to_string();
    };
    EXPECT_EQ(message("{").substr(0, 7), "s.json:");
    EXPECT_NE(message(replaced(text, "\"phased\"", "\"fazed\"")).find("unknown key \"fazed\""),
              std::string::npos);
    EXPECT_NE(message(replaced(text, "\"slots\":2", "\"slots\":3"))
                  .find("ranks[0].slots has 2 entries; the stages have 3 slots"),
              std::string::npos);
    EXPECT_NE(message(replaced(text, "\"backend\":\"host\"", "\"backend\":\"tpu\""))
                  .find("ranks[0].transfers[0].backend"),
              std::string::npos);
    EXPECT_NE(message(replaced(text, "\"dst_rank\":0", "\"dst_rank\":2")).find("expected 0 to 1"),
              std::string::npos);
    EXPECT_NE(
        message(replaced(text, "\"arrived\"", "\"arived\"")).find("ranks[0].signals[0][0] is \"arived\""),
        std::string::npos);
    EXPECT_NE(message("[]").find("expected an object"), std::string::npos);
    EXPECT_NE(message(replaced(text, "\"slots\":[[0,", "\"slots\":[[1,"))
                  .find("has a tile that an earlier slot has"),
              std::string::npos);
}

TEST(ScheduleJson, SaysWhereTilesReadAtOtherRanks) {
    plan::AllGatherOptions options{.pull = true};
    options.transient = true;
    const Program program = sample::all_gather_gemm({4, 4, 4, 2, 2, 2}, 2, options);
    const auto fused = fuse(program, {.preferred = plan::Backend::ldst_inline});
    ASSERT_TRUE(fused.ok()) << fused.error().to_string();
    const std::string text = to_json(*fused);
    const auto schedule = schedule_from_json(text);
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_EQ(to_json(*schedule), text);
    EXPECT_EQ(schedule->loads(), (Reach{0, false}));
    const auto message = [](const std::string& json) { return schedule_from_json(json).error().to_string(); };
    EXPECT_NE(message(replaced(text, R"("by":"element")", R"("by":"byte")")).find("loads.by is \"byte\""),
              std::string::npos);
    EXPECT_NE(message(replaced(text, R"(,"loads":{"tensor":"A","by":"element"})", ""))
                  .find("without the stage's \"loads\""),
              std::string::npos);
    EXPECT_NE(message(replaced(text, R"(1,"A",0])", R"(2,"A",0])")).find("expected 0 to 1"),
              std::string::npos);
}

TEST(ScheduleJson, SaysHowTheStageOfAProgramOfOneReachesTensors) {
    const std::string text = sample_json(false);
    const std::string alone = R"({"slots":2,"phased":false)";
    for (const std::string member :
         {R"("stores":{"tensor":"A","by":"row"})", R"("loads":{"tensor":"A","by":"row"})"}) {
        const std::string said = replaced(text, alone, alone + "," + member);
        const auto schedule = schedule_from_json(said);
        ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
        EXPECT_EQ(to_json(*schedule), said);
        EXPECT_EQ(schedule->stores() == Reach({0, true}), member.find("stores") != std::string::npos);
        EXPECT_EQ(schedule->loads() == Reach({0, true}), member.find("loads") != std::string::npos);
        const auto staged = schedule_from_json(
            replaced(text, alone, alone + "," + member + R"(},{"slots":0,"phased":false)"));
        ASSERT_FALSE(staged.ok());
        EXPECT_NE(staged.error().to_string().find("has several stages, and only one alone may have"),
                  std::string::npos);
    }
}

TEST(ScheduleJson, SaysThatTilesReadWhatTheirRankWasGiven) {
    const Program program{sample::gemm({4, 4, 4, 2, 2, 2}),
                          plan::push_exchange(sample::ranks(2), {"X", {4, 4}, plan::DType::bf16}, "A",
                                              {.produced = false, .for_kernel = true})
                              .value(),
                          {{"a_ptr", "A"}}};
    const auto fused = fuse(program, {});
    ASSERT_TRUE(fused.ok()) << fused.error().to_string();
    EXPECT_EQ(fused->loads(), (Reach{1, false, true}));
    const std::string text = to_json(*fused);
    const auto schedule = schedule_from_json(text);
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_EQ(to_json(*schedule), text);
    EXPECT_EQ(schedule->loads(), fused->loads());
}

TEST(ScheduleJson, SaysWhichBordersAreInTheHeap) {
    const plan::AllGatherOptions options{.transient = true};
    const Program program{
        sample::gemm({6, 4, 4, 2, 2, 2}),
        plan::all_gather(sample::ranks(2), {"A", {6, 4}, plan::DType::bf16}, options).value(),
        {{"a_ptr", "A"}}};
    const std::string text = to_json(fuse(program, {}).value());
    const auto schedule = schedule_from_json(text);
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_EQ(to_json(*schedule), text);
    ASSERT_EQ(schedule->ranks[1].borders.size(), 1u);
    EXPECT_EQ(schedule->ranks[1].borders[0].region, (plan::Region{{3, 4}, {0, 4}}));
}

TEST(ScheduleJson, AMeshThatHasNoSuchNodesIsRefusedWithItsPlace) {
    const plan::Mesh mesh{{{"node", 2}, {"gpu", 2}}, "node"};
    plan::AllGatherOptions options;
    options.algorithm = plan::Algorithm::hierarchical;
    const Program program{sample::gemm({8, 4, 4, 2, 2, 2}),
                          plan::all_gather(mesh, {"A", {8, 4}, plan::DType::bf16}, options).value(),
                          {{"a_ptr", "A"}}};
    const std::string text = to_json(fuse(program, {}).value());
    const std::size_t begin = text.find("\"mesh\"");
    const std::size_t end = text.find("\"tensors\"");
    ASSERT_NE(begin, std::string::npos);
    ASSERT_NE(end, std::string::npos);
    const std::string between = text.substr(begin, end - begin);
    ASSERT_TRUE(schedule_from_json(text).ok()) << between;
    for (const char* said :
         {R"("mesh":[],"nodes":"node")", R"("mesh":[],"nodes":"")", R"("mesh":[])", R"("nodes":"node")",
          R"("mesh":null,"nodes":"node")", R"("mesh":{},"nodes":"node")", R"("mesh":[[]],"nodes":"node")",
          R"("mesh":[["node"]],"nodes":"node")", R"("mesh":[["node",0],["gpu",2]],"nodes":"node")",
          R"("mesh":[["node",-2],["gpu",2]],"nodes":"node")", R"("mesh":[["node",2]],"nodes":"node")",
          R"("mesh":[["node",65536],["gpu",65536]],"nodes":"node")",
          R"("mesh":[["node",2],["gpu",2]],"nodes":"gpu")",
          R"("mesh":[["node",2],["gpu",2]],"nodes":"nodes")", R"("mesh":[["node",2],["gpu",2]],"nodes":2)",
          R"("mesh":[["node",2],["gpu",2]],"nodes":null)",
          R"("mesh":[["node",2],["gpu",2]],"nodes":["node"])"}) {
        const auto schedule = schedule_from_json(replaced(text, between, std::string(said) + ","), "s.json");
        ASSERT_FALSE(schedule.ok()) << said;
        EXPECT_TRUE(schedule.error().to_string().starts_with("s.json:1:")) << schedule.error().to_string();
    }
    EXPECT_NE(schedule_from_json(replaced(text, between, R"("mesh":[],"nodes":"node",)"), "s.json")
                  .error()
                  .to_string()
                  .find("mesh is empty"),
              std::string::npos);
}

TEST(ScheduleJson, ATextNestedWithoutEndIsRefused) {
    const std::string nested = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    EXPECT_EQ(schedule_from_json(nested, "s.json").error().to_string(),
              "s.json:1:33: nested more than 32 deep");
}

TEST(ScheduleJson, NeverCrashesOnATruncatedText) {
    const std::string text = sample_json();
    for (std::size_t length = 0; length < text.size(); ++length) {
        EXPECT_FALSE(schedule_from_json(text.substr(0, length)).ok());
    }
}

}  // namespace
}  // namespace syncopate::fuse

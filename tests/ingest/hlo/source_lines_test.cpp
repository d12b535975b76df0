// HLO as XLA prints it today: tables of files, functions, locations and frames before the computations, to which
// an instruction's metadata refers.
#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

using test::candidates;
using test::dots;
using test::Lines;

const std::string kTables = R"(
FileNames
1 "/home/me/model.py"
2 "/home/me/\"odd\" \303\251.py"

FunctionNames
1 "<module>"
2 "Block.<locals>.mlp"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}
2 {file_name_id=1 function_name_id=2 line=31 end_line=32 column=4 end_column=9}
3 {file_name_id=2 function_name_id=2 line=5 end_line=5 column=4 end_column=9}
4 {file_name_id=9 function_name_id=2 line=5 end_line=5 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=4 parent_frame_id=3}
5 {file_location_id=77 parent_frame_id=3}

)";

/// A gather that feeds a dot; what stands in their metadata.
std::string module(const std::string& tables, const std::string& gather, const std::string& dot) {
    return "HloModule jit_f, is_scheduled=true, num_partitions=2, "
           "frontend_attributes={fingerprint=\"3f\"}\n" +
           tables + R"(
%main (y: f32[4,8], v: f32[8,2]) -> f32[8,2] {
  %y = f32[4,8]{1,0} parameter(0), metadata={op_name="y"}
  %v = f32[8,2]{1,0} parameter(1), sharding={devices=[2,1]<=[2]}
  %g = f32[8,8]{1,0} all-gather(%y), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, metadata={)" +
           gather + R"(}
  ROOT %d = f32[8,2]{1,0} dot(%g, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={)" +
           dot + "}\n}\n";
}

TEST(SourceLines, AreThoseOfTheInnermostFrame) {
    const auto found = candidates(module(kTables, "op_name=\"jit(f)/all_gather\" stack_frame_id=2",
                                         "op_name=\"jit(f)/dot\" scheduling_name=\"d\" stack_frame_id=1"));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(found[0].source, "/home/me/model.py:31");
    EXPECT_EQ(found[0].exchanges[0].dots[0].source, "/home/me/model.py:7");
    const std::string table = candidates_table(found);
    EXPECT_NE(table.find("2 chunks along axis 0, at model.py:31\n"), std::string::npos) << table;
    EXPECT_NE(table.find("K=8 f32, at model.py:7\n"), std::string::npos) << table;
    EXPECT_NE(candidates_json(found).find("\"source\":\"/home/me/model.py:31\""), std::string::npos);
}

TEST(SourceLines, MayStandInTheMetadataThemselves) {
    const auto found =
        candidates(module("", "op_type=\"x\" source_file=\"/home/me/old.py\" source_line=12 profile_type={1}",
                          "source_file=\"\" source_line=0"));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].source, "/home/me/old.py:12");
    EXPECT_EQ(found[0].exchanges[0].dots[0].source, "");
}

TEST(SourceLines, AFrameFileOrLocationThatTheTablesLackIsNoLine) {
    for (const char* frame : {"4", "5", "6", "0", "-1", "99999999999999999999"}) {
        const auto found =
            candidates(module(kTables, std::string("stack_frame_id=") + frame, "stack_frame_id=3"));
        ASSERT_EQ(found.size(), 1U) << frame;
        EXPECT_EQ(found[0].source, "") << frame;
        EXPECT_EQ(short_source(found[0].exchanges[0].dots[0].source), "\"odd\" \xC3\xA9.py:5");
    }
}

TEST(SourceLines, AreInTheMessageOfACandidateThatIsNoPlan) {
    std::string text = module(kTables, "stack_frame_id=2", "");
    text.replace(text.find("{{0,1}}"), 7, "{{0,7}}");
    const auto found = candidates(text);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_NE(plan_of(found[0]).error().message.find("all-gather g (of model.py:31) names device 7"),
              std::string::npos)
        << plan_of(found[0]).error().message;
}

TEST(SourceLines, AreClaimedByAnImport) {
    const auto import = import_hlo(module(kTables, "stack_frame_id=2", ""), "p.hlo");
    ASSERT_TRUE(import) << import.error().to_string();
    const std::pair<std::string, std::string> claim{"at", "model.py:31"};
    EXPECT_EQ(std::count(import->claims.begin(), import->claims.end(), claim), 1);
}

TEST(SourceLines, TablesMayBeEmptyAndComeInAnyOrder) {
    const std::string tables =
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\nFunctionNames\n\n"
        "FileLocations\n1 {line=3 file_name_id=1}\nFileNames\n1 \"a.py\"\n";
    const auto found = candidates(module(tables, "stack_frame_id=1", ""));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].source, "a.py:3");
    EXPECT_EQ(candidates(module("FileNames\nFunctionNames\nFileLocations\nStackFrames\n", "", "")).size(),
              1U);
}

TEST(SourceLines, AComputationMayBeCalledAsATableIs) {
    const auto program = read_hlo(
        "HloModule m\nFileNames { a = f32[2] parameter(0) }\n"
        "ENTRY StackFrames (b: f32[2]) -> f32[2] { b = f32[2] parameter(0) }\n",
        "p.hlo");
    ASSERT_TRUE(program) << program.error().to_string();
    ASSERT_EQ(program->computations.size(), 2U);
    EXPECT_EQ(program->computations[0].name, "FileNames");
}

TEST(SourceLines, ARowThatIsNoneIsRefusedWhereItStands) {
    const auto error = [](const std::string& tables) {
        const auto program = read_hlo("HloModule m\n" + tables + "e { a = f32[2] parameter(0) }\n", "p.hlo");
        return program ? std::string("taken") : program.error().to_string();
    };
    EXPECT_EQ(error("FileNames\n1 {}\n"),
              "p.hlo:3:3: expected a row of FileNames: NUMBER \"NAME\", found \"{\"");
    EXPECT_EQ(error("StackFrames\n1 \"x\"\n"),
              "p.hlo:3:3: expected a row of StackFrames: NUMBER {…}, found \"\"\"");
    EXPECT_EQ(error("FileNames\n1 \"x\n"), "p.hlo:3:3: a string that never ends");
    EXPECT_EQ(error("FileLocations\n1 {line=3\n"), "p.hlo:3:3: a bracket that is never closed");
}

TEST(Hlo, ATableOfOriginsHoldsModulesThatAreNotReadAsSuch) {
    const auto program = read_hlo(R"(HloModule m, num_partitions=2, origin_recovery_table={
  {"a"} : {"b"},
  "
    HloModule recovery, entry_computation_layout={()->f32[]}
    ENTRY %r (p: f32[2]) -> f32[2] {
      ROOT %p = f32[2]{0} parameter(0)
    }
  "
},
debug_attributes={
  {"a"}:({log_mode=default,callback_id=1})
}

ENTRY %e (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2]{0} parameter(0), origin={[synthetic_call]}, result_accuracy={mode=highest}, statistics={visualizing_index=0,x=1}
}
)",
                                  "p.hlo");
    ASSERT_TRUE(program) << program.error().to_string();
    EXPECT_EQ(program->name, "m");
    EXPECT_EQ(program->computations.size(), 1U);
}

}  // namespace
}  // namespace syncopate::ingest

// HLO text: what is read, and what is refused where.
#include "syncopate/ingest/hlo/hlo.hpp"

#include <string>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

std::string error_of(std::string_view text) {
    const Result<TensorProgram> program = read_hlo(text, "p.hlo");
    return program ? "no error" : program.error().to_string();
}

const Instruction& last(const TensorProgram& program) {
    return program.computations.back().instructions.back();
}

TEST(Hlo, NamesShapesOperandsAndAttributesAreRead) {
    const auto program = read_hlo(
        R"(HloModule m, is_scheduled=true, num_partitions=4, replica_count=2, input_output_alias={ {0}: (0, {}, may-alias) }
// a comment with "quotes" and } brackets
%f (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2]{0} parameter(0)
}
ENTRY %main.1_spmd (a: bf16[8,16]) -> (bf16[8,16], s32[]) {
  %a = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} parameter(0), sharding={devices=[1,4,2]<=[8] last_tile_dim_replicate}, metadata={op_name="x }\" y" source_line=3}
  %c.1 = s32[] constant(-7), frontend_attributes={k="v"}
  table = s32[2,2]{1,0} constant({ { 0, 1 }, { 2, 3 } })
  pi = f32[] constant(3.14)
  ROOT %t = (bf16[8,16]{1,0}, /*index=1*/s32[]) tuple(bf16[8,16]{1,0} %a, c.1)
}, execution_thread="main"
)",
        "p.hlo");
    ASSERT_TRUE(program) << program.error().to_string();
    EXPECT_EQ(program->name, "m");
    EXPECT_EQ(program->partitions, 4);
    EXPECT_EQ(program->replicas, 2);
    ASSERT_EQ(program->computations.size(), 2U);
    EXPECT_EQ(program->entry, 1);
    const std::vector<Instruction>& main = program->computations[1].instructions;
    EXPECT_EQ(main[0].shape.to_string(), "bf16[8,16]");
    EXPECT_EQ(main[1].literal, std::vector<std::int64_t>{-7});
    EXPECT_EQ(main[2].literal, (std::vector<std::int64_t>{0, 1, 2, 3}));
    EXPECT_FALSE(main[3].literal_known);
    EXPECT_EQ(main[4].operands, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(main[4].shape.to_string(), "(bf16[8,16], s32[])");
    EXPECT_EQ(main[4].where.to_string(), "p.hlo:11:3");
}

TEST(Hlo, AComputationNeedsNeitherModuleNorEntryNorPercentSigns) {
    const auto program = read_hlo(
        "e { a = u4[8,4]{1,0:E(4)} parameter(0)\n b = u4[8,8] all-gather(a), dimensions={1} }", "p.hlo");
    ASSERT_TRUE(program) << program.error().to_string();
    EXPECT_EQ(program->entry, 0);
    EXPECT_EQ(last(*program).dimensions, std::vector<std::int64_t>{1});
}

TEST(Hlo, ALoopHasItsConditionFirstInWhicheverOrderItIsWritten) {
    const std::string computations =
        "c { p = (s32[]) parameter(0)\n ROOT r = pred[] constant(false) }\n"
        "b { ROOT p = (s32[]) parameter(0) }\n";
    for (const char* order : {"condition=c, body=b", "body=b, condition=c"}) {
        const auto program =
            read_hlo(computations +
                         "ENTRY e { i = s32[] constant(0)\n t = (s32[]) tuple(i)\n w = (s32[]) "
                         "while(t), " +
                         order + ", backend_config={\"known_trip_count\":{\"n\":\"25\"}} }",
                     "p.hlo");
        ASSERT_TRUE(program) << program.error().to_string();
        EXPECT_EQ(last(*program).called, (std::vector<std::int32_t>{0, 1}));
        EXPECT_EQ(last(*program).trip_count, 25);
    }
}

TEST(Hlo, ACallOfCublasTellsItsAxes) {
    const auto program = read_hlo(
        "e { a = f32[8,4] parameter(0)\n b = f32[4,2] parameter(1)\n g = (f32[8,2], s8[64]) custom-call(a, "
        "b), "
        "custom_call_target=\"__cublas$gemm\", "
        "backend_config={\"gemm_backend_config\":{\"dot_dimension_numbers\":{"
        "\"lhs_contracting_dimensions\":[\"1\"],\"rhs_contracting_dimensions\":[\"0\"],\"lhs_batch_"
        "dimensions\":[],"
        "\"rhs_batch_dimensions\":[]}}} }",
        "p.hlo");
    ASSERT_TRUE(program) << program.error().to_string();
    ASSERT_TRUE(last(*program).dot);
    EXPECT_EQ(last(*program).dot->lhs_contracting, std::vector<std::int64_t>{1});
    EXPECT_EQ(last(*program).dot->rhs_contracting, std::vector<std::int64_t>{0});
    EXPECT_TRUE(last(*program).dot->lhs_batch.empty());
}

TEST(Hlo, ACustomCallNeedsNoOperands) {
    const auto found = test::candidates(R"(HloModule m, replica_count=2
ENTRY e {
  %a = f32[4,8] custom-call(), custom_call_target="AllocateBuffer"
  %b = f32[8,2]{1,0} custom-call(/*none*/), custom_call_target="x", literal=f32[] 5, api_version=API_VERSION_TYPED_FFI
  %g = f32[8,8] all-gather(%a), dimensions={0}, replica_groups={{0,1}}
  %c = custom-call(), custom_call_target="__cublas$gemm", backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}
  ROOT %d = f32[8,2] dot(%g, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(test::dots(found[0]), test::Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(test::findings(found[0]), test::Lines{});
}

TEST(Hlo, OfSeveralModulesOneIsReadByNameOrNumber) {
    const std::string_view text =
        "HloModule first, num_partitions=2\n"
        "f { a = f32[2] parameter(0) }\n"
        "ENTRY e { a = f32[2] parameter(0)\n b = f32[2] call(a), to_apply=f }\n"
        "HloModule second, num_partitions=4\n"
        "f { a = f32[8] parameter(0) }\n"
        "ENTRY e { a = f32[8] parameter(0)\n b = f32[8] call(a), to_apply=f }\n"
        "  HloModule third\n"
        "e { a = f32[2] what is not read need not be right }";
    for (const char* module : {"second", "1"}) {
        const auto program = read_hlo(text, "p.hlo", module);
        ASSERT_TRUE(program) << program.error().to_string();
        EXPECT_EQ(program->name, "second");
        EXPECT_EQ(program->partitions, 4);
        ASSERT_EQ(program->computations.size(), 2U);
        EXPECT_EQ(last(*program).shape.to_string(), "f32[8]");
        EXPECT_EQ(last(*program).where.to_string(), "p.hlo:8:2");
    }
    EXPECT_EQ(error_of(text),
              "p.hlo:5:1: holds 3 modules; choose one with --module, by its name or number: 0 (first), 1 "
              "(second), 2 (third)");
    const auto unknown = read_hlo(text, "p.hlo", "fourth");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().to_string(),
              "p.hlo:5:1: holds no module called fourth; choose one with --module, by its name or number: 0 "
              "(first), 1 (second), 2 (third)");
    EXPECT_EQ(unknown.error().error_class, ErrorClass::usage);
}

TEST(Hlo, ModulesOfOneNameAreToldApartByNumber) {
    const std::string_view text =
        "HloModule m\ne { a = f32[2] parameter(0) }\nHloModule m\ne { a = f32[4] parameter(0) }\n";
    const auto both = read_hlo(text, "p.hlo", "m");
    ASSERT_FALSE(both);
    EXPECT_EQ(
        both.error().message,
        "holds several modules called m; choose one with --module, by its name or number: 0 (m), 1 (m)");
    const auto program = read_hlo(text, "p.hlo", "1");
    ASSERT_TRUE(program) << program.error().to_string();
    EXPECT_EQ(last(*program).shape.to_string(), "f32[4]");
}

TEST(HloError, IsAtTheLineAndColumnOfWhatIsWrong) {
    EXPECT_EQ(error_of(""), "p.hlo:1:1: empty: expected HLO text");
    EXPECT_EQ(error_of("HloModule m\n"), "p.hlo:2:1: no computation");
    EXPECT_EQ(error_of("{\"schema\": 1}"), "p.hlo:1:1: expected a computation: NAME { … }, found \"{\"");
    EXPECT_EQ(error_of("e { }"), "p.hlo:1:1: computation e holds no instruction");
    EXPECT_EQ(error_of("e {\n  a = f32[2] parameter(0)\n"), "p.hlo:1:1: a computation that is never closed");
    EXPECT_EQ(error_of("e {\n  a f32[2] parameter(0)\n}"),
              "p.hlo:2:5: expected \"=\" after the instruction's name a, found \"f32\"");
    EXPECT_EQ(error_of("e {\n  a = f32[2 parameter(0)\n}"),
              "p.hlo:2:13: expected \"]\" after an array's sizes, found \"parameter\"");
    EXPECT_EQ(error_of("e {\n  a = f32[-2] parameter(0)\n}"),
              "p.hlo:2:13: expected an axis' size, found \"]\"");
    EXPECT_EQ(error_of("e {\n  a = f32[2] negate(b)\n}"),
              "p.hlo:2:21: a reads b, which no instruction above it in computation e is called");
    EXPECT_EQ(error_of("e {\n  a = f32[2] parameter(0)\n  a = f32[2] parameter(1)\n}"),
              "p.hlo:3:3: a second instruction called a in computation e");
    EXPECT_EQ(error_of("e {\n  a = f32[2] parameter(0)\n  b = f32[2] call(a), to_apply=g\n}"),
              "p.hlo:3:32: no computation is called g");
    EXPECT_EQ(error_of("e {\n  a = f32[2] parameter(0), metadata={op=\"x\n}"),
              "p.hlo:2:41: a string that never ends");
    EXPECT_EQ(error_of("e {\n  a = f32[2] parameter(0), sharding={{}\n"),
              "p.hlo:2:37: a bracket that is never closed");
}

TEST(HloError, DepthAndSizesAreBounded) {
    const std::string deep(100000, '(');
    EXPECT_EQ(error_of("e {\n  a = " + deep), "p.hlo:2:71: tuples nested more than 64 deep");
    EXPECT_EQ(error_of("e {\n  a = f32[] parameter(0), x=" + deep), "p.hlo:2:93: nested more than 64 deep");
    EXPECT_NE(
        error_of("e { a = f32[" + std::string(200, '1') + "] parameter(0) }").find("expected an axis' size"),
        std::string::npos);
}

std::vector<std::vector<std::int32_t>> groups_of(const std::string& written) {
    const auto program =
        read_hlo("e { a = f32[2] parameter(0)\n b = f32[2] all-reduce(a), replica_groups=" + written +
                     ", channel_id=1 }",
                 "p.hlo");
    EXPECT_TRUE(program) << program.error().to_string();
    return program ? last(*program).groups->groups : std::vector<std::vector<std::int32_t>>{};
}

TEST(ReplicaGroups, EveryFormIsRead) {
    using Groups = std::vector<std::vector<std::int32_t>>;
    EXPECT_EQ(groups_of("{}"), Groups{});
    EXPECT_EQ(groups_of("{{}}"), Groups{});
    EXPECT_EQ(groups_of("{{0,2}, {1,3}}"), (Groups{{0, 2}, {1, 3}}));
    EXPECT_EQ(groups_of("[2,4]<=[8]"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
    EXPECT_EQ(groups_of("[4,2]<=[2,4]T(1,0)"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    EXPECT_EQ(groups_of("[2,4]<=[2,2,2]T(1,0,2)"), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
    EXPECT_EQ(groups_of("mesh['x'=2,'y'=4] {'y'}"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
    EXPECT_EQ(groups_of("mesh['x'=2,'y'=4] {'x'}"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    EXPECT_EQ(groups_of("mesh[x=2,y=2]{y,x}"), (Groups{{0, 2, 1, 3}}));
}

TEST(ReplicaGroups, WhatIsNoneOfThemIsRefusedWhereItStands) {
    const auto error = [](const std::string& written) {
        return error_of("e { a = f32[2] parameter(0)\nb = f32[2] all-reduce(a), replica_groups=" + written +
                        " }");
    };
    EXPECT_EQ(error("[2,4]<=[9]"), "p.hlo:2:43: replica_groups: [groups,size]<=[…] whose products differ");
    EXPECT_EQ(error("[2,4]<=[2,4]T(1,1)"),
              "p.hlo:2:43: replica_groups: T(…) is no permutation of the axes before it");
    EXPECT_EQ(error("[0,4]<=[0]"), "p.hlo:2:43: replica_groups: [groups,size]<=[…] whose products differ");
    EXPECT_EQ(error("[1048576,1048576]<=[4]"),
              "p.hlo:2:43: replica_groups: [groups,size]<=[…] whose products differ");
    EXPECT_EQ(error("{{0,-1}}"), "p.hlo:2:46: a replica's number out of range");
    EXPECT_EQ(error("{{0,x}}"), "p.hlo:2:46: expected a replica's number, found \"x\"");
    EXPECT_EQ(error("mesh['x'=2] {'z'}"), "p.hlo:2:55: replica_groups: the mesh has no axis \"z\"");
    EXPECT_EQ(
        error("7"),
        "p.hlo:2:42: expected replica groups: {{0,1},…}, [groups,size]<=[…] or mesh[…] {…}, found \"7\"");
}

}  // namespace
}  // namespace syncopate::ingest

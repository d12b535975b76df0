// Every way in which a plan file can be wrong, with the exact message.
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "plan/plans.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::plan {
namespace {

std::string error_of(std::string_view text) {
    const Result<Plan> plan = from_json(text, "p.json");
    return plan ? "no error" : plan.error().to_string();
}

/// A sound plan with one text replaced, and the error this makes. Line 10 holds rank 0's op, line 12 rank
/// 1's.
std::string error_after(std::string_view old_text, std::string_view new_text) {
    static const std::string kSound = to_json(test::relay());
    std::string text = kSound;
    const std::size_t place = text.find(old_text);
    if (place == text.npos) return "the text to replace is not there:\n" + text;
    return error_of(text.replace(place, old_text.size(), new_text));
}

TEST(JsonError, TheSoundPlanOfTheseTestsHasNone) { EXPECT_EQ(error_of(to_json(test::relay())), "no error"); }

TEST(JsonError, SyntaxIsReportedAtLineAndColumn) {
    EXPECT_EQ(error_of(""), "p.json:1:1: empty: expected a JSON object");
    EXPECT_EQ(error_of(" \n "), "p.json:1:1: empty: expected a JSON object");
    EXPECT_EQ(error_of("{\"mesh\": [1,\n  2,, 3]}"),
              "p.json:2:5: not JSON: parsing value - unexpected ','; expected '[', '{', or a literal");
    EXPECT_EQ(error_of(std::string_view("{}\0x", 4)), "p.json:1:3: not JSON: it holds a NUL byte");
    EXPECT_EQ(error_of("{} x"),
              "p.json:1:4: not JSON: parsing value - invalid literal; expected end of input");
    EXPECT_EQ(error_of("{\"a\": 1"),
              "p.json:1:8: not JSON: parsing object - unexpected end of input; expected '}'");
}

TEST(JsonError, BinaryInputIsReportedWithoutEchoingIt) {
    EXPECT_EQ(error_of(std::string_view("\x7f"
                                        "ELF\0\0\xff",
                                        7)),
              "p.json:1:1: not JSON: parsing value - invalid literal");
    EXPECT_EQ(error_of("{\"\xff\xfe\": 1}"),
              "p.json:1:3: not JSON: parsing object key - invalid string: "
              "ill-formed UTF-8 byte; expected string literal");
}

TEST(JsonError, DeepNestingIsRefused) {
    EXPECT_EQ(error_of(std::string(100000, '[')), "p.json:1:33: nested more than 32 deep");
}

TEST(JsonError, TheTopMustBeAPlanOfThisVersion) {
    EXPECT_EQ(error_of("[1]"), "p.json:1:1: the plan is a list of 1; expected an object");
    EXPECT_EQ(error_of("{}"),
              "p.json:1:1: the plan is an empty object; it needs \"schema\", \"mesh\", \"tensors\", "
              "\"initial\", \"final\", \"ranks\"");
    EXPECT_EQ(error_after("plan/1", "plan/2"),
              "p.json:1:12: schema is \"syncopate.plan/2\"; this version reads \"syncopate.plan/1\"");
}

TEST(JsonError, AnUnknownKeyIsReportedWithTheOneMeant) {
    EXPECT_EQ(
        error_after("\"after\"", "\"aftr\""),
        "p.json:12:116: rank 1 op 0: ranks[1].ops[0] has an unknown key \"aftr\"; did you mean \"after\"?");
    EXPECT_EQ(error_after("\"dtype\"", "\"colour\": 1, \"dtype\""),
              "p.json:3:35: tensors.A has an unknown key \"colour\"; the keys here are shape, dtype, ragged");
    EXPECT_EQ(
        error_after("\"final\": [\n  {", "\"final\": [\n  {\"partial\": true, "),
        "p.json:7:4: final[0] has an unknown key \"partial\"; the keys here are rank, tensor, region, of");
}

TEST(JsonError, ARepeatedKeyIsRefused) {
    EXPECT_EQ(error_after("\"peer\": 1", "\"peer\": 1, \"peer\": 2"),
              "p.json:10:30: rank 0 op 0: ranks[0].ops[0] has the key \"peer\" twice");
    EXPECT_EQ(error_after("\"tensors\": {", "\"tensors\": {\"A\": {\"shape\": [1], \"dtype\": \"int8\"}, "),
              "p.json:3:52: tensors.A is defined a second time");
}

TEST(JsonError, AMissingKeyIsNamed) {
    EXPECT_EQ(error_after("\"peer\": 1, ", ""),
              "p.json:10:4: rank 0 op 0: ranks[0].ops[0] lacks \"peer\", which a push needs");
    EXPECT_EQ(error_after("\"op\": \"push\", ", ""),
              "p.json:10:4: rank 0 op 0: ranks[0].ops[0] lacks \"op\"");
    EXPECT_EQ(
        error_after("{\"tensor\": \"A\", \"region\": [[0,4]]}, \"dst\"", "{}, \"dst\""),
        "p.json:10:37: rank 0 op 0: ranks[0].ops[0].src is an empty object; it needs \"tensor\", \"region\"");
}

TEST(JsonError, AKeyOfAnotherKindOfOpIsRefused) {
    EXPECT_EQ(error_after("\"push\"", "\"local\""),
              "p.json:10:28: rank 0 op 0: ranks[0].ops[0].peer does not belong to a local op");
    EXPECT_EQ(error_after("\"peer\": 1", "\"kind\": \"all_gather\""),
              "p.json:10:27: rank 0 op 0: ranks[0].ops[0].kind does not belong to a push op");
}

TEST(JsonError, AWrongTypeSaysWhatIsThereAndWhatBelongsThere) {
    EXPECT_EQ(error_after("\"peer\": 1", "\"peer\": \"1\""),
              "p.json:10:27: rank 0 op 0: ranks[0].ops[0].peer is the string \"1\"; expected an integer that "
              "fits 64 bits");
    EXPECT_EQ(error_after("\"peer\": 1", "\"peer\": 1.5"),
              "p.json:10:27: rank 0 op 0: ranks[0].ops[0].peer is the number 1.5; expected an integer that "
              "fits 64 bits");
    EXPECT_EQ(
        error_after("\"region\": [[0,4]]}, \"dst\"", "\"region\": [[0,4,1]]}, \"dst\""),
        "p.json:10:64: rank 0 op 0: ranks[0].ops[0].src.region[0] is a list of 3; expected [begin, end]");
    EXPECT_EQ(error_after("\"region\": [[0,4]]}, \"dst\"", "\"region\": [[0,null]]}, \"dst\""),
              "p.json:10:67: rank 0 op 0: ranks[0].ops[0].src.region[0][1] is null; expected an integer that "
              "fits 64 bits");
    EXPECT_EQ(error_after("[[0,0]]", "[0]"),
              "p.json:12:126: rank 1 op 0: ranks[1].ops[0].after[0] is the number 0; expected [rank, op]");
}

TEST(JsonError, ANumberThatDoesNotFitIsRefused) {
    EXPECT_EQ(error_after("[[0,4]]}, \"dst\"", "[[0,9223372036854775808]]}, \"dst\""),
              "p.json:10:67: rank 0 op 0: ranks[0].ops[0].src.region[0][1] is the number "
              "9223372036854775808; expected "
              "an integer that fits 64 bits");
    EXPECT_EQ(error_after("[[0,4]]}, \"dst\"", "[[0,9223372036854775807]]}, \"dst\""),
              "p.json:10:67: rank 0 op 0: ranks[0].ops[0].src.region[0][1] is 9223372036854775807; expected "
              "-4611686018427387904 to 4611686018427387904");
    EXPECT_EQ(error_after("\"peer\": 1", "\"peer\": 1e999"),
              "p.json:10:31: not JSON: number overflow parsing '1e999'");
}

TEST(JsonError, AnUnknownNameIsReportedWithTheOneMeant) {
    EXPECT_EQ(error_after("\"push\"", "\"psh\""),
              "p.json:10:11: rank 0 op 0: ranks[0].ops[0].op is \"psh\", not a known "
              "op; expected one of push, pull, local, collective");
    EXPECT_EQ(error_after("\"fp32\"", "\"float\""),
              "p.json:3:44: tensors.A.dtype is \"float\", not a known dtype; expected one of bf16, fp16, "
              "fp32, fp64, "
              "fp8e4m3, fp8e5m2, int8, int16, int32, int64, uint8, "
              "uint16, uint32, uint64, bool, fp8e4m3fnuz, fp8e5m2fnuz");
    EXPECT_EQ(error_after("\"src\": {\"tensor\": \"A\"", "\"src\": {\"tensor\": \"a\""),
              "p.json:10:48: rank 0 op 0: ranks[0].ops[0].src.tensor names an unknown tensor \"a\"; did you "
              "mean \"A\"?");
}

TEST(JsonError, EachRankOfTheMeshComesExactlyOnce) {
    EXPECT_EQ(error_after("{\"rank\": 2, \"ops\"", "{\"rank\": 1, \"ops\""),
              "p.json:13:12: ranks[2].rank is 1, which came before");
    EXPECT_EQ(error_after("{\"rank\": 2, \"ops\"", "{\"rank\": 3, \"ops\""),
              "p.json:13:12: ranks[2].rank is 3; the mesh has ranks 0 to 2");
    EXPECT_EQ(
        error_after(",\n  {\"rank\": 2, \"ops\": []}", ""),
        "p.json:8:11: ranks has no entry for rank 2; the mesh has ranks 0 to 2, each needs one, if only with "
        "\"ops\": []");
}

TEST(JsonError, TheMeshIsBounded) {
    EXPECT_EQ(error_after("[\"gpu\", 3]", "[\"gpu\", 5000]"),
              "p.json:2:19: mesh[0][1] is 5000; expected 1 to 4096");
    EXPECT_EQ(error_after("[\"gpu\", 3]", "[\"a\", 4096], [\"b\", 4096]"),
              "p.json:2:10: mesh has more than 4096 ranks");
    EXPECT_EQ(error_after("[\"gpu\", 3]", "[\"a\", 3], [\"a\", 1]"),
              "p.json:2:22: mesh[1][0] names \"a\" a second time");
    EXPECT_EQ(error_after("[\"gpu\", 3]", ""),
              "p.json:2:10: mesh is empty; it needs at least one [name, size] pair");
}

TEST(JsonError, ATensorIsBounded) {
    EXPECT_EQ(error_after("\"shape\": [12]", "\"shape\": [0]"),
              "p.json:3:30: tensors.A.shape[0] is 0; expected 1 to 4611686018427387904");
    EXPECT_EQ(error_after("\"shape\": [12]", "\"shape\": [4294967296, 4294967296]"),
              "p.json:3:29: tensors.A.shape is too large: the tensor's bytes do not fit 64 bits");
    EXPECT_EQ(error_after("\"shape\": [12]", "\"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
              "p.json:3:29: tensors.A.shape has 17 entries; at most 16 are allowed");
}

TEST(JsonError, TheRanksOfAReductionAreAListOrAll) {
    EXPECT_EQ(error_after("\"region\": [[0,4]]}],\n \"ranks\"",
                          "\"region\": [[0,4]], \"of\": \"al\"}],\n \"ranks\""),
              "p.json:7:55: final[0].of is the string \"al\"; expected \"all\" or a list of ranks");
    EXPECT_EQ(error_after("\"region\": [[0,4]]}],\n \"ranks\"",
                          "\"region\": [[0,4]], \"of\": [1, 1]}],\n \"ranks\""),
              "p.json:7:59: final[0].of[1] names rank 1 a second time");
}

}  // namespace
}  // namespace syncopate::plan

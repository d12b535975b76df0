// Mixtures of experts in bundles: what of them is refused, and what a GPU's launches would be given.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bundle/mixture_samples.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::bundle {
namespace {

using namespace testing;
using runtime::Memory;

TEST(BundleMixture, OfTilesThatNoTableCanHoldIsRefused) {
    for (const std::int32_t extent : {1, 8, 48, 512, 1 << 26, std::numeric_limits<std::int32_t>::max()}) {
        for (const auto of :
             {&ops::TileConfig::block_m, &ops::TileConfig::block_n, &ops::TileConfig::block_k}) {
            Bundle made = mixture();
            made.op->buckets.front().strategy.tiles.front().*of = extent;
            const Result<Planned> none = plan_rows(made, kTokens);
            ASSERT_FALSE(none.ok()) << extent;
            EXPECT_NE(none.error().message.find("powers of two"), std::string::npos) << none.error().message;
        }
    }
    Bundle made = mixture();
    made.op->buckets.front().strategy.tiles.front().stages = std::numeric_limits<std::int32_t>::max();
    EXPECT_FALSE(plan_rows(made, kTokens).ok());
}

TEST(BundleMixture, ThatNoProcessWithoutPythonCallsIsRefused) {
    for (const char* more : {",part=dispatch", ",part=combine,parallel=tensor"}) {
        const Result<Planned> none = plan_rows(mixture(more), kTokens);
        ASSERT_FALSE(none.ok()) << more;
        EXPECT_NE(none.error().message.find("are made from Python alone"), std::string::npos);
    }
    for (const char* more : {",part=dispatch", ",part=kept", ",part=combine", ",part=kept,parallel=tensor"}) {
        const auto read = from_bytes(to_bytes(mixture(more)), "op.sybundle");
        ASSERT_FALSE(read.ok()) << more;
        EXPECT_NE(read.error().message.find("are made from Python alone"), std::string::npos);
    }
    const auto refusal = [](const auto& change, Bundle of) {
        change(*of.op);
        const auto read = from_bytes(to_bytes(of), "op.sybundle");
        return read ? std::string() : read.error().message;
    };
    const auto acts = [](const char* name) { return [name](OperatorPart& op) { op.activation = name; }; };
    EXPECT_NE(refusal([](OperatorPart& op) { op.call.w_transposed = true; }, mixture())
                  .find("has w_transposed, which moe does not"),
              std::string::npos);
    EXPECT_NE(
        refusal([](OperatorPart& op) { op.call.bias = 1; }, mixture()).find("has bias, which moe does not"),
        std::string::npos);
    for (const char* activation : {"swish", "gelu", "none", "SILU"})
        EXPECT_NE(refusal(acts(activation), mixture()).find("which moe does not: it has relu, silu"),
                  std::string::npos)
            << activation;
    for (const char* activation : {"", "relu", "silu"}) EXPECT_EQ(refusal(acts(activation), mixture()), "");
    const Bundle product = testing::sample("all_gather_matmul:N=48,K=32,dtype=bf16,ranks=2,sms=4");
    EXPECT_NE(refusal(acts("swish"), product).find("has activation \"swish\""), std::string::npos);
    EXPECT_EQ(refusal(acts("gelu"), product), "");
    Bundle odd = testing::sample("all_gather_matmul:N=48,K=32,dtype=bf16,ranks=2,sms=4");
    odd.op->drops = true;
    const auto read = from_bytes(to_bytes(odd), "op.sybundle");
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("drops rows, or has ids, which only mixtures of experts do"),
              std::string::npos);
}

/// A mixture with kernels, which are none, that take these parameters.
Bundle compiled_mixture() {
    Bundle made = mixture();
    made.arch = "sm_90";
    const std::vector<std::vector<CompiledParameter>> parameters{
        {{.name = "ids_ptr", .kind = "*i64"},
         {.name = "counts_ptr", .kind = "*i32"},
         {.name = "rank", .kind = "i32"},
         {.name = "stride", .kind = "i64"},
         {.name = "sy_schedule", .kind = "*i32"}},
        {{.name = "dispatch_ptr", .kind = "*i32"},
         {.name = "up_ptr", .kind = "*i32"},
         {.name = "down_ptr", .kind = "*i32"},
         {.name = "seen_ptr", .kind = "*i32"},
         {.name = "own_ptr", .kind = "*i32"}},
        {{.name = "x_ptr", .kind = "*fp32"},
         {.name = "stride", .kind = "i64"},
         {.name = "stride_numbers", .kind = "i64"}},
        {{.name = "x_ptr", .kind = "tensordesc", .block = {16, 8}, .element_bytes = 4},
         {.name = "w_ptr", .kind = "tensordesc", .block = {8, 4}, .element_bytes = 4}},
        {{.name = "w_ptr", .kind = "tensordesc", .block = {1, 8, 4}, .element_bytes = 4}},
        {{.name = "out_ptr", .kind = "*fp32"}}};
    Variant variant;
    for (std::size_t stage = 0; stage < parameters.size(); ++stage) {
        made.kernels.push_back({.section = "kernels/0.cubin", .entry = "k", .parameters = parameters[stage]});
        variant.kernels.push_back(static_cast<std::int32_t>(stage));
    }
    made.sections["kernels/0.cubin"] =
        "\x7f"
        "ELF and more";
    Bucket& bucket = made.op->buckets.front();
    variant.traits = lower(*made.op, bucket, kTokens, fuse::Device::cuda)->traits;
    bucket.variants.push_back(variant);
    return made;
}

TEST(BundleMixture, OfAGpuIsGivenItsRankTablesOfLaterStagesAndItsOwnMemory) {
    const Bundle made = compiled_mixture();
    const Result<Planned> planned = plan_rows(made, kTokens);
    ASSERT_TRUE(planned) << planned.error().to_string();
    const Scratch scratch = scratch_of(*planned);
    EXPECT_GE(needs_of(made, *planned, 0).heap, planned->launch.schedule.heap.bytes + scratch.bytes);
    const auto number = [](const runtime::Argument& argument) {
        const auto& of = std::get<runtime::NumberArgument>(argument);
        std::int64_t value = 0;
        std::memcpy(&value, of.value.data(), of.bytes);
        return value;
    };
    const auto memory = [](const runtime::Argument& argument) {
        return std::get<runtime::PointerArgument>(argument).at;
    };
    constexpr std::int64_t kApart = std::int64_t{6} << 20, kScratch = std::int64_t{1} << 30;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
        const std::vector<runtime::Operand> operands = operands_of(*planned, rank);
        const Result<runtime::Form> form = form_of(made, *planned, rank, operands, 2 * kApart, kScratch);
        ASSERT_TRUE(form) << form.error().to_string();
        const auto& count = form->stages[0].arguments;
        EXPECT_EQ(memory(count[0]), (Memory{Memory::Of::operand, 1}));
        EXPECT_EQ(memory(count[1]).of, Memory::Of::tensor);
        EXPECT_EQ(number(count[2]), rank);
        EXPECT_EQ(number(count[3]), kApart / 4);
        EXPECT_EQ(memory(count[4]).of, Memory::Of::table);
        const auto& layout = form->stages[1].arguments;
        for (std::int32_t i = 0; i < 3; ++i)
            EXPECT_EQ(memory(layout[at(i)]), (Memory{Memory::Of::table_of, 2 + i}));
        EXPECT_EQ(memory(layout[3]),
                  (Memory{Memory::Of::fixed, 0,
                          kScratch + static_cast<std::int64_t>(scratch.places.at(ops::kSeen).offset)}));
        EXPECT_NE(memory(layout[4]), memory(layout[3]));
        EXPECT_EQ(number(form->stages[2].arguments[1]), kApart / 4);
        const auto& up = form->stages[3].arguments;
        EXPECT_EQ(std::get<runtime::DescriptorArgument>(up[0]).map.shape.back(), kHidden)
            << "rows, not groups";
        EXPECT_EQ(std::get<runtime::DescriptorArgument>(up[1]).map.shape,
                  (std::vector<std::int64_t>{2 * kHidden, 2 * kInner}));
        EXPECT_EQ(std::get<runtime::DescriptorArgument>(form->stages[4].arguments[0]).map.shape,
                  (std::vector<std::int64_t>{2, kInner, kHidden}));
        EXPECT_EQ(memory(form->stages[5].arguments[0]), (Memory{Memory::Of::operand, 5}));
    }
}

TEST(BundleMixture, ThatWasCompiledForOtherNumbersThanItIsPlannedWithIsRefused) {
    const Bundle whole = compiled_mixture();
    const Planned planned = *plan_rows(whole, kTokens);
    int compared = 0;
    for (std::size_t stage = 0; stage < planned.parameters.size(); ++stage) {
        for (const auto& [name, of] : planned.parameters[stage]) {
            if (of.of != ops::Parameter::Of::constant) continue;
            Bundle made = whole;
            made.kernels[stage].constants[name] = of.value;
            EXPECT_TRUE(plan_rows(made, kTokens).ok()) << name;
            made.kernels[stage].constants[name] = of.value + 1;
            const Result<Planned> none = plan_rows(made, kTokens);
            ASSERT_FALSE(none.ok()) << name;
            EXPECT_NE(
                none.error().message.find(fmt::format("was compiled for {}={}, and", name, of.value + 1)),
                std::string::npos)
                << none.error().message;
            EXPECT_NE(none.error().message.find("compile it again"), std::string::npos);
            ++compared;
        }
    }
    EXPECT_GT(compared, 100);
    for (const char* name : {"R", "E", "EXPERTS", "BOUND", "BLOCKS", "UP", "DOWN", "BLOCK_M", "T", "TOPK",
                             "H", "F", "ROUTES", "TILE"})
        EXPECT_TRUE(planned.parameters.front().contains(name)) << name;
    Bundle acts = whole;
    acts.kernels[3].constants["ACTIVATION"] = std::string("relu");
    EXPECT_TRUE(plan_rows(acts, kTokens).ok());
    acts.kernels[3].constants["ACTIVATION"] = std::string("silu");
    EXPECT_FALSE(plan_rows(acts, kTokens).ok());
}

TEST(BundleMixture, WhoseKernelTakesOtherElementsIsRefused) {
    Bundle made = compiled_mixture();
    made.op->int32_ids = true;  // its kernel takes 64 bits
    const Result<Planned> none = plan_rows(made, kTokens);
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message.find("takes ids_ptr as *i64, and"), std::string::npos)
        << none.error().message;
    made.kernels[0].parameters[0].kind = "*i32";
    EXPECT_TRUE(plan_rows(made, kTokens).ok());
    made.kernels[5].parameters[0].kind = "*bf16";
    EXPECT_FALSE(plan_rows(made, kTokens).ok());
}

TEST(BundleMixture, FindsItsStagesByTheirKernels) {
    const Planned planned = *plan_rows(compiled_mixture(), kTokens);
    const auto& stages = planned.launch.stages;
    for (const auto& [parameter, kernel] :
         {std::pair{"dispatch_ptr", "moe_dispatch"}, {"up_ptr", "moe_up"}, {"down_ptr", "moe_down"}})
        EXPECT_EQ(stages[at(planned.parameters.front().at(parameter).stage)].kernel, kernel);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        const bool multiplies = stages[stage].kernel == "moe_up" || stages[stage].kernel == "moe_down";
        EXPECT_EQ(planned.parameters[stage].contains("w_ptr"), multiplies) << stages[stage].kernel;
    }
}

TEST(BundleMixture, AsProductsThatWereCompiledForOtherTilesAreRefused) {
    Bundle made = testing::compiled_sample();
    for (Bucket& bucket : made.op->buckets) {
        const auto lowered = lower(*made.op, bucket, bucket.rows, fuse::Device::cuda);
        ASSERT_TRUE(lowered) << lowered.error().to_string();
        bucket.variants = {{.traits = lowered->traits, .kernels = {0}}};
    }
    const std::int64_t rows = made.op->buckets.back().rows;
    made.kernels.front().constants = {{"BLOCK_M", std::int64_t{16}}, {"FUSED", true}};
    made.kernels.front().parameters.clear();
    const Result<Planned> planned = plan_rows(made, rows);
    ASSERT_TRUE(planned) << planned.error().to_string();
    made.kernels.front().constants["BLOCK_M"] = std::int64_t{32};
    const Result<Planned> none = plan_rows(made, rows);
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message.find("was compiled for BLOCK_M=32"), std::string::npos)
        << none.error().message;
}

}  // namespace
}  // namespace syncopate::bundle

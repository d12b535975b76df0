#include "syncopate/ops/spec.hpp"

#include <gtest/gtest.h>

#include <string>

#include "syncopate/ops/operators.hpp"

namespace syncopate::ops {
namespace {

std::string message(const std::string& text) {
    const auto spec = parse_spec(text, 2);
    return spec ? std::string() : spec.error().message;
}

TEST(Spec, AsksForAStrategyByTheKeysOfItsOperator) {
    const Spec gathered = parse_spec("all_gather_matmul:M=64,N=32,K=64,split=4,slices=2,pull=1", 2).value();
    ASSERT_TRUE(gathered.strategy);
    EXPECT_EQ(gathered.strategy->chunking.rows, 4) << "of what comes before the product";
    EXPECT_EQ(gathered.strategy->chunking.num_slices, 2);
    EXPECT_TRUE(gathered.strategy->pull);
    EXPECT_FALSE(gathered.strategy->kernel) << "the rest stays open";
    const Spec scattered =
        parse_spec("matmul_reduce_scatter:M=64,N=32,K=64,split=4,backend=tma_inline", 2).value();
    EXPECT_EQ(scattered.strategy->split, 4);
    EXPECT_EQ(scattered.strategy->backend, plan::Backend::tma_inline);
    EXPECT_EQ(parse_spec("feed_forward:M=64,K=32,F=64,N=32,apart=1", 2)->strategy->placement,
              Placement::apart);
}

TEST(Spec, ThatAsksForNothingLeavesTheStrategyOpen) {
    EXPECT_FALSE(parse_spec("matmul_all_reduce:M=64,N=32,K=64", 2)->strategy);
    EXPECT_FALSE(parse_spec("matmul_all_reduce:M=64,N=32,K=64,split=0", 2)->strategy) << "0 asks for nothing";
}

TEST(Spec, SaysOfAnAttentionHowItIsCalled) {
    const Spec spec = parse_spec("attention:S=64,window=8,cu_seqlens=0:37:64,backend=ldst_inline", 2).value();
    EXPECT_EQ(spec.call, (std::vector<Word>{{"window", "8"}, {"cu_seqlens", "0:37:64"}}));
    EXPECT_EQ(spec.strategy->backend, plan::Backend::ldst_inline);
    EXPECT_EQ(spec.problem.extent("HKV"), 8) << "by default";
}

TEST(Spec, OfEveryOperatorIsReadWithAllOfItsKeys) {
    for (const OperatorRow& row : operators()) {
        std::string text(row.name);
        for (const std::string_view extent : row.extents)
            text += (text.size() == row.name.size() ? ":" : ",") + std::string(extent) +
                    (extent == "causal" ? "=1" : "=64");
        for (const auto& [key, path] : row.keys)
            text += "," + std::string(key) + (key == "backend" ? "=copy_engine" : "=1");
        for (const std::string_view call : row.call) text += "," + std::string(call) + "=2";
        const auto spec = parse_spec(text, 2);
        ASSERT_TRUE(spec) << text << ": " << spec.error().message;
        EXPECT_EQ(spec->strategy.has_value(), !row.keys.empty()) << text;
        EXPECT_EQ(spec->call.size(), row.call.size()) << text;
    }
}

TEST(Spec, SaysWhatIsWrong) {
    const std::string shape = "attention:S=64,";
    EXPECT_EQ(message(shape + "window=x"), "window: expected a whole number, got \"x\"");
    EXPECT_EQ(message(shape + "window=-1"), "window: expected a whole number, got \"-1\"");
    EXPECT_EQ(message(shape + "window="), "window: expected a whole number, got \"\"");
    EXPECT_EQ(message(shape + "inner=1:2"), "inner: expected a whole number, got \"1:2\"");
    EXPECT_EQ(message(shape + "cu_seqlens=0:"),
              "cu_seqlens: expected whole numbers with : between them, got \"0:\"");
    EXPECT_EQ(message(shape + "inner=2,inner=2"), "inner is given twice");
    const std::string product = "matmul_all_reduce:M=64,N=32,K=64,";
    EXPECT_EQ(message(product + "split=2,split=2"), "split is given twice");
    EXPECT_NE(message(product + "split=a").find("split is the string \"a\""), std::string::npos);
    EXPECT_NE(message(product + "backend=warp").find("is \"warp\", not a known backend"), std::string::npos);
    EXPECT_EQ(message(product + "backend=nccl"),
              "backend: \"nccl\" carries out whole collectives, and an operator's plan has none");
    EXPECT_NE(message(product + "spilt=2").find("did you mean \"split\"?"), std::string::npos);
    EXPECT_EQ(message("feed_forward:M=64,K=32,F=64,N=32,activation=tanh"),
              "activation: expected one of relu, gelu, silu, not \"tanh\"");
}

TEST(Spec, OfAProblemAloneAsksForNoStrategyAndNoCall) {
    EXPECT_EQ(parse_problem("matmul_all_reduce:M=64,N=32,K=64,split=2", 2).error().message,
              "matmul_all_reduce:M=64,N=32,K=64,split=2: it asks for a strategy, and a problem has none");
    EXPECT_EQ(parse_problem("attention:S=64,window=8", 2).error().message,
              "window is of a call, and a problem has none");
}

}  // namespace
}  // namespace syncopate::ops

#include "syncopate/ops/problem.hpp"

#include <gtest/gtest.h>

namespace syncopate::ops {
namespace {

TEST(Problem, IsReadFromASpec) {
    const Result<Problem> problem =
        parse_problem("all_gather_matmul:M=8192,N=3584,K=4096,dtype=fp16", 8, 132);
    ASSERT_TRUE(problem) << problem.error().to_string();
    EXPECT_EQ(problem->extent("M"), 8192);
    EXPECT_EQ(problem->dtype, plan::DType::fp16);
    EXPECT_EQ(problem->ranks, 8);
    EXPECT_EQ(problem->products(), (std::vector<ProductShape>{{8192, 3584, 4096}}));
}

TEST(Problem, HasAKeyFromWhichAnEqualOneIsRead) {
    for (const char* spec :
         {"all_gather_matmul:K=8192,N=3584,M=64,ranks=4",
          "feed_forward:M=1024,K=512,F=256,N=64,activation=gelu", "attention:S=4096,kind=ring,causal=1",
          "attention:S=4096,causal=0", "matmul_all_reduce:M=64,N=32,K=64,dtype=fp8e4m3,out=fp16,scales=block",
          "all_gather_matmul:M=64,N=32,K=64,dtype=fp8e4m3", "mlp_chain:M=256,H=12288,F=6144"}) {
        const Result<Problem> problem = parse_problem(spec, 2, 132);
        ASSERT_TRUE(problem) << problem.error().to_string();
        const Result<Problem> again = parse_problem(problem->key());
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_EQ(*again, *problem);
        EXPECT_EQ(again->key(), problem->key());
    }
    EXPECT_EQ(parse_problem("all_gather_matmul:K=64,N=32,M=16", 2, 4)->key(),
              "all_gather_matmul:M=16,N=32,K=64,dtype=bf16,ranks=2,sms=4");
}

TEST(Problem, OfAttentionIsOfAKindThatThereIs) {
    EXPECT_TRUE(parse_problem("attention:S=4096,kind=double_ring"));
    const Result<Problem> unknown = parse_problem("attention:S=4096,kind=rings");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(
        unknown.error().message,
        "kind: expected one of auto, all_gather, ring, double_ring, ulysses, ulysses_ring, not \"rings\"");
}

TEST(Problem, OfAttentionSaysHowRowsAreSharded) {
    EXPECT_EQ(parse_problem("attention:S=64,sharding=zigzag", 2, 4)->word("sharding"), "zigzag");
    EXPECT_EQ(parse_problem("attention:S=64", 2, 4)->word("sharding"), "");
    const Result<Problem> unknown = parse_problem("attention:S=64,sharding=auto");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().message,
              "sharding: expected one of contiguous, zigzag, documents, not \"auto\"");
}

TEST(Problem, OfFp8SaysWhatItBecomes) {
    const Result<Problem> problem =
        parse_problem("matmul_all_reduce:M=64,N=32,K=64,dtype=fp8e4m3,scales=row");
    ASSERT_TRUE(problem) << problem.error().to_string();
    EXPECT_EQ(problem->out, plan::DType::bf16);
    EXPECT_EQ(problem->scales, Scales::row);
    EXPECT_EQ(problem->item(), 1);
    EXPECT_EQ(problem->out_item(), 2);
    EXPECT_EQ(problem->key(),
              "matmul_all_reduce:M=64,N=32,K=64,dtype=fp8e4m3,out=bf16,scales=row,ranks=1,sms=0");
}

TEST(Problem, OfAFeedForwardBlockHasTwoProducts) {
    const Result<Problem> problem = parse_problem("feed_forward:M=1024,K=512,F=256,N=64");
    ASSERT_TRUE(problem);
    EXPECT_EQ(problem->products(), (std::vector<ProductShape>{{1024, 256, 512}, {1024, 64, 256}}));
}

TEST(Problem, IsRefusedWithWhatIsWrong) {
    const auto message = [](const char* spec) {
        const Result<Problem> problem = parse_problem(spec, 3);
        EXPECT_FALSE(problem) << spec;
        return problem ? std::string() : problem.error().message;
    };
    EXPECT_EQ(message("all_gather_matmull:M=1"),
              "there is no operator \"all_gather_matmull\"; did you mean \"all_gather_matmul\"?");
    EXPECT_EQ(message("all_gather_matmul:M=1,N=8"), "all_gather_matmul needs K: M, N, K");
    EXPECT_EQ(message("all_gather_matmul:M=1,M=2"), "M is given twice");
    EXPECT_EQ(message("all_gather_matmul:M=0,N=8,K=8"),
              "M: expected an integer from 1 to 1099511627776, got \"0\"");
    EXPECT_EQ(message("all_gather_matmul:M=1099511627776,N=1099511627776,K=64"),
              "M x N has more than 4398046511104 elements: 1099511627776 x 1099511627776");
    EXPECT_EQ(message("matmul_reduce_scatter:M=8,N=64,K=1099511627776"),
              "M x K has more than 4398046511104 elements: 8 x 1099511627776");
    EXPECT_EQ(message("attention:S=1099511627776"),
              "S x H has more than 4398046511104 elements: 1099511627776 x 32");
    EXPECT_EQ(
        message("all_gather_matmul:M=8,N=8,K=8,colour=2"),
        "all_gather_matmul has no \"colour\"; there are M, N, K, split, slices, pull, backend, dtype, ranks, "
        "nodes, sms, out, scales");
    EXPECT_EQ(message("all_gather_matmul:M"), "\"M\": expected NAME=VALUE");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=9,K=8"),
              "N must be a multiple of 8 for bf16 (TMA takes rows of 16 bytes), got 9");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=8,K=16,dtype=fp8e4m3"),
              "N must be a multiple of 16 for fp8e4m3 (TMA takes rows of 16 bytes), got 8");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=16,K=16,dtype=fp8e4m3,out=fp32"),
              "expected out bf16 or fp16 for a product of fp8e4m3, got fp32");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=16,K=16,out=fp16"),
              "out=fp16: a product of bf16 makes the same");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=16,K=16,scales=row"), "scales: a product of bf16 takes none");
    EXPECT_EQ(message("all_gather_matmul:M=8,N=16,K=16,scales=tile"),
              "scales: expected none, row, block, got \"tile\"");
    EXPECT_EQ(message("feed_forward:M=8,N=16,K=16,F=16,dtype=fp8e4m3"),
              "feed_forward takes no fp8: what its first product makes would have to be scaled anew");
    EXPECT_EQ(message("attention:S=64,out=fp16"),
              "attention has no \"out\"; there are S, B, H, HKV, D, causal, kind, sharding, backend, "
              "window, inner, split, bounded, cu_seqlens, dtype, ranks, nodes, sms");
    EXPECT_EQ(message("matmul_all_to_all:M=8,N=8,K=8"),
              "an all-to-all sends blocks of equal size: 8 rows are no multiple of 3 ranks");
}

}  // namespace
}  // namespace syncopate::ops

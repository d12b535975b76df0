// Operators over nodes: what a rank makes alone is its part of the whole schedule.
#include <gtest/gtest.h>

#include <string>

#include "fuse/part_of_whole.hpp"
#include "syncopate/ops/program.hpp"

namespace syncopate::ops {
namespace {

class OperatorParts : public ::testing::TestWithParam<std::string> {};

TEST_P(OperatorParts, AreWhatTheWholeHasOfTheirRanks) {
    for (const char* const where : {",ranks=4,nodes=2", ",ranks=8,nodes=4", ",ranks=3,nodes=3"}) {
        for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
            SCOPED_TRACE(where);
            const auto problem = parse_problem(GetParam() + where, 4);
            ASSERT_TRUE(problem) << problem.error().to_string();
            Strategy strategy;
            strategy.tiles.assign(problem->products().size(), {.block_m = 64, .block_n = 64, .stages = 3});
            if (!strategy.tiles.empty()) strategy.kernel = ProductKernel::gluon;
            const auto made = program(*problem, strategy);
            ASSERT_TRUE(made) << made.error().to_string();
            const fuse::Options options = fuse_options(strategy, device);
            const auto whole = fuse::fuse(*made, options);
            ASSERT_TRUE(whole) << whole.error().to_string();
            fuse::test::expect_parts(*made, options, *whole);
            if (HasFatalFailure()) return;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    OfEach, OperatorParts,
    ::testing::Values("all_gather_matmul:M=768,N=256,K=256", "matmul_reduce_scatter:M=768,N=256,K=256",
                      "matmul_all_reduce:M=768,N=256,K=256", "all_to_all_matmul:M=768,N=256,K=256",
                      "matmul_all_to_all:M=768,N=256,K=256", "feed_forward:M=768,N=256,K=256,F=256",
                      "attention:S=1536,B=1,H=2,HKV=1,D=64,causal=1",
                      "attention_backward:S=1536,B=1,H=2,HKV=1,D=64,causal=1"));

}  // namespace
}  // namespace syncopate::ops

#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/model/strided.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/plan/lower/lower.hpp"

namespace syncopate::fuse {
namespace {

plan::Plan one_push(plan::Op op, std::vector<std::int64_t> shape = {8, 8}) {
    plan::Plan plan;
    plan.mesh = sample::ranks(2);
    plan.tensors = {{"A", std::move(shape), plan::DType::bf16}};
    op.kind = plan::OpKind::push;
    op.peer = 1;
    plan.ranks = {{op}, {}};
    return plan;
}

plan::Op copy(plan::Region region) { return {.src = {0, region}, .dst = {0, region}}; }

TEST(Assign, TakesHostOnHostAndTheCopyEngineOnCuda) {
    const plan::Plan plan = one_push(copy({{0, 4}, {0, 8}}));
    EXPECT_EQ(assign(plan, Device::host).value()[0][0], plan::Backend::host);
    EXPECT_EQ(assign(plan, Device::cuda).value()[0][0], plan::Backend::copy_engine);
}

TEST(Assign, HonoursAnExplicitBackendThatIsLegal) {
    plan::Op op = copy({{0, 4}, {0, 8}});
    op.backend = plan::Backend::copy_engine;
    EXPECT_EQ(assign(one_push(op), Device::cuda).value()[0][0], plan::Backend::copy_engine);
}

TEST(Assign, RefusesAnExplicitBackendThatIsNotBuiltAndSaysWhere) {
    plan::Op op = copy({{0, 4}, {0, 8}});
    op.backend = plan::Backend::nccl;
    const auto result = assign(one_push(op), Device::cuda);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().to_string(),
              "rank 0 op 0: backend nccl is for collectives: use \"copy_engine\", "
              "\"tma_dedicated\", \"ldst_dedicated\" or \"auto\"");
    EXPECT_FALSE(assign(one_push(op), Device::host).ok());
    op.backend = plan::Backend::host;
    EXPECT_FALSE(assign(one_push(op), Device::cuda).ok());
}

TEST(Assign, AsksTheKernelWhetherItCanSendInline) {
    plan::Op op = copy({{0, 4}, {0, 8}});
    op.backend = plan::Backend::tma_inline;
    EXPECT_EQ(assign(one_push(op), Device::cuda).error().to_string(),
              "rank 0 op 0: tma_inline needs a kernel that stores what is sent, or loads what is fetched");
    const auto says = [](std::string why) { return [why](plan::OpRef, plan::Backend) { return why; }; };
    EXPECT_EQ(assign(one_push(op), Device::cuda, {}, says("no")).error().to_string(), "rank 0 op 0: no");
    EXPECT_EQ(assign(one_push(op), Device::host, {}, says("")).value()[0][0], plan::Backend::tma_inline);
    op.backend = plan::Backend::automatic;
    EXPECT_EQ(assign(one_push(op), Device::cuda, {}, says("")).value()[0][0], plan::Backend::copy_engine);
    EXPECT_EQ(assign(one_push(op), Device::cuda, plan::Backend::ldst_inline, says("")).value()[0][0],
              plan::Backend::ldst_inline);
    EXPECT_EQ(assign(one_push(op), Device::cuda, plan::Backend::ldst_inline, says("no")).value()[0][0],
              plan::Backend::copy_engine)
        << "what is only preferred gives way";
}

TEST(Assign, LetsTilesReadWhatTheRankWasGivenWhereThatIs) {
    plan::Plan plan = one_push(copy({{0, 4}, {0, 8}}));
    plan.ranks[0][0].kind = plan::OpKind::local;
    plan.ranks[0][0].peer = -1;
    plan.ranks[0][0].backend = plan::Backend::automatic;
    const auto no = [](plan::OpRef, plan::Backend) { return std::string("no"); };
    const auto by_pointer = [](plan::OpRef, plan::Backend backend) {
        return std::string(backend == plan::Backend::ldst_inline ? "" : "no");
    };
    const auto chosen = [&](plan::Backend preferred, const InlineObjection& own) {
        return assign(plan, Device::cuda, preferred, no, own).value()[0][0];
    };
    EXPECT_EQ(chosen({}, by_pointer), plan::Backend::ldst_inline);
    EXPECT_EQ(chosen({}, no), plan::Backend::copy_engine);
    EXPECT_EQ(chosen({}, {}), plan::Backend::copy_engine);
    EXPECT_EQ(chosen(plan::Backend::tma_dedicated, by_pointer), plan::Backend::ldst_inline)
        << "whatever carries the rest";
    // Tiles that fetch from other ranks read through one descriptor of all heaps, and what they fetch is
    // asked for by name.
    plan.ranks[0].push_back(plan.ranks[0][0]);
    plan.ranks[0][1].kind = plan::OpKind::pull;
    plan.ranks[0][1].peer = 1;
    plan.ranks[0][1].backend = plan::Backend::ldst_inline;
    const auto yes = [](plan::OpRef, plan::Backend) { return std::string(); };
    EXPECT_EQ(assign(plan, Device::cuda, {}, yes, by_pointer).value()[0][0], plan::Backend::copy_engine);
}

TEST(Assign, StoresWhatStaysOnTheRankWhereItIsToBe) {
    plan::Plan plan = one_push(copy({{0, 4}, {0, 8}}));
    plan.ranks[0][0].kind = plan::OpKind::local;
    plan.ranks[0][0].peer = -1;
    plan.ranks[0][0].backend = plan::Backend::automatic;
    plan.produced.push_back({0, plan.ranks[0][0].src});
    const auto by_pointer = [](plan::OpRef, plan::Backend backend) {
        return std::string(backend == plan::Backend::ldst_inline ? "" : "no");
    };
    EXPECT_EQ(assign(plan, Device::cuda, {}, by_pointer).value()[0][0], plan::Backend::ldst_inline);
    EXPECT_EQ(assign(plan, Device::cuda, plan::Backend::copy_engine, by_pointer).value()[0][0],
              plan::Backend::copy_engine)
        << "unless another way is preferred";
}

TEST(Assign, RefusesAReductionOnTheCopyEngineOnly) {
    plan::Op op = copy({{0, 4}, {0, 8}});
    op.reduce = plan::Reduce::sum;
    EXPECT_TRUE(assign(one_push(op), Device::host).ok());
    const auto result = assign(one_push(op), Device::cuda);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find("cannot reduce (sum)"), std::string::npos);
}

TEST(Assign, ACollectiveGoesByTheLibraryOrSaysWhyItCannot) {
    const plan::Tensor rows{"A", {6, 8}, plan::DType::bf16};
    const auto backend = [](const Result<plan::Plan>& plan, Device device) {
        const auto result = assign(plan.value(), device);
        return result ? std::string(plan::name_of((*result)[0][0])) : result.error().to_string();
    };
    const auto direct = [&](const plan::Tensor& tensor, std::int32_t axis, const char* kind = "all_gather") {
        return plan::make_collective(kind, sample::ranks(2), tensor, {.axis = axis});
    };
    EXPECT_EQ(backend(direct(rows, 0), Device::cuda), "nccl");
    EXPECT_EQ(backend(direct(rows, 0), Device::host), "host");
    EXPECT_EQ(
        backend(direct(rows, 1), Device::cuda),
        "rank 0 op 0: all_gather moves contiguous memory, and A[0:6, 0:4] is not; expand it by a template "
        "(plan lower)");
    EXPECT_EQ(
        backend(direct({"A", {7, 8}, plan::DType::bf16}, 0), Device::cuda),
        "rank 0 op 0: all_gather takes shards of one size, one after another in the order of its ranks, and "
        "what rank 1 gives to rank 0 is not; expand it by a template (plan lower)");
    EXPECT_EQ(backend(direct({"A", {6, 8}, plan::DType::fp64}, 0, "all_reduce"), Device::cuda),
              "rank 0 op 0: all_reduce of fp64 is not carried out: it reduces bf16, fp16, fp32 or int32");
    plan::Plan named = direct(rows, 0).value();
    named.ranks[0][0].backend = plan::Backend::host;
    EXPECT_EQ(backend(named, Device::cuda),
              "rank 0 op 0: backend host does not exist on device cuda: use \"auto\"");
}

TEST(Assign, LetsTheEngineMoveWhatIsAlignedOnBothDevicesAndSaysWhatIsNot) {
    const auto outcome = [](std::vector<std::int64_t> shape, plan::Region region, Device device) {
        plan::Op op = copy(std::move(region));
        op.backend = plan::Backend::tma_dedicated;
        const auto result = assign(one_push(op, std::move(shape)), device);
        return result ? std::string("legal") : result.error().to_string();
    };
    for (const Device device : {Device::host, Device::cuda}) {
        EXPECT_EQ(outcome({8, 8}, {{0, 4}, {0, 8}}, device), "legal");
        EXPECT_EQ(outcome({8, 9}, {{0, 8}, {0, 9}}, device), "legal") << "144 bytes in one run";
        EXPECT_EQ(
            outcome({8, 9}, {{0, 4}, {0, 9}}, device),
            "rank 0 op 0: tma_dedicated moves multiples of 16 bytes, and A[0:4, 0:9] has rows of 72 bytes: "
            "use copy_engine or auto");
        EXPECT_NE(outcome({8, 9}, {{0, 4}, {0, 8}}, device).find("has rows 18 bytes apart"),
                  std::string::npos);
        EXPECT_NE(outcome({8, 16}, {{0, 4}, {4, 12}}, device).find("begins at byte 8"), std::string::npos);
        EXPECT_EQ(outcome({4, 3, 16}, {{0, 4}, {1, 3}, {8, 16}}, device), "legal");
        EXPECT_EQ(outcome({8, 1}, {{0, 8}, {0, 1}}, device), "legal");
    }
}

TEST(Assign, PrefersTheEngineOnlyWhereItIsLegal) {
    const auto backend = [](std::vector<std::int64_t> shape) {
        const plan::Plan plan = one_push(copy({{0, 4}, {0, shape[1]}}), shape);
        return assign(plan, Device::cuda, plan::Backend::ldst_dedicated).value()[0][0];
    };
    EXPECT_EQ(backend({8, 8}), plan::Backend::ldst_dedicated);
    EXPECT_EQ(backend({8, 9}), plan::Backend::copy_engine);
}

TEST(StridedLevels, CountsTheLoopsAroundAContiguousRun) {
    const auto levels = [](std::vector<std::int64_t> shape, plan::Region region) {
        const plan::Plan plan = one_push(copy(region), std::move(shape));
        return strided_levels(plan, plan.ranks[0][0].src, plan.ranks[0][0].dst);
    };
    EXPECT_EQ(levels({8, 8}, {{0, 4}, {0, 8}}), 1) << "whole rows are one run";
    EXPECT_EQ(levels({8, 8}, {{0, 4}, {0, 4}}), 2);
    EXPECT_EQ(levels({8, 8}, {{3, 4}, {2, 4}}), 1) << "a part of one row";
    EXPECT_EQ(levels({4, 8, 8}, {{0, 4}, {0, 4}, {0, 8}}), 2) << "runs of four rows, once per plane";
    EXPECT_EQ(levels({4, 8, 8}, {{0, 2}, {0, 4}, {0, 4}}), 3);
    EXPECT_EQ(levels({4, 8, 8}, {{0, 2}, {3, 4}, {0, 4}}), 2) << "an axis of one does not count";
    EXPECT_EQ(levels({4, 4, 8, 8}, {{0, 2}, {0, 2}, {0, 4}, {0, 4}}), 4);
}

TEST(Assign, RefusesABoxOfFourLevelsOnTheCopyEngine) {
    const plan::Plan plan = one_push(copy({{0, 2}, {0, 2}, {0, 4}, {0, 4}}), {4, 4, 8, 8});
    EXPECT_TRUE(assign(plan, Device::host).ok());
    EXPECT_FALSE(assign(plan, Device::cuda).ok());
}

}  // namespace
}  // namespace syncopate::fuse

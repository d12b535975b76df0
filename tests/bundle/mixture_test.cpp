// Mixtures of experts from bundles: their calls on host by the C API, and what a GPU's launches would be given.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "bundle/c_samples.hpp"
#include "bundle/samples.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::bundle {
namespace {

using runtime::Memory;
using testing::config_of;
using testing::Floats;
using testing::on_ranks;
using testing::Store;
using testing::store_of;
using testing::Written;

constexpr std::int64_t kTokens = 5, kTopk = 2, kHidden = 8, kInner = 6, kExperts = 4;

ops::Strategy one_tile() {
    return {.tiles = {{.block_m = 16, .block_n = 16, .block_k = 16, .stages = 1}}, .programs = 4};
}

Bundle mixture(const std::string& more = "", int ranks = 2) {
    Bundle made{.name = "a mixture", .made_by = "a test", .arch = std::string(kHost)};
    made.op.emplace();
    made.op->problem = *ops::parse_problem("moe:T=5,E=4,topk=2,H=8,F=6" + more +
                                           ",dtype=fp32,sms=4,ranks=" + std::to_string(ranks));
    made.op->activation = "relu";
    made.op->buckets.push_back({.rows = kTokens, .strategy = one_tile()});
    made.file = "op.sybundle";
    return made;
}

/// topk_ids.
struct Ids {
    Ids() {
        tensor.data = values.data();
        tensor.device = {SY_CPU, 0};
        tensor.ndim = 2;
        tensor.dtype = {SY_INT, 64, 1};
        tensor.shape = shape.data();
    }
    std::vector<int64_t> shape{kTokens, kTopk};
    std::vector<int64_t> values = std::vector<int64_t>(static_cast<size_t>(kTokens * kTopk));
    sy_tensor tensor{};
};

/// The tensors of a rank's calls. Every element of expert e's w1 is e + 1 and of its w2 1, each of x the rank and the token.
struct Call {
    explicit Call(int rank, int ranks)
        : x({kTokens, kHidden}),
          weights({kTokens, kTopk}),
          w1({kExperts / ranks, kHidden, 2 * kInner}),
          w2({kExperts / ranks, kInner, kHidden}),
          y({kTokens, kHidden}) {
        for (size_t i = 0; i < x.values.size(); ++i)
            x.values[i] = value(rank, static_cast<int64_t>(i) / kHidden);
        std::ranges::fill(w2.values, 1.0F);
        for (size_t i = 0; i < w1.values.size(); ++i)
            w1.values[i] = static_cast<float>(rank * kExperts / ranks +
                                              static_cast<int64_t>(i) / (kHidden * 2 * kInner) + 1);
        for (size_t i = 0; i < weights.values.size(); ++i) weights.values[i] = i % 2 == 0 ? 0.5F : 1.0F;
    }
    static float value(int rank, int64_t token) { return static_cast<float>(10 * rank + token + 1); }
    sy_code run(sy_op* op) {
        const sy_tensor* tensors[] = {&x.tensor,  &ids.tensor, &weights.tensor,
                                      &w1.tensor, &w2.tensor,  &y.tensor};
        return sy_run(op, tensors, 6, nullptr);
    }
    /// What an expert makes of a token's row, all of whose elements are alike.
    static float made(int rank, int64_t token, int64_t expert) {
        const float up = static_cast<float>(kHidden) * value(rank, token) * static_cast<float>(expert + 1);
        return static_cast<float>(kInner) * up * up;
    }
    void expect_right(int rank, const std::set<int64_t>& left_out = {}) const {
        for (int64_t token = 0; token < kTokens; ++token) {
            float wanted = 0;
            for (int64_t k = 0; k < kTopk; ++k) {
                const int64_t route = token * kTopk + k;
                if (!left_out.contains(route))
                    wanted += weights.values[at(route)] * made(rank, token, ids.values[at(route)]);
            }
            for (int64_t h = 0; h < kHidden; ++h)
                ASSERT_EQ(y.values[at(token * kHidden + h)], wanted)
                    << "rank " << rank << ", token " << token;
        }
    }
    Floats x;
    Ids ids;
    Floats weights, w1, w2, y;
};

/// `work` on each rank, with its op.
void with_ops(const Bundle& made, int ranks, const std::function<void(sy_op*, int)>& work) {
    const Written written(made);
    Store meet;
    const sy_store store = store_of(meet);
    on_ranks(ranks, [&](int rank) {
        const sy_comm_config config = config_of(rank, ranks, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        sy_op* op = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        sy_prepare_config prepare{};
        prepare.size = sizeof(prepare);
        prepare.rows = kTokens;
        OK(sy_prepare(comm, opened, &prepare, &op));
        work(op, rank);
        OK(sy_op_destroy(op));
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    });
}

TEST(BundleMixture, IsCalledFromCWithOneRoutingAfterAnother) {
    for (const int ranks : {1, 2, 4}) {
        with_ops(mixture("", ranks), ranks, [&](sy_op* op, int rank) {
            ASSERT_EQ(sy_num_operands(op), 6);
            const char* const names[] = {"x", "topk_ids", "topk_weights", "w1", "w2", "y"};
            for (int32_t i = 0; i < 6; ++i) {
                sy_operand operand{};
                operand.size = sizeof(operand);
                OK(sy_operand_at(op, i, &operand));
                EXPECT_STREQ(operand.name, names[i]);
                EXPECT_EQ(operand.writes, i == 5);
            }
            Call call(rank, ranks);
            for (int routing = 0; routing < 6; ++routing) {
                for (int64_t route = 0; route < kTokens * kTopk; ++route) {
                    // Spread, all to one expert, repeated within a token, nothing for the last rank.
                    const int64_t ids[] = {(route + rank) % kExperts,         1,
                                           route / kTopk % kExperts,          route % 2 * 2,
                                           (route * 7 + 3 * rank) % kExperts, kExperts - 1};
                    call.ids.values[at(route)] = ids[routing];
                }
                OK(call.run(op));
                OK(sy_status(op));
                call.expect_right(rank);
            }
        });
    }
}

TEST(BundleMixture, SaysOnAllRanksThatMoreRowsThanTheBoundCameOrDropsThem) {
    for (const bool drops : {false, true}) {
        Bundle made = mixture(",bound=12");
        made.op->drops = drops;
        with_ops(made, 2, [&](sy_op* op, int rank) {
            Call call(rank, 2);
            std::ranges::fill(call.ids.values, 2);  // 20 rows to rank 1: those of rank 0 first
            if (drops) {
                OK(call.run(op));
                call.expect_right(
                    rank, rank == 0 ? std::set<int64_t>{} : std::set<int64_t>{2, 3, 4, 5, 6, 7, 8, 9});
            } else {
                EXPECT_EQ(call.run(op), SY_USAGE);
                EXPECT_STREQ(sy_last_error(),
                             "bound: as many as 8 rows more than 12 come to a rank: compile it with "
                             "bound=20, or --drop");
            }
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = route % kExperts;
            OK(call.run(op));  // the next call knows nothing of it
            OK(sy_status(op));
            call.expect_right(rank);
        });
    }
}

TEST(BundleMixture, SaysOnAllRanksThatAnIdNamesNoExpert) {
    for (const int64_t id : {int64_t{-1}, kExperts, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
        with_ops(mixture(), 2, [&](sy_op* op, int rank) {
            Call call(rank, 2);
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = route % kExperts;
            if (rank == 1) call.ids.values[3] = id;
            EXPECT_EQ(call.run(op), SY_USAGE);
            EXPECT_STREQ(sy_last_error(),
                         "topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to 3");
            call.expect_right(rank, rank == 1 ? std::set<int64_t>{3} : std::set<int64_t>{});
        });
    }
}

TEST(BundleMixture, IsOfTheTokensOfItsBucketsAlone) {
    Bundle made = mixture();
    made.op->buckets.insert(made.op->buckets.begin(), {.rows = 2, .strategy = one_tile()});
    EXPECT_TRUE(plan_rows(made, 2));
    for (const std::int64_t rows : {1, 3, 6, 0}) {
        const Result<Planned> none = plan_rows(made, rows);
        ASSERT_FALSE(none.ok());
        EXPECT_NE(none.error().message.find("tokens a rank are not in this bundle, which has 2, 5"),
                  std::string::npos)
            << none.error().message;
    }
}

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
    for (const char* more : {",part=dispatch", ",parallel=tensor"}) {
        const Result<Planned> none = plan_rows(mixture(more), kTokens);
        ASSERT_FALSE(none.ok()) << more;
        EXPECT_NE(none.error().message.find("are made from Python alone"), std::string::npos);
    }
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
    EXPECT_GE(needs_of(made, *planned, 0).workspace, scratch.bytes);
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
                          kScratch + static_cast<std::int64_t>(scratch.offsets.at(ops::kSeen))}));
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

}  // namespace
}  // namespace syncopate::bundle

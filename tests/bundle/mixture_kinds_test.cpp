// Mixtures of experts of each kind in bundles, expert and tensor parallel, of fp8 and not: their calls on host by the C API, what a GPU's
// launches would be given, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bundle/mixture_samples.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/operators.hpp"

namespace syncopate::bundle {
namespace {

using namespace testing;
using runtime::Memory;

constexpr const char* kKinds[] = {"", ",parallel=tensor", ",dtype=fp8e4m3,scales=row",
                                  ",dtype=fp8e4m3,scales=row,parallel=tensor"};

/// A tensor of a call, as the op says it is.
struct Given {
    Given(sy_op* op, int32_t index) {
        operand.size = sizeof(operand);
        EXPECT_EQ(sy_operand_at(op, index, &operand), SY_OK);
        int64_t count = 1;
        for (int32_t axis = 0; axis < operand.ndim; ++axis) count *= operand.shape[axis];
        bytes.resize(at(count * operand.dtype_bits / 8 + 16));
        const auto place = reinterpret_cast<std::uint64_t>(bytes.data());
        tensor.data = reinterpret_cast<void*>((place + 15) / 16 * 16);
        tensor.device = {SY_CPU, 0};
        tensor.ndim = operand.ndim;
        tensor.dtype = {operand.dtype_code, operand.dtype_bits, 1};
        tensor.shape = const_cast<int64_t*>(operand.shape);
        elements = count;
    }
    [[nodiscard]] plan::DType dtype() const {
        if (operand.dtype_code == SY_FLOAT8_E4M3FN) return plan::DType::fp8e4m3;
        if (operand.dtype_code == SY_BFLOAT) return plan::DType::bf16;
        return plan::DType::fp32;
    }
    void set(int64_t index, double value) {
        const auto address = reinterpret_cast<std::uint64_t>(tensor.data);
        if (operand.dtype_code == SY_INT && operand.dtype_bits == 32)
            reinterpret_cast<int32_t*>(address)[index] = static_cast<int32_t>(value);
        else if (operand.dtype_code == SY_INT)
            reinterpret_cast<int64_t*>(address)[index] = static_cast<int64_t>(value);
        else
            set_element(dtype(), address, index, static_cast<float>(value));
    }
    [[nodiscard]] double get(int64_t index) const {
        return element(dtype(), reinterpret_cast<std::uint64_t>(tensor.data), index);
    }
    sy_operand operand{};
    std::vector<char> bytes;
    sy_tensor tensor{};
    int64_t elements = 0;
};

/// Element for element, with powers of two as scales; a row has one value, so that fp8 keeps what the first product makes.
class Layer {
public:
    Layer(sy_op* op, int rank, int ranks, bool tensor_parallel)
        : op_(op), rank_(rank), ranks_(ranks), tensor_parallel_(tensor_parallel) {
        for (int32_t i = 0; i < sy_num_operands(op); ++i) given_.emplace_back(op, i);
        for (Given& one : given_) {
            for (int64_t i = 0; i < one.elements; ++i) one.set(i, content(one, i));
        }
    }
    static double x_of(int rank, int64_t token) { return static_cast<double>((rank + token) % 4 + 1); }
    static double weight_of(int64_t route) { return route % 2 == 0 ? 0.5 : 1; }
    void route(int64_t route, int64_t expert) {
        of("topk_ids").set(route, static_cast<double>(expert));
        ids_[at(route)] = expert;
    }
    sy_code run() {
        std::vector<const sy_tensor*> tensors;
        for (Given& one : given_) tensors.push_back(&one.tensor);
        return sy_run(op_, tensors.data(), static_cast<int32_t>(tensors.size()), nullptr);
    }
    void expect_right(const char* what) {
        const Given& y = of("y");
        for (int64_t token = 0; token < kTokens; ++token) {
            double wanted = 0;
            for (int64_t route = token * kTopk; route < (token + 1) * kTopk; ++route) {
                const int64_t expert = ids_[at(route)];
                if (expert < 0 || expert >= kExperts) continue;
                const double up =
                    static_cast<double>(kHidden) * x_of(rank_, token) * static_cast<double>(expert + 1);
                wanted += weight_of(route) * static_cast<double>(kInner) * up * up;
            }
            for (int64_t h = 0; h < kHidden; ++h)
                ASSERT_NEAR(y.get(token * kHidden + h), wanted, 0.01 * wanted)
                    << what << ", rank " << rank_ << ", token " << token;
        }
    }

private:
    Given& of(std::string_view name) {
        return *std::ranges::find_if(given_, [&](const Given& one) { return name == one.operand.name; });
    }
    double content(const Given& one, int64_t index) const {
        const std::string_view name = one.operand.name;
        if (name == "x") return x_of(rank_, index / kHidden);
        if (name == "topk_weights") return weight_of(index);
        if (name == "w2" || name == "scale_w2") return 1;
        if (name == "scale_x") return 0.5;
        if (name == "scale_w1") return 2;
        if (name != "w1") return 0;
        const int64_t own = one.operand.shape[0];
        const int64_t first = tensor_parallel_ ? 0 : rank_ * kExperts / ranks_;
        return static_cast<double>(first + index / (one.elements / own) + 1);
    }
    sy_op* op_;
    int rank_, ranks_;
    bool tensor_parallel_;
    std::vector<Given> given_;
    std::vector<int64_t> ids_ = std::vector<int64_t>(at(kTokens * kTopk));
};

ops::Strategy tile_for(const ops::Problem& problem) {
    const std::int32_t width = problem.scales == ops::Scales::none ? 16 : 128;
    return {.tiles = {{.block_m = 16, .block_n = width, .block_k = width, .stages = 1}}, .programs = 4};
}

// From 32 MiB of a rank's rows on, more rows are sent at a time than a product's tile has.
TEST(BundleMixture, SendsManyRowsAtATimeWhereThereAreMany) {
    constexpr int64_t kMany = 2048, kWide = 2048;
    Bundle made = mixture();
    made.op->problem = *ops::parse_problem("moe:T=2048,E=4,topk=2,H=2048,F=1,dtype=fp32,sms=4,ranks=2");
    made.op->buckets.front().rows = kMany;
    ASSERT_GT(ops::mixture_sending(made.op->problem, one_tile()).rows, one_tile().tiles.front().block_m);
    const auto of_rank = [](sy_op* op, int rank) {
        std::vector<Given> given;
        for (int32_t i = 0; i < sy_num_operands(op); ++i) given.emplace_back(op, i);
        ASSERT_EQ(given.size(), 6U);
        Given &x = given[0], &ids = given[1], &weights = given[2], &w1 = given[3], &w2 = given[4],
              &y = given[5];
        // A token has one element, each expert's w1 its number in all.
        for (int64_t token = 0; token < kMany; ++token) x.set(token * kWide + token % kWide, 1);
        for (int64_t route = 0; route < kMany * kTopk; ++route) weights.set(route, 1);
        for (int64_t i = 0; i < w1.elements; ++i)
            w1.set(i, static_cast<double>(2 * rank + i / (w1.elements / 2) + 1));
        for (int64_t i = 0; i < w2.elements; ++i) w2.set(i, 1);
        for (const bool even : {true, false}) {
            const auto expert = [&](int64_t route) { return even ? route % kExperts : 3 * (route % 2); };
            for (int64_t route = 0; route < kMany * kTopk; ++route)
                ids.set(route, static_cast<double>(expert(route)));
            std::vector<const sy_tensor*> tensors;
            for (Given& one : given) tensors.push_back(&one.tensor);
            OK(sy_run(op, tensors.data(), 6, nullptr));
            OK(sy_status(op));
            for (int64_t token = 0; token < kMany; ++token) {
                double wanted = 0;
                for (int64_t route = token * kTopk; route < (token + 1) * kTopk; ++route)
                    wanted += static_cast<double>((expert(route) + 1) * (expert(route) + 1));
                for (const int64_t column : {int64_t{0}, kWide - 1})
                    ASSERT_EQ(y.get(token * kWide + column), wanted)
                        << "rank " << rank << ", token " << token;
            }
        }
    };
    with_ops(made, 2, of_rank, kMany);
}

TEST(BundleMixture, OfEachKindIsCalledFromCWithAnyIds) {
    for (const char* kind : kKinds) {
        for (const int ranks : {1, 2}) {
            Bundle made = mixture(kind, ranks);
            made.op->int32_ids = ranks == 2;
            made.op->buckets.front().strategy = tile_for(made.op->problem);
            const bool tensor_parallel = made.op->problem.word("parallel") == "tensor";
            with_ops(made, ranks, [&](sy_op* op, int rank) {
                Layer layer(op, rank, ranks, tensor_parallel);
                for (int routing = 0; routing < 5; ++routing) {
                    for (int64_t route = 0; route < kTokens * kTopk; ++route) {
                        // Spread, all to one expert, filled up, nothing at all on one rank, repeated within a token.
                        const int64_t ids[] = {(route + rank) % kExperts, 3, route < 4 ? route : -1,
                                               rank == 0 ? -1 : route % kExperts, route / kTopk % kExperts};
                        layer.route(route, ids[routing]);
                    }
                    OK(layer.run());
                    OK(sy_status(op));
                    layer.expect_right(kind);
                }
                if (rank == 0) layer.route(2, kExperts);
                EXPECT_EQ(layer.run(), SY_USAGE) << kind;
                EXPECT_STREQ(sy_last_error(),
                             "topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to 3");
                layer.expect_right(kind);
                OK(sy_status(op));
            });
        }
    }
}

TEST(BundleMixture, OfEachKindTellsItsBytesAhead) {
    for (const char* kind : kKinds) {
        Bundle made = mixture(kind);
        made.op->buckets.front().strategy = tile_for(made.op->problem);
        with_bundle(made, 2, [&](sy_comm* comm, sy_bundle* opened, int /*rank*/) {
            sy_workspace needs{};
            needs.size = sizeof(needs);
            OK(sy_workspace_size(opened, kTokens, &needs));
            sy_prepare_config prepare{};
            prepare.size = sizeof(prepare);
            prepare.rows = kTokens;
            sy_op* op = nullptr;
            OK(sy_prepare(comm, opened, &prepare, &op));
            sy_memory memory{};
            memory.size = sizeof(memory);
            OK(sy_comm_memory(comm, &memory));
            EXPECT_EQ(memory.bytes, needs.mapped) << kind;
            OK(sy_op_destroy(op));
            sy_op* none = nullptr;
            prepare.rows = kTokens + 1;
            EXPECT_EQ(sy_prepare(comm, opened, &prepare, &none), SY_USAGE) << kind;
            EXPECT_NE(std::string(sy_last_error()).find("6 tokens a rank are not in this bundle"),
                      std::string::npos)
                << sy_last_error();
        });
    }
}

TEST(BundleHostKernel, RoundsFp8AsAGpuDoes) {
    std::uint8_t kept = 0;
    const auto place = reinterpret_cast<std::uint64_t>(&kept);
    for (int bits = 0; bits < 256; ++bits) {
        kept = static_cast<std::uint8_t>(bits);
        const float value = element(plan::DType::fp8e4m3, place, 0);
        if ((bits & 0x7f) == 0x7f) {
            EXPECT_TRUE(std::isnan(value));
            continue;
        }
        set_element(plan::DType::fp8e4m3, place, 0, value);
        EXPECT_EQ(kept, bits) << value;
    }
    const std::pair<float, float> rounded[] = {{1.0625F, 1.0F},      {1.1875F, 1.25F},    {15.5F, 16.0F},
                                               {17.0F, 16.0F},       {19.0F, 20.0F},      {448.0F, 448.0F},
                                               {1e9F, 448.0F},       {-460.0F, -448.0F},  {0x1p-10F, 0.0F},
                                               {0x1.8p-9F, 0x1p-8F}, {0x1.fp-7F, 0x1p-6F}};
    for (const auto& [given, wanted] : rounded) {
        set_element(plan::DType::fp8e4m3, place, 0, given);
        EXPECT_EQ(element(plan::DType::fp8e4m3, place, 0), wanted) << given;
    }
}

/// A problem's program with kernels, which are none, that take everything that their stages have, but for what is compiled in.
Bundle compiled_whole(const std::string& spec) {
    Bundle made = mixture(spec);
    made.arch = "sm_90";
    Bucket& bucket = made.op->buckets.front();
    bucket.strategy = tile_for(made.op->problem);
    const auto lowered = lower(*made.op, bucket, kTokens, fuse::Device::cuda);
    EXPECT_TRUE(lowered) << lowered.error().to_string();
    const auto parameters =
        ops::operator_row("moe")->parameters(made.op->problem, bucket.strategy, made.op->called());
    EXPECT_TRUE(parameters) << parameters.error().to_string();
    Variant variant{.traits = lowered->traits};
    const auto kind_of = [](plan::DType dtype) {
        const std::string name(plan::name_of(dtype));
        return dtype == plan::DType::fp8e4m3 ? "*fp8e4nv"
               : dtype == plan::DType::int32 ? "*i32"
               : dtype == plan::DType::int64 ? "*i64"
                                             : "*" + name;
    };
    for (std::size_t stage = 0; stage < parameters->size(); ++stage) {
        CompiledKernel kernel{.section = "kernels/0.cubin", .entry = lowered->launch.stages[stage].kernel};
        for (const auto& [name, of] : (*parameters)[stage]) {
            using Of = ops::Parameter::Of;
            if (of.of == Of::constant) {
                kernel.constants[name] = of.value;
                continue;
            }
            const bool is_number = of.of == Of::rank || of.of == Of::stride;
            kernel.parameters.push_back(
                {.name = name, .kind = is_number ? of.of == Of::rank ? "i32" : "i64" : kind_of(of.dtype)});
        }
        for (const auto& [name, tensor] : lowered->launch.stages[stage].arguments.tensors)
            kernel.parameters.push_back({.name = name, .kind = kind_of(tensor.dtype)});
        variant.kernels.push_back(static_cast<std::int32_t>(made.kernels.size()));
        made.kernels.push_back(std::move(kernel));
    }
    made.sections["kernels/0.cubin"] =
        "\x7f"
        "ELF and more";
    bucket.variants.push_back(variant);
    return made;
}

const runtime::Argument& argument_of(const Bundle& made, const runtime::Form& form, std::string_view kernel,
                                     std::string_view parameter) {
    const auto of = std::ranges::find(made.kernels, kernel, &CompiledKernel::entry);
    const auto found = std::ranges::find(of->parameters, parameter, &CompiledParameter::name);
    return form.stages[static_cast<std::size_t>(of - made.kernels.begin())]
        .arguments[static_cast<std::size_t>(found - of->parameters.begin())];
}

TEST(BundleMixture, OfEachKindIsReadAgainAndGivenAllThatItsKernelsTake) {
    for (const char* kind : kKinds) {
        const Bundle made = compiled_whole(kind);
        const Result<Bundle> again = from_bytes(to_bytes(made), "op.sybundle");
        ASSERT_TRUE(again) << kind << ": " << again.error().to_string();
        EXPECT_EQ(manifest_to_json(*again), manifest_to_json(made));
        const Result<Planned> planned = plan_rows(*again, kTokens);
        ASSERT_TRUE(planned) << kind << ": " << planned.error().to_string();
        std::vector<std::string> names;
        for (const runtime::Operand& operand : operands_of(*planned, 1)) names.push_back(operand.name);
        const bool scaled = std::string_view(kind).find("scales") != std::string_view::npos;
        const auto wanted = scaled
                                ? std::vector<std::string>{"x",       "topk_ids", "topk_weights", "w1", "w2",
                                                           "scale_x", "scale_w1", "scale_w2",     "y"}
                                : std::vector<std::string>{"x", "topk_ids", "topk_weights", "w1", "w2", "y"};
        EXPECT_EQ(names, wanted) << kind;
        const auto form = form_of(*again, *planned, 1, operands_of(*planned, 1), 2 << 20, 4096);
        ASSERT_TRUE(form) << kind << ": " << form.error().to_string();
    }
}

TEST(BundleMixture, OfTensorParallelExpertsHasRowsOfItsOwnHeapAndSumsAtTheOthers) {
    const Bundle made = compiled_whole(",dtype=fp8e4m3,scales=row,parallel=tensor");
    const Planned planned = *plan_rows(made, kTokens);
    const std::vector<runtime::Operand> operands = operands_of(planned, 1);
    constexpr std::int64_t kApart = 1 << 20;
    const runtime::Form form = *form_of(made, planned, 1, operands, 2 * kApart, 4096);
    const auto number = [&](const char* kernel, const char* parameter) {
        const auto& of = std::get<runtime::NumberArgument>(argument_of(made, form, kernel, parameter));
        std::int64_t value = 0;
        std::memcpy(&value, of.value.data(), of.bytes);
        return value;
    };
    EXPECT_EQ(number("moe_gather", "rank"), 1);
    EXPECT_EQ(number("moe_gather", "stride"), kApart);  // bytes of fp8
    EXPECT_EQ(number("moe_gather", "stride_scales"), kApart / 4);
    EXPECT_EQ(number("moe_gather", "stride_numbers"), kApart / 4);
    EXPECT_EQ(number("moe_sum", "stride"), kApart / 2);  // of bf16
    const auto& constants = [&](const char* kernel) {
        return std::ranges::find(made.kernels, std::string_view(kernel), &CompiledKernel::entry)->constants;
    };
    EXPECT_EQ(constants("moe_down").at("rank"), kernel::Scalar(std::int64_t{0}));
    EXPECT_EQ(constants("moe_down").at("ROUTES"), kernel::Scalar(2 * kTokens * kTopk));
    EXPECT_EQ(constants("moe_count").at("ROUTES"), kernel::Scalar(kTokens * kTopk));
    const auto& tensors = planned.launch.schedule.tensors;
    const auto routes = std::ranges::find(tensors, std::string_view("routes"), &plan::Tensor::name);
    EXPECT_EQ(std::get<runtime::PointerArgument>(argument_of(made, form, "moe_sum", "routes_ptr")).at,
              (Memory{Memory::Of::tensor, static_cast<std::int32_t>(routes - tensors.begin())}));
    const auto operand = [&](const char* kernel, const char* parameter) {
        const Memory at = std::get<runtime::PointerArgument>(argument_of(made, form, kernel, parameter)).at;
        return at.of == Memory::Of::operand ? operands[static_cast<std::size_t>(at.index)].name : "";
    };
    EXPECT_EQ(operand("moe_gather", "given_scale_ptr"), "scale_x");
    EXPECT_EQ(operand("moe_up", "w_scale_ptr"), "scale_w1");
    EXPECT_EQ(operand("moe_down", "w_scale_ptr"), "scale_w2");
}

TEST(BundleMixture, OfEachKindIsRefusedWithAnyConstantOrElementOfAnother) {
    for (const char* kind : kKinds) {
        const Bundle whole = compiled_whole(kind);
        ASSERT_TRUE(plan_rows(whole, kTokens).ok());
        for (std::size_t stage = 0; stage < whole.kernels.size(); ++stage) {
            for (const auto& [name, value] : whole.kernels[stage].constants) {
                Bundle made = whole;
                made.kernels[stage].constants[name] = std::get<std::int64_t>(value) + 1;
                EXPECT_FALSE(plan_rows(made, kTokens).ok()) << kind << ": " << name;
            }
            for (const char* name : {"given_ptr", "given_scale_ptr", "w_ptr", "w_scale_ptr", "out_ptr"}) {
                Bundle made = whole;
                auto& parameters = made.kernels[stage].parameters;
                const auto found =
                    std::ranges::find(parameters, std::string_view(name), &CompiledParameter::name);
                if (found == parameters.end()) continue;
                found->kind = "*fp64";
                const Result<Planned> none = plan_rows(made, kTokens);
                ASSERT_FALSE(none.ok()) << kind << ": " << name;
                EXPECT_NE(none.error().message.find("as *fp64"), std::string::npos) << none.error().message;
            }
        }
    }
}

TEST(BundleMixture, OfScalesThatItsExtentsDoNotHaveIsRefused) {
    const auto refusal = [](const std::string& more, const std::string& from, const std::string& to) {
        Bundle made = mixture();
        made.op->problem = *ops::parse_problem("moe:T=5,E=4,topk=2,H=8,F=256" + more + ",sms=4,ranks=2");
        made.op->buckets.front().strategy = tile_for(made.op->problem);
        std::string text = manifest_to_json(made);
        EXPECT_TRUE(manifest_from_json(text, "op.sybundle")) << text;
        text.replace(text.find(from), from.size(), to);
        const auto read = manifest_from_json(text, "op.sybundle");
        return read ? std::string() : read.error().message;
    };
    EXPECT_NE(
        refusal(",dtype=fp8e4m3,scales=block,parallel=tensor", "F=256", "F=128").find("no multiple of 128"),
        std::string::npos);
    EXPECT_NE(refusal(",parallel=tensor", "F=256", "F=255").find("are no multiple of 2 ranks"),
              std::string::npos);
    EXPECT_NE(refusal(",dtype=fp8e4m3,scales=row", "scales=row", "scales=one").find("scales"),
              std::string::npos);
    EXPECT_NE(
        refusal(",parallel=tensor", "parallel=tensor", "parallel=sensor").find("is not one that is known"),
        std::string::npos);
    Bundle narrow = mixture(",dtype=fp8e4m3,scales=row");  // tiles of 16 columns
    const Result<Planned> none = plan_rows(narrow, kTokens);
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message.find("the columns that share a scale"), std::string::npos)
        << none.error().message;
}

}  // namespace
}  // namespace syncopate::bundle

// The three example kernels, emitted, against tests/emit/golden/. SYNCOPATE_UPDATE_GOLDENS=1 writes them
// anew.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string>

#include "emit/syntax.hpp"
#include "fuse/sample.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/push_reduce.hpp"

namespace syncopate::emit {
namespace {

const std::string kRoot = SYNCOPATE_SOURCE_DIR;

struct Example {
    std::string name;
    bool descriptors_by_host = false;
    bool strides = false;
    bool persistent = false;
};

const Example kExamples[] = {{"matmul_pointers", false, true, false},
                             {"matmul_persistent_device_tma", false, false, true},
                             {"matmul_persistent_host_tma", true, false, true}};

/// What a kernel is fused with: A gathered, A gathered in slices along K, or C reduced and scattered.
enum class Form { gathered, phased, scattered };
constexpr std::pair<Form, const char*> kForms[] = {
    {Form::gathered, ".py"}, {Form::phased, "_phased.py"}, {Form::scattered, "_producer.py"}};

/// M×N×K on 8 ranks.
Result<Artifact> fused(const Example& example, Form form, std::int64_t M = 1024, std::int64_t N = 512,
                       std::int64_t K = 512) {
    kernel::Arguments arguments;
    auto& scalars = arguments.scalars;
    scalars = {{"M", M},
               {"N", N},
               {"K", K},
               {"BLOCK_M", std::int64_t{128}},
               {"BLOCK_N", std::int64_t{128}},
               {"BLOCK_K", std::int64_t{64}},
               {"GROUP_M", std::int64_t{8}}};
    const std::int64_t b_rows = example.strides ? K : N;
    const std::int64_t b_columns = example.strides ? N : K;
    if (example.strides) {
        for (const auto& [name, stride] : {std::pair<const char*, std::int64_t>{"stride_am", K},
                                           {"stride_ak", 1},
                                           {"stride_bk", N},
                                           {"stride_bn", 1},
                                           {"stride_cm", N},
                                           {"stride_cn", 1}}) {
            scalars[name] = stride;
        }
    }
    if (example.persistent) scalars["NUM_SMS"] = std::int64_t{132};
    const std::string suffix = example.descriptors_by_host ? "_desc" : "_ptr";
    const auto block = [&](std::int64_t rows, std::int64_t columns) {
        return example.descriptors_by_host ? std::vector<std::int64_t>{rows, columns}
                                           : std::vector<std::int64_t>{};
    };
    arguments.tensors["a" + suffix] = {{M, K}, {}, plan::DType::bf16, block(128, 64)};
    arguments.tensors["b" + suffix] = {{b_rows, b_columns}, {}, plan::DType::bf16, block(128, 64)};
    arguments.tensors["c" + suffix] = {{M, N}, {}, plan::DType::bf16, block(128, 128)};
    plan::AllGatherOptions options;
    if (form == Form::phased) {
        options.minor_axis = 1;
        options.minor_split = 2;
    }
    const bool produces = form == Form::scattered;
    auto plan = produces
                    ? plan::push_reduce(fuse::sample::ranks(8), {"C", {M, N}, plan::DType::bf16})
                    : plan::all_gather(fuse::sample::ranks(8), {"A", {M, K}, plan::DType::bf16}, options);
    if (!plan) return plan.error();
    auto source = read_file(kRoot + "/examples/" + example.name + ".py");
    if (!source) return source.error();
    return make_artifact(*std::move(source), "examples/" + example.name + ".py", "matmul_kernel",
                         std::move(arguments), *std::move(plan),
                         {produces ? std::pair<const std::string, std::string>{"c" + suffix, "C"}
                                   : std::pair<const std::string, std::string>{"a" + suffix, "A"}},
                         {.device = fuse::Device::cuda});
}

TEST(Golden, TheExamplesComeOutAsRecorded) {
    for (const Example& example : kExamples) {
        for (const auto& [form, ending] : kForms) {
            const auto artifact = fused(example, form);
            ASSERT_TRUE(artifact.ok()) << example.name << ": " << artifact.error().to_string();
            EXPECT_EQ(artifact->launch.schedule.phased, form == Form::phased) << example.name;
            EXPECT_EQ(artifact->launch.schedule.produces(0), form == Form::scattered) << example.name;
            const std::string& text = artifact->kernel_source();
            EXPECT_FALSE(facts_of(text, {0, static_cast<std::uint32_t>(text.size())}).has_error)
                << example.name;
            const std::string path = kRoot + "/tests/emit/golden/" + example.name + ending;
            if (std::getenv("SYNCOPATE_UPDATE_GOLDENS") != nullptr) {
                ASSERT_TRUE(write_file_atomically(path, text).ok());
            }
            const auto golden = read_file(path);
            ASSERT_TRUE(golden.ok()) << golden.error().to_string()
                                     << " (SYNCOPATE_UPDATE_GOLDENS=1 writes it)";
            EXPECT_EQ(text, *golden) << path << " (SYNCOPATE_UPDATE_GOLDENS=1 writes it anew)";
        }
    }
}

TEST(Golden, AnArtifactReadsBackFromItsJson) {
    for (const Example& example : kExamples) {
        for (const Form form : {Form::phased, Form::scattered}) {
            const auto artifact = fused(example, form);
            ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
            const auto launch = launch_from_json(artifact->schedule_json);
            ASSERT_TRUE(launch.ok()) << launch.error().to_string();
            EXPECT_EQ(to_json(*launch), artifact->schedule_json);
            EXPECT_EQ(launch->plan, artifact->launch.plan);
            EXPECT_EQ(launch->stages.front().num_programs(), artifact->launch.stages.front().num_programs());
        }
    }
}

TEST(Golden, EveryOtherLineOfTheUserStaysAsItWas) {
    for (std::size_t n = 0; n < 2 * std::size(kExamples); ++n) {
        const auto artifact = fused(kExamples[n / 2], n % 2 == 0 ? Form::gathered : Form::scattered);
        ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
        // Taking the added lines and words away gives back the user's file.
        std::string text;
        std::size_t begin = 0;
        const std::string& emitted = artifact->kernel_source();
        while (begin < emitted.size()) {
            const std::size_t end = std::min(emitted.find('\n', begin), emitted.size() - 1) + 1;
            std::string line = emitted.substr(begin, end - begin);
            begin = end;
            if (line.find("import sy_") != std::string::npos ||
                line.find("= sy_acquire(") != std::string::npos ||
                line.find("sy_slot = ") != std::string::npos || line.find("sy_post(") != std::string::npos ||
                line.find("sy_finish(") != std::string::npos) {
                continue;
            }
            for (const std::string added : {", sy_schedule, sy_control", "sy_tile(sy_schedule, tile_id_c)"}) {
                const std::size_t at = line.find(added);
                if (at != std::string::npos)
                    line.replace(at, added.size(), added[0] == ',' ? "" : "tile_id_c");
            }
            text += line;
        }
        EXPECT_EQ(text, artifact->sources.front().original);
    }
}

TEST(Golden, ParsingAndFusingAGemmOf1792TilesTakesMilliseconds) {
    const auto start = std::chrono::steady_clock::now();
    const auto artifact = fused(kExamples[2], Form::gathered, 8192, 3584, 8192);
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    EXPECT_EQ(artifact->launch.schedule.num_slots, 1792);
    std::printf("parse, fuse, emit and write: 1792 tiles, 8 ranks: %.1f ms\n", ms);
    EXPECT_LT(ms, 1000);
}

}  // namespace
}  // namespace syncopate::emit

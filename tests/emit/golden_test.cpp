// What emit changes in the three example kernels, against tests/emit/golden/. SYNCOPATE_UPDATE_GOLDENS=1
// writes it anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <set>
#include <string>

#include "cpu_time.hpp"
#include "emit/difference.hpp"
#include "emit/triton/syntax.hpp"
#include "fuse/sample.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

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

/// What a kernel is fused with: A gathered, A gathered in slices along K, A fetched by the tiles that read
/// it, A exchanged but for the own block, or C reduced and scattered. The last also with the tiles stored at
/// their destination.
enum class Form { gathered, phased, fetched, own, scattered, stored };
constexpr std::pair<Form, const char*> kForms[] = {{Form::gathered, ""},           {Form::phased, "_phased"},
                                                   {Form::fetched, "_fetched"},    {Form::own, "_own"},
                                                   {Form::scattered, "_producer"}, {Form::stored, "_inline"}};

/// A descriptor that the kernel makes leads to the heap, whatever the tile.
bool reads_own(const Example& example) { return !example.persistent || example.descriptors_by_host; }

/// M×N×K on 8 ranks.
Result<Artifact> fused(const Example& example, Form form, std::int64_t M = 1024, std::int64_t N = 512,
                       std::int64_t K = 512, plan::Backend asked = plan::Backend::automatic) {
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
    const bool produces = form >= Form::scattered;
    options.pull = options.transient = form == Form::fetched;
    const plan::Mesh mesh = fuse::sample::ranks(8);
    const auto backend = form < Form::stored && form != Form::fetched ? plan::Backend::automatic
                         : example.persistent                         ? plan::Backend::tma_inline
                                                                      : plan::Backend::ldst_inline;
    auto plan = produces            ? plan::push_reduce(mesh, {"C", {M, N}, plan::DType::bf16})
                : form == Form::own ? plan::push_exchange(mesh, {"X", {M, K}, plan::DType::bf16}, "A",
                                                          {.produced = false, .for_kernel = true})
                                    : plan::all_gather(mesh, {"A", {M, K}, plan::DType::bf16}, options);
    if (!plan) return plan.error();
    for (std::vector<plan::Op>& ops : plan->ranks) {
        for (plan::Op& op : ops) op.backend = asked;
    }
    auto source = read_file(kRoot + "/examples/" + example.name + ".py");
    if (!source) return source.error();
    return make_artifact(*std::move(source), "examples/" + example.name + ".py", "matmul_kernel",
                         std::move(arguments), *std::move(plan),
                         {produces ? std::pair<const std::string, std::string>{"c" + suffix, "C"}
                                   : std::pair<const std::string, std::string>{"a" + suffix, "A"}},
                         {.device = fuse::Device::cuda, .preferred = backend});
}

TEST(Golden, TheExamplesComeOutAsRecorded) {
    for (const Example& example : kExamples) {
        for (const auto& [form, ending] : kForms) {
            if (form == Form::own && !reads_own(example)) continue;
            const auto artifact = fused(example, form);
            ASSERT_TRUE(artifact.ok()) << example.name << ": " << artifact.error().to_string();
            EXPECT_EQ(artifact->launch.schedule.stores().has_value(), form >= Form::stored) << example.name;
            EXPECT_EQ(artifact->launch.schedule.loads().has_value(),
                      form == Form::fetched || form == Form::own)
                << example.name;
            EXPECT_EQ(artifact->launch.schedule.loads() && artifact->launch.schedule.loads()->own,
                      form == Form::own)
                << example.name;
            EXPECT_EQ(artifact->launch.schedule.stages[0].phased, form == Form::phased) << example.name;
            EXPECT_EQ(artifact->launch.schedule.produces(0), form >= Form::scattered) << example.name;
            const std::string& text = artifact->kernel_source();
            EXPECT_FALSE(triton::facts_of(text, {0, static_cast<std::uint32_t>(text.size())}).has_error)
                << example.name;
            const std::string changed = test::difference(
                "examples/" + example.name + ".py", artifact->sources.front().original, "kernel.py", text);
            const std::string path = kRoot + "/tests/emit/golden/" + example.name + ending + ".diff";
            if (std::getenv("SYNCOPATE_UPDATE_GOLDENS") != nullptr) {
                ASSERT_TRUE(write_file_atomically(path, changed).ok());
            }
            const auto golden = read_file(path);
            ASSERT_TRUE(golden.ok()) << golden.error().to_string()
                                     << " (SYNCOPATE_UPDATE_GOLDENS=1 writes it)";
            EXPECT_EQ(changed, *golden) << path << " (SYNCOPATE_UPDATE_GOLDENS=1 writes it anew)";
        }
    }
}

TEST(Golden, AnArtifactReadsBackFromItsJson) {
    for (const Example& example : kExamples) {
        for (const Form form : {Form::phased, Form::fetched, Form::own, Form::scattered, Form::stored}) {
            const auto artifact = fused(example, form);
            ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
            const auto launch = schedule_file_from_json(artifact->schedule_json);
            ASSERT_TRUE(launch.ok()) << launch.error().to_string();
            EXPECT_EQ(to_json(*launch), artifact->schedule_json);
            EXPECT_EQ(launch->plan, artifact->launch.plan);
            EXPECT_EQ(launch->stages.front().num_programs(), artifact->launch.stages.front().num_programs());
        }
    }
}

TEST(Golden, EveryOtherLineOfTheUserStaysAsItWas) {
    constexpr Form kJudged[] = {Form::gathered, Form::fetched, Form::own, Form::scattered, Form::stored};
    for (std::size_t n = 0; n < std::size(kJudged) * std::size(kExamples); ++n) {
        const auto artifact = fused(kExamples[n / std::size(kJudged)], kJudged[n % std::size(kJudged)]);
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
                line.find("sy_slot = ") != std::string::npos ||
                line.find("sy_from = ") != std::string::npos ||
                line.find("if sy_reads_own(") != std::string::npos ||
                line.find("sy_post") != std::string::npos || line.find("sy_finish(") != std::string::npos) {
                continue;
            }
            for (const std::string added :
                 {", sy_schedule, sy_control", "sy_tile(sy_schedule, tile_id_c)",
                  " + sy_row(sy_schedule, tile_id_c)", " + sy_row(sy_schedule, sy_slot)",
                  " + sy_offset(sy_schedule, sy_slot, multiple=16)", " + sy_from", "sy_from.", ", sy_own",
                  "sy_all_rows"}) {
                const std::size_t at = line.find(added);
                if (at != std::string::npos) {
                    line.replace(at, added.size(),
                                 added.starts_with("sy_tile") ? "tile_id_c"
                                 : added == "sy_from."        ? "a_desc."
                                 : added == "sy_all_rows"     ? "M"
                                                              : "");
                }
            }
            text += line;
        }
        EXPECT_EQ(text, artifact->sources.front().original);
    }
}

TEST(Inline, WhatCannotBeSentInlineIsSaid) {
    const auto refused = [](const Example& example, plan::Backend backend, std::int64_t rows) {
        const auto artifact = fused(example, Form::scattered, rows, 512, 512, backend);
        return artifact.ok() ? std::string() : artifact.error().to_string();
    };
    using enum plan::Backend;
    EXPECT_EQ(refused(kExamples[2], tma_inline, 1024), "");
    EXPECT_EQ(refused(kExamples[0], ldst_inline, 1024), "");
    EXPECT_EQ(refused(kExamples[1], tma_inline, 1024), "");
    EXPECT_EQ(refused(kExamples[2], ldst_inline, 1024),
              "rank 0 op 0: ldst_inline: stores of c_desc (line 62) go through a descriptor: use tma_inline");
    EXPECT_EQ(refused(kExamples[0], tma_inline, 1024),
              "rank 0 op 0: tma_inline: stores of c_ptr (line 65) go through pointers: use ldst_inline");
    EXPECT_EQ(refused(kExamples[1], ldst_inline, 1024),
              "rank 0 op 0: ldst_inline: stores of c_ptr (line 48) go through a descriptor: use tma_inline");
    EXPECT_EQ(
        refused(kExamples[2], tma_inline, 1000),
        "rank 0 op 0: tma_inline: tile 0 writes [0:128, 0:128], not all of which is in the source: cut the "
        "source where tiles end");
}

TEST(Inline, TilesThatStraddleShardsAreSentByTheNextBest) {
    const auto artifact = fused(kExamples[2], Form::stored, 1000);  // shards of 125 rows, tiles of 128
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    EXPECT_FALSE(artifact->launch.schedule.stores().has_value());
    for (const fuse::Transfer& transfer : artifact->launch.schedule.ranks[0].transfers)
        EXPECT_EQ(transfer.backend, plan::Backend::copy_engine);
}

TEST(Inline, ADescriptorThatTheKernelMakesReadsTheHeapsCopyOfTheOwnBlock) {
    const auto artifact = fused(kExamples[1], Form::own);
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    EXPECT_FALSE(artifact->launch.schedule.loads().has_value());
    EXPECT_EQ(artifact->launch.schedule.ranks[0].transfers.size(), 8u) << "one is the copy of the own block";
}

TEST(Inline, WhatCannotBeFetchedInlineIsSaid) {
    const auto refused = [](const Example& example, plan::Backend backend, Form form, std::int64_t rows) {
        const auto artifact = fused(example, form, rows, 512, 512, backend);
        return artifact.ok() ? std::string() : artifact.error().to_string();
    };
    using enum plan::Backend;
    EXPECT_EQ(refused(kExamples[0], ldst_inline, Form::fetched, 1024), "");
    EXPECT_EQ(refused(kExamples[1], tma_inline, Form::fetched, 1024), "");
    EXPECT_EQ(refused(kExamples[2], tma_inline, Form::fetched, 1024), "");
    EXPECT_EQ(refused(kExamples[2], ldst_inline, Form::fetched, 1024),
              "rank 0 op 0: ldst_inline: loads of a_desc (line 54) go through a descriptor: use tma_inline");
    EXPECT_EQ(refused(kExamples[1], tma_inline, Form::fetched, 1000),
              "rank 0 op 0: tma_inline: tile 0 reads [0:128, 0:512], of which [0:125, 0:512] is elsewhere: "
              "cut where tiles end");
    EXPECT_EQ(
        refused(kExamples[0], ldst_inline, Form::gathered, 1024),
        "rank 0 op 0: ldst_inline sends what the kernel itself makes, as a push or local copy of the rank "
        "that makes it");
}

TEST(Inline, EachTileIsFetchedFromTheRankThatHasItsRows) {
    for (const Example& example : kExamples) {
        const auto artifact = fused(example, Form::fetched);
        ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
        const fuse::Schedule& schedule = artifact->launch.schedule;
        EXPECT_EQ(schedule.loads(), (fuse::Reach{0, example.persistent}));
        for (std::int32_t rank = 0; rank < 8; ++rank) {
            const fuse::RankSchedule& mine = schedule.ranks[static_cast<std::size_t>(rank)];
            EXPECT_TRUE(mine.transfers.empty());
            EXPECT_EQ(mine.kernel_posts.size(), 7U) << "each of whom something was fetched is told";
            EXPECT_EQ(mine.end_waits.size(), 7U) << "and waits until all have fetched";
            std::size_t elsewhere = 0;
            for (const fuse::Slot& slot : mine.slots) {
                if (!slot.from) continue;
                ++elsewhere;
                EXPECT_NE(slot.from->rank, rank);
                EXPECT_EQ(slot.from->rows, 0) << "the same place of the same tensor";
            }
            EXPECT_EQ(elsewhere, 7U * 4U);
            for (std::int32_t first = 0; first < 4; ++first)
                EXPECT_FALSE(mine.slots[static_cast<std::size_t>(first)].from) << "own rows come first";
            std::set<std::int32_t> sources;  // of the ranks' next tiles
            for (const fuse::RankSchedule& other : schedule.ranks) sources.insert(other.slots[4].from->rank);
            EXPECT_EQ(sources.size(), 8U) << "no rank is asked by all at once";
        }
    }
}

TEST(Inline, EachTileIsStoredOnceInItsOwnersSlot) {
    const auto artifact = fused(kExamples[2], Form::stored);
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    const fuse::Schedule& schedule = artifact->launch.schedule;
    EXPECT_EQ(schedule.stores(), (fuse::Reach{0, true}));
    for (std::int32_t rank = 0; rank < 8; ++rank) {
        const fuse::RankSchedule& mine = schedule.ranks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(mine.transfers.size(), 1U) << "the sum of its own shard";
        std::size_t elsewhere = 0;
        for (const fuse::MadeChunk& chunk : mine.chunks) {
            if (chunk.stores.empty()) continue;
            ++elsewhere;
            ASSERT_EQ(chunk.stores.size(), 1U);
            const std::int64_t owner = chunk.chunk.region[0].begin / 128;
            EXPECT_EQ(chunk.stores[0].rank, owner);
            const std::int64_t slot = rank < owner ? rank : rank - 1;
            EXPECT_EQ(chunk.stores[0].rows, slot * 128 - owner * 128);
            ASSERT_EQ(chunk.posts.size(), 1U);
            EXPECT_EQ(chunk.posts[0].rank, owner) << "who completes the chunk tells its owner";
        }
        EXPECT_EQ(elsewhere, 7U);
    }
}

TEST(Golden, ParsingAndFusingAGemmOf1792TilesTakesLittleOfTheCpu) {
    const double start = syncopate::test::cpu_seconds();
    const auto artifact = fused(kExamples[2], Form::gathered, 8192, 3584, 8192);
    const double seconds = syncopate::test::cpu_seconds() - start;
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    EXPECT_EQ(artifact->launch.schedule.num_slots(), 1792);
    EXPECT_LT(seconds, 5);  // of the CPU; about 0.05
}

TEST(Difference, ShowsHunksWithTwoLinesAroundEachChange) {
    EXPECT_EQ(test::difference("old", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "new", "1\n2\n3\nx\n4\n5\n6\n7\n8\ny\n"),
              "--- old\n+++ new\n@@ -2,4 +2,5 @@\n 2\n 3\n+x\n 4\n 5\n@@ -7,3 +8,3 @@\n 7\n 8\n-9\n+y\n");
    EXPECT_EQ(test::difference("old", "1\n", "new", "1\n"), "--- old\n+++ new\n");
}

TEST(ScheduleFile, NestedWithoutEndIsRefused) {
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    const auto launch = schedule_file_from_json("{\"plan\": " + deep + "}", "schedule.json");
    EXPECT_EQ(launch.error().to_string(), "schedule.json:1:41: nested more than 32 deep");
}

}  // namespace
}  // namespace syncopate::emit

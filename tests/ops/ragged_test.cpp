#include "syncopate/ops/ragged.hpp"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "syncopate/emit/language.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_groups.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int64_t kBound = 40;
constexpr std::int64_t kColumns = 8;

plan::Plan plan_of(std::int32_t ranks, bool back) {
    const plan::Tensor rows{"A", {kBound, kColumns}, plan::DType::fp32};
    plan::PushGroupsOptions options{.experts = 2 * ranks};
    if (back) options.back = plan::Tensor{"C", {kBound, kColumns}, plan::DType::fp32};
    return *plan::push_groups(plan::Mesh{.axes = {{"gpu", ranks}}}, rows, options);
}

/// A kernel that copies an expert's rows, 16 a tile; `rows` of them in each.
std::string copying(const std::string& rows = "BM", const std::string& end = "rows < end") {
    return fmt::format(R"(import triton
import triton.language as tl

@triton.jit
def copies(a_ptr, c_ptr, offsets_ptr, K: tl.constexpr, BM: tl.constexpr):
    expert = tl.program_id(0)
    end = tl.load(offsets_ptr + expert + 1)
    rows = tl.load(offsets_ptr + expert) + tl.program_id(1) * {} + tl.arange(0, BM)
    at = rows[:, None] * K + tl.arange(0, K)[None, :]
    inside = ({})[:, None]
    tl.store(c_ptr + at, tl.load(a_ptr + at, mask=inside), mask=inside)
)",
                       rows, end);
}

emit::StageText stage_of(std::string source, bool back, std::int64_t blocks = 3) {
    emit::StageText made{.source = std::move(source), .file = "copies.py", .name = "copies"};
    made.arguments.scalars = {{"K", kColumns}, {"BM", std::int64_t{16}}};
    for (const char* name : {"a_ptr", "c_ptr"})
        made.arguments.tensors[name] = {
            .shape = {kBound, kColumns}, .strides = {}, .dtype = plan::DType::fp32, .block = {}};
    made.arguments.tensors["offsets_ptr"] = {
        .shape = {3}, .strides = {}, .dtype = plan::DType::int32, .block = {}};
    made.arguments.grid = {2, blocks, 1};
    made.bindings = {{"a_ptr", "A"}, {"offsets_ptr", "counts"}};
    if (back) made.bindings["c_ptr"] = "C";
    return made;
}

Result<RaggedProgram> program_of(const emit::StageText& stage, const plan::Plan& plan,
                                 std::int64_t programs) {
    return ragged_program(std::span(&stage, 1), plan, programs);
}

TEST(Ragged, ATileIsOfTheExpertWhoseRowsItReads) {
    const auto made = program_of(stage_of(copying(), false), plan_of(2, false), 4);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->users.front().expert_of, (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1}));
    EXPECT_EQ(made->users.front().row_of, (std::vector<std::int32_t>{0, 0, 16, 16, 32, 32}));
    EXPECT_EQ(made->users.front().makes, "c_ptr");
    EXPECT_EQ(made->program.stages.back().kernel.most_slots, 6) << "one for each program of its grid";
}

TEST(Ragged, TilesWaitForTheRowsOfTheirOwnExpertAlone) {
    for (const bool back : {false, true}) {
        const auto made = program_of(stage_of(copying(), back), plan_of(2, back), 4);
        ASSERT_TRUE(made) << made.error().to_string();
        const auto schedule = fuse::fuse(made->program, {.device = fuse::Device::cuda});
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        for (const fuse::RankSchedule& rank : schedule->ranks) {
            const auto slots = schedule->slots_of(rank, 3);
            ASSERT_EQ(slots.size(), 2U) << "the rank's two experts";
            std::set<std::int32_t> signals;
            for (const fuse::Slot& slot : slots) {
                EXPECT_EQ(slot.waits.size(), 2U) << "a group of each rank";
                for (const fuse::Wait& wait : slot.waits) signals.insert(wait.signal);
            }
            EXPECT_EQ(signals.size(), 4U);
        }
        EXPECT_TRUE(schedule->stages[3].overlaps) << "it starts while rows are sent";
    }
}

TEST(Ragged, ATileThatReadsOtherRowsWhereThereAreFewHasNoneThatItBeginsWith) {
    std::string source = copying();
    const std::string rows = "tl.program_id(1) * BM + tl.arange(0, BM)";
    source.replace(source.find(rows), rows.size(),
                   "tl.maximum(0, end - tl.load(offsets_ptr + expert) - (tl.program_id(1) + 1) * BM) + "
                   "tl.arange(0, BM)");
    const auto made = program_of(stage_of(source, false), plan_of(2, false), 4);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->users.front().groups, 2);
    EXPECT_EQ(made->users.front().row_of, std::vector<std::int32_t>(6, 0))
        << "each waits where its expert has any row";
}

TEST(Ragged, TilesThatCouldBeOfAnyExpertWaitForTheRowsOfAll) {
    const std::string source = copying("BM", "rows < tl.load(offsets_ptr + 2)");
    const auto made = program_of(stage_of(source, false), plan_of(2, false), 4);
    ASSERT_TRUE(made) << made.error().to_string();
    ASSERT_EQ(made->users.front().groups, 1);
    ASSERT_EQ(made->users.front().warnings.size(), 1U);
    EXPECT_NE(made->users.front().warnings.front().find("each tile waits for the rows of all experts"),
              std::string::npos)
        << made->users.front().warnings.front();
    const auto schedule = fuse::fuse(made->program, {.device = fuse::Device::cuda});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    for (const fuse::RankSchedule& rank : schedule->ranks) {
        ASSERT_EQ(schedule->slots_of(rank, 3).size(), 1U);
        EXPECT_EQ(schedule->slots_of(rank, 3).front().waits.size(), 2U) << "two groups come";
    }
    EXPECT_FALSE(schedule->stages[3].overlaps) << "it would wait for each group of the rank itself as well";
}

/// A persistent kernel that walks through the experts; `told`: how it finds where their rows begin and end.
std::string walking(const std::string& told, const std::string& rows = "rows < end") {
    return fmt::format(R"(import triton
import triton.language as tl

@triton.jit
def copies(a_ptr, c_ptr, offsets_ptr, K: tl.constexpr, BM: tl.constexpr):
    tile = tl.program_id(0)
    before, end = 0, 0
    for expert in range(2):
        {}
        while tile >= before and tile < before + tl.cdiv(end - begin, BM):
            rows = begin + (tile - before) * BM + tl.arange(0, BM)
            at = rows[:, None] * K + tl.arange(0, K)[None, :]
            inside = ({})[:, None]
            tl.store(c_ptr + at, tl.load(a_ptr + at, mask=inside), mask=inside)
            tile += tl.num_programs(0)
        before += tl.cdiv(end - begin, BM)
)",
                       told, rows);
}

emit::StageText walking_stage(std::string source, const std::string& counts) {
    emit::StageText made = stage_of(std::move(source), true);
    made.arguments.grid = {2, 1, 1};
    made.bindings["offsets_ptr"] = counts;
    return made;
}

TEST(Ragged, TilesThatAProgramTakesWhileItWalksThroughExpertsWaitForThoseOfTheirs) {
    const std::vector<std::pair<std::string, std::string>> ways{
        {"counts", "begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)"},
        {"counts.sizes", "begin, end = end, end + tl.load(offsets_ptr + expert)"},
        {"counts.ends", "begin, end = end, tl.load(offsets_ptr + expert)"},
    };
    for (const auto& [counts, told] : ways) {
        const auto made = program_of(walking_stage(walking(told), counts), plan_of(2, true), 4);
        ASSERT_TRUE(made) << counts << ": " << made.error().to_string();
        const RaggedKernel& user = made->users.front();
        EXPECT_TRUE(user.warnings.empty());
        EXPECT_TRUE(user.kernel.persistent);
        EXPECT_EQ(user.groups, 2);
        EXPECT_EQ(user.order.rows, 16);
        EXPECT_EQ(user.order.columns, 1);
        EXPECT_EQ(user.tiles, 4) << "40 rows of two experts, in blocks of 16, at most";
        const auto schedule = fuse::fuse(made->program, {.device = fuse::Device::cuda});
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        for (const fuse::RankSchedule& rank : schedule->ranks)
            EXPECT_EQ(schedule->slots_of(rank, 3).size(), 2U) << "the rank's two experts";
    }
}

TEST(Ragged, AWalkWhoseTilesReadOnIntoTheNextExpertWaitsForAllOrIsRefused) {
    const std::string told = "begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)";
    const auto refused =
        program_of(walking_stage(walking(told, "rows < end + 1"), "counts"), plan_of(2, true), 4);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().to_string().find("copies.py:5"), std::string::npos)
        << refused.error().to_string();
}

TEST(Ragged, WhatABindingSaysOfTheCountsIsHeldAgainstWhatThereIs) {
    const auto refused = [](const std::string& counts, const std::string& why) {
        const auto made = program_of(walking_stage(walking("begin = end"), counts), plan_of(2, true), 4);
        ASSERT_FALSE(made) << counts;
        EXPECT_NE(made.error().to_string().find(why), std::string::npos) << made.error().to_string();
    };
    refused("counts.lengths", "there is no lengths of counts; there are offsets");
    refused("counts.experts", "experts is by block: say of how many rows, as in counts.experts[BLOCK_M]");
    refused("counts.ends[16]", "ends is by expert, not by block");
    refused("counts.rows[B]", "B is neither a number of rows nor a parameter that is one");
    refused("count", "the plan has no tensor count");
}

TEST(Ragged, KernelsThatFollowWaitForNothingAndMakeWhatGoesBack) {
    namespace table = emit::table;
    std::vector<emit::StageText> stages{stage_of(copying(), false), stage_of(copying(), true)};
    stages[1].bindings.erase("a_ptr");
    const auto made = ragged_program(stages, plan_of(2, true), 4);
    ASSERT_TRUE(made) << made.error().to_string();
    ASSERT_EQ(made->program.stages.size(), 7U) << "three before, two of the user's, back and take";
    const auto schedule = fuse::fuse(made->program, {.device = fuse::Device::cuda});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    for (const fuse::RankSchedule& rank : schedule->ranks) {
        ASSERT_EQ(schedule->slots_of(rank, 4).size(), 1U);
        EXPECT_TRUE(schedule->slots_of(rank, 4).front().waits.empty());
    }
    // What is uploaded, and put back by a reset, has a slot for each program, as no call makes them.
    const auto words = emit::make_table(*schedule, 1, 1 << 21, 4, {}, 4);
    ASSERT_EQ(words[table::num_slots], 6);
    const auto record = words.begin() + words[table::groups] + 4;
    for (std::int32_t slot = 0; slot < 6; ++slot) {
        const auto own = words.begin() + table::first_slot + table::slot_words * slot;
        EXPECT_EQ(own[table::slot_tile], slot);
        EXPECT_TRUE(std::equal(own + 1, own + table::slot_words, record + 1)) << "slot " << slot;
    }
    stages[1].bindings["a_ptr"] = "A";
    const auto both = ragged_program(stages, plan_of(2, true), 4);
    ASSERT_TRUE(both) << "one that follows may read the rows that came: " << both.error().to_string();
    EXPECT_EQ(both->users[1].tensor_read("a_ptr"), "A");
    EXPECT_EQ(both->users[1].groups, 1) << "those before it have awaited all";
    // One that stores half of the rows that go back.
    stages[1] = stage_of(copying("BM", "(rows < end) & (rows % 2 == 0)"), true);
    stages[1].bindings.erase("a_ptr");
    EXPECT_FALSE(ragged_program(stages, plan_of(2, true), 4));
}

TEST(Ragged, TwoTensorsOfTheSameRowsComeTogether) {
    plan::PushGroupsOptions options{.experts = 4, .more = plan::Tensor{"D", {kBound, 4}, plan::DType::fp32}};
    const auto plan = *plan::push_groups(plan::Mesh{.axes = {{"gpu", 2}}},
                                         {"A", {kBound, kColumns}, plan::DType::fp32}, options);
    emit::StageText stage = stage_of(R"(import triton
import triton.language as tl

@triton.jit
def copies(a_ptr, d_ptr, c_ptr, offsets_ptr, K: tl.constexpr, BM: tl.constexpr):
    expert = tl.program_id(0)
    end = tl.load(offsets_ptr + expert + 1)
    rows = tl.load(offsets_ptr + expert) + tl.program_id(1) * BM + tl.arange(0, BM)
    at = rows[:, None] * K + tl.arange(0, K)[None, :]
    inside = (rows < end)[:, None]
    d = tl.load(d_ptr + rows * 4, mask=rows < end)
    tl.store(c_ptr + at, tl.load(a_ptr + at, mask=inside) + d[:, None], mask=inside)
)",
                                     false);
    stage.arguments.tensors["d_ptr"] = {
        .shape = {kBound, 4}, .strides = {}, .dtype = plan::DType::fp32, .block = {}};
    const auto alone = program_of(stage, plan, 4);
    ASSERT_FALSE(alone);
    EXPECT_NE(alone.error().to_string().find("no parameter is bound to D: its rows would be read by nobody"),
              std::string::npos)
        << alone.error().to_string();
    stage.bindings["d_ptr"] = "D";
    // Blocks of one tensor may reach beyond an expert's rows, whatever the other one is read by.
    emit::StageText mixed = stage;
    mixed.source = R"(import triton
import triton.language as tl

@triton.jit
def copies(a_ptr, d_ptr, c_ptr, offsets_ptr, R, K: tl.constexpr, BM: tl.constexpr):
    expert = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    a_desc = tl.make_tensor_descriptor(a_ptr, [R, K], [K, 1], [BM, K])
    total = tl.zeros((BM, K), dtype=tl.float32)
    for row in range(begin, end, BM):
        rows = row + tl.arange(0, BM)
        d = tl.load(d_ptr + rows * 4, mask=rows < end, other=0.0)
        total += a_desc.load([row, 0]) * d[:, None]
    tl.store(c_ptr + expert * K + tl.arange(0, K), tl.sum(total, 0))
)";
    mixed.arguments.scalars["R"] = kBound;
    mixed.arguments.grid = {2, 1, 1};
    const auto summed = program_of(mixed, plan, 4);
    ASSERT_TRUE(summed) << summed.error().to_string();
    EXPECT_GT(summed->users.front().reads_on, 0);
    mixed.source.replace(mixed.source.find("mask=rows < end, other"), 15, "mask=rows < R");
    EXPECT_FALSE(program_of(mixed, plan, 4)) << "d's rows are read one by one, and some are another expert's";
    const auto made = program_of(stage, plan, 4);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->users.front().groups, 2) << "a tile is of one expert, by either tensor";
    const auto schedule = fuse::fuse(made->program, {.device = fuse::Device::cuda});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    const std::vector<Parameters> parameters = ragged_parameters(*made, true, {});
    EXPECT_EQ(parameters[2].at("MORE").value, 4);
    EXPECT_EQ(parameters[2].at("given_more_ptr").name, "D");
    EXPECT_EQ(parameters[3].at("c_ptr").of, Parameter::Of::operand) << "it stays with the expert";
    EXPECT_FALSE(parameters[3].contains("d_ptr")) << "it lies in the heap";
}

TEST(Ragged, AKernelWhoseTilesFollowTheCountsIsNotTriedByExpert) {
    const std::string source = R"(import triton
import triton.language as tl

@triton.jit
def copies(a_ptr, c_ptr, offsets_ptr, K: tl.constexpr, BM: tl.constexpr):
    total = 0
    for e in range(16):
        total += tl.cdiv(tl.load(offsets_ptr + e + 1) - tl.load(offsets_ptr + e), BM)
    for tile in range(tl.program_id(0), total, tl.num_programs(0)):
        row, end, before = 0, 0, 0
        for e in range(16):
            begin, last = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
            tiles = tl.cdiv(last - begin, BM)
            if tile >= before and tile < before + tiles:
                row = begin + (tile - before) * BM
                end = last
            before += tiles
        rows = row + tl.arange(0, BM)
        at = rows[:, None] * K + tl.arange(0, K)[None, :]
        tl.store(c_ptr + at, tl.load(a_ptr + at, mask=(rows < end)[:, None]), mask=(rows < end)[:, None])
)";
    constexpr std::int64_t kRows = 8192;
    emit::StageText stage = stage_of(source, false);
    stage.arguments.grid = {8, 1, 1};
    for (const char* name : {"a_ptr", "c_ptr"}) stage.arguments.tensors[name].shape = {kRows, kColumns};
    kernel::Arguments all = stage.arguments;
    all.tensors["offsets_ptr"].shape = {17};
    all.tensors["offsets_ptr"].values.assign(17, kRows);
    all.tensors["offsets_ptr"].values.front() = 0;
    const auto clocks = [](const auto& work) {  // of this process alone
        const std::clock_t begin = std::clock();
        work();
        return static_cast<double>(std::clock() - begin);
    };
    const double one = clocks([&] {
        const auto analysed = emit::language_of(stage.file)
                                  .analyse_as(source, stage.file, stage.name, all, kernel::Tiles::walks);
        ASSERT_TRUE(analysed) << analysed.error().to_string();
        EXPECT_EQ(analysed->tiles.size(), 512U);
    });
    const auto plan = *plan::push_groups(plan::Mesh{.axes = {{"gpu", 1}}},
                                         {"A", {kRows, kColumns}, plan::DType::fp32}, {.experts = 16});
    const double whole = clocks([&] {
        const auto made = program_of(stage, plan, 4);
        ASSERT_TRUE(made) << made.error().to_string();
        EXPECT_EQ(made->users.front().order.rows, 16);
    });
    EXPECT_LT(whole, 15 * one) << whole / one << " analyses";
}

TEST(Ragged, AGridOfATileLessThanRowsMayTakeIsRefused) {
    // Of four experts with 12 rows together, 8 a tile: 1, 1, 1 and 9 rows take five.
    std::string searching = copying();
    const std::string expert = "expert = tl.program_id(0)";
    searching.replace(searching.find(expert), expert.size(), R"(expert, before, ends = 0, 0, 0
    for e in range(4):
        tiles = tl.cdiv(tl.load(offsets_ptr + e + 1) - tl.load(offsets_ptr + e), BM)
        if tl.program_id(0) >= ends and tl.program_id(0) < ends + tiles:
            expert, before = e, ends
        ends += tiles
    if tl.program_id(0) >= ends:
        return)");
    const std::string own = "tl.program_id(1)";
    searching.replace(searching.find(own), own.size(), "(tl.program_id(0) - before)");
    const auto plan = [](bool back) {
        plan::PushGroupsOptions options{.experts = 4};
        if (back) options.back = plan::Tensor{"C", {12, kColumns}, plan::DType::fp32};
        return *plan::push_groups(plan::Mesh{.axes = {{"gpu", 1}}}, {"A", {12, kColumns}, plan::DType::fp32},
                                  options);
    };
    const auto stage = [&](bool back, std::int64_t grid) {
        emit::StageText made = stage_of(searching, back);
        made.arguments.scalars["BM"] = std::int64_t{8};
        made.arguments.grid = {grid, 1, 1};
        return made;
    };
    for (const bool back : {false, true}) {
        const auto right = program_of(stage(back, 5), plan(back), 4);
        ASSERT_TRUE(right) << right.error().to_string();
        EXPECT_EQ(right->users.front().order.rows, 8);
        const auto made = program_of(stage(back, 4), plan(back), 4);
        ASSERT_FALSE(made) << "back " << back;
        EXPECT_NE(made.error().to_string().find("copies.py"), std::string::npos) << made.error().to_string();
    }
    std::vector<emit::StageText> stages{stage(false, 5), stage(true, 5)};
    stages[1].bindings.erase("a_ptr");
    const auto right = ragged_program(stages, plan(true), 4);
    ASSERT_TRUE(right) << right.error().to_string();
    stages[1].arguments.grid = {4, 1, 1};
    const auto made = ragged_program(stages, plan(true), 4);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().to_string().find("no tile stores"), std::string::npos) << made.error().to_string();
}

TEST(Ragged, KernelsThatCouldReadWhatHasNotComeAreRefused) {
    const auto refused = [](const emit::StageText& stage, bool back, const std::string& why) {
        const auto made = program_of(stage, plan_of(2, back), 4);
        ASSERT_FALSE(made) << why;
        EXPECT_NE(made.error().to_string().find(why), std::string::npos) << made.error().to_string();
        EXPECT_NE(made.error().to_string().find("copies.py"), std::string::npos) << made.error().to_string();
    };
    refused(stage_of(copying(), false, 2), false,
            "a_ptr: no tile reads row 32 of expert 0, and an expert may have 40 rows");
    refused(stage_of(copying("BM", "rows < end + 1"), false), false,
            "tile 4 reads rows of expert 0 and of expert 1");
    refused(stage_of(copying("2 * BM"), false), false, "no tile reads row 16 of expert 0");
    refused(stage_of(copying("BM", "(rows < end) & (rows < tl.load(offsets_ptr))"), false), false,
            "copies.py:5");
    emit::StageText unbound = stage_of(copying(), false);
    unbound.bindings.erase("offsets_ptr");
    refused(unbound, false, "no parameter is bound to counts");
    std::string half = copying();
    half.replace(half.rfind("mask=inside"), 11, "mask=inside & (rows % 2 == 0)[:, None]");
    refused(stage_of(half, true), true, "c_ptr");
}

TEST(Ragged, PlansThatDoAnythingElseAreRefusedByRankAndOp) {
    const auto refused = [](bool back, const auto& change, const std::string& why) {
        plan::Plan plan = plan_of(2, back);
        change(plan);
        const auto made = ragged_rows(plan);
        ASSERT_FALSE(made) << why;
        EXPECT_NE(made.error().to_string().find(why), std::string::npos) << made.error().to_string();
    };
    refused(
        false, [](plan::Plan& p) { p.ranks[1].clear(); },
        "rank 1: its rows of A for expert 0 do not go to rank 0");
    refused(
        false, [](plan::Plan& p) { p.ranks[1][0].after = {{0, 0}}; }, "rank 1 op 0: it waits for another op");
    refused(
        false, [](plan::Plan& p) { p.ranks[0][0].src.region[2].end = p.ranks[0][0].dst.region[2].end = 4; },
        "rank 0 op 0: A[");
    refused(
        false, [](plan::Plan& p) { p.tensors.push_back({"B", {4}, plan::DType::fp32}); },
        "the plan has other tensors");
    refused(
        false, [](plan::Plan& p) { p.tensors[1].dtype = plan::DType::fp32; },
        "the plan needs one, int32 [2, 4]");
    refused(true, [](plan::Plan& p) { p.ranks[0].pop_back(); }, "rank 1");
    refused(
        true, [](plan::Plan& p) { p.final.pop_back(); },
        "at the end it is not to hold its rows of C of expert 0");
}

}  // namespace
}  // namespace syncopate::ops

#include "syncopate/emit/emit.hpp"

#include <gtest/gtest.h>

#include "emit/sample.hpp"
#include "emit/triton/syntax.hpp"

namespace syncopate::emit {
namespace {

using sample::kernel_of;
using sample::range_of;
using sample::rebind;
using sample::Sample;

const std::string kSimple =
    "import triton\n"
    "import triton.language as tl\n"
    "\n\n"
    "@triton.jit\n"
    "def matmul(a_ptr, n, BLOCK: tl.constexpr):\n"
    "    pid = tl.program_id(0)  # which tile\n"
    "    x = tl.load(a_ptr + pid * BLOCK)\n"
    "    tl.store(a_ptr, x)\n"
    "\n\n"
    "other = 1\n";

std::string emitted(const Sample& sample, bool phased = false, bool produces = false) {
    fuse::Schedule schedule;
    schedule.stages = {{.count = 1, .phased = phased}};
    if (produces) schedule.ranks = {{.slots = {{.makes = {0}}}, .chunks = {{}}}};
    const auto result = emit({sample.whole(), {}, {}}, schedule);
    return result.ok() ? *result : "ERROR " + result.error().to_string();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
    return text;
}

Sample simple(const std::string& source = kSimple) {
    Sample sample = kernel_of(source, "tl.store(a_ptr, x)");
    sample.text.sites.tile_ids = {rebind(source, "pid = tl.program_id(0)", "pid")};
    return sample;
}

TEST(Emit, AddsAnImportTwoParametersAndTwoLines) {
    EXPECT_EQ(
        emitted(simple()),
        "import triton\n"
        "import triton.language as tl\n"
        "from syncopate.language import sy_acquire, sy_finish  # the schedule's tiles, waits and posts\n"
        "\n\n"
        "@triton.jit\n"
        "def matmul(a_ptr, n, BLOCK: tl.constexpr, sy_schedule, sy_control):\n"
        "    pid = tl.program_id(0)  # which tile\n"
        "    pid = sy_acquire(sy_schedule, sy_control, pid)  # the tile of this slot, once its chunks have "
        "arrived\n"
        "    x = tl.load(a_ptr + pid * BLOCK)\n"
        "    tl.store(a_ptr, x)\n"
        "    sy_finish(sy_schedule, sy_control)  # the last program to end tells the ranks that may now send "
        "again\n"
        "\n\n"
        "other = 1\n");
}

TEST(Emit, KeepsTheLineEndingsOfTheFile) {
    const std::string source = replaced(kSimple, "\n", "\r\n");
    EXPECT_EQ(emitted(simple(source)), replaced(emitted(simple()), "\n", "\r\n"));
}

TEST(Emit, EndsAFileThatEndsInsideTheKernel) {
    const std::string source = kSimple.substr(0, kSimple.find("\n\n\nother"));
    const std::string text = emitted(simple(source));
    EXPECT_TRUE(
        text.ends_with("tl.store(a_ptr, x)\n    sy_finish(sy_schedule, sy_control)  "
                       "# the last program to end tells the ranks that may now send again"))
        << text;
}

TEST(Emit, PutsParametersBeforeThoseWithDefaults) {
    EXPECT_NE(emitted(simple(replaced(kSimple, "BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 4")))
                  .find("def matmul(a_ptr, n, sy_schedule, sy_control, BLOCK: tl.constexpr = 4):"),
              std::string::npos);
    EXPECT_NE(emitted(simple(replaced(kSimple, "a_ptr, n, BLOCK", "a_ptr=None, n=1, BLOCK=2")))
                  .find("(sy_schedule, sy_control, a_ptr=None"),
              std::string::npos);
}

TEST(Emit, LooksUpATileThatOnlyStoresUse) {
    Sample sample = simple();
    kernel::triton::TileIdSite use{
        kernel::triton::TileIdSite::Kind::use, {"pid"}, range_of(kSimple, "pid * BLOCK"), 0, false, true};
    use.anchor.end = use.anchor.begin + 3;
    sample.text.sites.tile_ids.push_back(use);
    EXPECT_NE(emitted(sample).find("tl.load(a_ptr + sy_tile(sy_schedule, pid) * BLOCK)"), std::string::npos);
    EXPECT_NE(emitted(sample).find("import sy_acquire, sy_finish, sy_tile  #"), std::string::npos);
}

TEST(Emit, WaitsOnlyWhereBoundMemoryIsLoaded) {
    const std::string source = replaced(kSimple, "    tl.store(a_ptr, x)",
                                        "    x += tl.load(bias_ptr + pid)\n    tl.store(a_ptr, x)");
    Sample sample = simple(source);
    sample.text.sites.tile_ids.front().reads = {"a_ptr", "w_ptr"};
    kernel::triton::TileIdSite use{kernel::triton::TileIdSite::Kind::use,
                                   {"pid"},
                                   range_of(source, "pid)\n"),
                                   0,
                                   true,
                                   true,
                                   {"bias_ptr"}};
    use.anchor.end = use.anchor.begin + 3;
    sample.text.sites.tile_ids.push_back(use);
    const auto text = [&](std::map<std::string, std::string> bindings) {
        const auto result = emit({sample.whole(), {}, std::move(bindings)}, {});
        return result.ok() ? *result : result.error().to_string();
    };
    const std::string only_a = text({{"a_ptr", "A"}});
    EXPECT_NE(only_a.find("    pid = sy_acquire(sy_schedule, sy_control, pid)"), std::string::npos) << only_a;
    EXPECT_NE(only_a.find("tl.load(bias_ptr + sy_tile(sy_schedule, pid))"), std::string::npos) << only_a;
    const std::string both = text({{"a_ptr", "A"}, {"bias_ptr", "B"}});
    EXPECT_NE(both.find("tl.load(bias_ptr + sy_acquire(sy_schedule, sy_control, pid))"), std::string::npos)
        << both;
    EXPECT_EQ(text({}), both);
}

TEST(Emit, RebindsEveryAxisOfAGrid) {
    const std::string source = replaced(kSimple, "    x = ", "    y = tl.program_id(1)\n    x = ");
    Sample sample = simple(source);
    sample.text.sites.tile_ids = {{kernel::triton::TileIdSite::Kind::rebind_grid,
                                   {"pid", "y"},
                                   range_of(source, "y = tl.program_id(1)"),
                                   4,
                                   true,
                                   true}};
    EXPECT_NE(emitted(sample).find(
                  "    y = tl.program_id(1)\n    pid, y = sy_acquire_2d(sy_schedule, sy_control, pid, y)  #"),
              std::string::npos);
}

TEST(Emit, TakesEveryAxisAtTheEntryAndReplacesTheIds) {
    const std::string source = replaced(kSimple, "    pid = tl.program_id(0)  # which tile\n    x = ",
                                        "    pid, y = tl.program_id(0), tl.program_id(axis=1).to(tl.int64)\n"
                                        "    x = ");
    Sample sample = simple(source);
    kernel::triton::TileIdSite site;
    site.kind = kernel::triton::TileIdSite::Kind::entry;
    site.variables = {"sy_x", "sy_y"};
    site.anchor = range_of(source, "pid, y =");
    site.program_ids = {{range_of(source, "tl.program_id(axis=1)"), 1},
                        {range_of(source, "tl.program_id(0)"), 0}};
    sample.text.sites.tile_ids = {site};
    EXPECT_NE(
        emitted(sample).find(
            "    sy_x, sy_y = sy_acquire_2d(sy_schedule, sy_control, tl.program_id(0), tl.program_id(1))  "
            "# the tile of this slot, once its chunks have arrived\n"
            "    pid, y = sy_x, sy_y.to(tl.int64)\n"),
        std::string::npos)
        << emitted(sample);
}

TEST(Emit, RefusesAnIdThatAHelperTakes) {
    Sample sample = simple();
    sample.text.sites.foreign_id = range_of(kSimple, "pid * BLOCK");
    const std::string text = emitted(sample);
    EXPECT_TRUE(text.starts_with("ERROR ")) << text;
    EXPECT_NE(text.find("a helper takes the program's id itself"), std::string::npos) << text;
}

TEST(Emit, FinishesOnEveryReturn) {
    const std::string source =
        replaced(kSimple, "    x = ", "    if pid > n:\n        return\n    if n == 3: return\n    x = ");
    const std::string text = emitted(simple(source));
    EXPECT_NE(text.find("    if pid > n:\n        sy_finish(sy_schedule, sy_control)  # the last program to "
                        "end tells the ranks "
                        "that may now send again\n        return\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("    if n == 3: sy_finish(sy_schedule, sy_control); return\n"), std::string::npos)
        << text;
    EXPECT_FALSE(triton::facts_of(text, {0, static_cast<std::uint32_t>(text.size())}).has_error);
}

TEST(Emit, AddsNothingAfterAReturnThatEndsTheBody) {
    const std::string source =
        replaced(kSimple, "    tl.store(a_ptr, x)\n", "    tl.store(a_ptr, x)\n    return\n");
    Sample sample = kernel_of(source, "return");
    sample.text.sites.tile_ids = {rebind(source, "pid = tl.program_id(0)", "pid")};
    const std::string text = emitted(sample);
    EXPECT_EQ(text.find("sy_finish(sy_schedule"), text.rfind("sy_finish(sy_schedule"));
    EXPECT_NE(text.find("send again\n    return\n"), std::string::npos) << text;
}

/// A kernel whose tile's stores follow from its id, up to the statement `stored`.
Sample producer(const std::string& source = kSimple, const std::string& stored = "tl.store(a_ptr, x)") {
    Sample sample = simple(source);
    sample.text.sites.tile_ids[0].guards_writes = true;
    sample.text.sites.stored = range_of(source, stored);
    return sample;
}

TEST(Emit, PostsAfterTheLastStoreOfATile) {
    EXPECT_EQ(
        emitted(producer(), false, true),
        "import triton\n"
        "import triton.language as tl\n"
        "from syncopate.language import sy_acquire, sy_finish, sy_post  # the schedule's tiles, waits and "
        "posts\n"
        "\n\n"
        "@triton.jit\n"
        "def matmul(a_ptr, n, BLOCK: tl.constexpr, sy_schedule, sy_control):\n"
        "    pid = tl.program_id(0)  # which tile\n"
        "    sy_slot = pid  # which is done after the last store\n"
        "    pid = sy_acquire(sy_schedule, sy_control, pid)  # the tile of this slot, once its chunks have "
        "arrived\n"
        "    x = tl.load(a_ptr + pid * BLOCK)\n"
        "    tl.store(a_ptr, x)\n"
        "    sy_post(sy_schedule, sy_control, sy_slot)  # this tile is stored: the last one of a chunk lets "
        "it "
        "leave\n"
        "    sy_finish(sy_schedule, sy_control)  # the last program to end tells the ranks that may now send "
        "again\n"
        "\n\n"
        "other = 1\n");
}

TEST(Emit, PostsTheSlotThatTheStoresFollowFrom) {
    const std::string source = replaced(kSimple, "tl.store(a_ptr, x)", "tl.store(a_ptr + done, x)");
    Sample sample = producer(source, "tl.store(a_ptr + done, x)");
    sample.text.sites.function.end = sample.text.sites.body.end = sample.text.sites.stored.end;
    sample.text.sites.tile_ids[0].guards_writes = false;
    kernel::triton::TileIdSite use{
        kernel::triton::TileIdSite::Kind::use, {"done"}, range_of(source, "done"), 0, false, true};
    sample.text.sites.tile_ids.push_back(use);
    const std::string text = emitted(sample, false, true);
    EXPECT_NE(text.find("tl.store(a_ptr + sy_tile(sy_schedule, done), x)\n"
                        "    sy_post(sy_schedule, sy_control, done)"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("sy_slot"), std::string::npos);
}

TEST(Emit, RefusesASlotVariableThatChangesBeforeItsStore) {
    const std::string source =
        replaced(kSimple, "    tl.store(a_ptr, x)", "    y = done\n    done = 3\n    tl.store(a_ptr + y, x)");
    Sample sample = producer(source, "tl.store(a_ptr + y, x)");
    sample.text.sites.function.end = sample.text.sites.body.end = sample.text.sites.stored.end;
    sample.text.sites.tile_ids[0].guards_writes = false;
    sample.text.sites.tile_ids.push_back(
        {kernel::triton::TileIdSite::Kind::use, {"done"}, range_of(source, "done"), 0, false, true});
    EXPECT_EQ(emitted(sample, false, true)
                  .find("ERROR sample.py:10:5: done says whose tile is stored below, so it may not change"),
              0U)
        << emitted(sample, false, true);
}

TEST(Emit, PostsBeforeAReturnOnTheWayToTheStore) {
    const std::string source =
        replaced(kSimple, "    x = ", "    if pid > n:\n        return\n    if n == 3: return\n    x = ");
    const std::string text = emitted(producer(source), false, true);
    EXPECT_NE(text.find("    if pid > n:\n"
                        "        sy_post(sy_schedule, sy_control, sy_slot)  # this tile is done\n"
                        "        sy_finish(sy_schedule, sy_control)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("    if n == 3: sy_post(sy_schedule, sy_control, sy_slot); sy_finish("),
              std::string::npos)
        << text;
    EXPECT_FALSE(triton::facts_of(text, {0, static_cast<std::uint32_t>(text.size())}).has_error);
}

TEST(Emit, RefusesToPostWhereNothingIsStoredOrThePlaceIsShared) {
    Sample sample = producer();
    sample.text.sites.stored = {};
    EXPECT_EQ(emitted(sample, false, true).find("ERROR sample.py:6:5: kernel matmul makes chunks, but no"),
              0U);
    const std::string source = replaced(kSimple, "tl.store(a_ptr, x)", "tl.store(a_ptr, x); y = 1");
    EXPECT_EQ(emitted(producer(source), false, true)
                  .find("ERROR sample.py:9:23: the last store shares its line with what follows"),
              0U)
        << emitted(producer(source), false, true);
}

TEST(Emit, RefusesANameThatTheKernelUses) {
    const std::string text = emitted(simple(replaced(kSimple, "x = tl.load", "sy_lo = x = tl.load")));
    EXPECT_EQ(text,
              "ERROR sample.py:8:5: sy_lo is a name that the fused kernel needs: rename it\n"
              "    sy_lo = x = tl.load(a_ptr + pid * BLOCK)\n"
              "    ^~~~~");
}

TEST(Emit, RefusesAStatementThatSharesItsLine) {
    const std::string text = emitted(simple(replaced(kSimple, "  # which tile", "; y = 1")));
    EXPECT_EQ(text.find("ERROR sample.py:7:27: the statement that takes the tile id shares its line"), 0U)
        << text;
}

TEST(Emit, RefusesAKernelWithoutAPlaceForWaits) {
    Sample sample = simple();
    sample.text.sites.tile_ids.clear();
    EXPECT_EQ(emitted(sample).find("ERROR sample.py:6:5: kernel matmul has no place"), 0U);
}

const std::string kLoop =
    "import triton\n"
    "import triton.language as tl\n"
    "\n"
    "@triton.jit\n"
    "def matmul(a_ptr, n):\n"
    "    for tile in tl.range(tl.program_id(0), 9, 2, flatten=True):\n"
    "        acc = 0.0\n"
    "        for k in tl.range(n, num_stages=3):  # along K\n"
    "            \"\"\"text\n"
    "  stays\"\"\"\n"
    "            a = tl.load(a_ptr +\n"
    "                        k)\n"
    "\n"
    "            acc += a\n"
    "        tl.store(a_ptr + tile, acc)\n";

Sample nested(const std::string& source = kLoop) {
    Sample sample = kernel_of(source, "tl.store(a_ptr + tile, acc)");
    sample.kernel.persistent = true;
    sample.text.sites.tile_loop_header =
        range_of(source, "for tile in tl.range(tl.program_id(0), 9, 2, flatten=True):");
    sample.text.sites.tile_ids = {
        rebind(source, "for tile in tl.range(tl.program_id(0), 9, 2, flatten=True):", "tile", 8)};
    sample.text.sites.loops = {sample::loop(source, "tl.range(n, num_stages=3)", "acc += a")};
    return sample;
}

TEST(Emit, NestsTheReductionLoopInPhases) {
    EXPECT_EQ(emitted(nested(), true),
              "import triton\n"
              "import triton.language as tl\n"
              "from syncopate.language import sy_acquire, sy_acquire_phase, sy_finish, sy_num_phases  "
              "# the schedule's tiles, waits and posts\n"
              "\n"
              "@triton.jit\n"
              "def matmul(a_ptr, n, sy_schedule, sy_control):\n"
              "    for tile in tl.range(tl.program_id(0), 9, 2, flatten=False):\n"
              "        sy_slot = tile  # whose phases the loop below takes\n"
              "        tile = sy_acquire(sy_schedule, sy_control, tile)  # the tile of this slot, once its "
              "chunks have arrived\n"
              "        acc = 0.0\n"
              "        for sy_phase in range(sy_num_phases(sy_schedule, sy_slot)):  # as many as sets of "
              "chunks to wait for\n"
              "            sy_lo, sy_hi = sy_acquire_phase(sy_schedule, sy_control, sy_slot, sy_phase)  # "
              "these iterations may run\n"
              "            for k in tl.range(sy_lo, sy_hi, num_stages=3):  # along K\n"
              "                \"\"\"text\n"
              "  stays\"\"\"\n"
              "                a = tl.load(a_ptr +\n"
              "                            k)\n"
              "\n"
              "                acc += a\n"
              "        tl.store(a_ptr + tile, acc)\n"
              "    sy_finish(sy_schedule, sy_control)  # the last program to end tells the ranks that may "
              "now send again\n");
}

TEST(Emit, NestsALoopIndentedByTabs) {
    const std::string source = replaced(kLoop, "    ", "\t");
    Sample sample = nested(source);
    sample.text.sites.tile_ids[0].indent = 2;
    const std::string text = emitted(sample, true);
    EXPECT_NE(text.find("\n\t\ttile = sy_acquire("), std::string::npos) << text;
    EXPECT_NE(text.find("\n\t\t\tfor k in tl.range(sy_lo, sy_hi, num_stages=3):"), std::string::npos) << text;
    EXPECT_FALSE(triton::facts_of(text, {0, static_cast<std::uint32_t>(text.size())}).has_error);
}

TEST(Emit, KeepsFlattenWithoutPhases) {
    EXPECT_NE(emitted(nested()).find("flatten=True):\n        tile = sy_acquire("), std::string::npos);
    EXPECT_EQ(emitted(nested()).find("sy_phase"), std::string::npos);
}

TEST(Emit, RefusesPhasesOfALoopThatIsNotOverARange) {
    Sample sample = nested();
    sample.text.sites.loops.front().bound.clear();
    EXPECT_EQ(emitted(sample, true).find("ERROR sample.py:5:5: the schedule has phases, but"), 0U);
    sample.text.sites.loops.clear();
    EXPECT_EQ(emitted(sample, true).find("ERROR"), 0U);
}

}  // namespace
}  // namespace syncopate::emit

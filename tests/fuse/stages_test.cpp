#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

constexpr sample::Gemm kUp{16, 8, 4, 4, 4, 4, 2};    // H [16, 8] = A [16, 4] @ …
constexpr sample::Gemm kDown{16, 4, 8, 4, 4, 4, 2};  // C [16, 4] = H @ …
constexpr std::int32_t kRanks = 2;

plan::Tensor tensor(const char* name, std::int64_t rows, std::int64_t columns) {
    return {name, {rows, columns}, plan::DType::bf16};
}

plan::Plan gather() { return plan::all_gather(sample::ranks(kRanks), tensor("A", 16, 4)).value(); }
plan::Plan reduce() { return plan::push_reduce(sample::ranks(kRanks), tensor("C", 16, 4), {}).value(); }

Stage up() { return {sample::gemm(kUp), {{"a_ptr", "A"}, {"c_ptr", "H"}}}; }
Stage down() { return {sample::gemm(kDown), {{"a_ptr", "H"}, {"c_ptr", "C"}}}; }

StagedProgram feed_forward() {
    return {{up(), down()}, plan::join({gather(), reduce()}, {tensor("H", 16, 8)}).value()};
}

std::string refusal(const StagedProgram& program, Device device = Device::host) {
    const Result<Schedule> schedule = fuse(program, {.device = device});
    return schedule ? "" : schedule.error().to_string();
}

TEST(Stages, HaveSlotsOneAfterAnotherAndShareSignalsAndTransfers) {
    const Result<Schedule> schedule = fuse(feed_forward());
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    ASSERT_EQ(schedule->stages.size(), 2U);
    EXPECT_EQ(schedule->stages[0].count, 8);
    EXPECT_EQ(schedule->stages[1].first, 8);
    EXPECT_EQ(schedule->stages[1].count, 4);
    EXPECT_EQ(schedule->num_slots(), 12);
    for (const RankSchedule& rank : schedule->ranks) {
        ASSERT_EQ(rank.slots.size(), 12U);
        for (std::size_t stage = 0; stage < 2; ++stage) {
            std::set<std::int64_t> tiles;
            bool waits = false;
            bool makes = false;
            const StageSlots part = schedule->stages[stage];
            for (std::int64_t slot = part.first; slot < part.first + part.count; ++slot) {
                const Slot& at = rank.slots[static_cast<std::size_t>(slot)];
                tiles.insert(at.tile);
                waits |= !at.waits.empty();
                makes |= !at.makes.empty();
            }
            EXPECT_EQ(tiles.size(), static_cast<std::size_t>(part.count)) << "each tile of the stage once";
            EXPECT_EQ(waits, stage == 0) << "only the first stage reads what arrives";
            EXPECT_EQ(makes, stage == 1) << "only the second makes what is sent";
        }
        EXPECT_EQ(rank.transfers.size(), 3U) << "a push of x, one of partial rows, a sum";
    }
    EXPECT_FALSE(schedule->produces(0));
    EXPECT_TRUE(schedule->produces(1));
}

TEST(Stages, AreTheSameAfterBeingWrittenAndRead) {
    const Schedule schedule = fuse(feed_forward()).value();
    const std::string text = to_json(schedule);
    const Result<Schedule> read = schedule_from_json(text);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(to_json(*read), text);
    EXPECT_EQ(read->stages.size(), 2U);
}

TEST(Stages, MustCoverAllSlotsWhenRead) {
    std::string text = to_json(fuse(feed_forward()).value());
    const std::string count = "\"slots\":4";
    ASSERT_NE(text.find(count), std::string::npos);
    text.replace(text.find(count), count.size(), "\"slots\":3");
    EXPECT_NE(schedule_from_json(text).error().to_string().find(
                  "ranks[0].slots has 12 entries; the stages have 11 slots"),
              std::string::npos);
}

TEST(Stages, ReadWhatAnEarlierOneWroteAndNotWhatALaterOneWill) {
    EXPECT_EQ(refusal(feed_forward()), "");
    StagedProgram turned = feed_forward();
    std::swap(turned.stages[0], turned.stages[1]);
    EXPECT_NE(refusal(turned).find("reads H[0:4, 0:8] through a_ptr"), std::string::npos) << refusal(turned);
}

TEST(Stages, AreRefusedWhenTwoWriteWhatThePlanMoves) {
    StagedProgram program = feed_forward();
    program.stages.push_back(down());
    EXPECT_NE(refusal(program).find("written by two stages, matmul and matmul"), std::string::npos)
        << refusal(program);
}

TEST(Stages, AreRefusedWhenOneWouldWaitForWhatOnlyALaterOneLetsGo) {
    // The first stage reads on each rank what the second makes there and on the other one, all-reduced.
    plan::PushReduceOptions all;
    all.all = true;
    const plan::Plan plan =
        plan::join({plan::push_reduce(sample::ranks(kRanks), tensor("C", 16, 4), all).value(), gather()},
                   {tensor("H", 16, 8)})
            .value();
    const sample::Gemm first{16, 8, 4, 4, 4, 4, 2};
    const StagedProgram program{{{sample::gemm(first), {{"a_ptr", "C"}, {"c_ptr", "H"}}}, down()}, plan};
    EXPECT_NE(refusal(program).find("that stage would never end"), std::string::npos) << refusal(program);
}

TEST(Stages, OfOneKernelAreThatKernel) {
    const Program one{sample::gemm(kUp), gather(), {{"a_ptr", "A"}}};
    const StagedProgram staged{{{one.kernel, one.bindings}}, one.plan};
    EXPECT_EQ(to_json(fuse(one).value()), to_json(fuse(staged).value()));
    EXPECT_NE(refusal({{}, gather()}).find("at least one stage"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::fuse

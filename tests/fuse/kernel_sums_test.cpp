// Sums that the fused kernel carries out: the only transfer of each rank, or a refusal that says why not.
#include "syncopate/fuse/inline/kernel_sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fuse/simulator.hpp"
#include "fuse/summing.hpp"
#include "plan/executor.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/lower.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;
using sample::in_kernel;
using sample::kBlock;
using sample::kColumns;
using sample::summed;
using sample::to_all;
using sample::to_owners;

struct Case {
    std::string name;
    plan::Plan plan;
};

/// What kernels sum, over 2, 3 and 4 ranks.
std::vector<Case> cases() {
    std::vector<Case> made;
    for (const std::int32_t ranks : {2, 3, 4}) {
        const std::string of = " of " + std::to_string(ranks) + " ranks";
        made.push_back({"all-reduce" + of, to_all(ranks, {})});
        made.push_back({"padded all-reduce" + of, to_all(ranks, {.rows = 41})});
        made.push_back({"reduce-scatter to all" + of, to_all(ranks, {.all = false})});
        made.push_back({"padded reduce-scatter to all" + of, to_all(ranks, {.all = false, .rows = 41})});
        made.push_back({"reduce-scatter" + of, to_owners(ranks)});
    }
    return made;
}

/// The schedule of each case.
void with_schedules(const std::function<void(const Program&, const Schedule&)>& look) {
    for (const Case& one : cases()) {
        SCOPED_TRACE(one.name);
        const Program program = summed(one.plan);
        const auto schedule = fuse(program, in_kernel());
        ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
        look(program, *schedule);
    }
}

std::string error_of(const Result<Schedule>& schedule) {
    return schedule.ok() ? "" : schedule.error().to_string();
}

TEST(KernelSums, AreTheOneTransferOfEachRank) {
    with_schedules([](const Program& program, const Schedule& schedule) {
        const auto ranks = static_cast<std::int32_t>(schedule.ranks.size());
        EXPECT_EQ(kernel_summands(schedule), ranks);
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
            const RankSchedule& own = schedule.ranks[static_cast<std::size_t>(rank)];
            ASSERT_EQ(own.transfers.size(), 1U);
            const Transfer& sum = own.transfers.front();
            EXPECT_TRUE(is_kernel_sum(sum) && sums_in_kernel(own));
            EXPECT_EQ(sum.backend, Backend::ldst_inline);
            EXPECT_EQ(sum.sum()->own, rank) << "it adds in the order of ranks";
            EXPECT_EQ(sum.src.region.front(), (plan::Interval{0, ranks - 1}));
            EXPECT_EQ(sum.step, StreamStep{}) << "no stream carries it out";
            EXPECT_TRUE(sum.posts.empty());
            const auto asked = std::ranges::find(program.plan.final, rank, &plan::Holding::rank);
            EXPECT_EQ(sum.dst, asked->chunk) << "no row that nobody asks for";
        }
    });
}

TEST(KernelSums, AwaitOneArrivalOfEachOtherRankAndTheOwnContribution) {
    with_schedules([](const Program&, const Schedule& schedule) {
        const auto ranks = static_cast<std::int32_t>(schedule.ranks.size());
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
            const RankSchedule& own = schedule.ranks[static_cast<std::size_t>(rank)];
            std::vector<std::int32_t> from;
            for (const Wait& wait : own.transfers.front().waits) {
                const SignalMeaning& meaning = own.signals[static_cast<std::size_t>(wait.signal)];
                EXPECT_EQ(wait.lag, 0);
                // The own contribution stays where it is made, or is stored where it is summed.
                EXPECT_TRUE(meaning.kind == SignalMeaning::Kind::arrived ||
                            (meaning.kind == SignalMeaning::Kind::made && meaning.op.rank == rank));
                from.push_back(meaning.op.rank);
            }
            std::ranges::sort(from);
            ASSERT_EQ(from.size(), static_cast<std::size_t>(ranks));
            for (std::int32_t other = 0; other < ranks; ++other)
                EXPECT_EQ(from[static_cast<std::size_t>(other)], other);
            EXPECT_EQ(own.signals.size(), from.size()) << "nothing else is signalled";
        }
    });
}

TEST(KernelSums, LeaveNothingToTheBeginningAndTheEndOfACall) {
    with_schedules([](const Program&, const Schedule& schedule) {
        for (const RankSchedule& own : schedule.ranks) {
            EXPECT_TRUE(own.begin_posts.empty() && own.begin_waits.empty());
            EXPECT_TRUE(own.kernel_posts.empty());
            EXPECT_TRUE(own.end_posts.empty() && own.end_waits.empty());
            for (const Slot& slot : own.slots) EXPECT_TRUE(slot.waits.empty()) << "nothing arrives for tiles";
        }
    });
}

TEST(KernelSums, AreTheSameAfterJson) {
    with_schedules([](const Program&, const Schedule& schedule) {
        const std::string text = to_json(schedule);
        const auto again = schedule_from_json(text);
        ASSERT_TRUE(again.ok()) << again.error().to_string();
        EXPECT_EQ(to_json(*again), text);
        EXPECT_EQ(kernel_summands(*again), kernel_summands(schedule));
    });
}

TEST(KernelSums, FindWhatIsStagedAtTwoPlacesInTurn) {
    with_schedules([](const Program&, const Schedule& schedule) {
        const std::vector<std::int32_t> alternating = alternating_tensors(schedule);
        ASSERT_EQ(alternating.size(), 1U);
        const auto staging = static_cast<std::size_t>(alternating.front());
        EXPECT_EQ(staging, schedule.tensors.size() - 1) << "the tensor that lowering adds";
        EXPECT_EQ(heap_objection(schedule), "");

        const Heap& heap = schedule.heap;
        std::vector<std::uint64_t> offsets = heap.tensors;
        offsets.push_back(heap.control);
        const std::vector<std::uint64_t> other = in_turn(schedule, offsets);
        ASSERT_EQ(other.size(), offsets.size());
        std::vector<std::pair<std::uint64_t, std::uint64_t>> places{
            // begin, end
            {heap.control, heap.control + static_cast<std::uint64_t>(heap.control_words) * 4}};
        for (std::size_t tensor = 0; tensor < schedule.tensors.size(); ++tensor) {
            const plan::Tensor& of = schedule.tensors[tensor];
            const auto bytes = static_cast<std::uint64_t>(num_elements(of.whole())) * size_of(of.dtype);
            places.emplace_back(offsets[tensor], offsets[tensor] + bytes);
            if (tensor == staging) {
                EXPECT_EQ((other[tensor] - offsets[tensor]) % bytes_of_row(schedule), 0U)
                    << "tiles reach both by rows";
                places.emplace_back(other[tensor], other[tensor] + bytes);
            } else {
                EXPECT_EQ(other[tensor], offsets[tensor]) << of.name;
            }
        }
        EXPECT_EQ(other.back(), heap.control);
        std::ranges::sort(places);
        for (std::size_t i = 0; i + 1 < places.size(); ++i) EXPECT_LE(places[i].second, places[i + 1].first);
        EXPECT_LE(places.back().second, heap.bytes);
    });
}

TEST(KernelSums, NeedRoomForBothPlaces) {
    Schedule schedule = fuse(summed(to_owners(3)), in_kernel()).value();
    const std::uint64_t staged = std::uint64_t{2} * kBlock * kColumns * 2;
    schedule.heap.control = schedule.heap.tensors.back() + (staged + 1023) / 1024 * 1024;
    EXPECT_NE(heap_objection(schedule).find("overlap"), std::string::npos)
        << "the control block lies in the second place: " << heap_objection(schedule);
}

/// Plays some calls of the schedule, in some timings, with values; what went wrong, or "".
std::string played(const Program& program, const Schedule& schedule, bool alternate) {
    std::vector<std::int64_t> program_of_slot;
    for (const kernel::Tile& tile : program.kernel.tiles) program_of_slot.push_back(tile.program);
    const auto values = plan::test::execute(program.plan, plan::test::small_integer, 1);
    for (std::uint64_t run = 0; run < 6; ++run) {
        SimulatorOptions options{.calls = 5, .seed = run, .values = &values, .alternate = alternate};
        if (run % 3 != 0) options.straggler = static_cast<std::int32_t>(run) % program.plan.num_ranks();
        if (const auto fault = simulate(program, schedule, program_of_slot, options)) return *fault;
    }
    return {};
}

TEST(KernelSums, GiveWhatThePlanSaysCallAfterCallWithNobodyGuardingWhatIsStaged) {
    with_schedules([](const Program& program, const Schedule& schedule) {
        EXPECT_EQ(played(program, schedule, true), "");
    });
}

TEST(KernelSums, NeedTheSecondPlace) {
    const Program program = summed(to_all(3, {}));
    const std::string fault = played(program, fuse(program, in_kernel()).value(), false);
    EXPECT_NE(fault.find("of call"), std::string::npos)
        << "a quick rank stores for the next call while a slow one sums: " << fault;
}

TEST(KernelSums, NeedEachOfTheirWaits) {
    for (const plan::Plan& plan : {to_all(3, {}), to_owners(3)}) {
        const Program program = summed(plan);
        const Schedule schedule = fuse(program, in_kernel()).value();
        for (std::size_t wait = 0; wait < 3; ++wait) {
            Schedule early = schedule;
            std::vector<Wait>& waits = early.ranks[1].transfers.front().waits;
            waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(wait));
            EXPECT_NE(played(program, early, true), "") << "wait " << wait;
        }
    }
}

TEST(KernelSums, AreOfTheRowsThatTheirRankIsAskedFor) {
    const plan::Plan plan = to_all(3, {.all = false, .rows = 41});
    const plan::Chunk all{1, {{0, 48}, {0, kColumns}}};
    EXPECT_EQ(asked_of_sum(plan, 0, all), (plan::Region{{0, 14}, {0, kColumns}}));
    EXPECT_EQ(asked_of_sum(plan, 2, all), (plan::Region{{28, 41}, {0, kColumns}}));
    EXPECT_EQ(asked_of_sum(plan, 1, {1, {{20, 48}, {0, 8}}}), (plan::Region{{20, 28}, {0, 8}}))
        << "no more than the chunk";
    EXPECT_TRUE(plan::is_empty(asked_of_sum(plan, 1, {1, {{28, 48}, {0, 8}}})));
    EXPECT_TRUE(plan::is_empty(asked_of_sum(plan, 1, {0, all.region}))) << "of another tensor";
    plan::Plan apart = plan;
    apart.final = {{.rank = 0, .chunk = {1, {{2, 4}, {0, 8}}}},
                   {.rank = 0, .chunk = {1, {{9, 12}, {0, 16}}}}};
    EXPECT_EQ(asked_of_sum(apart, 0, all), (plan::Region{{2, 12}, {0, 16}})) << "the box of both";
}

TEST(KernelSums, AreNoneOnOneRank) {
    const Schedule schedule = fuse(summed(to_all(1, {})), in_kernel()).value();
    EXPECT_EQ(kernel_summands(schedule), 0);
    EXPECT_TRUE(alternating_tensors(schedule).empty());
}

TEST(KernelSums, AreOrdinaryOnesOnTheHost) {
    for (const Case& one : cases()) {
        SCOPED_TRACE(one.name);
        const Program program = summed(one.plan);
        Options options = in_kernel();
        options.device = Device::host;
        const Schedule asked = fuse(program, options).value();
        options.kernel_sums = false;
        EXPECT_EQ(to_json(asked), to_json(fuse(program, options).value()));
        EXPECT_EQ(kernel_summands(asked), 0);
        EXPECT_FALSE(std::ranges::any_of(asked.ranks, sums_in_kernel));
    }
}

TEST(KernelSums, AreRefusedWithTheReason) {
    struct Refusal {
        const char* why;
        plan::Plan plan;
        std::string message;
        Backend preferred = Backend::tma_inline;
    };
    plan::PushReduceOptions sent_on{.all = true};
    sent_on.backends = {Backend::tma_inline, Backend::tma_inline};
    plan::PushReduceOptions read{.pull = true};
    read.backends = {Backend::ldst_inline, Backend::ldst_inline};
    const plan::Plan few = plan::push_reduce(sample::ranks(3), sample::c_of(2)).value();
    const plan::Plan narrow =
        plan::push_reduce_to_all(sample::ranks(3), sample::c_of(48, 4), "D", {.all = false, .rows = 45})
            .value();
    const Refusal refusals[] = {
        {"the largest", to_all(3, {.reduce = plan::Reduce::max}),
         "rank 0 op 3: the kernel adds up, and this op takes the largest"},
        {"what is sent on", plan::push_reduce(sample::ranks(3), sample::c_of(48), sent_on).value(),
         "rank 0 op 4: the kernel's sums come last, and another op comes after this one"},
        {"columns", to_all(3, {.split = 2, .split_axis = 1}),
         "rank 0 op 6: the kernel adds up runs of elements, not [0:48, 0:24]"},
        {"two sums", to_all(3, {.split = 2}),
         "rank 0 op 7: the kernel adds up once, and this rank has two sums"},
        {"no shard for a rank", few, "rank 2: where kernels sum, each rank sums something of all ranks",
         Backend::automatic},
        {"copies", to_all(3, {}),
         "rank 0 op 0: where the kernel sums its tiles store all contributions, and this op goes by "
         "copy_engine",
         Backend::copy_engine},
        {"what lies elsewhere", plan::push_reduce(sample::ranks(3), sample::c_of(48), read).value(),
         "rank 0 op 2: the kernel adds up what is staged, not what lies at other ranks", Backend::automatic},
        {"half a load", narrow,
         "rank 0 op 3: the kernel adds up multiples of 16 bytes, less than 2 GiB, not 120"},
        {"more ranks than lanes", to_owners(33), "kernels sum for 32 ranks at most, not 33"},
    };
    for (const Refusal& refusal : refusals) {
        Options options = in_kernel();
        options.preferred = refusal.preferred;
        EXPECT_EQ(error_of(fuse(summed(refusal.plan), options)), refusal.message) << refusal.why;
    }
}

TEST(KernelSums, AreRefusedWhereTheKernelDoesNotStateThem) {
    const Program program{sample::product(48, kColumns, ""), to_all(3, {}), {{"c_desc", "C"}}};
    EXPECT_EQ(error_of(fuse(program, in_kernel())), "rank 0 op 3: matmul does not state that it sums");
}

TEST(KernelSums, AreRefusedInAProgramOfSeveralStages) {
    const Program program = summed(to_all(3, {}));
    const StagedProgram staged{{{sample::product(48), {}}, {program.kernel, program.bindings}}, program.plan};
    Options options = in_kernel();
    options.preferred = Backend::automatic;
    EXPECT_EQ(error_of(fuse(staged, options)),
              "rank 0 op 3: a sum of contributions is not done by ldst_inline");
}

TEST(KernelSums, AreRefusedOfTwoGiB) {
    const plan::Plan plan =
        plan::push_reduce_to_all(sample::ranks(2), sample::c_of(1 << 20, 1 << 10), "D").value();
    const Lowered lowered = lower(plan).value();
    const Program small = summed(to_all(2, {}));
    EXPECT_EQ(kernel_sum_objection({small.kernel, lowered.plan, small.bindings}, lowered, {1, 2}),
              "the kernel adds up multiples of 16 bytes, less than 2 GiB, not 2147483648");
}

TEST(KernelSums, AreRefusedWhereSomethingArrivesForTilesOrAfterThem) {
    const Schedule good = fuse(summed(to_all(3, {})), in_kernel()).value();
    EXPECT_TRUE(check_kernel_sums(good).ok());
    const auto refuses = [&](const auto& change) {
        Schedule bad = good;
        change(bad.ranks[1]);
        const Status status = check_kernel_sums(bad);
        return !status.ok() &&
               status.error().to_string() ==
                   "rank 1: where the kernel sums nothing may arrive for its tiles, or after it";
    };
    EXPECT_TRUE(refuses([](RankSchedule& rank) { rank.kernel_posts = {{0, 0}}; }));
    EXPECT_TRUE(refuses([](RankSchedule& rank) { rank.begin_waits = {{0, 0}}; }));
    EXPECT_TRUE(refuses([](RankSchedule& rank) { rank.end_waits = {{0, 0}}; }));
}

TEST(KernelSums, SayThatARankIsAskedForNothing) {
    EXPECT_EQ(error_of(fuse(summed(to_all(3, {.all = false, .rows = 2})), in_kernel())),
              "rank 2 op 3: where kernels sum, each rank sums something of all ranks");
}

// A thread loads 16 aligned bytes at a time, and these begin 8 bytes into the tensor.
TEST(KernelSums, AreRefusedOfRunsThatBeginInsideALoad) {
    plan::Plan plan =
        plan::push_reduce_to_all(sample::ranks(2), sample::c_of(48, 4), "D", {.all = false, .rows = 8})
            .value();
    plan.final[0].chunk.region[0] = {1, 3};
    EXPECT_FALSE(fuse(summed(plan), in_kernel()).ok());
}

}  // namespace
}  // namespace syncopate::fuse

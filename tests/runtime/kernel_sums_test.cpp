// What an op tells a kernel that sums: tables for even and odd calls, counted posts, and where sums go.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuse/summing.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/signals/fault.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_heap;
using testing::run_ranks;
using testing::TemporaryDirectory;
namespace table = emit::table;

constexpr std::int64_t kRow = fuse::sample::kColumns * 2;  // bytes

fuse::Schedule schedule_of(const plan::Plan& plan) {
    return fuse::fuse(fuse::sample::summed(plan), fuse::sample::in_kernel()).value();
}

/// Where summand `index` of the table is, in bytes from the control block.
std::int64_t place(std::span<const std::int32_t> words, std::size_t index) {
    const std::size_t at =
        static_cast<std::size_t>(words[table::sum]) + table::sum_places + table::pair_words * index;
    return (std::int64_t{words[at + 1]} << 32) | static_cast<std::uint32_t>(words[at]);
}

/// Runs `body` on two ranks, with an op for the plan.
void with_op(const plan::Plan& plan, const std::function<bool(int, const fuse::Schedule&, FusedOp&)>& body) {
    const TemporaryDirectory directory;
    const fuse::Schedule schedule = schedule_of(plan);
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2, heap_bytes(schedule));
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "sums", .num_programs = 3});
        RANK_CHECK(op, op.error().to_string());
        return body(rank, schedule, **op);
    });
}

TEST(OpThatSums, HasATableForOddCallsBehindItsOwn) {
    with_op(fuse::sample::to_owners(2), [](int rank, const fuse::Schedule& schedule, FusedOp& op) {
        const std::span<const std::int32_t> even = op.table();
        const std::int32_t distance = even[table::other];
        RANK_CHECK(distance > 0 && distance % 64 == 0, "tables begin at multiples of 256 bytes");
        RANK_CHECK(even.size() > static_cast<std::size_t>(distance), "the other table is not there");
        const std::span<const std::int32_t> odd = even.subspan(static_cast<std::size_t>(distance));
        RANK_CHECK(odd[table::other] == 0, "the table for odd calls is the last");
        RANK_CHECK(odd[table::num_programs] == 3 && odd[table::sum] == even[table::sum], "another table");

        const auto own = static_cast<std::size_t>(rank);
        RANK_CHECK(place(odd, own) == place(even, own), "the own summand stays");
        const std::vector<std::uint64_t>& tensors = schedule.heap.tensors;
        const std::uint64_t turn = fuse::in_turn(schedule, tensors)[1] - tensors[1];
        RANK_CHECK(turn > 0 && place(odd, 1 - own) - place(even, 1 - own) == static_cast<std::int64_t>(turn),
                   "what is staged has another place");
        return true;
    });
}

// The call's number goes on when the kernel ends, which it does after its fault.
TEST(OpThatSums, NamesTheChunkThatAKernelDidNotStoreAndTheCall) {
    namespace word = emit::control;
    const fuse::Schedule schedule = schedule_of(fuse::sample::to_all(2, {}));
    const std::vector<fuse::SignalMeaning>& signals = schedule.ranks[0].signals;
    const auto late = std::ranges::find_if(signals, [](const auto& meaning) { return meaning.op.rank == 1; });
    ASSERT_NE(late, signals.end());
    std::array<std::uint32_t, word::header_words> words{};
    words[word::fault] = static_cast<std::uint32_t>(late - signals.begin()) + 1;
    words[word::fault_seen] = 9;
    words[word::fault_epoch] = 12;
    words[word::fault_where] = static_cast<std::uint32_t>(word::at_transfer(0));
    words[word::epoch] = 5;
    for (const std::uint32_t call : {0U, 4U}) {
        words[word::fault_call] = call;
        const FaultRecord record = FaultRecord::from_words(words.data());
        const std::string message = fault_error(schedule, 0, "op 'sums'", record, 100).message;
        EXPECT_TRUE(
            message.starts_with("op 'sums', call " + std::to_string(call == 0 ? 5 : call) + ": chunk C["))
            << message;
        EXPECT_NE(message.find("from rank 1's kernel (op " + std::to_string(late->op.index) +
                               ") has not arrived within 100 ms (signal"),
                  std::string::npos)
            << message;
    }
}

TEST(OpThatSums, CountsThePostsOfThePrograms) {
    // Nine tiles, three for each program.
    with_op(fuse::sample::to_all(2, {}), [](int rank, const fuse::Schedule& schedule, FusedOp& op) {
        const std::span<const std::int32_t> words = op.table();
        const auto record = static_cast<std::size_t>(words[table::sum]);
        const auto begin = static_cast<std::size_t>(words[record + table::sum_waits]);
        const std::vector<fuse::Wait>& waits =
            schedule.ranks[static_cast<std::size_t>(rank)].transfers.front().waits;
        RANK_CHECK(waits.size() == 2, "one wait for each contribution");
        for (std::size_t i = 0; i < waits.size(); ++i) {
            const std::size_t at = begin + table::pair_words * i;
            RANK_CHECK(words[at] == emit::control::word_of(waits[i].signal), "another signal");
            RANK_CHECK(words[at + 1] == 2 << table::wait_count_shift, "three programs add to it");
        }
        return true;
    });
}

TEST(OpThatSums, PutsSumsWhereTheOutputIsIfThatCanBeDone) {
    with_op(fuse::sample::to_owners(2), [](int rank, const fuse::Schedule&, FusedOp& op) {
        const plan::Region rows{{16 * rank, 16 * rank + 16}, {0, fuse::sample::kColumns}};
        const std::uint64_t in_heap =
            op.tensor_address("C").value() + static_cast<std::uint64_t>(16 * rank * kRow);
        RANK_CHECK(op.sum_place() == in_heap, "no output is named");
        alignas(16) std::array<std::uint16_t, 16 * 64 + 8> user{};
        const auto goes_to = [&](std::size_t element, std::int64_t pitch) {
            const std::vector<std::int64_t> strides{pitch, 1};
            const auto address = reinterpret_cast<std::uint64_t>(user.data() + element);
            const Status named = op.set_output("C", rows, address, strides);
            return !named ? 0 : op.sum_place() == address ? 1 : op.sum_place() == in_heap ? 2 : 3;
        };
        RANK_CHECK(goes_to(0, fuse::sample::kColumns) == 1, "the user's array");
        RANK_CHECK(goes_to(8, fuse::sample::kColumns) == 1, "another one");
        RANK_CHECK(goes_to(4, fuse::sample::kColumns) == 2, "8 bytes off what a thread stores at once");
        RANK_CHECK(goes_to(0, fuse::sample::kColumns) == 1, "the user's array again");
        RANK_CHECK(goes_to(0, 64) == 2, "rows that are apart");
        return true;
    });
}

TEST(OpThatSums, HasNoPlaceForThemWhereTheKernelSumsNothing) {
    const TemporaryDirectory directory;
    const fuse::Schedule schedule = schedule_of(fuse::sample::to_all(1, {}));
    auto heap = make_heap(directory, 0, 1, heap_bytes(schedule));
    ASSERT_TRUE(heap) << heap.error().to_string();
    auto op = FusedOp::create(*heap, schedule, {.num_programs = 3});
    ASSERT_TRUE(op) << op.error().to_string();
    EXPECT_EQ((*op)->sum_place(), std::nullopt);
    EXPECT_EQ((*op)->table()[table::sum], 0);
    EXPECT_EQ((*op)->table()[table::other], 0);
}

}  // namespace
}  // namespace syncopate::runtime

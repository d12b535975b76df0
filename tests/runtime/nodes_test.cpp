// Several nodes on one machine: each has a heap of its own, and what goes between them goes over sockets.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "fuse/sample.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/runtime/recover/recover.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_heap;
using testing::run_kernel;
using testing::run_ranks;
using testing::tag;
using testing::TemporaryDirectory;

constexpr std::int64_t kRows = 16, kColumns = 8;

fuse::StagedProgram gathering(std::int32_t nodes, std::int32_t places, std::int64_t split = 1) {
    kernel::Kernel kernel = fuse::sample::gemm({kRows, kColumns, kColumns, 4, 4, 4, 3});
    kernel.arguments.tensors["a_ptr"].dtype = kernel.arguments.tensors["c_ptr"].dtype = plan::DType::int32;
    plan::AllGatherOptions options;
    options.algorithm = plan::Algorithm::hierarchical;
    options.split = split;
    const plan::Mesh mesh{{{"node", nodes}, {"gpu", places}}, "node"};
    const plan::Tensor a{"A", {kRows, kColumns}, plan::DType::int32};
    return {{{kernel, {{"a_ptr", "A"}}}}, plan::all_gather(mesh, a, options).value()};
}

constexpr fuse::Device kDevice = fuse::Device::cuda;

fuse::Schedule gather(std::int32_t nodes, std::int32_t places) {
    return fuse::fuse(gathering(nodes, places), {.device = kDevice}).value();
}

/// One call of the all-gather; its error.
Status call(FusedOp& op, int rank, int size, std::uint32_t number) {
    const std::int64_t part = kRows * kColumns / size;
    auto* const a = reinterpret_cast<std::int32_t*>(op.tensor_address("A").value());
    for (std::int64_t i = rank * part; i < (rank + 1) * part; ++i) a[i] = tag(0, number, i);
    if (Status begun = op.begin_call(); !begun) return begun;
    const bool good = run_kernel(op, [](int) { return true; });
    if (Status ended = op.end_call(); !ended) return ended;
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
        if (a[i] != tag(0, number, i)) return Error{"element " + std::to_string(i) + " is wrong"};
    }
    return good ? Status(Done{}) : Status(Error{"a tile waited in vain"});
}

TEST(Nodes, MapNoMemoryOfEachOther) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        auto heap = make_heap(directory, rank, 4, 1 << 20, 2);
        RANK_CHECK(heap, heap.error().to_string());
        RANK_CHECK((*heap)->first_mapped() == rank / 2 * 2 && (*heap)->num_mapped() == 2, "a node of two");
        for (int other = 0; other < 4; ++other)
            RANK_CHECK((*heap)->maps(other) == (other / 2 == rank / 2), "maps another node's");
        const std::uint32_t mine = 100u + static_cast<std::uint32_t>(rank);
        RANK_CHECK((*heap)->write((*heap)->local(0), &mine, 4), "write");
        RANK_CHECK(barrier((*heap)->rendezvous(), "written"), "barrier");
        std::uint32_t beside = 0;
        RANK_CHECK((*heap)->read((*heap)->address(rank ^ 1, 0), &beside, 4), "read");
        RANK_CHECK(beside == 100u + static_cast<std::uint32_t>(rank ^ 1), "not the neighbour's");
        return bool(barrier((*heap)->rendezvous(), "read"));
    });
}

TEST(Nodes, AScheduleForOtherNodesIsRefused) {
    const TemporaryDirectory directory;
    const fuse::Schedule schedule = gather(2, 2);
    run_ranks(all_ranks(4), [&](int rank) {
        auto heap = make_heap(directory, rank, 4, 1 << 20, 4);
        RANK_CHECK(heap, heap.error().to_string());
        const auto op = FusedOp::create(*heap, schedule, {.name = "ag"});
        RANK_CHECK(!op, "accepted");
        RANK_CHECK(op.error().message.find("nodes of 2 ranks") != std::string::npos, op.error().message);
        return true;
    });
}

TEST(Nodes, RunTheirPartsOfOneScheduleInHeapsOfTheirOwnSize) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        const fuse::Schedule part = fuse::fuse_part(gathering(2, 2), {.device = kDevice}, rank).value();
        RANK_CHECK(part.part && part.ranks[rank < 2 ? 3 : 0].signals.empty(), "no part");
        auto heap = make_heap(directory, rank, 4, rank < 2 ? 1 << 20 : 1 << 21, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, part, {.name = "ag"});
        RANK_CHECK(op, op.error().to_string());
        for (std::uint32_t number = 1; number < 4; ++number) {
            const Status done = call(**op, rank, 4, number);
            RANK_CHECK(done, done.error().to_string());
        }
        return bool((*op)->destroy());
    });
}

TEST(Nodes, RanksOfANodeTakeHeapsOfOneSize) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        const auto heap = make_heap(directory, rank, 4, rank == 3 ? 1 << 21 : 1 << 20, 2);
        RANK_CHECK(!heap && heap.error().message.find("of a node must ask") != std::string::npos,
                   heap ? "accepted" : heap.error().to_string());
        return true;
    });
}

TEST(Nodes, PartsOfSeveralSchedulesAreToldApartOnAllRanks) {
    const TemporaryDirectory directory;
    const auto refuses = [](const Result<std::unique_ptr<FusedOp>>& op, const std::string& why) {
        return !op && op.error().message.find(why) != std::string::npos;
    };
    run_ranks(all_ranks(4), [&](int rank) {
        auto heap = make_heap(directory, rank, 4, 1 << 20, 2);
        RANK_CHECK(heap, heap.error().to_string());
        const auto part_of = [&](std::int64_t split) {
            return fuse::fuse_part(gathering(2, 2, split), {.device = kDevice}, rank).value();
        };
        const auto other = FusedOp::create(*heap, part_of(rank < 2 ? 1 : 2), {.name = "ag"});
        RANK_CHECK(refuses(other, "they differ first in the program: rank "),
                   other ? "nodes of other programs" : other.error().to_string());
        // Of the same program, but one rank's own table.
        fuse::Schedule changed = part_of(1);
        if (rank == 3) std::swap(changed.ranks[2].slots.front().tile, changed.ranks[2].slots.back().tile);
        const auto within = FusedOp::create(*heap, changed, {.name = "ag"});
        const std::string names =
            rank == 3 ? "rank 2 makes another op than rank 3" : "rank 3 makes another op than rank 2";
        RANK_CHECK(refuses(within, names) && refuses(within, "first in the schedule"),
                   within ? "a rank of another part" : within.error().to_string());
        const auto whole = FusedOp::create(*heap, rank < 2 ? gather(2, 2) : part_of(1), {.name = "ag"});
        RANK_CHECK(!whole, "a node has all, another one its part");
        const auto elsewhere = FusedOp::create(
            *heap, fuse::fuse_part(gathering(2, 2), {.device = kDevice}, 0).value(), {.name = "ag"});
        RANK_CHECK(refuses(elsewhere, "the schedule is a part, of ranks 0 to 1, and this is rank"),
                   elsewhere ? "another node's part" : elsewhere.error().to_string());
        return true;
    });
}

/// Who fails names what has not come, and its node and the others are told.
TEST(Nodes, ARankThatDoesNotCallIsMissedOnAllNodesAndCallsGoOnAfterAReset) {
    const TemporaryDirectory directory;
    const fuse::Schedule schedule = gather(2, 2);
    run_ranks(all_ranks(4), [&](int rank) {
        auto heap = make_heap(directory, rank, 4, 1 << 20, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .deadline_ms = 3000});
        RANK_CHECK(op, op.error().to_string());
        Status done = call(**op, rank, 4, 1);
        RANK_CHECK(done, done.error().to_string());
        if (rank != 3) {
            done = call(**op, rank, 4, 2);
            RANK_CHECK(!done, "nothing is missing");
            const std::string& message = done.error().message;
            // Rank 2 waits for rank 3 before it sends, so that rank 0 misses it, too.
            const bool names = message.find("rank 3") != std::string::npos ||
                               message.find("rank 2") != std::string::npos ||
                               message.find("reported a fault") != std::string::npos;
            RANK_CHECK(names, message);
            testing::tell(directory, "missed " + std::to_string(rank));
        }
        // A rank that came to a meeting while another of its node is in a call would be told that calls differ.
        for (const char* other : {"0", "1", "2"}) testing::await(directory, std::string("missed ") + other);
        RANK_CHECK(barrier((*heap)->rendezvous(), "missed"), "barrier");
        done = (*op)->reset();
        RANK_CHECK(done, done.error().to_string());
        for (std::uint32_t number = 3; number < 6; ++number) {
            done = call(**op, rank, 4, number);
            RANK_CHECK(done, "after the reset: " + done.error().to_string());
        }
        return bool((*op)->destroy());
    });
}

/// Puts wait for their place as sends do, so a mover of the host's is both; a name of neither is an error on all ranks.
TEST(Nodes, GoByEitherWayOfTheChannel) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        auto heap = make_heap(directory, rank, 4, 1 << 20, 2);
        RANK_CHECK(heap, heap.error().to_string());
        for (const char* const way : {"put", "send", ""}) {
            setenv("SYNCOPATE_CHANNEL", way, 1);
            auto op = FusedOp::create(*heap, gather(2, 2), {.name = "ag"});
            RANK_CHECK(op, op.error().to_string());
            for (std::uint32_t number = 1; number < 4; ++number) {
                const Status done = call(**op, rank, 4, number);
                RANK_CHECK(done, done.error().to_string());
            }
            RANK_CHECK((*op)->destroy(), "destroy");
        }
        setenv("SYNCOPATE_CHANNEL", rank == 2 ? "puts" : "put", 1);
        const auto op = FusedOp::create(*heap, gather(2, 2), {.name = "ag"});
        RANK_CHECK(!op && op.error().message.find("or \"put\", got 'puts'") != std::string::npos,
                   op ? "accepted" : op.error().to_string());
        return true;
    });
}

TEST(Nodes, GoOnAfterAFaultAsTheNodesThatTheyAre) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        const fuse::Schedule schedule = fuse::fuse_part(gathering(2, 2), {.device = kDevice}, rank).value();
        auto made = FileRendezvous::create(directory.path(), rank, 4);
        RANK_CHECK(made, made.error().to_string());
        const std::shared_ptr<Rendezvous> group = std::move(made).value();
        group->set_ranks_of_node(2);
        auto heap = SymmetricHeap::create({}, group, 1 << 20);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .deadline_ms = 60'000});
        RANK_CHECK(op, op.error().to_string());
        const Status first = call(**op, rank, 4, 1);
        RANK_CHECK(first, first.error().to_string());
        RANK_CHECK(barrier(*group, "called"), "barrier");  // what goes on ends calls that are under way
        if (rank != 3) RANK_CHECK(!call(**op, rank, 4, 2), "nothing is missing");
        const auto went_on = recover(group, nullptr, Milliseconds{20'000});
        RANK_CHECK(went_on, went_on.error().to_string());
        RANK_CHECK(went_on->renewed && (*heap)->num_mapped() == 2, "made anew as one node");
        for (std::uint32_t number = 3; number < 6; ++number) {
            const Status done = call(**op, rank, 4, number);
            RANK_CHECK(done, "after the recovery: " + done.error().to_string());
        }
        return bool((*op)->destroy());
    });
}

/// Its socket closes: no deadline has to pass.
TEST(Nodes, ARankThatDiedIsMissedByItsRail) {
    const TemporaryDirectory directory;
    const fuse::Schedule schedule = gather(2, 1);
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2, 1 << 20, 1);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .deadline_ms = 3'000'000});
        RANK_CHECK(op, op.error().to_string());
        Status done = call(**op, rank, 2, 1);
        RANK_CHECK(done, done.error().to_string());
        if (rank == 1) _exit(0);
        done = call(**op, rank, 2, 2);
        RANK_CHECK(!done, "nobody is missed");
        RANK_CHECK(done.error().message.find("rank 1") != std::string::npos, done.error().message);
        return true;
    });
}

}  // namespace
}  // namespace syncopate::runtime

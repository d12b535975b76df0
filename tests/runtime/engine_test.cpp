// The chunk engine on device host: every kind of op, on several ranks, with delays.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/engine_cases.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "runtime/schedules.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/runtime/cuda/engine/engine_table.hpp"
#include "syncopate/runtime/host/host_engine.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::EngineCase;
using testing::make_heap;
using testing::run_ranks;
using testing::TemporaryDirectory;

constexpr std::uint64_t kHeapBytes = 64 << 20;

class Engine : public ::testing::TestWithParam<int> {};

TEST_P(Engine, DoesEveryKindOfOpAsTheReferenceDoesWhateverTheTiming) {
    const int size = GetParam();
    const std::vector<EngineCase> cases = testing::engine_cases(size, 1);
    const TemporaryDirectory directory;
    run_ranks(all_ranks(size), [&](int rank) {
        auto heap = make_heap(directory, rank, size, kHeapBytes);
        RANK_CHECK(heap, heap.error().to_string());
        for (const EngineCase& c : cases) {
            auto op = FusedOp::create(*heap, c.schedule, {.name = c.name, .max_delay_us = 60, .seed = 5});
            RANK_CHECK(op, c.name + ": " + op.error().to_string());
            for (std::uint32_t call = 1; call <= 3; ++call) {
                std::vector<testing::Memory> memory;
                for (int other = 0; other < size; ++other)
                    memory.push_back(testing::memory_before(c.schedule, other, call));
                const testing::Memory before = memory[static_cast<std::size_t>(rank)];
                testing::run_reference(c.schedule, memory);
                const std::string wrong =
                    testing::run_call(**op, before, memory[static_cast<std::size_t>(rank)]);
                RANK_CHECK(wrong.empty(), c.name + ", call " + std::to_string(call) + ": " + wrong);
            }
            RANK_CHECK((*op)->destroy(), c.name);
        }
        return true;
    });
}

INSTANTIATE_TEST_SUITE_P(OnHost, Engine, ::testing::Values(1, 2, 3),
                         [](const auto& value) { return std::to_string(value.param) + "Ranks"; });

TEST(EngineCases, ChangeSomething) {
    for (const EngineCase& c : testing::engine_cases(2, 1)) {
        std::vector<testing::Memory> memory{testing::memory_before(c.schedule, 0, 1),
                                            testing::memory_before(c.schedule, 1, 1)};
        const std::vector<testing::Memory> before = memory;
        testing::run_reference(c.schedule, memory);
        EXPECT_NE(memory[0], before[0]) << c.name;
        EXPECT_NE(memory[1], before[1]) << c.name;
    }
}

TEST(HostEngine, NamesTheSignalThatDoesNotCome) {
    const EngineCase c = testing::engine_case_without_end(2);
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2, kHeapBytes);
        RANK_CHECK(heap, heap.error().to_string());
        auto op =
            FusedOp::create(*heap, c.schedule, {.name = c.name, .deadline_ms = rank == 0 ? 200 : 600'000});
        RANK_CHECK(op, op.error().to_string());
        const testing::Memory before = testing::memory_before(c.schedule, rank, 1);
        const std::string wrong = testing::run_call(**op, before, before);
        const bool destroyed =
            bool((*op)->destroy());  // before a rank leaves, or the others would wait for it
        RANK_CHECK(!wrong.empty(), "no fault");
        RANK_CHECK(
            rank != 0 || wrong.find("rank 1 has not begun the call within 200 ms") != std::string::npos,
            wrong);
        RANK_CHECK(rank != 0 || wrong.find("before transfer 0") != std::string::npos, wrong);
        return destroyed;
    });
}

/// One rank's transfers with addresses of no memory, for looking at tables only.
struct Sample {
    fuse::RankSchedule schedule;
    std::vector<PreparedTransfer> transfers;

    Sample& add(plan::Backend backend, PreparedTransfer transfer) {
        schedule.transfers.push_back(
            {.op = {2, static_cast<std::int32_t>(transfers.size())}, .backend = backend});
        transfers.push_back(std::move(transfer));
        return *this;
    }
    [[nodiscard]] Result<EngineTable> table() const { return make_engine_table(schedule, transfers, 0x1000); }
};

StridedCopy rows(std::uint64_t width, std::uint64_t height, std::uint64_t pitch) {
    return {.src = 0x10'0000,
            .dst = 0x80'0000,
            .width = width,
            .height = height,
            .src_pitch = pitch,
            .dst_pitch = pitch,
            .src_plane = pitch * height,
            .dst_plane = pitch * height};
}

TEST(HostEngine, OpensTheGateOfARelayWhateverTheCallsNumber) {
    std::vector<std::uint32_t> words(emit::control::word_of(2), 0);
    const auto base = reinterpret_cast<std::uint64_t>(words.data());
    const HostControl control(base);
    const std::int32_t gate = emit::control::word_of(1);
    EngineTable table;
    table.posts = {base + 4 * static_cast<std::uint64_t>(gate)};
    table.ops = {{.rows_per_plane = 1,
                  .parts_per_row = 1,
                  .rows_per_piece = 1,
                  .last_piece = 1,
                  .num_pieces = 1,
                  .expected = 1,
                  .num_posts = 1,
                  .method = device::EngineMethod::ldst,
                  .opens = 1}};
    table.num_counters = table.num_pieces = 1;
    HostEngine engine(table, control);
    const auto call = [&](std::uint32_t epoch) {
        control.store(gate, 0);
        engine.start(epoch);
        engine.join();
    };
    for (const std::uint32_t epoch : {0xffff'ffffU, 0U, 1U}) {
        call(epoch);
        EXPECT_NE(control.load(gate), 0U) << epoch;
    }
    // After a fault, too [P22].
    (void)control.raise_word(emit::control::fault_of_peer);
    call(2);
    EXPECT_NE(control.load(gate), 0U);
}

TEST(EngineTable, CutsEveryBoxIntoPiecesThatCoverItOnce) {
    for (const plan::Backend backend : {plan::Backend::tma_dedicated, plan::Backend::ldst_dedicated}) {
        for (const std::uint64_t width : {16u, 48u, 512u, 16384u, 16400u, 1000000u}) {
            for (const std::uint64_t height : {1u, 2u, 33u, 1025u}) {
                StridedCopy box = rows(width, height, width + 16);
                box.depth = 2;
                const auto table = Sample().add(backend, {.work = PreparedTransfer::Copies{box}}).table();
                ASSERT_TRUE(table) << table.error().to_string();
                ASSERT_EQ(table->ops.size(), 1u);
                const device::EngineOp& op = table->ops[0];
                const std::uint64_t most = op.method == device::EngineMethod::bulk ? device::kEnginePieceBytes
                                                                                   : device::kEngineLdstBytes;
                std::vector<std::uint64_t> covered(2 * height, 0);  // bytes of each row so far, left to right
                for (std::uint32_t at = 0; at < table->num_pieces; ++at) {
                    const device::EnginePiece piece = device::piece_of(op, at);
                    ASSERT_LE(std::uint64_t{piece.rows} * piece.bytes, most);
                    ASSERT_EQ(piece.bytes % 16, 0u);
                    for (std::uint32_t row = piece.row; row < piece.row + piece.rows; ++row) {
                        ASSERT_EQ(covered.at(row), piece.column);
                        covered[row] += piece.bytes;
                    }
                }
                EXPECT_TRUE(std::ranges::all_of(covered, [&](std::uint64_t bytes) { return bytes == width; }))
                    << width << " x " << height;
            }
        }
    }
}

TEST(EngineTable, KeepsAllSummandsOfAPieceInAWarpsSharedMemory) {
    for (const std::int32_t slots : {1, 2, 7, 31, 100, 512}) {
        PreparedSum sum{.num_slots = slots, .slot_distance = 1 << 24, .parts = {{rows(9008, 5, 9008 + 64)}}};
        const auto table = Sample().add(plan::Backend::tma_dedicated, {.work = sum}).table();
        ASSERT_TRUE(table) << table.error().to_string();
        for (std::uint32_t at = 0; at < table->num_pieces; ++at) {
            const device::EnginePiece piece = device::piece_of(table->ops[0], at);
            EXPECT_LE(std::uint64_t{piece.rows} * piece.bytes * table->ops[0].num_sources,
                      device::kEnginePieceBytes);
        }
    }
    PreparedSum sum{.num_slots = 513, .slot_distance = 1 << 24, .parts = {{rows(64, 5, 64)}}};
    const auto refused = Sample().add(plan::Backend::tma_dedicated, {.work = sum}).table();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().to_string(),
              "rank 2 op 0: a sum of 513 boxes by tma_dedicated is too wide; use ldst_dedicated");
    EXPECT_TRUE(Sample().add(plan::Backend::ldst_dedicated, {.work = sum}).table());
}

TEST(EngineTable, RefusesWhatIsNotAligned) {
    const auto why = [](StridedCopy copy) {
        const auto table =
            Sample().add(plan::Backend::ldst_dedicated, {.work = PreparedTransfer::Copies{copy}}).table();
        return table ? std::string("made") : table.error().to_string();
    };
    StridedCopy copy = rows(64, 3, 128);
    EXPECT_EQ(why(copy), "made");
    copy.width = 60;
    EXPECT_EQ(why(copy),
              "rank 2 op 0: the chunk engine moves multiples of 16 bytes, and of the destination its "
              "rows of 60 bytes is none; use copy_engine");
    copy = rows(64, 3, 128);
    copy.src += 8;
    EXPECT_NE(why(copy).find("of the source its address 0x100008"), std::string::npos) << why(copy);
    copy = rows(64, 3, 120);
    EXPECT_NE(why(copy).find("its pitch of 120 bytes"), std::string::npos) << why(copy);
    copy = rows(64, 1, 120);
    EXPECT_EQ(why(copy), "made") << "one row has no pitch";
    copy = rows(64, 3, 128);
    copy.depth = 2;
    copy.dst_plane = 1000;
    EXPECT_NE(why(copy).find("its plane of 1000 bytes"), std::string::npos) << why(copy);
}

TEST(EngineTable, LeavesOutWaitsThatTheBeginHasSeenAndOtherBackends) {
    Sample sample;
    sample.schedule.begin_waits = {{4, 0}, {5, 1}};
    sample.add(plan::Backend::tma_dedicated, {.work = PreparedTransfer::Copies{rows(16, 1, 16)},
                                              .waits = {{4, 0}, {5, 0}, {6, 0}},
                                              .post_words = {0x2000, 0x3000}});
    sample.add(plan::Backend::copy_engine, {.work = PreparedTransfer::Copies{rows(16, 1, 16)}});
    sample.add(plan::Backend::tma_dedicated, {});
    const auto table = sample.table();
    ASSERT_TRUE(table) << table.error().to_string();
    ASSERT_EQ(table->ops.size(), 2u);
    ASSERT_EQ(table->waits.size(), 2u);
    EXPECT_EQ(table->waits[0].signal, 5);
    EXPECT_EQ(table->waits[1].signal, 6);
    EXPECT_EQ(table->waits[1].word, 0x1000u + 4u * emit::control::word_of(6));
    EXPECT_EQ(table->posts, (std::vector<std::uint64_t>{0x2000, 0x3000}));
    EXPECT_EQ(table->ops[0].expected, 1u);
    EXPECT_EQ(table->ops[1].num_rows, 0u) << "nothing to move";
    EXPECT_EQ(table->ops[1].where, emit::control::at_transfer(2));
    EXPECT_EQ(table->num_pieces, 2u);
}

TEST(EngineTable, CountsAllBoxesOfATransferTogether) {
    Sample sample;
    sample.add(plan::Backend::tma_dedicated,
               {.work = PreparedTransfer::Copies{rows(16, 1, 16)}, .post_words = {0x2000}});
    sample.add(plan::Backend::tma_dedicated,
               {.work = PreparedTransfer::Copies{rows(100'000, 2, 100'000), rows(16, 1, 16)},
                .post_words = {0x3000}});
    const auto table = sample.table();
    ASSERT_TRUE(table) << table.error().to_string();
    ASSERT_EQ(table->ops.size(), 3u);
    EXPECT_EQ(table->ops[0].first_counted, 0u);
    for (const std::size_t op : {1u, 2u}) {
        EXPECT_EQ(table->ops[op].counter, table->ops[1].counter);
        EXPECT_EQ(table->ops[op].first_counted, 1u);
        EXPECT_EQ(table->ops[op].first_counted + table->ops[op].expected, table->num_pieces);
    }
    EXPECT_EQ(table->ops[2].last_piece, table->num_pieces);
}

TEST(EngineTable, NamesAKernelForSumsOfOneTypeByLoadsAndStores) {
    const auto sum_of = [](std::int32_t slots, plan::DType dtype, plan::Reduce reduce = plan::Reduce::sum) {
        return PreparedSum{.dtype = dtype,
                           .reduce = reduce,
                           .num_slots = slots,
                           .own = 0,
                           .slot_distance = 1 << 24,
                           .parts = {{rows(64, 5, 64)}},
                           .copies = {0x1000, 0x2000}};
    };
    Sample sample;
    EXPECT_EQ(sum_engine_name(*sample.table()), "");
    sample.add(plan::Backend::ldst_dedicated, {.work = sum_of(1, plan::DType::bf16)});
    EXPECT_EQ(sum_engine_name(*sample.table()), "sy_sum_engine_bf16_sum_2");
    sample.add(plan::Backend::ldst_dedicated, {.work = sum_of(2, plan::DType::bf16)});
    EXPECT_EQ(sum_engine_name(*sample.table()), "sy_sum_engine_bf16_sum_4");
    sample.add(plan::Backend::ldst_dedicated, {.work = sum_of(40, plan::DType::bf16)});
    const EngineTable table = *sample.table();
    EXPECT_EQ(sum_engine_name(table), "sy_sum_engine_bf16_sum_8");
    EXPECT_EQ(table.copies, (std::vector<std::uint64_t>{0x1000, 0x2000, 0x1000, 0x2000, 0x1000, 0x2000}));
    EXPECT_EQ(table.ops[2].first_copy, 4u);
    EXPECT_EQ(table.ops[2].num_copies, 2u);
}

TEST(EngineTable, BlocksCountWhereOnlyTilesAwaitWhatGoesAtOnce) {
    constexpr std::int32_t kBlocks = 8;
    constexpr std::int64_t kBlockWords = fuse::kBytesAtOnce / 4;
    const auto counts = [](const fuse::Schedule& schedule, std::int32_t blocks = 8) {
        const fuse::Schedule decided = fuse::decide_engine(schedule, fuse::Device::cuda, blocks);
        return std::ranges::all_of(decided.ranks, [](const fuse::RankSchedule& rank) {
            return rank.engine == fuse::EngineKernel::counted && rank.takes_turns;
        });
    };
    for (const int size : {2, 4}) {
        // A shard of two parts of what the blocks of an op hold.
        const std::int32_t blocks_each = kBlocks / (size - 1);
        const auto gather = [&](std::int64_t half, bool pull = false) {
            return testing::direct_all_gather(size, pull, {2 * size, half}, plan::Backend::ldst_dedicated);
        };
        const std::int64_t most = blocks_each * kBlockWords / 2;
        EXPECT_TRUE(counts(gather(64))) << size << " ranks";
        EXPECT_TRUE(counts(gather(most))) << size << " ranks";
        EXPECT_FALSE(counts(gather(most + 4))) << "more than its blocks' threads hold";
        EXPECT_FALSE(size > 2 && counts(gather(64), size - 2)) << "an op without a block";
        EXPECT_FALSE(counts(gather(64, true))) << "a pull's source awaits it at the end";

        fuse::Schedule waiting = gather(64);
        fuse::Wait consumed = waiting.ranks[1].begin_waits.front();
        waiting.ranks[1].transfers[0].waits = {consumed};
        EXPECT_TRUE(counts(waiting)) << "the call's begin has seen it";
        consumed.lag = 0;
        waiting.ranks[1].transfers[0].waits = {consumed};
        EXPECT_FALSE(counts(waiting)) << "it has to come after something of this call";

        const fuse::Post arrived = gather(64).ranks[0].transfers[0].posts.front();
        const auto there = static_cast<std::size_t>(arrived.rank);
        const auto refuses = [&](const char* why, const auto& change) {
            fuse::Schedule other = gather(64);
            change(other);
            EXPECT_FALSE(counts(other)) << why << ", " << size << " ranks";
        };
        refuses("two stages", [](fuse::Schedule& s) { s.stages.push_back(s.stages.front()); });
        refuses("relays", [](fuse::Schedule& s) { s.ranks[1].num_relays = 1; });
        refuses("a rank whose engine has nothing to do",
                [](fuse::Schedule& s) { s.ranks[1].transfers.clear(); });
        refuses("bulk copies",
                [](fuse::Schedule& s) { s.ranks[1].transfers[0].backend = plan::Backend::tma_dedicated; });
        refuses("a sum", [](fuse::Schedule& s) { s.ranks[1].transfers[0].work = fuse::Sum{}; });
        refuses("an op that nobody awaits", [](fuse::Schedule& s) { s.ranks[1].transfers[0].posts.clear(); });
        refuses("nothing to copy", [](fuse::Schedule& s) {
            s.ranks[1].transfers[0].src.region[0].end = s.ranks[1].transfers[0].src.region[0].begin;
        });
        refuses("a call whose end awaits it",
                [&](fuse::Schedule& s) { s.ranks[there].end_waits.push_back({arrived.signal, 0}); });
        refuses("a call that begins after it",
                [&](fuse::Schedule& s) { s.ranks[there].begin_waits.push_back({arrived.signal, 1}); });
        refuses("another op of the engine after it",
                [&](fuse::Schedule& s) { s.ranks[there].transfers[0].waits.push_back({arrived.signal, 0}); });
        refuses("a copy of a stream after it", [&](fuse::Schedule& s) {
            fuse::Transfer copy = s.ranks[there].transfers[0];
            copy.backend = plan::Backend::copy_engine;
            copy.waits = {{arrived.signal, 0}};
            s.ranks[there].transfers.push_back(copy);
        });
    }
    for (const EngineCase& c : testing::engine_cases(2, 1))
        EXPECT_FALSE(counts(c.schedule)) << c.name << ": the call's end awaits its ops";
    // Of three ops and eight blocks two have three, and the third one has two: each tile's signal counts its own.
    const fuse::Schedule shared =
        fuse::decide_engine(testing::direct_all_gather(4, false, {8, 64}, plan::Backend::ldst_dedicated),
                            fuse::Device::cuda, kBlocks);
    for (const fuse::RankSchedule& rank : shared.ranks) {
        std::vector<std::int32_t> posts;
        for (const fuse::CountedSignal& counted : rank.counted) posts.push_back(counted.posts);
        EXPECT_TRUE(std::ranges::is_permutation(posts, std::vector<std::int32_t>{3, 3, 2}));
    }
    EXPECT_TRUE(fuse::decide_engine(shared, fuse::Device::host, kBlocks).ranks[0].counted.empty());
}

TEST(EngineTable, SaysByWhichKernelTheEngineOfEachRankGoes) {
    const auto kernel_of = [](const std::string& name) {
        for (const EngineCase& c : testing::engine_cases(3, 1))
            if (c.name == name) return c.schedule.ranks[0].engine;
        ADD_FAILURE() << "no case " << name;
        return fuse::EngineKernel::none;
    };
    using enum fuse::EngineKernel;
    EXPECT_EQ(kernel_of("tma_dedicated pushes 16 bytes"), bulk);
    EXPECT_EQ(kernel_of("ldst_dedicated pushes 16 bytes"), at_once);
    EXPECT_EQ(kernel_of("ldst_dedicated pushes planes of wide rows"), at_once);
    EXPECT_EQ(kernel_of("ldst_dedicated does more ops than fit into shared memory"), pieces);
    EXPECT_EQ(kernel_of("ldst_dedicated stages a sum of bf16"), pieces) << "copies to staging, too";
    EXPECT_EQ(kernel_of("ldst_dedicated reads from peers a max of fp32"), sums);
    EXPECT_EQ(kernel_of("tma_dedicated reads from peers a max of fp32"), bulk);
    EXPECT_EQ(testing::direct_all_gather(2, false, {8, 8}, plan::Backend::copy_engine).ranks[0].engine, none);
}

TEST(EngineTable, RefusesATypeThatIsNotSummed) {
    PreparedSum sum{.dtype = plan::DType::fp64, .num_slots = 2, .parts = {{rows(64, 5, 64)}}};
    const auto table = Sample().add(plan::Backend::ldst_dedicated, {.work = sum}).table();
    ASSERT_FALSE(table);
    EXPECT_EQ(table.error().to_string(), "rank 2 op 0: elements of type fp64 are not summed");
}

}  // namespace
}  // namespace syncopate::runtime

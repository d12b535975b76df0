#include "syncopate/runtime/call/op.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <thread>

#include "fuse/sample.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "runtime/schedules.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::direct_all_gather;
using testing::make_heap;
using testing::run_kernel;
using testing::run_ranks;
using testing::tag;
using testing::TemporaryDirectory;

struct Case {
    int size;
    bool pull;
    plan::Backend backend = plan::Backend::host;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.size << (c.pull ? " ranks, pull" : " ranks, push");
}

class AllGather : public ::testing::TestWithParam<Case> {};

TEST_P(AllGather, BringsEveryCallsDataWhateverTheTiming) {
    const TemporaryDirectory directory;
    const auto [size, pull, backend] = GetParam();
    run_ranks(all_ranks(size), [&, size = size, pull = pull, backend = backend](int rank) {
        auto heap = make_heap(directory, rank, size);
        RANK_CHECK(heap, heap.error().to_string());
        const fuse::Schedule schedule = direct_all_gather(size, pull, {8 * size, 6, 4}, backend);
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .max_delay_us = 400, .seed = 7});
        RANK_CHECK(op, op.error().to_string());
        const std::int64_t part = 8 * 6 * 4;
        auto* gathered = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
        std::vector<std::int32_t> mine(part);
        const plan::Region region = testing::rows_of(schedule.tensors[0], rank, size);
        const std::vector<std::int64_t> strides{24, 4, 1};
        std::mt19937 random(static_cast<unsigned>(rank));
        for (std::uint32_t call = 1; call <= 100; ++call) {
            for (std::int64_t i = 0; i < part; ++i) mine[static_cast<std::size_t>(i)] = tag(rank, call, i);
            Status done =
                (*op)->set_input("A", region, reinterpret_cast<std::uint64_t>(mine.data()), strides);
            RANK_CHECK(done, done.error().to_string());
            done = (*op)->begin_call();
            RANK_CHECK(done, done.error().to_string());
            if (random() % 16 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));  // a straggler
            const bool right = run_kernel(**op, [&](int chunk) {
                for (std::int64_t i = 0; i < part; ++i) {
                    if (gathered[chunk * part + i] != tag(chunk, call, i)) return false;
                }
                return true;
            });
            RANK_CHECK(right, "wrong data in call " + std::to_string(call));
            done = (*op)->end_call();
            RANK_CHECK(done, done.error().to_string());
        }
        RANK_CHECK((*op)->check() && (*op)->poll(), "a fault");
        const Status destroyed = (*op)->destroy();
        RANK_CHECK(destroyed, destroyed.error().to_string());
        RANK_CHECK((*heap)->bytes_allocated() == 0, "memory left");
        return true;
    });
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
    return std::to_string(info.param.size) + (info.param.pull ? "Pull" : "Push") +
           (info.param.backend == plan::Backend::copy_engine      ? "InOrder"
            : info.param.backend == plan::Backend::tma_dedicated  ? "ByBulk"
            : info.param.backend == plan::Backend::ldst_dedicated ? "ByLdst"
            : info.param.backend == plan::Backend::ldst_inline    ? "BySums"
                                                                  : "");
}

INSTANTIATE_TEST_SUITE_P(OnHost, AllGather,
                         ::testing::Values(Case{1, false}, Case{2, false}, Case{3, false}, Case{5, false},
                                           Case{8, false}, Case{1, true}, Case{2, true}, Case{3, true},
                                           Case{5, true}, Case{8, true},
                                           Case{3, false, plan::Backend::copy_engine},
                                           Case{3, false, plan::Backend::tma_dedicated},
                                           Case{4, true, plan::Backend::ldst_dedicated}),
                         name_of_case);

/// The first place in `memory` that is a multiple of so many bytes away from `from`.
std::int32_t* congruent(std::vector<std::int32_t>& memory, const std::int32_t* from, std::uint64_t bytes) {
    std::int32_t* at = memory.data();
    while ((reinterpret_cast<std::uint64_t>(at) - reinterpret_cast<std::uint64_t>(from)) % bytes != 0) ++at;
    return at;
}

/// An input that the kernel is not given: copies to other ranks read the user's array, and the heap's place
/// of it stays as it is, unless somebody reads that.
TEST(Input, IsReadWhereItIsByWhoeverSendsIt) {
    struct By {
        bool pull;
        plan::Backend backend;
    };
    for (const auto& [pull, backend] : {By{false, plan::Backend::host}, By{true, plan::Backend::host},
                                        By{false, plan::Backend::tma_dedicated}}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int rank) {
            auto heap = make_heap(directory, rank, 3);
            RANK_CHECK(heap, heap.error().to_string());
            const fuse::Schedule schedule = direct_all_gather(3, pull, {24, 6, 4}, backend);
            auto op = FusedOp::create(*heap, schedule, {.kept_tensors = std::vector<std::string>{}});
            RANK_CHECK(op, op.error().to_string());
            constexpr std::int64_t kPart = 8 * 6 * 4;
            auto* gathered = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
            std::int32_t* own = gathered + rank * kPart;
            std::fill_n(own, kPart, -1);
            std::vector<std::int32_t> mine(kPart);
            const plan::Region region = testing::rows_of(schedule.tensors[0], rank, 3);
            const std::vector<std::int64_t> strides{24, 4, 1};
            for (std::uint32_t call = 1; call <= 30; ++call) {
                const bool cleared = call > 20;  // as if there had never been an input
                const bool in_place = call > 10;
                if (call == 21) {
                    RANK_CHECK(
                        (*op)->set_input("A", region, reinterpret_cast<std::uint64_t>(mine.data()), strides),
                        "set_input");
                    (*op)->clear_inputs();
                }
                std::int32_t* input = in_place ? own : mine.data();
                for (std::int64_t i = 0; i < kPart; ++i) input[i] = tag(rank, call, i);
                RANK_CHECK(
                    cleared || (*op)->set_input("A", region, reinterpret_cast<std::uint64_t>(input), strides),
                    "set_input");
                RANK_CHECK((*op)->begin_call(), "begin");
                const bool right = run_kernel(**op, [&](int chunk) {
                    for (std::int64_t i = 0; chunk != rank && i < kPart; ++i) {
                        if (gathered[chunk * kPart + i] != tag(chunk, call, i)) return false;
                    }
                    return true;
                });
                RANK_CHECK(right, "wrong data in call " + std::to_string(call));
                RANK_CHECK((*op)->end_call(), "end");
                const std::int32_t kept = pull || in_place ? tag(rank, call, 0) : -1;
                RANK_CHECK(own[0] == kept, "the heap's place holds " + std::to_string(own[0]));
            }
            return bool((*op)->destroy());
        });
    }
}

/// The chunk engine reads one array, all of it: what is given in parts, is not laid out as in the heap, or is
/// not aligned for it is copied.
TEST(Input, IsReadByTheChunkEngineWhereThatCanAndElseCopied) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        constexpr std::int64_t kRows = 8, kColumns = 8, kPart = kRows * kColumns;
        const fuse::Schedule schedule =
            direct_all_gather(3, false, {3 * kRows, kColumns}, plan::Backend::ldst_dedicated);
        auto op = FusedOp::create(*heap, schedule, {.kept_tensors = std::vector<std::string>{}});
        RANK_CHECK(op, op.error().to_string());
        auto* gathered = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
        std::int32_t* own = gathered + rank * kPart;
        std::vector<std::int32_t> memory(2 * kPart + 8);
        std::int32_t* near = congruent(memory, own, 16);
        const plan::Region region = testing::rows_of(schedule.tensors[0], rank, 3);
        plan::Region upper = region, lower = region;
        upper[0].end = lower[0].begin = region[0].begin + kRows / 2;
        enum class From { whole, odd, whole_again, apart, halves, whole_last, last };
        for (std::uint32_t call = 1; call <= 2 * static_cast<std::uint32_t>(From::last); ++call) {
            const auto from = static_cast<From>((call - 1) / 2);
            std::int32_t* x = from == From::odd ? near + 1 : near;
            const std::int64_t pitch = from == From::apart ? 2 * kColumns : kColumns;
            std::fill_n(own, kPart, -1);
            for (std::int64_t i = 0; i < kPart; ++i)
                x[i / kColumns * pitch + i % kColumns] = tag(rank, call, i);
            const auto set = [&](const plan::Region& part, const std::int32_t* data) {
                const std::vector<std::int64_t> strides{pitch, 1};
                return bool((*op)->set_input("A", part, reinterpret_cast<std::uint64_t>(data), strides));
            };
            if (from == From::halves || from == From::whole_last) (*op)->clear_inputs();
            if (from == From::halves) {
                RANK_CHECK(set(upper, x) && set(lower, x + kPart / 2), "set_input");
            } else {
                RANK_CHECK(set(region, x), "set_input");
            }
            RANK_CHECK((*op)->begin_call(), "begin");
            const bool right = run_kernel(**op, [&](int chunk) {
                for (std::int64_t i = 0; chunk != rank && i < kPart; ++i) {
                    if (gathered[chunk * kPart + i] != tag(chunk, call, i)) return false;
                }
                return true;
            });
            RANK_CHECK(right, "wrong data in call " + std::to_string(call));
            RANK_CHECK((*op)->end_call(), "end");
            const bool in_place =
                from == From::whole || from == From::whole_again || from == From::whole_last;
            RANK_CHECK((own[0] == -1) == in_place,
                       "call " + std::to_string(call) + ": the heap's place holds " + std::to_string(own[0]));
        }
        return bool((*op)->destroy());
    });
}

/// What a rank sends to itself is read where the user has it by its own tiles, if these can, else in the
/// heap.
TEST(Input, IsReadWhereItIsByTheTilesOfItsOwnRank) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        constexpr std::int64_t kRows = 12, kColumns = 16, kBlock = 4 * kColumns;  // elements
        kernel::Kernel kernel = fuse::sample::gemm({kRows, 4, kColumns, 4, 4, 4});
        kernel.arguments.tensors["a_ptr"].dtype = plan::DType::int32;
        const fuse::Program program{
            kernel,
            plan::push_exchange(fuse::sample::ranks(3), {"X", {kRows, kColumns}, plan::DType::int32}, "A",
                                {.produced = false, .for_kernel = true})
                .value(),
            {{"a_ptr", "A"}}};
        const auto schedule = fuse::fuse(program, {});
        RANK_CHECK(schedule && schedule->loads() && schedule->loads()->own, "tiles do not read their own");
        auto op = FusedOp::create(*heap, *schedule, {.kept_tensors = std::vector<std::string>{"A"}});
        RANK_CHECK(op, op.error().to_string());
        auto* gathered = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
        auto* in_heap = reinterpret_cast<std::int32_t*>((*op)->tensor_address("X").value());
        std::vector<std::int32_t> memory(2 * kRows * kColumns + 64);
        // As far from the heap as the kernel is told: a multiple of 16 elements.
        std::int32_t* near = congruent(memory, gathered, 64);
        enum class From { user, odd, apart, placed, cleared, user_again, parts, last };
        for (std::uint32_t call = 1; call <= 2 * static_cast<std::uint32_t>(From::last); ++call) {
            const auto from = static_cast<From>((call - 1) / 2);
            const bool placed = from == From::placed || from == From::cleared;
            std::int32_t* x = placed ? in_heap : from == From::odd ? near + 1 : near;
            const std::int64_t pitch = from == From::apart ? 2 * kColumns : kColumns;
            const std::vector<std::int64_t> strides{pitch, 1};
            std::fill_n(in_heap, kRows * kColumns, -1);
            std::fill_n(gathered + rank * kBlock, kBlock, -1);
            for (std::int64_t i = 0; i < kRows * kColumns; ++i)
                x[i / kColumns * pitch + i % kColumns] = tag(rank, call, i);
            const auto address = reinterpret_cast<std::uint64_t>(x);
            if (from == From::cleared) {
                (*op)->clear_inputs();
            } else if (from == From::parts) {  // one more, beside that of the calls before
                const plan::Region half{{0, kRows / 2}, {0, kColumns}};
                RANK_CHECK((*op)->set_input("X", half, address, strides), "set_input");
            } else {
                RANK_CHECK((*op)->set_input("X", {{0, kRows}, {0, kColumns}}, address, strides), "set_input");
            }
            const auto place = (*op)->own_place();
            RANK_CHECK(place && place->pitch == 4u * kColumns, "no place");
            const bool user = from == From::user || from == From::user_again;
            RANK_CHECK((place->address == address) == (user || placed),
                       "the place of call " + std::to_string(call));
            RANK_CHECK(gathered + place->elements == reinterpret_cast<std::int32_t*>(place->address),
                       "elements");
            RANK_CHECK(user || place->address == reinterpret_cast<std::uint64_t>(in_heap), "not in the heap");
            RANK_CHECK((*op)->begin_call(), "begin");
            RANK_CHECK(from != From::user || in_heap[0] == -1, "copied all the same");
            const bool right = run_kernel(**op, [&](int tile, int slot) {
                const bool own = testing::reads_own(**op, slot);
                const std::int32_t* a = gathered + testing::load_offset_of(**op, slot);
                if (own != (tile == rank)) return false;
                for (std::int64_t i = 0; i < kBlock; ++i) {
                    if (a[tile * kBlock + i] != tag(tile, call, rank * kBlock + i)) return false;
                }
                return true;
            });
            RANK_CHECK(right, "wrong data in call " + std::to_string(call));
            RANK_CHECK((*op)->end_call(), "end");
        }
        return bool((*op)->destroy());
    });
}

/// So it is with the part of a gathered tensor that a rank holds from the start; whoever sends it reads it
/// there, too.
TEST(Input, OfAGatheredTensorIsReadWhereItIsByTilesAndTransfers) {
    for (const plan::Backend backend : {plan::Backend::host, plan::Backend::ldst_dedicated}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int rank) {
            auto heap = make_heap(directory, rank, 3);
            RANK_CHECK(heap, heap.error().to_string());
            constexpr std::int64_t kRows = 12, kColumns = 16, kPart = 4 * kColumns;  // elements
            kernel::Kernel kernel = fuse::sample::gemm({kRows, 4, kColumns, 4, 4, 4});
            kernel.arguments.tensors["a_ptr"].dtype = plan::DType::int32;
            const fuse::Program program{
                kernel,
                plan::all_gather(fuse::sample::ranks(3), {"A", {kRows, kColumns}, plan::DType::int32},
                                 {.transient = true})
                    .value(),
                {{"a_ptr", "A"}}};
            const auto schedule = fuse::fuse(program, {.preferred = backend});
            RANK_CHECK(schedule && schedule->loads() && schedule->loads()->own,
                       "tiles do not read their own");
            const plan::Region part = testing::rows_of(schedule->tensors[0], rank, 3);
            auto op = FusedOp::create(*heap, *schedule,
                                      {.initial = std::vector<plan::Chunk>{{0, part}},
                                       .kept_tensors = std::vector<std::string>{"A"}});
            RANK_CHECK(op, op.error().to_string());
            auto* gathered = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
            std::int32_t* own = gathered + rank * kPart;
            std::vector<std::int32_t> memory(2 * kPart + 64);
            std::int32_t* near = congruent(memory, own, 64);  // as far as the kernel is told
            enum class From { user, odd, apart, placed, user_again, last };
            for (std::uint32_t call = 1; call <= 2 * static_cast<std::uint32_t>(From::last); ++call) {
                const auto from = static_cast<From>((call - 1) / 2);
                std::int32_t* x = from == From::placed ? own : from == From::odd ? near + 1 : near;
                const std::int64_t pitch = from == From::apart ? 2 * kColumns : kColumns;
                std::fill_n(own, kPart, -1);
                for (std::int64_t i = 0; i < kPart; ++i)
                    x[i / kColumns * pitch + i % kColumns] = tag(rank, call, i);
                const std::vector<std::int64_t> strides{pitch, 1};
                RANK_CHECK((*op)->set_input("A", reinterpret_cast<std::uint64_t>(x), strides), "set_input");
                const auto place = (*op)->own_place();
                RANK_CHECK(place, "no place");
                RANK_CHECK((*op)->begin_call(), "begin");
                const bool user = from == From::user || from == From::user_again;
                RANK_CHECK((own[0] == -1) == user, "call " + std::to_string(call) + ": copied, or not");
                const bool right = run_kernel(**op, [&](int tile, int slot) {
                    const bool given = testing::reads_own(**op, slot);
                    const std::int32_t* a = gathered + testing::load_offset_of(**op, slot);
                    if (given != (tile == rank)) return false;
                    for (std::int64_t i = 0; i < kPart; ++i) {
                        if (a[tile * kPart + i] != tag(tile, call, i)) return false;
                    }
                    return true;
                });
                RANK_CHECK(right, "wrong data in call " + std::to_string(call));
                RANK_CHECK((*op)->end_call(), "end");
            }
            return bool((*op)->destroy());
        });
    }
}

/// C [7 ranks + 2, 6] (8 columns for the chunk engine) of int32 made by a kernel in tiles of 4 x 2, reduced
/// and scattered or all-reduced.
struct Reduced {
    int size;
    bool all;
    std::int32_t split;
    plan::Reduce reduce = plan::Reduce::sum;
    plan::Backend backend = plan::Backend::automatic;
    bool pull = false;
};

class ReduceScatter : public ::testing::TestWithParam<Reduced> {};

TEST_P(ReduceScatter, SumsEveryCallsContributionsWhateverTheTiming) {
    const TemporaryDirectory directory;
    const Reduced c = GetParam();
    const std::int64_t rows = 7 * c.size + 2;
    const std::int64_t columns = c.backend == plan::Backend::automatic ? 6 : 8;
    const plan::Tensor tensor{"C", {rows, columns}, plan::DType::int32};
    fuse::Program program{
        fuse::sample::gemm({rows, columns, 4, 4, 2, 2, 3}),
        plan::push_reduce(fuse::sample::ranks(c.size), tensor,
                          {.split = c.split, .reduce = c.reduce, .all = c.all, .pull = c.pull})
            .value(),
        {{"c_ptr", "C"}}};
    program.kernel.arguments.tensors["c_ptr"].dtype = plan::DType::int32;
    const auto schedule = fuse::fuse(program, {.preferred = c.backend});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    run_ranks(all_ranks(c.size), [&](int rank) {
        auto heap = make_heap(directory, rank, c.size);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, *schedule, {.name = "rs", .max_delay_us = 300, .seed = 3});
        RANK_CHECK(op, op.error().to_string());
        auto* partial = reinterpret_cast<std::int32_t*>((*op)->tensor_address("C").value());
        plan::Region mine = tensor.whole();
        if (!c.all) mine[0] = plan::split_evenly(0, rows, c.size)[static_cast<std::size_t>(rank)];
        std::vector<std::int32_t> out(static_cast<std::size_t>(plan::num_elements(mine)));
        std::mt19937 random(static_cast<unsigned>(rank));
        for (std::uint32_t call = 1; call <= 60; ++call) {
            std::fill(out.begin(), out.end(), -1);
            const std::vector<std::int64_t> strides{columns, 1};
            Status done = (*op)->set_output("C", mine, reinterpret_cast<std::uint64_t>(out.data()), strides);
            RANK_CHECK(done, done.error().to_string());
            done = (*op)->begin_call();
            RANK_CHECK(done, done.error().to_string());
            if (random() % 16 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));  // a straggler
            const auto run_tile = [&](int tile) {
                const plan::Region& box =
                    program.kernel.tiles[static_cast<std::size_t>(tile)].writes.at("c_ptr");
                for (std::int64_t row = box[0].begin; row < box[0].end; ++row) {
                    for (std::int64_t column = box[1].begin; column < box[1].end; ++column)
                        partial[row * columns + column] = tag(rank, call, row * columns + column);
                }
                return true;
            };
            run_kernel(**op, run_tile);
            done = (*op)->end_call();
            RANK_CHECK(done, done.error().to_string());
            for (std::size_t i = 0; i < out.size(); ++i) {
                const std::int64_t element = mine[0].begin * columns + static_cast<std::int64_t>(i);
                std::uint32_t expected = 0;
                for (int other = 0; other < c.size; ++other)
                    expected += static_cast<std::uint32_t>(tag(other, call, element));
                if (c.reduce == plan::Reduce::max)
                    expected = static_cast<std::uint32_t>(tag(c.size - 1, call, element));
                RANK_CHECK(out[i] == static_cast<std::int32_t>(expected),
                           "wrong sum in call " + std::to_string(call));
            }
        }
        RANK_CHECK((*op)->check(), "a fault");
        return bool((*op)->destroy());
    });
}

std::string name_of_reduced(const ::testing::TestParamInfo<Reduced>& info) {
    return std::to_string(info.param.size) + "Ranks" + (info.param.all ? "All" : "") + "Split" +
           std::to_string(info.param.split) + (info.param.reduce == plan::Reduce::max ? "Max" : "") +
           (info.param.pull ? "Pull" : "") +
           (info.param.backend == plan::Backend::tma_dedicated    ? "ByBulk"
            : info.param.backend == plan::Backend::ldst_dedicated ? "ByLdst"
                                                                  : "");
}

INSTANTIATE_TEST_SUITE_P(
    OnHost, ReduceScatter,
    ::testing::Values(Reduced{1, false, 1}, Reduced{2, false, 1}, Reduced{3, false, 2}, Reduced{5, false, 3},
                      Reduced{8, false, 1}, Reduced{1, true, 1}, Reduced{3, true, 2}, Reduced{5, true, 1},
                      Reduced{3, false, 1, plan::Reduce::max},
                      Reduced{3, false, 2, plan::Reduce::sum, plan::Backend::ldst_dedicated},
                      Reduced{3, true, 1, plan::Reduce::sum, plan::Backend::tma_dedicated},
                      Reduced{2, false, 1, plan::Reduce::max, plan::Backend::tma_dedicated, true},
                      Reduced{4, false, 3, plan::Reduce::sum, plan::Backend::ldst_dedicated, true},
                      Reduced{4, true, 2, plan::Reduce::sum, plan::Backend::ldst_dedicated, true},
                      Reduced{4, false, 2, plan::Reduce::max, plan::Backend::ldst_inline, true},
                      Reduced{5, true, 2, plan::Reduce::sum, plan::Backend::ldst_inline, true}),
    name_of_reduced);

TEST(FusedOp, NamesTheContributionThatDoesNotArriveAndTheChunkThatIsNotMade) {
    const TemporaryDirectory directory;
    const plan::Tensor tensor{"C", {8, 4}, plan::DType::bf16};
    const auto schedule = fuse::fuse({fuse::sample::gemm({8, 4, 4, 2, 2, 2}),
                                      plan::push_reduce(fuse::sample::ranks(2), tensor).value(),
                                      {{"c_ptr", "C"}}})
                              .value();
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "rs", .deadline_ms = rank == 0 ? 300 : 600'000});
        RANK_CHECK(op, op.error().to_string());
        RANK_CHECK(barrier((*heap)->rendezvous(), "ready"), "rendezvous");
        RANK_CHECK((*op)->begin_call(), "begin");
        // Rank 1's kernel makes nothing, so rank 0 lacks its contribution.
        if (rank == 0) run_kernel(**op, [](int) { return true; });
        const Status ended = (*op)->end_call();
        RANK_CHECK(!ended, "no fault");
        const std::string& message = ended.error().message;
        RANK_CHECK(message.find("chunk C[0:4, 0:4] from rank 1 (push, op 0 of rank 1) has not arrived") !=
                       std::string::npos,
                   message);
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, ACallThatIsLeftIsGivenUpOnAllRanksAtOnce) {
    const TemporaryDirectory directory;
    const plan::Tensor tensor{"C", {8, 4}, plan::DType::bf16};
    // Its streams wait for the kernel's chunks, without a deadline.
    const auto schedule = fuse::fuse({fuse::sample::gemm({8, 4, 4, 2, 2, 2}),
                                      plan::push_reduce(fuse::sample::ranks(2), tensor).value(),
                                      {{"c_ptr", "C"}}},
                                     {.preferred = plan::Backend::copy_engine})
                              .value();
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "rs", .deadline_ms = 600'000});
        RANK_CHECK(op, op.error().to_string());
        RANK_CHECK((*op)->begin_call(), "begin");
        // A rank that begins later would be told at once.
        RANK_CHECK(barrier((*heap)->rendezvous(), "begun"), "rendezvous");
        if (rank == 1) {
            const Status early = (*op)->synchronize();
            RANK_CHECK(!early && early.error().message == "op 'rs': its call has not ended", "synchronize");
            return bool((*op)->destroy());
        }
        run_kernel(**op, [](int) { return true; });
        const Status ended = (*op)->end_call();
        RANK_CHECK(!ended, "no fault");
        RANK_CHECK(ended.error().message ==
                       "op 'rs', call 1: its kernel did not run to its end; the op takes no more calls, make "
                       "a new one; so found on rank 1",
                   ended.error().message);
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, NamesRankOpChunkAndSignalWhenOneDoesNotArrive) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        fuse::Schedule schedule = direct_all_gather(3, false, {12, 8});
        // Rank 2 forgets its op 0, the push to rank 0.
        schedule.ranks[2].transfers[0].posts.clear();
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .deadline_ms = rank == 0 ? 700 : 600'000});
        RANK_CHECK(op, op.error().to_string());
        RANK_CHECK(barrier((*heap)->rendezvous(), "ready"), "rendezvous");
        Status begun = (*op)->begin_call();
        RANK_CHECK(begun, begun.error().to_string());
        const bool finished = run_kernel(**op, [](int) { return true; });
        RANK_CHECK(finished == (rank != 0), "only rank 0 lacks a chunk");
        Status ended = (*op)->end_call();
        if (ended)
            ended = (*op)->begin_call();  // ranks 1 and 2 learn of it here, long before their own deadlines
        RANK_CHECK(!ended, "no fault");
        const std::string& message = ended.error().message;
        RANK_CHECK(message.find("op 'ag', call 1: chunk A[8:12, 0:8] from rank 2 (push, op 0 of rank 2) has "
                                "not arrived within") != std::string::npos,
                   message);
        RANK_CHECK(message.find("(signal 1 is 0, awaited 1, at slot 2)") != std::string::npos, message);
        RANK_CHECK((rank == 0) == (message.find("found on rank 0") == std::string::npos), message);
        RANK_CHECK(ended.error().location.rank == 0 && ended.error().error_class == ErrorClass::machine,
                   message);
        RANK_CHECK(!(*op)->check() && !(*op)->poll(), "it is final");
        RANK_CHECK(!(*op)->begin_call(), "no further call");
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, EndsAStreamThatFollowsAnotherRankWhenThatOneDoesNotSend) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        fuse::Schedule schedule = direct_all_gather(2, false, {4, 8}, plan::Backend::copy_engine);
        for (auto& mine : schedule.ranks)
            mine.transfers[0].waits = {{0, 0}};  // each pushes after the other has: by a relay
        schedule =
            fuse::lay_out_heap(fuse::decide_engine(fuse::launch(std::move(schedule)), fuse::Device::host, 8));
        auto op = FusedOp::create(*heap, schedule, {.name = "knot", .deadline_ms = 100});
        RANK_CHECK(op, op.error().to_string());
        if (Status begun = (*op)->begin_call(); begun) {
            RANK_CHECK(!run_kernel(**op, [](int) { return true; }), "ran");
            RANK_CHECK(!(*op)->end_call(), "ended");
        }
        const Status fault = (*op)->check();
        RANK_CHECK(!fault && fault.error().message.find("has not arrived within 100 ms") != std::string::npos,
                   "fault");
        return bool((*op)->destroy());
    });
}

// Of as many slots, signals and transfers, with tensors of the same shapes, at the same places.
TEST(FusedOp, IsRefusedWhereRanksSliceItInAnotherWay) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        fuse::Schedule schedule = direct_all_gather(2, false, {4, 8});
        const auto op = FusedOp::create(*heap, schedule, {.name = "ag"});
        RANK_CHECK(op, op.error().to_string());
        for (fuse::Transfer& transfer : schedule.ranks[0].transfers)
            transfer.src.region[1] = transfer.dst.region[1] =
                rank == 0 ? plan::Interval{0, 4} : plan::Interval{4, 8};
        const auto other = FusedOp::create(*heap, schedule, {.name = "ag"});
        RANK_CHECK(
            !other && other.error().message.find("they differ first in the schedule: ") != std::string::npos,
            other ? "it is made" : other.error().to_string());
        const auto text = FusedOp::create(
            *heap, direct_all_gather(2, false, {4, 8}),
            {.name = "ag", .content = {{"emitted kernel", rank == 0 ? "x = relu(y)" : "x = y"}}});
        RANK_CHECK(!text &&
                       text.error().message.find("they differ first in the emitted kernel: rank ") !=
                           std::string::npos &&
                       text.error().message.find("has x = relu(y)") != std::string::npos,
                   text ? "it is made" : text.error().to_string());
        emit::ScheduleFile launch;
        launch.schedule =
            direct_all_gather(2, rank == 0, {4, 8});  // what another plan is fused to differs, too
        launch.plan.mesh = {{{"gpu", rank == 0 ? 2 : 4}}};
        const auto planned = FusedOp::create(*heap, launch, {.name = "ag"});
        RANK_CHECK(
            !planned && planned.error().message.find("they differ first in the plan: ") != std::string::npos,
            planned ? "it is made" : planned.error().to_string());
        return bool((*op)->destroy());
    });
}

// The parents go on as if there were no children.
TEST(FusedOp, RefusesTheCallsOfAForkedChild) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, direct_all_gather(2, rank == 0, {4, 8}), {.name = "ag"});
        RANK_CHECK(!op, "they are not the same");
        op = FusedOp::create(*heap, direct_all_gather(2, true, {4, 8}), {.name = "ag"});
        RANK_CHECK(op, op.error().to_string());
        const auto call = [&] {
            const Status begun = (*op)->begin_call();
            return begun && run_kernel(**op, [](int) { return true; }) && (*op)->end_call();
        };
        RANK_CHECK(call(), "a call of the parents");
        run_ranks({rank}, [&](int) {
            const auto refused = [](const Status& status) {
                return !status && status.error().error_class == ErrorClass::usage &&
                       status.error().message.find("forked") != std::string::npos;
            };
            RANK_CHECK(refused((*op)->begin_call()), "begin");
            RANK_CHECK(refused((*op)->end_call()), "end");
            RANK_CHECK(refused((*op)->synchronize()), "synchronize");
            RANK_CHECK(refused((*op)->destroy()), "destroy");
            RANK_CHECK(refused(barrier((*heap)->rendezvous(), "met")), "a meeting");
            RANK_CHECK(!FusedOp::create(*heap, direct_all_gather(2, true, {4, 8}), {.name = "new"}),
                       "a new op");
            op->reset();
            heap->reset();
            return true;
        });
        RANK_CHECK(call() && (*op)->check(), "the next call of the parents");
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, NamesTheRankThatDoesNotBegin) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op =
            FusedOp::create(*heap, direct_all_gather(2, true, {4, 8}), {.name = "ag", .deadline_ms = 100});
        RANK_CHECK(op, op.error().to_string());
        if (rank == 0) {
            const Status begun = (*op)->begin_call();
            RANK_CHECK(!begun, "begun");
            RANK_CHECK(begun.error().message.find("rank 1 has not begun the call within 100 ms") !=
                           std::string::npos,
                       begun.error().message);
            RANK_CHECK(begun.error().message.find("before the kernel") != std::string::npos,
                       begun.error().message);
            testing::tell(directory, "over");
        } else {
            testing::await(directory, "over");
        }
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, GivesUpATransferWhoseWaitIsNotOver) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        fuse::Schedule schedule = direct_all_gather(2, false, {4, 8});
        for (auto& mine : schedule.ranks)
            mine.transfers[0].waits = {{0, 0}};  // each pushes after the other has
        auto op = FusedOp::create(*heap, schedule, {.name = "knot", .deadline_ms = 100});
        RANK_CHECK(op, op.error().to_string());
        if (Status begun = (*op)->begin_call(); begun) {
            RANK_CHECK(!run_kernel(**op, [](int) { return true; }), "ran");
            RANK_CHECK(!(*op)->end_call(), "ended");
        }
        const Status fault = (*op)->check();
        RANK_CHECK(!fault && fault.error().message.find("has not arrived within 100 ms") != std::string::npos,
                   "fault");
        return bool((*op)->destroy());
    });
}

TEST(FusedOp, RefusesRanksThatMakeDifferentOps) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, direct_all_gather(2, rank == 0, {4, 8}));
        RANK_CHECK(!op, "made");
        RANK_CHECK(op.error().message.find("makes another op than rank") != std::string::npos,
                   op.error().message);
        RANK_CHECK((*heap)->bytes_allocated() == 0, "memory left");
        return true;
    });
}

class OneRankOp : public ::testing::Test {
protected:
    void SetUp() override {
        auto heap = make_heap(directory_, 0, 1);
        ASSERT_TRUE(heap) << heap.error().to_string();
        heap_ = *heap;
        schedule_.tensors = {{"A", {4, 6}, plan::DType::int32}, {"B", {2, 2, 3, 4}, plan::DType::int32}};
        schedule_.ranks.resize(1);
        schedule_.ranks[0].signals = {{fuse::SignalMeaning::Kind::arrived, {0, 0}}};
    }
    [[nodiscard]] fuse::Schedule schedule() const { return fuse::lay_out_heap(schedule_); }
    Error refusal() {
        auto op = FusedOp::create(heap_, schedule());
        return op ? Error{"made"} : op.error();
    }
    TemporaryDirectory directory_;
    std::shared_ptr<SymmetricHeap> heap_;
    fuse::Schedule schedule_;
};

TEST_F(OneRankOp, RefusesWhatIsNotInTheScheduleOrTheBuild) {
    const plan::Chunk good{0, {{0, 2}, {0, 6}}};
    const fuse::Transfer transfer{.op = {0, 3}, .src = good, .dst = good};
    const auto with = [&](auto change) {
        schedule_.ranks[0].transfers = {transfer};
        change(schedule_.ranks[0].transfers[0]);
        return refusal().to_string();
    };
    EXPECT_EQ(with([](fuse::Transfer& t) { t.src.tensor = 2; }), "rank 0 op 3: there is no tensor 2");
    EXPECT_EQ(with([](fuse::Transfer& t) { t.dst.region[0].end = 5; }),
              "rank 0 op 3: region [0:5, 0:6] is not in tensor A");
    EXPECT_EQ(with([](fuse::Transfer& t) { t.dst_rank = 1; }), "rank 0 op 3: there is no rank 1");
    EXPECT_EQ(with([](fuse::Transfer& t) { t.work = fuse::Sum{}; }),
              "rank 0 op 3: [0:2, 0:6] is no list of slots to sum into [0:2, 0:6]");
    EXPECT_EQ(with([](fuse::Transfer& t) { t.dst.region[0].end = 1; }),
              "rank 0 op 3: a box of [2, 6] cannot be copied to one of [1, 6]");
    EXPECT_NE(with([](fuse::Transfer& t) { t.posts = {{0, 1}}; }).find("a post to signal 1 of rank 0"),
              std::string::npos);
    EXPECT_NE(with([](fuse::Transfer& t) { t.waits = {{-1, 0}}; }).find("a wait for signal -1"),
              std::string::npos);
    schedule_.ranks.resize(2);
    EXPECT_NE(refusal().message.find("the schedule is for 2 ranks, this run has 1"), std::string::npos);
}

TEST_F(OneRankOp, SumsWhatIsInOneSlotOrInPlaceAndNothingElse) {
    schedule_.tensors.push_back({"S", {2, 4, 6}, plan::DType::int32});
    const plan::Chunk here{0, {{0, 2}, {0, 6}}};
    const auto summing = [&](const plan::Region& staged) {
        const fuse::Source slot{0, {2, staged}};
        schedule_.ranks[0].transfers = {
            {.op = {0, 3},
             .src = slot.chunk,
             .dst = here,
             .work = fuse::Sum{.own = 1, .sources = {slot, {0, {0, {{2, 4}, {0, 6}}}}}}}};
        return refusal().to_string();
    };
    EXPECT_EQ(summing({{1, 2}, {0, 2}, {0, 6}}), "made");
    EXPECT_EQ(summing({{0, 2}, {0, 2}, {0, 6}}),
              "rank 0 op 3: [0:2, 0:2, 0:6] is no contribution to [0:2, 0:6]");
    EXPECT_EQ(summing({{1, 2}, {0, 3}, {0, 6}}),
              "rank 0 op 3: a box of [3, 6] cannot be copied to one of [2, 6]");
}

TEST_F(OneRankOp, TakesNothingFromAnInputOfWhichItHoldsNothing) {
    const std::vector<std::int64_t> strides{6, 1};
    auto op = FusedOp::create(heap_, schedule(), {.initial = std::vector<plan::Chunk>{}});
    ASSERT_TRUE(op) << op.error().to_string();
    EXPECT_TRUE((*op)->set_input("A", std::uint64_t{0}, strides));
    EXPECT_TRUE((*op)->begin_call());
    EXPECT_TRUE((*op)->end_call());
    auto unsaid = FusedOp::create(heap_, schedule(), {});
    ASSERT_TRUE(unsaid) << unsaid.error().to_string();
    EXPECT_FALSE((*unsaid)->set_input("A", std::uint64_t{0}, strides)) << "which region is not known";
}

TEST_F(OneRankOp, CopiesAnInputUnlessItIsInPlace) {
    const plan::Region box{{1, 3}, {2, 5}};
    const std::vector<plan::Chunk> initial{{0, {{1, 2}, {2, 5}}}, {0, {{2, 3}, {2, 5}}}};
    auto op = FusedOp::create(heap_, schedule(), {.initial = initial});
    ASSERT_TRUE(op) << op.error().to_string();
    auto* a = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
    const std::vector<std::int32_t> user{1, 2, 3, 0, 4, 5, 6, 0};
    const std::vector<std::int64_t> strides{4, 1};
    ASSERT_TRUE((*op)->set_input("A", reinterpret_cast<std::uint64_t>(user.data()), strides));
    ASSERT_TRUE((*op)->begin_call());
    ASSERT_TRUE((*op)->end_call());
    const std::vector<std::int32_t> want{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0,
                                         0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(std::vector<std::int32_t>(a, a + 24), want);

    const std::vector<std::int64_t> own{6, 1};
    ASSERT_TRUE((*op)->set_input("A", box, reinterpret_cast<std::uint64_t>(a + 8), own));
    a[8] = 99;
    ASSERT_TRUE((*op)->begin_call());
    EXPECT_FALSE((*op)->begin_call()) << "twice without end";
    ASSERT_TRUE((*op)->end_call());
    EXPECT_FALSE((*op)->end_call());
    EXPECT_EQ(a[8], 99);

    EXPECT_FALSE((*op)->set_input("C", box, 4096, own));
    EXPECT_FALSE((*op)->set_input("A", {{0, 5}, {0, 6}}, 4096, own));
    EXPECT_FALSE((*op)->set_input("A", box, 4096, std::vector<std::int64_t>{1, 6}));
    EXPECT_TRUE((*op)->destroy());
    EXPECT_FALSE((*op)->begin_call());
}

TEST_F(OneRankOp, KeepsTheGridsSizeInItsTable) {
    auto op = FusedOp::create(heap_, schedule(), {.num_programs = 7});
    ASSERT_TRUE(op) << op.error().to_string();
    EXPECT_EQ((*op)->table()[emit::table::num_programs], 7);
    const std::uint64_t address = (*op)->table_address();
    EXPECT_EQ(reinterpret_cast<const std::int32_t*>(address)[emit::table::num_programs], 7);
}

TEST_F(OneRankOp, CountsProgramsThatShareTilesOnce) {
    emit::ScheduleFile launch{.stages = std::vector<emit::KernelLaunch>(1)};
    launch.schedule = schedule();
    launch.stages[0].arguments.grid = {6, 1, 1};
    launch.stages[0].programs_per_tile = 2;
    auto op = FusedOp::create(heap_, launch);
    ASSERT_TRUE(op) << op.error().to_string();
    EXPECT_EQ((*op)->table()[emit::table::num_programs], 3) << "one of two ends the call for both";
}

TEST_F(OneRankOp, CopiesNoInputThatItsKernelReadsWhereItIs) {
    for (const bool in_place : {false, true}) {
        emit::ScheduleFile launch{.stages = std::vector<emit::KernelLaunch>(1)};
        launch.schedule = schedule();
        launch.stages[0].arguments.grid = {1, 1, 1};
        launch.stages[0].bindings = {{"a_ptr", "A"}};
        OpOptions options;
        if (in_place) options.read_in_place = {"A"};
        auto op = FusedOp::create(heap_, launch, options);
        ASSERT_TRUE(op) << op.error().to_string();
        auto* a = reinterpret_cast<std::int32_t*>((*op)->tensor_address("A").value());
        const std::vector<std::int32_t> user{1, 2, 3, 0, 4, 5, 6, 0};
        const plan::Region box{{1, 3}, {2, 5}};
        const std::vector<std::int64_t> strides{4, 1};
        a[8] = 99;
        ASSERT_TRUE((*op)->set_input("A", box, reinterpret_cast<std::uint64_t>(user.data()), strides));
        ASSERT_TRUE((*op)->begin_call());
        ASSERT_TRUE((*op)->end_call());
        EXPECT_EQ(a[8], in_place ? 99 : 1);
        EXPECT_TRUE((*op)->destroy());
    }
}

TEST(HostControl, KeepsTheFirstFaultAndShowsItWithAllItsWords) {
    for (int round = 0; round < 100; ++round) {
        std::vector<std::uint32_t> words(emit::control::word_of(1));
        const HostControl control(reinterpret_cast<std::uint64_t>(words.data()));
        std::vector<FaultRecord> seen(3);
        {
            std::vector<std::jthread> threads;
            for (std::int32_t i = 1; i <= 6; ++i) {
                threads.emplace_back([&control, i] {
                    const auto number = static_cast<std::uint32_t>(i);
                    if (i == 6) return control.raise_peer(3);
                    control.raise(i, 10 * number, 100 * number, 1000 * number, -i);
                });
            }
            for (FaultRecord& record : seen) {
                threads.emplace_back([&] {
                    while (!(record = control.fault()).any()) std::this_thread::yield();
                });
            }
        }
        seen.push_back(control.fault());
        for (const FaultRecord& record : seen) {
            ASSERT_EQ(record.fault, seen.front().fault);
            if (record.of_peer()) continue;
            const auto number = static_cast<std::uint32_t>(record.signal());
            ASSERT_EQ(record.seen, 10 * number);
            ASSERT_EQ(record.awaited, 100 * number);
            ASSERT_EQ(record.epoch, 1000 * number);
            ASSERT_EQ(record.where, -record.signal());
        }
    }
}

TEST(FaultRecord, KnowsTheFirstFaultWhereAHostHasWrittenOverIt) {
    namespace word = emit::control;
    std::array<std::uint32_t, word::header_words> words{};
    words[word::fault] = word::fault_of_peer | 1U;
    EXPECT_TRUE(FaultRecord::from_words(words.data()).of_peer());
    words[word::fault_claim] = word::claiming;  // its words are not whole
    EXPECT_TRUE(FaultRecord::from_words(words.data()).of_peer());
    words[word::fault_claim] = 5;
    EXPECT_EQ(FaultRecord::from_words(words.data()).signal(), 4);
    words[word::fault] = 0;  // nor is it there
    words[word::fault_claim] = word::claiming;
    EXPECT_FALSE(FaultRecord::from_words(words.data()).any());
}

TEST(FusedOp, NamesTheCallThatItDidNotBeginWhereAnotherRankGaveUpBetweenTwo) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, direct_all_gather(2, false, {4, 4}), {.deadline_ms = 20'000});
        RANK_CHECK(op, op.error().to_string());
        RANK_CHECK((*op)->begin_call() && run_kernel(**op, [](int) { return true; }) && (*op)->end_call(),
                   "a call of both");
        RANK_CHECK(barrier((*heap)->rendezvous(), "called"), "");
        if (rank == 1) (*op)->give_up();
        RANK_CHECK(barrier((*heap)->rendezvous(), "given up"), "");
        const Status begun = (*op)->begin_call();
        RANK_CHECK(!begun, "a call of an op that was given up");
        RANK_CHECK(begun.error().message.find("call 2") != std::string::npos, begun.error().message);
        return true;
    });
}

TEST(HostControl, ComparesEpochsModulo32Bits) {
    std::vector<std::uint32_t> words(emit::control::word_of(1));
    const HostControl control(reinterpret_cast<std::uint64_t>(words.data()));
    control.post(0, 0xffff'ffffu);
    EXPECT_TRUE(control.reached({0, 0}, 0xffff'ffffu));
    EXPECT_FALSE(control.reached({0, 0}, 0));
    EXPECT_TRUE(control.reached({0, 1}, 0));
    control.post(0, 2);
    EXPECT_TRUE(control.reached({0, 0}, 0xffff'ffffu));
}

}  // namespace
}  // namespace syncopate::runtime

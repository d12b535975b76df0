// What the runtime does on a GPU where a call of the driver fails: each of them in turn, on one of two ranks.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/fork.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::Case;
using testing::make_gpu_heap;
using testing::make_kernel;
using testing::run_ranks;
using testing::TemporaryDirectory;

/// Makes call `number` from here on fail on rank 0, while it lives.
class Failing {
public:
    Failing(int rank, std::size_t number, bool from_then_on = false) {
        fake_cuda::fail(rank == 0 ? fake_cuda::num_calls() + number : 0, from_then_on);
    }
    ~Failing() { fake_cuda::fail(0); }
};

/// Whether rank 0 has come to the call that was to fail; all ranks learn it.
bool came_to_it(SymmetricHeap& heap, const std::string& function) {
    const Bytes mine(function.begin(), function.end());
    const auto all = all_gather(heap.rendezvous(), "came", mine);
    return all && !all->front().empty();
}

TEST(ADriver, SaysWhatAGpuIsCalled) {
    EXPECT_EQ(cuda_device_name(0).value(), "fake GPU");
    const auto missing = cuda_device_name(99);
    ASSERT_FALSE(missing);
    EXPECT_NE(missing.error().message.find("there is no cuda:99: this process sees"), std::string::npos);
}

TEST(ADriverThatFails, WhileTheHeapIsMadeIsToldToAllRanks) {
    ASSERT_TRUE(cuda_device_count());  // opened once for the whole process
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        for (std::size_t number = 1;; ++number) {
            std::string failed;
            bool made = false;
            {
                const Failing failing(rank, number);
                const auto heap = make_gpu_heap(directory.path() / std::to_string(number), rank);
                failed = fake_cuda::failed();
                made = heap.ok();
                RANK_CHECK(rank != 0 || made == failed.empty(),
                           "call " + std::to_string(number) + ", " + failed);
                RANK_CHECK(made || heap.error().message.find("failed: CUDA_ERROR") != std::string::npos,
                           heap.error().message);
            }
            RANK_CHECK(fake_cuda::left().empty(), failed + " leaves " + fake_cuda::left());
            if (made) return number > 10;
        }
    });
}

class OpOnAGpu : public ::testing::TestWithParam<Case> {};

TEST_P(OpOnAGpu, IsMadeOnAllRanksOrOnNone) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const fuse::Schedule schedule = GetParam().make();
        const std::string before = fake_cuda::left();
        for (std::size_t number = 1;; ++number) {
            std::string failed;
            auto op = [&] {
                const Failing failing(rank, number);
                auto made = FusedOp::create(*heap, schedule, {.name = "op"});
                failed = fake_cuda::failed();
                return made;
            }();
            RANK_CHECK(rank != 0 || op.ok() == failed.empty(),
                       "call " + std::to_string(number) + ", " + failed);
            if (op) return number > 10 && (*op)->destroy();
            RANK_CHECK(op.error().message.find("failed: CUDA_ERROR") != std::string::npos,
                       op.error().message);
            RANK_CHECK(fake_cuda::left() == before,
                       failed + " leaves " + fake_cuda::left() + ", before " + before);
            RANK_CHECK((*heap)->bytes_allocated() == 0, failed + " leaves memory of the heap");
        }
    });
}

// An op of which a call was not launched whole makes no other one, and the other rank hears of it.
TEST_P(OpOnAGpu, EndsWithACallThatIsNotLaunchedWhole) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        RANK_CHECK(kernel, kernel.error().to_string());
        const fuse::Schedule schedule = GetParam().make();
        const std::string before = fake_cuda::left();
        for (const bool from_then_on : {false, true}) {
            for (std::size_t number = 1;; ++number) {
                auto op = FusedOp::create(*heap, schedule, {.name = "op"});
                RANK_CHECK(op, op.error().to_string());
                Status called = Done{};
                std::string failed;
                if (rank == 0) {
                    const Failing failing(rank, number, from_then_on);
                    called = (*op)->call(**kernel, {1, 1, 1}, 0, {});
                    failed = fake_cuda::failed();
                    RANK_CHECK(called.ok() == failed.empty(), failed);
                }
                const bool came = came_to_it(**heap, failed);
                const std::string what = "call " + std::to_string(number) + ", " + failed + ": ";
                if (came && rank == 0) {
                    RANK_CHECK(!(*op)->poll(), what + "no fault");
                    RANK_CHECK(!(*op)->call(**kernel, {1, 1, 1}, 0, {}), what + "another call");
                }
                if (came && rank == 1 && !from_then_on) {
                    const Status told = (*op)->check();
                    RANK_CHECK(!told && told.error().message.find("rank 0") != std::string::npos,
                               what + (told ? "not told" : told.error().message));
                }
                RANK_CHECK((*op)->destroy(), what + "not destroyed");
                op->reset();
                RANK_CHECK(fake_cuda::left() == before, what + "leaves " + fake_cuda::left());
                if (!came && number > 1) break;
                RANK_CHECK(came, "no call of the driver");
            }
        }
        return true;
    });
}

// What was only captured has not begun: the graph is given up, the op is not.
TEST_P(OpOnAGpu, GoesOnAfterACallThatIsNotCapturedWhole) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        RANK_CHECK(kernel, kernel.error().to_string());
        const auto op = FusedOp::create(*heap, GetParam().make(), {.name = "op"});
        RANK_CHECK(op, op.error().to_string());
        const auto call = [&] { return (*op)->call(**kernel, {1, 1, 1}, 0, {}); };
        std::string failed = "none";
        for (std::size_t number = 1; rank == 0 && !failed.empty(); ++number) {
            fake_cuda::capture(true);
            {
                const Failing failing(rank, number);
                const bool called = bool(call());
                failed = fake_cuda::failed();
                RANK_CHECK(called == failed.empty(), failed);
            }
            fake_cuda::capture(false);
            // Whether it is captured was asked in vain: then the call counts as one.
            if (failed == "cuStreamIsCapturing") break;
            const Status again = call();
            RANK_CHECK(again, failed + ": " + again.error().message);
        }
        return bool((*op)->destroy());
    });
}

INSTANTIATE_TEST_SUITE_P(OnTwoRanks, OpOnAGpu, ::testing::ValuesIn(testing::cases()),
                         [](const ::testing::TestParamInfo<Case>& given) { return given.param.name; });

}  // namespace
}  // namespace syncopate::runtime

// Calls of several streams and threads in which ranks' kernels wait for each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/fork.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_gpu_heap;
using testing::make_kernel;
using testing::run_ranks;
using testing::TemporaryDirectory;

/// On rank 0 of two: two ops of one kind, a kernel, and a stream beside the default one.
struct Ops {
    FusedOp& first;
    FusedOp& second;
    CudaKernel& kernel;
    CUstream stream;

    [[nodiscard]] Status call(FusedOp& op, CUstream on) const {
        return op.call(kernel, {1, 1, 1}, reinterpret_cast<CudaStream>(on), {});
    }
};

void with_ops(const std::string& kind, const std::function<bool(const Ops&)>& body) {
    const TemporaryDirectory directory;
    const std::vector<testing::Case> cases = testing::cases();
    const auto found = std::ranges::find(cases, kind, &testing::Case::name);
    ASSERT_NE(found, cases.end());
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        RANK_CHECK(kernel, kernel.error().to_string());
        std::vector<std::unique_ptr<FusedOp>> ops;
        for (const char* name : {"first", "second"}) {
            auto op = FusedOp::create(*heap, found->make(), {.name = name, .deadline_ms = 50});
            RANK_CHECK(op, op.error().to_string());
            ops.push_back(std::move(op).value());
        }
        const auto stream = OwnedStream::create((*heap)->cuda_context(), false);
        RANK_CHECK(stream, stream.error().to_string());
        fake_cuda::take_log();
        const bool good = rank != 0 || body({*ops[0], *ops[1], **kernel, (*stream)->get()});
        // Ops close within their deadline, which is as short as what the body waits for.
        if (!barrier((*heap)->rendezvous(), "done")) return false;
        for (const auto& op : ops) {
            if (!op->destroy()) return false;
        }
        return good;
    });
}

/// Whether what was enqueued since makes `stream`, or any one, wait for another.
bool waited(const std::string& stream = "stream") {
    const std::vector<std::string> log = fake_cuda::take_log();
    return std::ranges::any_of(log, [&](const std::string& line) {
        return line.starts_with(stream) && line.find(" waits for event") != std::string::npos;
    });
}

class CallsOfTwoOps : public ::testing::TestWithParam<std::string> {};

TEST_P(CallsOfTwoOps, FollowEachOtherAcrossStreams) {
    with_ops(GetParam(), [](const Ops& ops) {
        RANK_CHECK(ops.call(ops.first, nullptr), "the first call");
        RANK_CHECK(!waited(), "there is no call before the first");
        RANK_CHECK(ops.call(ops.second, nullptr), "the second call");
        RANK_CHECK(!waited(), "a stream needs no event to follow itself");
        RANK_CHECK(ops.call(ops.first, ops.stream), "the third call");
        RANK_CHECK(waited(), "it does not follow the default stream");
        RANK_CHECK(ops.call(ops.second, nullptr), "the fourth call");
        RANK_CHECK(waited("stream 0"), "the default stream does not follow it");
        fake_cuda::capture(true);
        RANK_CHECK(ops.call(ops.first, ops.stream), "a captured call");
        fake_cuda::capture(false);
        RANK_CHECK(!waited(), "a graph waits for a call outside it");
        RANK_CHECK(ops.call(ops.first, nullptr), "the call after it");
        RANK_CHECK(!waited(), "what was captured counts as a call");
        return true;
    });
}

TEST_P(CallsOfTwoOps, AreMadeByOneThreadAtATime) {
    with_ops(GetParam(), [](const Ops& ops) {
        RANK_CHECK(ops.first.begin_call(), "begin");
        Status other = Done{};
        std::thread([&] { other = ops.call(ops.second, ops.stream); }).join();
        RANK_CHECK(!other, "two threads make calls at once");
        RANK_CHECK(other.error().message == "another thread has been making a call on this GPU for 50 ms",
                   other.error().message);
        RANK_CHECK(ops.call(ops.second, nullptr), "this thread may make another call within its own");
        RANK_CHECK(ops.first.end_call(), "end");
        std::thread([&] { other = ops.call(ops.second, ops.stream); }).join();
        RANK_CHECK(other, other.error().message);
        return true;
    });
}

INSTANTIATE_TEST_SUITE_P(ThatWaitForPeers, CallsOfTwoOps, ::testing::Values("engine", "sums_in_the_kernel"),
                         [](const ::testing::TestParamInfo<std::string>& given) { return given.param; });

}  // namespace
}  // namespace syncopate::runtime

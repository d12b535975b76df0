// Ranks on GPUs whose calls differ: what waits in a kernel ends by its fault word, which the rank that finds it
// writes, and each rank's host finds what was called.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/cuda/boundary/boundary.hpp"
#include "runtime/fork.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/signals/fault.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::gathered;
using testing::make_gpu_heap;
using testing::make_kernel;
using testing::run_ranks;
using testing::TemporaryDirectory;

/// What sy_begin tells, of all that it does.
void play_begin() {
    fake_cuda::on_launch([](const std::string& name, void** parameters) {
        if (name != "sy_begin") return;
        const auto& a = *static_cast<const device::BoundaryArguments*>(parameters[0]);
        a.mirror[device::kMirrorBegun] = ++a.control[device::word::published];
    });
}

/// The fault of the op, once there is one.
Status fault_of(const FusedOp& op) {
    for (;;) {
        if (Status fault = op.poll(); !fault) return fault;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

std::uint32_t fault_word(const FusedOp& op) {
    std::uint32_t word = 0;
    const std::uint64_t address = op.control_address() + 4 * emit::control::fault;
    return op.heap()->read(address, &word, sizeof(word)) ? word : 0;
}

bool says(const Error& error, const std::string& text) {
    return error.error_class == ErrorClass::usage && error.message.find(text) != std::string::npos;
}

TEST(GpusWhoseCallsDiffer, AreNamedWhereOneSetsUpWhatTheOtherDoesNotCall) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        play_begin();
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        const auto schedule = gathered(plan::Backend::copy_engine);
        const auto known = FusedOp::create(*heap, schedule, {.name = "known", .deadline_ms = 0});
        RANK_CHECK(known, known.error().to_string());
        RANK_CHECK((*known)->call(**kernel, {1, 1, 1}, 0, {}), "a call of both");
        const std::string said = "rank 0 calls op 'known'; A int32[64, 64]; rank 1: op-other";
        if (rank == 1) {
            const auto other = FusedOp::create(*heap, schedule, {.name = "other"});
            RANK_CHECK(!other && says(other.error(), said), other ? "no error" : other.error().to_string());
        } else {
            RANK_CHECK((*known)->call(**kernel, {1, 1, 1}, 0, {}), "what it waits for is on the GPU");
        }
        const Status fault = fault_of(**known);
        RANK_CHECK(says(fault.error(), said), fault.error().to_string());
        RANK_CHECK((fault_word(**known) & fault_differs) != 0, "kernels are not told");
        return true;
    });
}

TEST(GpusWhoseCallsDiffer, AreNamedWhereEachCallsAnotherKnownOp) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        play_begin();
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        std::vector<std::unique_ptr<FusedOp>> ops;
        for (const char* name : {"zero", "one"}) {
            auto op = FusedOp::create(*heap, gathered(plan::Backend::copy_engine),
                                      {.name = name, .deadline_ms = 0});
            RANK_CHECK(op && (*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call of both");
            ops.push_back(std::move(op).value());
        }
        FusedOp& own = *ops[static_cast<std::size_t>(rank)];
        RANK_CHECK(own.call(**kernel, {1, 1, 1}, 0, {}), "what it waits for is on the GPU");
        const Status fault = fault_of(own);
        RANK_CHECK(says(fault.error(), "rank 0 calls op 'zero'; A int32[64, 64]; rank 1 calls op 'one'"),
                   fault.error().to_string());
        for (const auto& op : ops) RANK_CHECK((fault_word(*op) & fault_differs) != 0, "kernels are not told");
        return true;
    });
}

/// Both ranks have asked for a call into a graph; one replays it, and the other one meets for something else.
TEST(GpusWhoseCallsDiffer, AreNamedWhereOneReplaysAGraphAndTheOtherMeets) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        bool captures = false;
        std::vector<device::BoundaryArguments> graphs;
        const auto begin = [](const device::BoundaryArguments& a) {
            a.mirror[device::kMirrorBegun] = ++a.control[device::word::published];
        };
        fake_cuda::on_launch([&](const std::string& name, void** parameters) {
            if (name != "sy_begin") return;
            const auto& a = *static_cast<const device::BoundaryArguments*>(parameters[0]);
            if (captures) return graphs.push_back(a);
            begin(a);
        });
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        const auto op =
            FusedOp::create(*heap, gathered(plan::Backend::copy_engine), {.name = "op", .deadline_ms = 0});
        RANK_CHECK(op && (*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call of both");
        captures = true;
        RANK_CHECK((*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call into a graph");
        const std::string said = "rank 0 calls op 'op'; A int32[64, 64]; rank 1: other";
        if (rank == 0) {
            begin(graphs.at(0));
        } else {
            const Status met = barrier((*heap)->rendezvous(), "other");
            RANK_CHECK(!met && says(met.error(), said), met ? "no error" : met.error().to_string());
        }
        const Status fault = fault_of(**op);
        RANK_CHECK(says(fault.error(), said), fault.error().to_string());
        RANK_CHECK((fault_word(**op) & fault_differs) != 0, "kernels are not told");
        fake_cuda::on_launch({});
        return true;
    });
}

/// Both ranks have asked for a call of each op, into graphs, and each replays the graph of another op.
TEST(GpusWhoseCallsDiffer, AreNamedWhereEachReplaysAnotherGraph) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        bool captures = false;
        std::vector<device::BoundaryArguments> graphs;
        const auto begin = [](const device::BoundaryArguments& a) {
            a.mirror[device::kMirrorBegun] = ++a.control[device::word::published];
        };
        fake_cuda::on_launch([&](const std::string& name, void** parameters) {
            if (name != "sy_begin") return;
            const auto& a = *static_cast<const device::BoundaryArguments*>(parameters[0]);
            if (captures) {
                graphs.push_back(a);
            } else {
                begin(a);
            }
        });
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        std::vector<std::unique_ptr<FusedOp>> ops;
        for (const char* name : {"zero", "one"}) {
            auto op = FusedOp::create(*heap, gathered(plan::Backend::copy_engine),
                                      {.name = name, .deadline_ms = 0});
            RANK_CHECK(op && (*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call of both");
            ops.push_back(std::move(op).value());
        }
        captures = true;
        for (const auto& op : ops) RANK_CHECK(op->call(**kernel, {1, 1, 1}, 0, {}), "a call into a graph");
        begin(graphs.at(static_cast<std::size_t>(rank)));
        const Status fault = fault_of(*ops[static_cast<std::size_t>(rank)]);
        RANK_CHECK(says(fault.error(), "rank 0 calls op 'zero'; A int32[64, 64]; rank 1 calls op 'one'"),
                   fault.error().to_string());
        for (const auto& op : ops) RANK_CHECK((fault_word(*op) & fault_differs) != 0, "kernels are not told");
        fake_cuda::on_launch({});
        return true;
    });
}

TEST(GpusWhoseCallsAgree, AreWatchedWithoutACallOfTheDriver) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        play_begin();
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        const auto op = FusedOp::create(*heap, gathered(plan::Backend::copy_engine), {.name = "op"});
        RANK_CHECK(op && (*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call of both");
        const std::size_t before = fake_cuda::num_calls();
        std::this_thread::sleep_for(std::chrono::milliseconds(350));  // some looks
        RANK_CHECK(fake_cuda::num_calls() == before, "a call of the driver");
        return barrier((*heap)->rendezvous(), "end").ok();
    });
}

// In another order on another stream of another rank, which is no fault: both ranks have asked for both.
TEST(GpusWhoseCallsAgree, MayBeginThemInAnotherOrder) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        std::vector<std::unique_ptr<FusedOp>> ops;
        for (const char* name : {"zero", "one"}) {
            auto op = FusedOp::create(*heap, gathered(plan::Backend::copy_engine),
                                      {.name = name, .deadline_ms = 0});
            RANK_CHECK(op, op.error().to_string());
            ops.push_back(std::move(op).value());
        }
        for (int number = 0; number < 2; ++number) {
            if (number == rank)
                play_begin();
            else
                fake_cuda::on_launch({});  // the stream has still other work before it
            RANK_CHECK(ops[static_cast<std::size_t>(number)]->call(**kernel, {1, 1, 1}, 0, {}), "a call");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        for (const auto& op : ops) RANK_CHECK(op->poll() && op->check(), "a fault");
        return true;
    });
}

}  // namespace
}  // namespace syncopate::runtime

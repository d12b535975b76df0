// Collectives by NCCL that do not end: its kernels have no deadline of their own, and a replayed graph no host that waits for
// it [P25]. NCCL is a stand-in that does nothing; what the kernels around it tell is played.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/cuda/boundary/boundary.hpp"
#include "runtime/fork.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_gpu_heap;
using testing::make_kernel;
using testing::run_ranks;
using testing::TemporaryDirectory;

constexpr std::int64_t kDeadline = 200;  // ms

fuse::Schedule gathered_by_nccl() {
    const plan::Plan plan =
        plan::make_collective("all_gather", fuse::sample::ranks(2), fuse::sample::a_of({8, 4, 4, 2, 2, 2}))
            .value();
    return fuse::fuse({fuse::sample::gemm({8, 4, 4, 2, 2, 2}), plan, {{"a_ptr", "A"}}},
                      {.device = fuse::Device::cuda})
        .value();
}

/// What the call's first and last kernel tell of it; `ends`: it comes to its end.
class PlayedCalls {
public:
    PlayedCalls() {
        Dl_info library{};
        (void)dladdr(reinterpret_cast<void*>(&fake_cuda::aborted), &library);
        setenv("SYNCOPATE_NCCL_LIBRARY", library.dli_fname, 1);
        fake_cuda::on_launch([this](const std::string& name, void** parameters) {
            if (name == "sy_begin") first_ = *static_cast<device::BoundaryArguments*>(parameters[0]);
            if (name == "sy_end") last_ = *static_cast<device::BoundaryArguments*>(parameters[0]);
            if (name == "sy_begin" && !captures) begin();
            if (name == "sy_end" && !captures && ends) end();
        });
    }
    void begin() const { first_->mirror[device::kMirrorBegun] = ++first_->control[device::word::published]; }
    void end() const {
        if (last_->tells_end != 0)
            last_->mirror[device::kMirrorEnded] = last_->control[device::word::published];
    }
    void fails() const { last_->mirror[device::kMirrorFault] = 1; }
    bool ends = true;
    bool captures = false;

private:
    std::optional<device::BoundaryArguments> first_, last_;
};

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(4 * kDeadline)); }

/// Waits for it: the thread that looks may have to wait for its turn.
bool is_aborted() {
    for (int look = 0; look < 30'000 && fake_cuda::aborted() == 0; ++look)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return fake_cuda::aborted() == 1;
}

void on_both(const std::function<bool(PlayedCalls&, FusedOp&, CudaKernel&)>& work,
             const std::function<fuse::Schedule()>& schedule = gathered_by_nccl, int ranks_of_node = 0,
             std::int64_t deadline_ms = kDeadline) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        PlayedCalls calls;
        const auto heap = make_gpu_heap(directory.path(), rank, ranks_of_node);
        RANK_CHECK(heap, heap.error().to_string());
        const auto kernel = make_kernel(**heap);
        RANK_CHECK(kernel, kernel.error().to_string());
        const auto op = FusedOp::create(*heap, schedule(), {.name = "gather", .deadline_ms = deadline_ms});
        RANK_CHECK(op, op.error().to_string());
        return work(calls, **op, **kernel);
    });
}

bool says_so(const Status& status) {
    return !status && status.error().message.find("nccl has not ended within 400 ms") != std::string::npos;
}

TEST(CollectivesByNccl, AreLeftAloneWhereTheyEnd) {
    on_both([](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
        for (int call = 0; call < 3; ++call) RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
        pause();
        RANK_CHECK(fake_cuda::aborted() == 0, "aborted");
        RANK_CHECK(op.synchronize() && op.check(), "a fault");
        return true;
    });
}

TEST(CollectivesByNccl, AreGivenUpWhereACallDoesNotEnd) {
    on_both([](PlayedCalls& calls, FusedOp& op, CudaKernel& kernel) {
        RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
        calls.ends = false;
        RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "another");
        RANK_CHECK(says_so(op.check()), "check() ends well");
        RANK_CHECK(is_aborted(), "not aborted");
        RANK_CHECK(says_so(op.synchronize()), "synchronize() ends well");
        return true;
    });
}

/// Where a group goes on, no op's communicator is waited for before those of all are given up: the first one's abort, which
/// ends as late as it may where nobody else's begins, sees the second one's. A machine that stands still may hide that once.
TEST(CollectivesByNccl, AreGivenUpOfAllOpsAtATime) {
    on_both([](PlayedCalls&, FusedOp& op, CudaKernel&) {
        std::atomic<int> at_a_time = 0;
        fake_cuda::on_abort([&] {
            const int own = fake_cuda::aborted();
            if (own % 2 == 0) return;
            for (int look = 0; look < 1'000 && fake_cuda::aborted() == own; ++look)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (fake_cuda::aborted() > own) ++at_a_time;
        });
        for (int round = 0; round < 3; ++round) {
            std::vector<std::unique_ptr<FusedOp>> ops;
            for (const char* name : {"one", "other"}) {
                auto made =
                    FusedOp::create(op.heap(), gathered_by_nccl(), {.name = name, .deadline_ms = kDeadline});
                RANK_CHECK(made, made.error().to_string());
                ops.push_back(std::move(made).value());
            }
            for (const auto& one : ops) one->interrupt();
            for (const auto& one : ops) RANK_CHECK(one->drain(), "not drained");
            RANK_CHECK(fake_cuda::aborted() == 2 * (round + 1), "not waited for");
        }
        RANK_CHECK(at_a_time > 0, "one after another");
        fake_cuda::on_abort({});
        return true;
    });
}

/// A call that was enqueued behind a fault tells of no begin, and the others do not join it.
TEST(CollectivesByNccl, AreGivenUpBehindAFault) {
    on_both([](PlayedCalls& calls, FusedOp& op, CudaKernel& kernel) {
        RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
        calls.fails();
        RANK_CHECK(is_aborted(), "not aborted");
        return true;
    });
}

TEST(CollectivesByNccl, AreGivenUpWhereAReplayedGraphDoesNotEnd) {
    on_both([](PlayedCalls& calls, FusedOp& op, CudaKernel& kernel) {
        calls.captures = true;
        fake_cuda::capture(true);
        RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a captured call");
        fake_cuda::capture(false);
        pause();
        RANK_CHECK(fake_cuda::aborted() == 0, "aborted what was only captured");
        for (int replay = 0; replay < 2; ++replay) {
            calls.begin();
            calls.end();
        }
        RANK_CHECK(op.check(), "a fault");
        calls.begin();
        RANK_CHECK(is_aborted(), "not aborted");  // nobody asks
        RANK_CHECK(says_so(op.check()), "check() ends well");
        return true;
    });
}

fuse::Schedule gathered_between(const fuse::sample::Gemm& product) {
    plan::AllGatherOptions options;
    options.algorithm = plan::Algorithm::hierarchical;
    const plan::Plan plan =
        plan::all_gather({{{"node", 2}, {"gpu", 1}}, "node"}, fuse::sample::a_of(product), options).value();
    return fuse::fuse({fuse::sample::gemm(product), plan, {{"a_ptr", "A"}}}, {.device = fuse::Device::cuda})
        .value();
}

fuse::Schedule gathered_between_nodes() { return gathered_between({8, 4, 4, 2, 2, 2}); }

/// What has come for this rank's tiles, by its signals.
std::set<std::uint32_t> arrived(const FusedOp& op, const SymmetricHeap& heap) {
    std::set<std::uint32_t> words;
    const auto& signals = op.schedule().ranks[at(op.rank())].signals;
    for (std::size_t i = 0; i < signals.size(); ++i) {
        if (signals[i].kind != fuse::SignalMeaning::Kind::arrived) continue;
        const auto word = static_cast<std::uint64_t>(device::word::word_of(static_cast<std::int32_t>(i)));
        std::uint32_t value = ~0u;
        (void)heap.read(op.control_address() + 4 * word, &value, sizeof(value));
        words.insert(value);
    }
    return words;
}

/// A sender that has left a wait has published an older call [P30], and what it sends still is no arrival.
TEST(SidesByNccl, ArriveAsTheirSenderHasPublished) {
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            fake_cuda::receive(1);
            RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
            RANK_CHECK(arrived(op, *op.heap()) == std::set<std::uint32_t>{1}, "nothing arrived");
            fake_cuda::receive(0);
            RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "another");
            RANK_CHECK(arrived(op, *op.heap()) == std::set<std::uint32_t>{0}, "it arrived");
            return true;
        },
        gathered_between_nodes, 1, 600'000);
}

/// What was enqueued since by NCCL: words of a line "send BYTES bytes, rank PEER, by communicator NUMBER on STREAM".
std::vector<std::string> sides_of(const std::vector<std::string>& log, std::string_view of) {
    std::vector<std::string> sides;
    for (const std::string& line : log) {
        if (line.starts_with("send ") || line.starts_with("receive "))
            sides.push_back(of.empty() ? line : line.substr(line.find(of)));
    }
    return sides;
}

/// 512 KiB each way, in as many parts as there are links, on streams of their own, which follow the round's, and which it follows.
TEST(SidesByNccl, GoByAllLinksAtOnceWhereTheyAreLarge) {
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            fake_cuda::receive(1);
            fake_cuda::take_log();
            RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
            const std::vector<std::string> log = fake_cuda::take_log();
            const std::string part = fmt::format(" {} bytes", (512 << 10) / fuse::kChannelBlocks);
            std::map<std::string, int> parts;  // of each communicator, with its stream
            std::set<std::string> streams;
            std::string first;  // on which the words go
            for (const std::string& side : sides_of(log, "")) {
                const std::string stream = side.substr(side.find(" on ") + 4);
                if (side.find(" 4 bytes") != std::string::npos) first = stream;
                if (side.find(part) == std::string::npos) continue;
                ++parts[side.substr(side.find("by communicator"))];
                streams.insert(stream);
            }
            RANK_CHECK(std::ssize(parts) == fuse::kChannelBlocks, "not by all");
            for (const auto& [link, sides] : parts) RANK_CHECK(sides == 2, "a send and a receive by each");
            RANK_CHECK(streams.size() == parts.size() && streams.contains(first), "not at once");
            RANK_CHECK(sides_of(log, "").size() == 2 * parts.size() + 2, "and a word each way by one");
            const auto waits = [&](const std::string& stream) {
                return std::ranges::count_if(log, [&](const std::string& line) {
                    return line.starts_with(stream + " waits for event");
                });
            };
            for (const std::string& stream : streams)
                RANK_CHECK(waits(stream) >= (stream == first ? std::ssize(streams) - 1 : 1), stream);
            return true;
        },
        [] { return gathered_between({1024, 4, 512, 512, 2, 512}); }, 1, 600'000);
}

/// An abort returns, as NCCL's may, once what the other links have under way has ended, too.
TEST(SidesByNccl, AreGivenUpOfAllLinksAtATime) {
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel&) {
            std::atomic<int> held = 0;
            fake_cuda::on_abort([&] {
                for (int look = 0; look < 30'000 && fake_cuda::aborted() < fuse::kChannelBlocks; ++look)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                ++held;
            });
            op.interrupt();
            RANK_CHECK(op.drain(), "not drained");
            for (int look = 0; look < 30'000 && held < fuse::kChannelBlocks; ++look)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            RANK_CHECK(fake_cuda::aborted() == fuse::kChannelBlocks, "one after another");
            fake_cuda::on_abort({});
            return true;
        },
        [] { return gathered_between({1024, 4, 512, 512, 2, 512}); }, 1, 600'000);
}

TEST(SidesByNccl, GoByOneLinkWhereTheyAreSmall) {
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            fake_cuda::receive(1);
            fake_cuda::take_log();
            RANK_CHECK(op.call(kernel, {1, 1, 1}, 0, {}), "a call");
            const std::vector<std::string> sides = sides_of(fake_cuda::take_log(), "by communicator");
            RANK_CHECK(sides.size() == 4, "a block and a word each way");
            RANK_CHECK(std::set(sides.begin(), sides.end()).size() == 1, "by several");
            return true;
        },
        gathered_between_nodes, 1, 600'000);
}

/// The GPU has six multiprocessors, of which NCCL gets four.
TEST(SidesByNccl, HaveTheMultiprocessorsThatAGridOfWaitingTilesMustLeave) {
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            fake_cuda::receive(1);
            RANK_CHECK(op.call(kernel, {2, 1, 1}, 0, {}), "two programs");
            RANK_CHECK(op.require_room(0, kernel, {1, 2, 1}), "two programs have room");
            const Status refused = op.call(kernel, {1, 3, 1}, 0, {});
            RANK_CHECK(!refused && refused.error().error_class == ErrorClass::usage, "three programs");
            RANK_CHECK(refused.error().message.find("of 1 x 3 x 1 these are 1 too many") != std::string::npos,
                       refused.error().message);
            RANK_CHECK(op.call(kernel, {2, 1, 1}, 0, {}), "no call had begun");
            return true;
        },
        gathered_between_nodes, 1, 600'000);
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            RANK_CHECK(op.require_room(0, kernel, {64, 1, 1}), "one program waits; the others end");
            return true;
        },
        [] { return gathered_between({8, 4, 4, 4, 4, 2}); }, 1, 600'000);
    on_both(
        [](PlayedCalls&, FusedOp& op, CudaKernel& kernel) {
            RANK_CHECK(op.require_room(0, kernel, {4, 1, 1}), "nothing comes from another node");
            return true;
        },
        gathered_by_nccl);
}

}  // namespace
}  // namespace syncopate::runtime

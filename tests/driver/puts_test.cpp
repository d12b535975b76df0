// The channel by one-sided puts (SYNCOPATE_CHANNEL=put), on a stand-in of NCCL where what a rank puts comes to itself.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/cuda/boundary/boundary.hpp"
#include "runtime/fork.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/call/channel_way.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_gpu_heap;
using testing::make_kernel;
using testing::run_ranks;
using testing::TemporaryDirectory;

constexpr fuse::sample::Gemm kProduct{8, 4, 4, 2, 2, 2};
constexpr std::uint64_t kPart = 4 * 4 * 2;  // bytes of a rank's rows

fuse::Schedule gathered_between_nodes() {
    plan::AllGatherOptions options;
    options.algorithm = plan::Algorithm::hierarchical;
    const plan::Plan plan =
        plan::all_gather({{{"node", 2}, {"gpu", 1}}, "node"}, fuse::sample::a_of(kProduct), options).value();
    return fuse::fuse({fuse::sample::gemm(kProduct), plan, {{"a_ptr", "A"}}}, {.device = fuse::Device::cuda})
        .value();
}

struct Library {
    int version = 23203;
    bool puts = true;
};

using Made = Result<std::unique_ptr<FusedOp>>;

/// On two ranks, each a node; `way`: of each rank.
void on_both(const std::function<bool(Made&, int rank)>& work, const std::vector<std::string>& way,
             const Library& library = {}) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        Dl_info file{};
        (void)dladdr(reinterpret_cast<void*>(&fake_cuda::aborted), &file);
        setenv("SYNCOPATE_NCCL_LIBRARY", file.dli_fname, 1);
        setenv("SYNCOPATE_CHANNEL", way[at(rank)].c_str(), 1);
        fake_cuda::set_nccl(library.version, library.puts);
        const auto heap = make_gpu_heap(directory.path(), rank, 1);
        RANK_CHECK(heap, heap.error().to_string());
        Made op =
            FusedOp::create(*heap, gathered_between_nodes(), {.name = "gather", .deadline_ms = 600'000});
        return work(op, rank);
    });
}

/// That each rank is told so.
void refused(const std::string& why, ErrorClass error_class, const std::vector<std::string>& way,
             const Library& library = {}) {
    on_both(
        [&](const Made& op, int) {
            RANK_CHECK(!op, "accepted");
            RANK_CHECK(op.error().message.find(why) != std::string::npos, op.error().message);
            RANK_CHECK(op.error().error_class == error_class, "of another class");
            return true;
        },
        way, library);
}

std::vector<std::string> of_nccl(const std::vector<std::string>& log) {
    std::vector<std::string> calls;
    for (const std::string& line : log) {
        for (const std::string_view name : {"send ", "receive ", "signal ", "await ", "put "}) {
            if (line.starts_with(name)) calls.push_back(line.substr(0, line.find(", by")));
        }
    }
    return calls;
}

TEST(PutsByNccl, WaitForTheirPlaceAndAreAwaited) {
    on_both(
        [](Made& op, int rank) {
            RANK_CHECK(op, op.error().to_string());
            const auto kernel = make_kernel(*(*op)->heap());
            RANK_CHECK(kernel, kernel.error().to_string());
            const std::string peer = fmt::format("rank {}", 1 - rank);
            auto* const rows = reinterpret_cast<char*>((*op)->tensor_address("A").value());
            for (std::uint32_t call = 1; call < 5; ++call) {
                // Made anew, the communicator registers the room that there is.
                if (call == 3) RANK_CHECK((*op)->reset(), "reset");
                const std::uint64_t own = static_cast<std::uint64_t>(rank) * kPart;
                for (std::uint64_t byte = 0; byte < kPart; ++byte) {
                    rows[own + byte] = static_cast<char>(byte + 40 * call);
                    rows[kPart - own + byte] = 0;
                }
                fake_cuda::receive(call);
                fake_cuda::take_log();
                RANK_CHECK((*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call");
                const std::vector<std::string> calls = of_nccl(fake_cuda::take_log());
                RANK_CHECK(calls.size() == 4, fmt::format("{} calls", calls.size()));
                RANK_CHECK(calls[0] == "signal 0 bytes, " + peer, calls[0]);
                RANK_CHECK(calls[1] == "await 1, 0 bytes, " + peer, calls[1]);
                // The rows and a word; where they come to is not where those are that go.
                RANK_CHECK(calls[2].starts_with("put at "), calls[2]);
                RANK_CHECK(calls[2].ends_with(fmt::format(" of {} bytes, {}", kPart + 4, peer)), calls[2]);
                RANK_CHECK(calls[3] == "await 1, 0 bytes, " + peer, calls[3]);
                for (std::uint64_t byte = 0; byte < kPart; ++byte)
                    RANK_CHECK(rows[kPart - own + byte] == rows[own + byte], "other bytes came");
                // Arrived is what the sender has published [P30].
                const auto& signals = (*op)->schedule().ranks[at(rank)].signals;
                for (std::size_t i = 0; i < signals.size(); ++i) {
                    if (signals[i].kind != fuse::SignalMeaning::Kind::arrived) continue;
                    std::uint32_t value = ~0u;
                    const auto word =
                        static_cast<std::uint64_t>(device::word::word_of(static_cast<std::int32_t>(i)));
                    (void)(*op)->heap()->read((*op)->control_address() + 4 * word, &value, sizeof(value));
                    RANK_CHECK(value == call, "not the sender's word");
                }
            }
            return true;
        },
        {"put", "put"});
}

TEST(PutsByNccl, AreRefusedInGraphsOfLibrariesThatCountThemOnTheHost) {
    for (const int version : {22907, 23203}) {
        on_both(
            [&](Made& op, int) {
                RANK_CHECK(op, op.error().to_string());
                const auto kernel = make_kernel(*(*op)->heap());
                RANK_CHECK(kernel, kernel.error().to_string());
                fake_cuda::capture(true);
                const Status captured = (*op)->call(**kernel, {1, 1, 1}, 0, {});
                fake_cuda::capture(false);
                RANK_CHECK(bool(captured) == (version == 23203),
                           captured ? "taken" : captured.error().message);
                RANK_CHECK(captured ||
                               captured.error().message.find("NCCL 2.29.7 is not known to put from graphs") !=
                                   std::string::npos,
                           captured.error().message);
                return true;
            },
            {"put", "put"}, {.version = version});
    }
}

TEST(PutsByNccl, AreRefusedWhereTheLibraryHasNone) {
    refused("(2.28.9) cannot put: ncclPutSignal begins with 2.29", ErrorClass::machine, {"put", "put"},
            {.version = 22809});
}

TEST(PutsByNccl, AreRefusedWhereItRegistersNoWindow) {
    refused("NCCL 2.32.3 cannot put between these ranks (it registers no window)", ErrorClass::machine,
            {"put", "put"}, {.puts = false});
}

TEST(PutsByNccl, AreForAllRanksOrNone) {
    refused("SYNCOPATE_CHANNEL differs: rank 0: put; rank 1: send", ErrorClass::usage, {"put", "send"});
}

TEST(PutsByNccl, AreNamedSo) {
    refused("expected \"send\" or \"put\", got 'puts'", ErrorClass::usage, {"put", "puts"});
}

TEST(PutsByNccl, AreWhatIsAskedForOnly) {
    on_both(
        [](Made& op, int) {
            RANK_CHECK(op, op.error().to_string());
            const auto kernel = make_kernel(*(*op)->heap());
            RANK_CHECK(kernel, kernel.error().to_string());
            fake_cuda::take_log();
            RANK_CHECK((*op)->call(**kernel, {1, 1, 1}, 0, {}), "a call");
            const std::vector<std::string> calls = of_nccl(fake_cuda::take_log());
            RANK_CHECK(calls.size() == 4, "a block and a word each way");
            for (const std::string& call : calls)
                RANK_CHECK(call.starts_with("send ") || call.starts_with("receive "), call);
            RANK_CHECK(channel_on_cuda() ==
                           "NCCL 2.32.3 by sends and receives (SYNCOPATE_CHANNEL=put: by ncclPutSignal)",
                       channel_on_cuda());
            return true;
        },
        {"", "send"});
}

}  // namespace
}  // namespace syncopate::runtime

// How fast the chunk engine is alone: bytes a second in one direction by multiprocessors, method and peers,
// and how fast it sums what lies on other GPUs. One process a GPU, ranks from the environment as a launcher
// sets them.
//
//   syncopate_bench_engine [--mebibytes N] [--calls N] [--blocks 4,8,16] [--json FILE]
//
//   copy    every rank sends N MiB in all, divided among the next 1 … ranks-1 peers, in chunks of 4 MiB;
//           GB/s out of a rank
//   sum     every rank sums N MiB in all from `summands` places on its peers, in turn, and of its own, into
//           one destination; bf16, chunks of 4 MiB of the destination; GB/s into a rank
//
// A measurement is the mean over the calls after the first three, queued one behind another, of the slowest
// rank; all ranks begin each call together, so a few µs of each are not the engine's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {
namespace {

using Kind = fuse::SignalMeaning::Kind;
using plan::Backend;

constexpr std::int64_t kChunkBytes = 4 << 20;
constexpr std::int64_t kColumns = 4096;
constexpr std::int64_t kChunkRows = kChunkBytes / (kColumns * 2);
constexpr int kWarmUp = 3;

struct Arguments {
    std::int64_t mebibytes = 768;
    int calls = 23;
    std::vector<int> blocks{4, 8, 16};
    std::string json;
};

/// All ranks begin a call together, and end it when all that touches their memory is done.
fuse::Schedule begin_together(int size, std::vector<plan::Tensor> tensors) {
    fuse::Schedule schedule;
    schedule.mesh.axes = {{"gpu", size}};
    schedule.tensors = std::move(tensors);
    schedule.ranks.resize(static_cast<std::size_t>(size));
    for (int to = 0; to < size; ++to) {
        fuse::RankSchedule& there = schedule.ranks[static_cast<std::size_t>(to)];
        for (int from = 0; from < size; ++from) {
            if (from == to) continue;
            const auto signal = static_cast<std::int32_t>(there.signals.size());
            there.signals.push_back({Kind::ready, {from, -1}});
            there.begin_waits.push_back({signal, 0});
            schedule.ranks[static_cast<std::size_t>(from)].begin_posts.push_back({to, signal});
        }
    }
    return schedule;
}

/// `rank` tells `to` when the transfer is done, and `to` ends no call before.
void add(fuse::Schedule& schedule, int rank, const std::vector<int>& told, fuse::Transfer transfer) {
    fuse::RankSchedule& mine = schedule.ranks[static_cast<std::size_t>(rank)];
    transfer.op = {rank, static_cast<std::int32_t>(mine.transfers.size())};
    for (const int to : told) {
        fuse::RankSchedule& there = schedule.ranks[static_cast<std::size_t>(to)];
        const auto signal = static_cast<std::int32_t>(there.signals.size());
        there.signals.push_back({Kind::arrived, transfer.op});
        there.end_waits.push_back({signal, 0});
        transfer.posts.push_back({to, signal});
    }
    mine.transfers.push_back(std::move(transfer));
}

plan::Region rows(std::int64_t chunk) {
    return {{chunk * kChunkRows, (chunk + 1) * kChunkRows}, {0, kColumns}};
}

fuse::Schedule copies(int size, int peers, Backend backend, std::int64_t mebibytes) {
    const std::int64_t chunks = std::max<std::int64_t>(1, (mebibytes << 20) / kChunkBytes / peers) * peers;
    const plan::DType dtype = plan::DType::bf16;
    fuse::Schedule schedule = begin_together(
        size, {{"S", {chunks * kChunkRows, kColumns}, dtype}, {"D", {chunks * kChunkRows, kColumns}, dtype}});
    for (int rank = 0; rank < size; ++rank) {
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int to = (rank + 1 + static_cast<int>(chunk % peers)) % size;
            add(schedule, rank, {to},
                {.backend = backend,
                 .src_rank = rank,
                 .dst_rank = to,
                 .src = {0, rows(chunk)},
                 .dst = {1, rows(chunk)}});
        }
    }
    return schedule;
}

fuse::Schedule sums(int size, int summands, Backend backend, std::int64_t mebibytes) {
    const std::int64_t chunks = std::max<std::int64_t>(1, (mebibytes << 20) / kChunkBytes / summands);
    const plan::DType dtype = plan::DType::bf16;
    fuse::Schedule schedule = begin_together(size, {{"S", {summands * chunks * kChunkRows, kColumns}, dtype},
                                                    {"D", {chunks * kChunkRows, kColumns}, dtype}});
    for (int rank = 0; rank < size; ++rank) {
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
            fuse::Transfer sum{.backend = backend,
                               .src_rank = rank,
                               .dst_rank = rank,
                               .src = {1, rows(chunk)},
                               .dst = {1, rows(chunk)},
                               .work = fuse::Sum{.own = 0}};
            std::vector<int> told;
            for (int i = 0; i < summands; ++i) {
                const int from = (rank + 1 + i % (size - 1)) % size;
                std::get<fuse::Sum>(sum.work).sources.push_back({from, {0, rows(i * chunks + chunk)}});
                if (std::ranges::find(told, from) == told.end()) told.push_back(from);
            }
            add(schedule, rank, told, std::move(sum));
        }
    }
    return schedule;
}

/// Microseconds of a call, of the slowest rank.
Result<double> time_of(const std::shared_ptr<SymmetricHeap>& heap, const fuse::Schedule& schedule, int blocks,
                       int calls) {
    auto op =
        FusedOp::create(heap, fuse::lay_out_heap(fuse::decide_engine(schedule, fuse::Device::cuda, blocks)),
                        {.name = "bench", .deadline_ms = 10'000});
    if (!op) return op.error();
    const std::uint64_t word = (*op)->control_address() + 4 * emit::control::epoch;
    const CudaApi& api = heap->cuda_context()->api();
    const CurrentContext current(*heap->cuda_context());
    std::chrono::steady_clock::time_point start;
    for (int call = 0; call < calls; ++call) {
        if (call == kWarmUp) {
            if (Status done = (*op)->synchronize(); !done) return done.error();
            if (Status met = barrier(heap->rendezvous(), "start"); !met) return met.error();
            start = std::chrono::steady_clock::now();
        }
        if (Status done = (*op)->begin_call(); !done) return done.error();
        // What a fused kernel does at its end.
        const std::uint32_t epoch = static_cast<std::uint32_t>(call) + 2;
        SYNCOPATE_CUDA(api, cuMemcpyHtoDAsync, word, &epoch, sizeof(epoch), nullptr);
        if (Status done = (*op)->end_call(); !done) return done.error();
    }
    if (Status done = (*op)->synchronize(); !done) return done.error();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (Status good = (*op)->check(); !good) return good.error();
    if (Status gone = (*op)->destroy(); !gone) return gone.error();
    const auto all =
        all_gather(heap->rendezvous(), "time", fmt::format("{}", took.count() / (calls - kWarmUp)));
    if (!all) return all.error();
    double slowest = 0;
    for (const Bytes& time : *all) slowest = std::max(slowest, std::atof(time.c_str()));
    return slowest;
}

Result<bool> run(const Arguments& arguments) {
    const auto environment = launch_environment();
    if (!environment) return environment.error();
    auto rendezvous = environment_rendezvous();
    if (!rendezvous) return rendezvous.error();
    auto heap =
        SymmetricHeap::create({Device::Kind::cuda, environment->local_rank},
                              std::shared_ptr<Rendezvous>(std::move(rendezvous).value()),
                              (static_cast<std::uint64_t>(arguments.mebibytes) << 20) * 2 + (64u << 20));
    if (!heap) return heap.error();
    const int size = (*heap)->size();
    if (size < 2) return Error{"one rank has no peers: start two or more", {}, ErrorClass::usage};
    std::string json;
    const auto measure = [&](const char* what, Backend backend, int blocks, int number,
                             const fuse::Schedule& schedule, double bytes) -> Status {
        const Result<double> time = time_of(*heap, schedule, blocks, arguments.calls);
        if (!time) return time.error();
        const double rate = bytes / *time * 1e-3;
        const std::string line = fmt::format(
            R"({{"what": "{}", "backend": "{}", "blocks": {}, "{}": {}, "us": {:.1f}, "gb_per_s": {:.1f}}})",
            what, plan::name_of(backend), blocks, what[0] == 'c' ? "peers" : "summands", number, *time, rate);
        json += (json.empty() ? "" : ",\n ") + line;
        if ((*heap)->rank() == 0) {
            fmt::print("{}\n", line);
            std::fflush(stdout);
        }
        return Done{};
    };
    for (const Backend backend : {Backend::tma_dedicated, Backend::ldst_dedicated}) {
        for (const int blocks : arguments.blocks) {
            for (int peers = 1; peers < size; peers = peers == 1 ? std::max(size - 1, 2) : size) {
                const fuse::Schedule schedule = copies(size, peers, backend, arguments.mebibytes);
                const double bytes = static_cast<double>(schedule.ranks[0].transfers.size()) * kChunkBytes;
                if (Status done = measure("copy", backend, blocks, peers, schedule, bytes); !done)
                    return done.error();
            }
            for (const int summands : {1, 3, 7}) {
                const fuse::Schedule schedule = sums(size, summands, backend, arguments.mebibytes);
                const double bytes =
                    static_cast<double>(schedule.ranks[0].transfers.size()) * kChunkBytes * summands;
                if (Status done = measure("sum", backend, blocks, summands, schedule, bytes); !done)
                    return done.error();
            }
        }
    }
    if (!arguments.json.empty() && (*heap)->rank() == 0)
        std::ofstream(arguments.json) << fmt::format(
            "{{\"ranks\": {}, \"mebibytes\": {}, \"rows\": [\n {}\n]}}\n", size, arguments.mebibytes, json);
    return true;
}

}  // namespace
}  // namespace syncopate::runtime

int main(int argc, char** argv) {
    syncopate::runtime::Arguments arguments;
    bool good = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const std::string value = argv[i + 1];
        if (name == "--mebibytes")
            arguments.mebibytes = std::atoll(value.c_str());
        else if (name == "--calls")
            arguments.calls = std::atoi(value.c_str());
        else if (name == "--json")
            arguments.json = value;
        else if (name == "--blocks") {
            arguments.blocks.clear();
            for (std::size_t at = 0; at != std::string::npos && at < value.size();) {
                arguments.blocks.push_back(std::atoi(value.c_str() + at));
                at = value.find(',', at);
                if (at != std::string::npos) ++at;
            }
        } else
            good = false;
    }
    if (!good || argc % 2 == 0 || arguments.mebibytes < 64 || arguments.calls <= 3) {
        fmt::print(
            stderr,
            "usage: syncopate_bench_engine [--mebibytes N] [--calls N] [--blocks 4,8,16] [--json FILE]\n");
        return 2;
    }
    const auto ran = syncopate::runtime::run(arguments);
    if (ran) return 0;
    fmt::print(stderr, "error: {}\n", ran.error().to_string());
    return 3;
}

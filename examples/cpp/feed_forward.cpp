// A feed-forward block from C++: each rank holds a shard of X's rows and slices of two weights,
//
//     H = all_gather(X) @ W1          [M, F / ranks]
//     C = reduce_scatter(H @ W2)      [M / ranks, N]
//
// and both products, each the same ordinary Triton kernel, become one fused program around one plan. It is
// written into a folder, which any rank can run, and what rank 0 will do is printed:
//
//     build/bin/example_feed_forward examples/matmul_pointers.py block 4
//     syncopate run block --check
//
// A program of your own links syncopate::syncopate, as CMakeLists.txt here does. Exit 1: the kernel or a size is wrong.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace {

using namespace syncopate;

constexpr std::int64_t kRows = 96, kInputs = 32, kHidden = 64,
                       kOutputs = 48;  // of a rank: its slices of W1 and W2

/// matmul_kernel's arguments for a product of contiguous [kRows, depth] and [depth, columns].
kernel::Arguments product(std::int64_t columns, std::int64_t depth) {
    kernel::Arguments arguments;
    arguments.scalars = {{"M", kRows},
                         {"N", columns},
                         {"K", depth},
                         {"stride_am", depth},
                         {"stride_ak", {std::int64_t{1}}},
                         {"stride_bk", columns},
                         {"stride_bn", {std::int64_t{1}}},
                         {"stride_cm", columns},
                         {"stride_cn", {std::int64_t{1}}},
                         {"BLOCK_M", {std::int64_t{16}}},
                         {"BLOCK_N", {std::int64_t{16}}},
                         {"BLOCK_K", {std::int64_t{16}}},
                         {"GROUP_M", {std::int64_t{2}}}};
    arguments.tensors["b_ptr"] = {.shape = {depth, columns}, .dtype = plan::DType::fp32};
    arguments.tensors["c_ptr"] = {.shape = {kRows, columns}, .dtype = plan::DType::fp32};
    return arguments;
}

/// Who sends what: all of X to everybody before the first product, the second one's rows summed at their
/// owners.
Result<plan::Plan> make_plan(std::int32_t ranks) {
    const plan::Mesh mesh{.axes = {{"gpu", ranks}}};
    const Result<plan::Plan> gather = plan::all_gather(mesh, {"X", {kRows, kInputs}, plan::DType::fp32});
    if (!gather) return gather.error();
    const Result<plan::Plan> scatter =
        plan::reduce_scatter(mesh, {"C", {kRows, kOutputs}, plan::DType::fp32}, {.produced = true});
    if (!scatter) return scatter.error();
    return plan::join({*gather, *scatter}, {{"H", {kRows, kHidden}, plan::DType::fp32}});
}

void describe(const fuse::Schedule& schedule) {
    const fuse::RankSchedule& rank = schedule.ranks.front();
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
        std::cout << "rank 0, stage " << stage << ':';
        for (const fuse::Slot& slot : schedule.slots_of(rank, stage)) {
            std::string after;
            for (const fuse::Wait& wait : slot.waits) {
                const fuse::SignalMeaning& signal = rank.signals[static_cast<std::size_t>(wait.signal)];
                after += (after.empty() ? " after rank " : ", rank ") + std::to_string(signal.op.rank);
            }
            std::cout << " [tile " << slot.tile << after << ']';
        }
        std::cout << '\n';
    }
    for (const fuse::Transfer& transfer : rank.transfers) {
        const std::string what = transfer.sum() != nullptr ? "sums"
                                 : transfer.dst_rank != 0  ? "sends rank " + std::to_string(transfer.dst_rank)
                                                           : "keeps";
        std::cout << "rank 0 " << what << ' '
                  << schedule.tensors[static_cast<std::size_t>(transfer.dst.tensor)].name
                  << plan::to_string(transfer.dst.region) << '\n';
    }
}

Status run(const std::string& kernel_file, const std::filesystem::path& folder, std::int32_t ranks) {
    const Result<std::string> source = read_file(kernel_file);
    if (!source) return source.error();
    Result<plan::Plan> plan = make_plan(ranks);
    if (!plan) return plan.error();
    const Result<emit::Artifact> fused = emit::make_artifact(
        {{*source, kernel_file, "matmul_kernel", product(kHidden, kInputs), {{"a_ptr", "X"}, {"c_ptr", "H"}}},
         {*source,
          kernel_file,
          "matmul_kernel",
          product(kOutputs, kHidden),
          {{"a_ptr", "H"}, {"c_ptr", "C"}}}},
        *std::move(plan));
    if (!fused) return fused.error();
    describe(fused->launch.schedule);

    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) return Error{folder.string() + ": " + failed.message()};
    for (const auto& [name, text] : emit::files_of(*fused)) {
        if (Status written = write_file_atomically((folder / name).string(), *text); !written) return written;
    }
    return Done{};
}

}  // namespace

int main(int argc, char** argv) {
    const long ranks = argc == 4 ? std::atol(argv[3]) : argc == 3 ? 2 : 0;
    if (ranks < 1 || ranks > 4096) {
        std::cerr << "usage: example_feed_forward KERNEL FOLDER [RANKS]\n";
        return 2;
    }
    const Status done = run(argv[1], argv[2], static_cast<std::int32_t>(ranks));
    if (!done) std::cerr << "error: " << done.error().to_string() << '\n';
    return done ? 0 : 1;
}

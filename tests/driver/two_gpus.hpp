// Ops of two ranks, each on a GPU of its own, for every way in which a call on cuda is put together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "fuse/summing.hpp"
#include "runtime/schedules.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime::testing {

inline constexpr std::uint64_t kGpuHeapBytes = 6 << 20;

/// A schedule of two ranks.
struct Case {
    std::string name;
    std::function<fuse::Schedule()> make;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

inline fuse::Schedule gathered(plan::Backend backend) {
    fuse::Schedule schedule = direct_all_gather(2, false, {64, 64}, backend);
    return schedule;
}

inline fuse::Schedule summed_on_streams() {
    const plan::Tensor tensor{"C", {8, 4}, plan::DType::bf16};
    return fuse::fuse({fuse::sample::gemm({8, 4, 4, 2, 2, 2}),
                       plan::push_reduce(fuse::sample::ranks(2), tensor).value(),
                       {{"c_ptr", "C"}}},
                      {.device = fuse::Device::cuda, .preferred = plan::Backend::copy_engine})
        .value();
}

inline fuse::Schedule summed_by_the_kernel() {
    return fuse::fuse(fuse::sample::summed(fuse::sample::to_owners(2)), fuse::sample::in_kernel()).value();
}

inline std::vector<Case> cases() {
    using plan::Backend;
    return {{"copies", [] { return gathered(Backend::copy_engine); }},
            {"pulls", [] { return direct_all_gather(2, true, {64, 64}, Backend::copy_engine); }},
            {"engine", [] { return gathered(Backend::tma_dedicated); }},
            {"sums_on_streams", summed_on_streams},
            {"sums_in_the_kernel", summed_by_the_kernel}};
}

inline Result<std::shared_ptr<SymmetricHeap>> make_gpu_heap(const std::filesystem::path& directory, int rank,
                                                            int ranks_of_node = 0) {
    std::filesystem::create_directories(directory);
    auto rendezvous = FileRendezvous::create(directory, rank, 2);
    if (!rendezvous) return rendezvous.error();
    if (ranks_of_node > 0) (*rendezvous)->set_ranks_of_node(ranks_of_node);
    return SymmetricHeap::create({Device::Kind::cuda, rank},
                                 std::shared_ptr<Rendezvous>(std::move(rendezvous).value()), kGpuHeapBytes);
}

inline Result<std::unique_ptr<CudaKernel>> make_kernel(const SymmetricHeap& heap) {
    const std::array<std::byte, 8> image{};
    return CudaKernel::load(heap.cuda_context(), image, "kernel", {});
}

}  // namespace syncopate::runtime::testing

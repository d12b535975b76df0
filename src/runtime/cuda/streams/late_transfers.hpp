// The part of a call on cuda that follows the fused kernel's own progress: transfers of what its tiles make,
// and sums. All of it is enqueued after the kernel has been launched, on streams beside the caller's: some of
// copies (fuse/passes/place.hpp says which goes by which), and one of sums.
//
//   caller's stream | sy_begin | fork | fused kernel: each tile adds 1 to its gates   | join | sy_end |
//   copies                       └ wait for a gate, gate = 0, copy, post to the peer | …  ┘
//   sums                         └ sy_await, wait for a gate, gate = 0, sy_reduce    | …  ┘
//
// What a step waits for is said by fuse/passes/launch.hpp. What other ranks send is awaited by sy_await (before
// sums) or by the chunk engine (relays, before copies), never by a stream [P22]. No value that a stream
// compares with depends on the call [P26]. Each stream has a gate of its own for each chunk.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/call/call_executor.hpp"
#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/streams/device_lists.hpp"
#include "runtime/cuda/streams/nccl.hpp"
#include "runtime/cuda/streams/stream_sum.hpp"

namespace syncopate::runtime {

class LateTransfers {
public:
    /// Takes over the late copies and the sums of `plan`, whose copies must be such as enqueue_copy takes.
    /// `published`: the epoch in pinned host memory, from which this rank's own words are posted; `nccl`: for
    /// collectives. These and `module` must outlive them.
    static Result<std::unique_ptr<LateTransfers>> create(std::shared_ptr<CudaContext> context,
                                                         SymmetricHeap& heap, const CallPlan& plan,
                                                         const fuse::RankSchedule& schedule,
                                                         const DeviceModule& module,
                                                         const std::uint32_t* published, const Nccl* nccl,
                                                         const std::string& name);
    ~LateTransfers();
    LateTransfers(const LateTransfers&) = delete;
    LateTransfers& operator=(const LateTransfers&) = delete;

    /// Enqueues everything after `fork` (recorded before the kernel), the copies also after `copies_before`,
    /// if not null. `end`: sy_end's, for what the last sum does in its place.
    Status enqueue(CUevent fork, CUevent copies_before, const device::BoundaryArguments& end);
    /// What its kernels count is as before the first call [P36].
    Status renew();
    /// Makes `stream` wait for it.
    Status join(CUstream stream);

    /// Whether the last sum also makes the posts of the call's end, which saves a kernel: where the rank's
    /// calls end with sums, and nothing is to be waited for after them.
    [[nodiscard]] bool ends_call() const { return ends_call_; }

    /// What transfer `index` sums; null when it sums nothing.
    [[nodiscard]] PreparedSum* sum_of(std::size_t index);

private:
    /// One step of a lane: waits for gates, then copies and posts, or awaits and sums.
    struct Step {
        std::size_t index = 0;  ///< in the schedule
        std::size_t stream = fuse::kCopies;
        bool sums = false;
        std::vector<CUstreamBatchMemOpParams> gates;  ///< wait, and set back
        std::vector<std::size_t> after;               ///< steps of other streams
        std::vector<StridedCopy> copies;
        std::optional<PreparedCollective> collective;  ///< instead of copies
        std::optional<Nccl::Block> side;               ///< of a channel, that copies go before, or behind
        bool ends_round = false;                       ///< it is the last of its round here
        std::vector<std::uint64_t> posts;              ///< addresses; of copies
        std::vector<std::uint64_t> own_posts;          ///< of this rank's control block
        StreamSum sum;
        CUevent done = nullptr;  ///< recorded after it, where a step of another stream waits for it
        std::optional<std::size_t> await_after;  ///< of a sum: the copy whose gates open before sy_await
        CUevent opened = nullptr;                ///< recorded after the gates, where a sum's sy_await waits
    };
    /// A stream, and the event that ends its part of a call.
    struct Lane {
        std::unique_ptr<OwnedStream> stream;
        CUevent join = nullptr;
    };

    LateTransfers(std::shared_ptr<CudaContext> context, SymmetricHeap& heap, CUdeviceptr control)
        : context_(std::move(context)), api_(context_->api()), heap_(heap), control_(control) {}

    Status sort(const CallPlan& plan, const fuse::RankSchedule& schedule, const std::string& name);
    /// Until `word` fulfils `condition`; then it is set back to 0.
    void add_gate(Step& step, std::int32_t word, std::uint32_t value, unsigned condition) const;
    Status open(Lane& lane);
    Status upload();
    [[nodiscard]] Lane& lane_of(const Step& step) { return lanes_[step.stream]; }
    Status enqueue_copies(const Step& step);
    Status enqueue_posts(const Step& step);
    Status take_side(const PreparedSide& side, Step& step);
    Status enqueue_round(std::span<Step* const> round);

    std::shared_ptr<CudaContext> context_;
    const CudaApi& api_;
    SymmetricHeap& heap_;
    CUdeviceptr control_ = 0;
    int rank_ = 0;
    const DeviceModule* module_ = nullptr;
    const std::uint32_t* published_ = nullptr;
    const Nccl* nccl_ = nullptr;
    std::vector<Step> steps_;
    std::map<std::size_t, std::size_t> step_of_;  ///< by index in the schedule
    std::vector<Lane> lanes_;                     ///< by number of the stream
    DeviceLists written_;                         ///< what is in lists_ before the first call
    std::unique_ptr<DeviceBuffer> lists_;
    std::vector<std::unique_ptr<DeviceBuffer>> rooms_;  ///< of sides that lie apart in memory
    unsigned processors_ = 0;                           ///< of the GPU
    bool ends_call_ = false;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

// The part of a call on cuda that follows the fused kernel's own progress: transfers of what its tiles make,
// and sums. All of it is enqueued after the kernel has been launched, on streams beside the caller's: some of
// copies (fuse/passes/place.hpp says which goes by which), and one of sums.
//
//   caller's stream | sy_begin | fork | fused kernel: each tile adds 1 to its gates   | join | sy_end |
//   copies                       └ wait for a gate, gate = 0, copy, post to the peer | …  ┘
//   sums                         └ sy_await, wait for a gate, gate = 0, sy_reduce    | …  ┘
//
// What each waits for is said by fuse/passes/launch.hpp. What other ranks send is awaited by sy_await (before
// sums) or by the chunk engine (relays, before copies), never by a stream [P22]. No value that a stream
// compares with depends on the call [P26]. Each stream has a gate of its own for each chunk.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/call/call_executor.hpp"
#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"
#include "runtime/cuda/streams/device_lists.hpp"
#include "runtime/cuda/streams/nccl.hpp"
#include "runtime/cuda/streams/stream_mover.hpp"
#include "runtime/cuda/streams/stream_sum.hpp"

namespace syncopate::runtime {

class LateTransfers {
public:
    /// Takes over the late copies and the sums of `plan`, whose copies must be such as enqueue_copy takes. `nccl`: for
    /// what goes between nodes, or null. This and `module` must outlive them.
    static Result<std::unique_ptr<LateTransfers>> create(std::shared_ptr<CudaContext> context,
                                                         SymmetricHeap& heap, const CallPlan& plan,
                                                         const fuse::RankSchedule& schedule,
                                                         const DeviceModule& module, const StreamMover& mover,
                                                         const Nccl* nccl, const std::string& name);
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
    /// That it has, beside the call's.
    [[nodiscard]] std::size_t num_streams() const { return lanes_.size(); }
    [[nodiscard]] bool ends_call() const { return ends_call_; }

    /// What transfer `index` sums; null when it sums nothing.
    [[nodiscard]] PreparedSum* sum_of(std::size_t index);

private:
    /// What a stream has of a transfer, that waits for gates, then copies and posts, or awaits and sums.
    struct Late {
        PreparedTransfer transfer;
        std::vector<CUstreamBatchMemOpParams> gates;  ///< wait, and set back
        std::vector<CUevent> follows;                 ///< of other streams
        Nccl::Block block{};  ///< of a side of a channel, that its copies go before, or behind
        std::vector<StridedCopy> packing;
        /// Of a side: the sender's `published`, there or as it came; of what is put, in its room.
        CUdeviceptr told = 0;
        std::uint32_t* told_here = nullptr;  ///< what came, in pinned memory
        StreamSum sum;
        CUevent done = nullptr;    ///< recorded after it, where one of another stream waits for it
        CUevent opened = nullptr;  ///< recorded after the gates, where a sum's sy_await waits

        [[nodiscard]] const fuse::StreamStep& step() const { return transfer.step; }
        [[nodiscard]] bool sums() const { return step().launch == fuse::Launch::sums; }
    };
    /// A stream, and the event that ends its part of a call.
    struct Lane {
        std::unique_ptr<OwnedStream> stream;
        CUevent join = nullptr;
    };

    LateTransfers(std::shared_ptr<CudaContext> context, SymmetricHeap& heap, CUdeviceptr control,
                  const DeviceModule& module, const StreamMover& mover, const Nccl* nccl)
        : context_(std::move(context)),
          api_(context_->api()),
          heap_(heap),
          control_(control),
          module_(module),
          mover_(mover),
          nccl_(nccl) {}

    Status sort(const CallPlan& plan, const fuse::RankSchedule& schedule, const std::string& name);
    Status take_sum(Late& late, const std::string& name) const;
    void add_gate(Late& late, const Gate& gate) const;
    /// Makes the events by which those before tell the one that they are done, or their gates open.
    Status follow(Late& late);
    Status open(Lane& lane);
    Status upload();
    [[nodiscard]] Lane& lane_of(const Late& late) { return lanes_[late.step().stream]; }
    [[nodiscard]] Late& late_of(std::size_t index) { return late_[place_of_.at(index)]; }
    Status take_side(const PreparedSide& side, Late& late);
    Status mirror(Late& late);
    Status enqueue_round(std::span<Late* const> round);

    std::shared_ptr<CudaContext> context_;
    const CudaApi& api_;
    SymmetricHeap& heap_;
    CUdeviceptr control_ = 0;
    const DeviceModule& module_;
    StreamMover mover_;
    const Nccl* nccl_;
    std::vector<Late> late_;
    std::map<std::size_t, std::size_t> place_of_;  ///< in late_, by index in the schedule
    std::vector<Lane> lanes_;                      ///< by number of the stream
    DeviceLists written_;                          ///< what is in lists_ before the first call
    std::unique_ptr<DeviceBuffer> lists_;
    std::vector<std::unique_ptr<DeviceBuffer>> rooms_;  ///< of sides
    std::vector<std::unique_ptr<PinnedWords>> words_;   ///< of sides that receive
    unsigned processors_ = 0;                           ///< of the GPU
    bool ends_call_ = false;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

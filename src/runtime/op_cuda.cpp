// A call on cuda. Everything is enqueued on two streams:
//
//   caller's stream | inputs, sy_begin, local copies, sy_engine | the caller's kernel | sy_end |
//   copy stream                    fork └ per transfer: data, then posts ┘ join
//
// The copy stream starts after the local copies where it touches what they do.
//
// sy_engine, the chunk engine, is there when transfers are tma_dedicated or ldst_dedicated; without a copy
// stream and local copies it also does what sy_begin does. The caller's kernel may start as soon as the
// kernel before it has (kernel_may_start_early), and ends after it.
//
// A post of the copy engine is a copy of the 4-byte word `published` (control.hpp), ordered after the data by
// the stream. Nothing depends on a value that the host knows, so a captured call can be replayed.
#include <fmt/format.h>

#include "runtime/call_executor.hpp"

#if SYNCOPATE_HAS_CUDA

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>

#include "runtime/copy_stream.hpp"
#include "runtime/cuda_handles.hpp"
#include "runtime/device_module.hpp"
#include "runtime/device_types.hpp"
#include "runtime/engine_turn.hpp"
#include "runtime/late_transfers.hpp"
#include "runtime/nccl.hpp"
#include "syncopate/runtime/engine_table.hpp"

namespace syncopate::runtime {
namespace {

static_assert(device::kEpoch == emit::control::epoch && device::kDeadlineMs == emit::control::deadline_ms &&
              device::kFault == emit::control::fault && device::kFaultSeen == emit::control::fault_seen &&
              device::kFaultEpoch == emit::control::fault_epoch &&
              device::kFaultWhere == emit::control::fault_where && device::kPublished == control::published &&
              device::kPeerFault == kFaultOfPeer);
static_assert(kWhereBegin == -1 && kWhereEnd == -2);  // as device.cu writes them

/// One transfer as the copy stream does it.
struct CopyStreamTransfer {
    std::size_t index = 0;                    ///< in the schedule
    std::vector<StridedCopy> copies;          ///< empty when the caller's stream does them
    std::vector<std::uint64_t> device_posts;  ///< words that get `published` from this GPU's memory
    std::vector<std::uint64_t> host_posts;    ///< words that get it from host memory
};

bool meet(const plan::Chunk& a, const plan::Chunk& b) {
    return a.tensor == b.tensor && plan::overlaps(a.region, b.region);
}

/// One collective before the kernel.
struct CollectiveBefore {
    PreparedCollective collective;
    CopyStreamTransfer posts{};  ///< of no copies
};

class CudaCalls final : public CallExecutor {
public:
    CudaCalls(CallPlan plan, std::shared_ptr<CudaContext> context, SymmetricHeap& heap)
        : plan_(std::move(plan)), context_(std::move(context)), api_(context_->api()), heap_(heap) {}

    ~CudaCalls() override { (void)synchronize(); }  // what is freed next may be in use by work in flight

    /// Makes the communicators that `schedule` needs. Collective.
    Status connect(const fuse::Schedule& schedule, const OpOptions& options) {
        Result<std::unique_ptr<Nccl>> nccl =
            Nccl::create(context_, heap_.rendezvous(), schedule, options.name, options.timeout);
        if (!nccl) return nccl.error();
        nccl_ = std::move(nccl).value();
        deadline_ms_ = options.deadline_ms;
        return Done{};
    }

    /// Sorts the transfers, makes the handles, and puts the lists and `table` into device memory.
    Status prepare(const std::vector<std::int32_t>& table, const fuse::RankSchedule& schedule,
                   const OpOptions& options) {
        const CurrentContext current(*context_);
        engine_blocks_ = static_cast<unsigned>(std::clamp(options.engine_blocks, 1, kMostEngineBlocks));
        Result<std::unique_ptr<DeviceModule>> module = DeviceModule::load(context_);
        if (!module) return module.error();
        module_ = std::move(module).value();
        Result<EngineTable> engine =
            make_engine_table(schedule, plan_.transfers, plan_.streams, plan_.control());
        if (!engine) return engine.error();
        engine_ = std::move(engine).value();
        engine_kernel_ = engine_.in_bulk() ? module_->engine_bulk : module_->engine;
        if (const std::string name = sum_engine_name(engine_); !name.empty()) {
            Result<CUfunction> sums = module_->engine_named(name);
            if (!sums) return sums.error();
            engine_kernel_ = *sums;
            sums_ = true;
            engine_threads_ = plan_.plain ? device::kFollowingThreads : device::kSumEngineThreads;
        } else if (plan_.own_words != 0) {
            return Error{fmt::format(
                "op '{}': its blocks are to signal for themselves, but it is not for the sum engine",
                options.name)};
        }
        if (plan_.plain && sums_) engine_shared_bytes_ = 0;  // nothing runs beside it
        if (!engine_.moves()) {  // it only waits, in a corner of one multiprocessor
            engine_blocks_ = 1;
            engine_shared_bytes_ = 0;
        }
        Result<std::unique_ptr<PinnedWords>> mirror = PinnedWords::create(context_, device::kMirrorWords);
        if (!mirror) return mirror.error();
        mirror_ = std::move(mirror).value();
        if (Status taken = take_late(schedule, options); !taken) return taken;
        if (Status sorted = sort_transfers(schedule, options); !sorted) return sorted;

        if (!transfers_.empty()) {
            Result<Lane> lane = Lane::create(context_);
            if (!lane) return lane.error();
            copies_ = std::move(lane).value();
        }
        if (copies_ || late_) {
            Result<std::unique_ptr<OwnedEvent>> fork = OwnedEvent::create(context_);
            if (!fork) return fork.error();
            fork_ = std::move(fork).value();
        }
        if (nccl_) {
            Result<std::unique_ptr<OwnedEvent>> collected = OwnedEvent::create(context_);
            if (!collected) return collected.error();
            collected_ = std::move(collected).value();
        }
        if (!engine_.empty()) {
            Result<std::shared_ptr<EngineTurn>> turn = EngineTurn::of(context_);
            if (!turn) return turn.error();
            turn_ = std::move(turn).value();
        }
        return upload(table);
    }

    Status begin(CudaStream stream_number, std::span<const StridedCopy* const> inputs) override {
        const CurrentContext current(*context_);
        const auto stream = reinterpret_cast<CUstream>(stream_number);
        for (const StridedCopy* input : inputs) {
            if (Status copied = enqueue_copy(api_, *input, stream); !copied) return copied;
        }
        if (plan_.plain) return Done{};  // all of it follows the kernel
        if (turn_) {
            if (Status taken = turn_->take(stream); !taken) return taken;
        }
        if (engine_arguments_.begins == 0) {
            if (Status launched = module_->launch(module_->begin, begin_arguments_, stream); !launched)
                return launched;
        }
        if (fork_ && fork_before_local_) SYNCOPATE_CUDA(api_, cuEventRecord, fork_->get(), stream);
        for (const CopyStreamTransfer& local : local_copies_) {
            for (const StridedCopy& copy : local.copies) {
                if (Status copied = enqueue_copy(api_, copy, stream); !copied) return copied;
            }
            if (Status posted = enqueue_posts(local, stream); !posted) return posted;
        }
        for (const CollectiveBefore& step : collectives_before_) {
            if (Status called = nccl_->enqueue(step.collective, stream); !called) return called;
            if (Status posted = enqueue_posts(step.posts, stream); !posted) return posted;
        }
        if (fork_ && !fork_before_local_) SYNCOPATE_CUDA(api_, cuEventRecord, fork_->get(), stream);
        if (turn_) {
            if (Status launched = launch_engine(engine_arguments_, stream); !launched) return launched;
        }
        if (!copies_) return Done{};
        const CUstream lane = copies_->stream();
        SYNCOPATE_CUDA(api_, cuStreamWaitEvent, lane, fork_->get(), 0);
        for (const CopyStreamTransfer& transfer : transfers_) {
            for (const StridedCopy& copy : transfer.copies) {
                if (Status copied = enqueue_copy(api_, copy, lane); !copied) return copied;
            }
            if (Status posted = enqueue_posts(transfer, lane); !posted) return posted;
        }
        SYNCOPATE_CUDA(api_, cuEventRecord, copies_->join(), lane);
        return Done{};
    }

    Status end(CudaStream stream_number, std::span<const StridedCopy* const> outputs, bool ran) override {
        const CurrentContext current(*context_);
        const auto stream = reinterpret_cast<CUstream>(stream_number);
        if (plan_.plain && ran) {
            if (Status followed = follow_plain_kernel(stream, outputs.empty()); !followed) return followed;
            if (outputs.empty() && engine_arguments_.ends != 0) return Done{};
        }
        if (late_ && ran) {
            const CUevent before = copies_ ? copies_->join() : nullptr;
            if (Status enqueued =
                    late_->enqueue(fork_->get(), before, stream, table_address(), end_arguments_);
                !enqueued)
                return enqueued;
            if (Status joined = late_->join(stream); !joined) return joined;
        }
        if (copies_) SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, copies_->join(), 0);
        if (turn_ && !plan_.plain) {
            if (Status passed = turn_->pass(stream); !passed) return passed;
        }
        if (collected_) {
            CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
            SYNCOPATE_CUDA(api_, cuStreamIsCapturing, stream, &capturing);
            if (capturing == CU_STREAM_CAPTURE_STATUS_NONE)
                SYNCOPATE_CUDA(api_, cuEventRecord, collected_->get(), stream);
        }
        device::BoundaryArguments arguments = end_arguments_;
        if (engine_arguments_.ends != 0) arguments.num_waits = arguments.advances = 0;  // over, and done
        if (late_ && ran && late_->ends_call()) arguments.num_posts = 0;  // and there are no waits
        const std::int32_t num_posts = arguments.num_posts;
        if (!outputs.empty()) {  // they read what the waits are for, and what the posts let others overwrite
            arguments.num_posts = 0;
            if (Status ended = launch_end(arguments, stream); !ended) return ended;
            arguments.advances = 0;
            for (const StridedCopy* output : outputs) {
                if (Status copied = enqueue_copy(api_, *output, stream); !copied) return copied;
            }
            arguments.num_posts = num_posts;
            arguments.num_waits = 0;
        }
        return launch_end(arguments, stream);
    }

    PreparedSum* sum_of(std::size_t index) override { return late_ ? late_->sum_of(index) : nullptr; }

    bool set_copies(std::size_t index, std::vector<StridedCopy> copies) override {
        for (std::vector<CopyStreamTransfer>* list : {&local_copies_, &transfers_}) {
            const auto found = std::ranges::find(*list, index, &CopyStreamTransfer::index);
            if (found == list->end() || found->copies.empty()) continue;
            found->copies = for_copy_engine(copies);
            return true;
        }
        return false;
    }

    Result<FaultRecord> read_fault() const override {
        if (Status come = await_collectives(); !come) return come.error();
        std::uint32_t words[control::num_header_words] = {};
        if (Status read = heap_.read(plan_.control(), words, sizeof(words)); !read) return read.error();
        return FaultRecord::from_words(words);
    }

    FaultRecord poll_fault() const override {
        FaultRecord record;
        if (mirror_ == nullptr) return record;
        const volatile std::uint32_t* words = mirror_->words();
        record.fault = words[device::kMirrorFault];
        if (record.fault == 0) return record;
        std::atomic_thread_fence(std::memory_order_acquire);  // the kernel wrote it last
        record.seen = words[device::kMirrorSeen];
        record.awaited = words[device::kMirrorAwaited];
        record.where = static_cast<std::int32_t>(words[device::kMirrorWhere]);
        record.epoch = words[device::kMirrorEpoch];
        return record;
    }

    Status synchronize() override {
        if (Status come = await_collectives(); !come) return come;
        return context_->synchronize();
    }

    /// The kernel needs nothing that sy_begin or the engine does before it starts, only what local copies
    /// or collectives bring.
    bool kernel_may_start_early() const override {
        return !plan_.plain && collectives_before_.empty() && (turn_ != nullptr || local_copies_.empty());
    }

    std::uint64_t table_address() const override { return tables_->address() + table_offset_; }

    Status write_table_word(std::size_t word, std::int32_t value) override {
        return heap_.write(table_address() + 4 * word, &value, 4);
    }

private:
    Status launch_engine(device::EngineArguments& arguments, CUstream stream) const {
        // Only the sum engine itself waits for the kernel before it, so only it may be launched early.
        return module_->launch(engine_kernel_, arguments, stream, engine_blocks_, engine_threads_,
                               engine_shared_bytes_, sums_ && plan_.plain && arguments.begins != 0);
    }

    /// What a call begins with and all transfers, after a kernel that is left as it is. `ends`: the call may
    /// end with it; else outputs are to be copied before the end's posts.
    Status follow_plain_kernel(CUstream stream, bool ends) {
        if (turn_) {
            if (Status taken = turn_->take(stream); !taken) return taken;
        }
        if (engine_arguments_.begins == 0) {
            if (Status begun = module_->launch(module_->begin, begin_arguments_, stream); !begun)
                return begun;
        }
        if (!turn_) return Done{};
        device::EngineArguments arguments = engine_arguments_;
        if (!ends) arguments.end.num_posts = 0;
        if (Status launched = launch_engine(arguments, stream); !launched) return launched;
        return turn_->pass(stream);
    }

    /// The library's kernels have no deadline: this gives them up when a call has not ended within twice the
    /// waits' own, which have all ended by then.
    Status await_collectives() const {
        if (!collected_ || deadline_ms_ == 0) return Done{};
        const CurrentContext current(*context_);
        const auto start = std::chrono::steady_clock::now();
        for (;;) {
            const CUresult state = api_.cuEventQuery(collected_->get());
            if (state == CUDA_SUCCESS) return Done{};
            if (state != CUDA_ERROR_NOT_READY) return api_.error("cuEventQuery", state);
            if (std::chrono::steady_clock::now() - start > 2 * std::chrono::milliseconds(deadline_ms_)) break;
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        nccl_->abort();
        return Error{
            fmt::format("a collective by nccl has not ended within {} ms: some rank has not joined it",
                        2 * deadline_ms_),
            {.rank = plan_.rank},
            ErrorClass::machine};
    }

    [[nodiscard]] bool is_late(std::size_t index) const {
        const fuse::Lane lane = plan_.streams.steps[index].lane;
        return lane == fuse::Lane::late || lane == fuse::Lane::sums;
    }

    /// Hands over the transfers that follow the kernel's progress (late_transfers.hpp).
    Status take_late(const fuse::RankSchedule& schedule, const OpOptions& options) {
        bool any = false;
        for (std::size_t i = 0; i < plan_.transfers.size(); ++i) {
            if (!is_late(i)) continue;
            any = true;
            plan_.transfers[i].copies = for_copy_engine(plan_.transfers[i].copies);
        }
        if (!any) return Done{};
        Result<std::unique_ptr<LateTransfers>> late =
            LateTransfers::create(context_, heap_, plan_, schedule, *module_,
                                  mirror_->host() + device::kMirrorPublished, nccl_.get(), options.name);
        if (!late) return late.error();
        late_ = std::move(late).value();
        return Done{};
    }

    Status enqueue_posts(const CopyStreamTransfer& transfer, CUstream stream) {
        const CUdeviceptr published = plan_.control() + 4 * control::published;
        for (const std::uint64_t word : transfer.device_posts)
            SYNCOPATE_CUDA(api_, cuMemcpyDtoDAsync, word, published, 4, stream);
        for (const std::uint64_t word : transfer.host_posts)
            SYNCOPATE_CUDA(api_, cuMemcpyHtoDAsync, word, mirror_->host() + device::kMirrorPublished, 4,
                           stream);
        return Done{};
    }

    /// Which of the posts are made from this GPU's memory, which from the host's.
    void add_posts(CopyStreamTransfer& to, const fuse::Transfer& transfer, std::size_t index,
                   const OpOptions& options) const {
        for (std::size_t p = 0; p < transfer.posts.size(); ++p) {
            const bool own = transfer.posts[p].rank == plan_.rank;
            (own && options.own_posts_from_host ? to.host_posts : to.device_posts)
                .push_back(plan_.transfers[index].post_words[p]);
        }
    }

    Status sort_transfers(const fuse::RankSchedule& schedule, const OpOptions& options) {
        for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
            if (is_late(i)) continue;
            const fuse::Transfer& transfer = schedule.transfers[i];
            using enum plan::Backend;
            if (is_by_engine(transfer)) {
                on_copy_stream_.push_back(i);
                continue;
            }
            if (plan_.streams.steps[i].lane == fuse::Lane::before) {
                add_posts(collectives_before_.emplace_back(*plan_.transfers[i].collective).posts, transfer, i,
                          options);
                continue;
            }
            if (transfer.backend != copy_engine) {
                return error_at(
                    transfer.op,
                    fmt::format(
                        "op '{}': backend {} is not in this build; on cuda transfers go by copy_engine, "
                        "tma_dedicated or ldst_dedicated",
                        options.name, plan::name_of(transfer.backend)));
            }
            CopyStreamTransfer sorted{.index = i};
            std::vector<StridedCopy> copies = for_copy_engine(plan_.transfers[i].copies);
            const bool local = transfer.src_rank == plan_.rank && transfer.dst_rank == plan_.rank;
            // A copy inside one GPU may be done by its multiprocessors, so it goes before the kernel, which
            // could keep them all; but not past an earlier transfer that it has to follow.
            if (local && transfer.waits.empty() && independent(schedule, i)) {
                CopyStreamTransfer& here = local_copies_.emplace_back(CopyStreamTransfer{.index = i});
                here.copies = std::move(copies);
                add_posts(here, transfer, i, options);
                continue;
            }
            sorted.copies = std::move(copies);
            add_posts(sorted, transfer, i, options);
            if (!sorted.copies.empty()) on_copy_stream_.push_back(i);
            if (!sorted.copies.empty() || !sorted.device_posts.empty() || !sorted.host_posts.empty()) {
                transfers_.push_back(std::move(sorted));
            }
        }
        plan_.transfers.clear();
        fork_before_local_ = collectives_before_.empty() &&
                             std::ranges::none_of(local_copies_, [&](const CopyStreamTransfer& local) {
                                 return touched(schedule, local.index);
                             });
        return Done{};
    }

    /// Whether any other transfer of this rank reads or writes what local transfer `index` writes, or writes
    /// what it reads: then it starts after it.
    [[nodiscard]] bool touched(const fuse::RankSchedule& schedule, std::size_t index) const {
        const fuse::Transfer& local = schedule.transfers[index];
        for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
            const fuse::Transfer& other = schedule.transfers[i];
            if (i == index) continue;
            if (other.src_rank == plan_.rank && meet(other.src, local.dst)) return true;
            if (other.dst_rank == plan_.rank && (meet(other.dst, local.dst) || meet(other.dst, local.src)))
                return true;
        }
        return false;
    }

    [[nodiscard]] device::WaitEntry entry_of(const fuse::Wait& wait) const {
        return {plan_.control() + static_cast<std::uint64_t>(emit::control::word_of(wait.signal)) * 4,
                static_cast<std::uint32_t>(wait.lag), wait.signal};
    }

    /// Whether local transfer `index` touches nothing that the copy stream's earlier ones write here, and
    /// writes nothing that they read here: only then may it overtake them.
    [[nodiscard]] bool independent(const fuse::RankSchedule& schedule, std::size_t index) const {
        const fuse::Transfer& local = schedule.transfers[index];
        return std::ranges::none_of(on_copy_stream_, [&](std::size_t before) {
            const fuse::Transfer& other = schedule.transfers[before];
            return (other.dst_rank == plan_.rank &&
                    (meet(other.dst, local.src) || meet(other.dst, local.dst))) ||
                   (other.src_rank == plan_.rank && meet(other.src, local.dst));
        });
    }

    /// One buffer: begin posts, begin waits, end posts, end waits, table; each from a multiple of 256 bytes.
    Status upload(const std::vector<std::int32_t>& table) {
        std::vector<std::byte> bytes;
        const auto append = [&](const auto& values) {
            const std::size_t offset = (bytes.size() + 255) / 256 * 256;
            const std::size_t size = values.size() * sizeof(values[0]);
            bytes.resize(offset + size);
            std::copy_n(reinterpret_cast<const std::byte*>(values.data()), size, bytes.data() + offset);
            return offset;
        };
        const auto entries = [&](const std::vector<fuse::Wait>& waits) {
            std::vector<device::WaitEntry> list;
            for (const fuse::Wait& wait : waits) list.push_back(entry_of(wait));
            return list;
        };
        std::vector<std::uint64_t> first_posts = plan_.begin_posts;
        first_posts.insert(first_posts.end(), plan_.made_posts.begin(), plan_.made_posts.end());
        const std::size_t begin_posts = append(first_posts);
        const std::size_t begin_waits = append(entries(plan_.begin_waits));
        const std::size_t end_posts = append(plan_.end_posts);
        const std::size_t end_waits = append(entries(plan_.end_waits));
        const std::size_t engine_ops = append(engine_.ops);
        const std::size_t engine_sources = append(engine_.sources);
        const std::size_t engine_copies = append(engine_.copies);
        const std::size_t engine_posts = append(engine_.posts);
        const std::size_t engine_waits = append(engine_.waits);
        const std::size_t engine_finished = append(std::vector<std::uint32_t>(engine_.num_counters, 0));
        const std::size_t engine_left = append(std::vector<std::uint32_t>(1, 0));
        const std::size_t engine_epochs = append(std::vector<std::uint32_t>(engine_blocks_, 1));
        table_offset_ = append(table);

        Result<std::unique_ptr<DeviceBuffer>> buffer =
            DeviceBuffer::create(context_, std::max<std::size_t>(bytes.size(), 256));
        if (!buffer) return buffer.error();
        tables_ = std::move(buffer).value();
        if (Status written = heap_.write(tables_->address(), bytes.data(), bytes.size()); !written)
            return written;

        const auto arguments = [&](std::size_t posts, std::size_t num_posts, std::size_t waits,
                                   std::size_t num_waits) {
            return device::BoundaryArguments{
                .control = reinterpret_cast<std::uint32_t*>(plan_.control()),
                .mirror = reinterpret_cast<std::uint32_t*>(mirror_->device()),
                .posts = reinterpret_cast<const std::uint64_t*>(tables_->address() + posts),
                .waits = reinterpret_cast<const device::WaitEntry*>(tables_->address() + waits),
                .first_control = plan_.first_control,
                .heap_stride = plan_.heap_stride,
                .num_posts = static_cast<std::int32_t>(num_posts),
                .num_waits = static_cast<std::int32_t>(num_waits),
                .rank = plan_.rank,
                .num_ranks = plan_.num_ranks};
        };
        begin_arguments_ = arguments(begin_posts, first_posts.size(), begin_waits, plan_.begin_waits.size());
        end_arguments_ = arguments(end_posts, plan_.end_posts.size(), end_waits, plan_.end_waits.size());
        end_arguments_.advances = plan_.plain ? 1 : 0;
        engine_arguments_ = {
            .begin = begin_arguments_,
            .ops = reinterpret_cast<const device::EngineOp*>(tables_->address() + engine_ops),
            .sources = reinterpret_cast<const device::EngineSource*>(tables_->address() + engine_sources),
            .copies = reinterpret_cast<const std::uint64_t*>(tables_->address() + engine_copies),
            .posts = reinterpret_cast<const std::uint64_t*>(tables_->address() + engine_posts),
            .waits = reinterpret_cast<const device::WaitEntry*>(tables_->address() + engine_waits),
            .finished = reinterpret_cast<std::uint32_t*>(tables_->address() + engine_finished),
            .count = static_cast<std::uint32_t>(engine_.ops.size()),
            .begins = turn_ && !fork_ && local_copies_.empty() ? 1u : 0u,
            .follows = plan_.plain ? 1u : 0u,
            .ends = plan_.plain && sums_ ? 1u : 0u,
            .end = end_arguments_,
            .left = reinterpret_cast<std::uint32_t*>(tables_->address() + engine_left),
            .own_words = plan_.own_words,
            .epochs = reinterpret_cast<std::uint32_t*>(tables_->address() + engine_epochs)};
        return Done{};
    }

    Status launch_end(device::BoundaryArguments& arguments, CUstream stream) {
        if (arguments.num_posts == 0 && arguments.num_waits == 0 && arguments.advances == 0) return Done{};
        return module_->launch(module_->end, arguments, stream);
    }

    CallPlan plan_;
    std::shared_ptr<CudaContext> context_;
    const CudaApi& api_;
    SymmetricHeap& heap_;
    std::vector<CopyStreamTransfer> local_copies_;  ///< in the caller's stream
    bool fork_before_local_ = false;
    std::vector<CopyStreamTransfer> transfers_;
    EngineTable engine_;
    std::unique_ptr<Nccl> nccl_;
    std::int64_t deadline_ms_ = 0;
    std::vector<CollectiveBefore> collectives_before_;
    std::unique_ptr<OwnedEvent> collected_;  ///< after the last call's collectives
    std::unique_ptr<LateTransfers> late_;
    CUfunction engine_kernel_ = nullptr;
    bool sums_ = false;  ///< that is the sum engine
    unsigned engine_threads_ = device::kEngineThreads;
    unsigned engine_blocks_ = 8;
    unsigned engine_shared_bytes_ = kEngineSharedBytes;
    device::EngineArguments engine_arguments_{};
    std::vector<std::size_t> on_copy_stream_;  ///< transfers whose data the copy stream or the engine moves
    std::unique_ptr<DeviceModule> module_;
    std::unique_ptr<PinnedWords> mirror_;
    std::optional<Lane> copies_;
    std::shared_ptr<EngineTurn> turn_;  ///< when there is a chunk engine
    std::unique_ptr<OwnedEvent> fork_;
    std::unique_ptr<DeviceBuffer> tables_;
    std::size_t table_offset_ = 0;
    device::BoundaryArguments begin_arguments_{};
    device::BoundaryArguments end_arguments_{};
};

}  // namespace

Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& all,
                                                      const OpOptions& options) {
    if (heap.cuda_context() == nullptr) return Error{"the heap is not on cuda", {}, ErrorClass::usage};
    auto calls = std::make_unique<CudaCalls>(std::move(plan), heap.cuda_context(), heap);
    if (Status connected = calls->connect(all, options); !connected) return connected.error();
    const fuse::RankSchedule& schedule = all.ranks[static_cast<std::size_t>(heap.rank())];
    if (Status prepared = calls->prepare(table, schedule, options); !prepared) return prepared.error();
    return std::unique_ptr<CallExecutor>(std::move(calls));
}

}  // namespace syncopate::runtime

#else

namespace syncopate::runtime {

Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan, const std::vector<std::int32_t>&,
                                                      SymmetricHeap&, const fuse::Schedule&,
                                                      const OpOptions&) {
    return Error{"this is a build without CUDA; use --device host", {}, ErrorClass::machine};
}

}  // namespace syncopate::runtime

#endif

// A call on cuda. What does not follow the kernel's progress is enqueued on two streams; what does has
// streams of its own (late_transfers.hpp).
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
// The copy engine posts as [P21] says; a captured call can be replayed [P26].
#include <fmt/format.h>

#include "runtime/call/call_executor.hpp"
#include "runtime/waiting_clock.hpp"

#if SYNCOPATE_HAS_CUDA

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/cuda/boundary/boundary.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"
#include "runtime/cuda/driver/device_module.hpp"
#include "runtime/cuda/engine/chunk_engine.hpp"
#include "runtime/cuda/engine/engine_turn.hpp"
#include "runtime/cuda/streams/copy_stream.hpp"
#include "runtime/cuda/streams/device_lists.hpp"
#include "runtime/cuda/streams/late_transfers.hpp"
#include "runtime/cuda/streams/nccl.hpp"
#include "runtime/cuda/streams/stream_mover.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

/// In which what different streams enqueue goes to the GPU; streams beyond them share.
std::size_t num_hardware_queues() {
    static const std::size_t made = [] {
        const char* const given = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        const int number = given == nullptr ? 0 : std::atoi(given);
        return number > 0 ? static_cast<std::size_t>(number) : std::size_t{8};
    }();
    return made;
}

/// Makes `made` the value of `kept`, unless it failed.
template <typename Kept, typename Made>
Status keep(Kept& kept, Result<Made> made) {
    if (!made) return made.error();
    kept = std::move(made).value();
    return Done{};
}

class CudaCalls final : public CallExecutor {
public:
    CudaCalls(CallPlan plan, std::shared_ptr<CudaContext> context, SymmetricHeap& heap)
        : plan_(std::move(plan)), context_(std::move(context)), api_(context_->api()), heap_(heap) {}

    ~CudaCalls() override { (void)synchronize(); }  // what is freed next may be in use by work in flight

    /// Makes the communicators that `schedule` needs. Collective.
    Status connect(const fuse::Schedule& schedule, const OpOptions& options) {
        deadline_ms_ = options.deadline_ms;
        return keep(nccl_, Nccl::create(context_, heap_.rendezvous(), schedule, options.name,
                                        heap_.rendezvous().timeout()));
    }

    /// Sorts the transfers, makes the handles, and puts the lists and `table` into device memory.
    Status prepare(const std::vector<std::int32_t>& table, const fuse::RankSchedule& schedule,
                   const OpOptions& options) {
        const CurrentContext current(*context_);
        SYNCOPATE_TRY(keep(module_, DeviceModule::load(context_)));
        SYNCOPATE_TRY(keep(engine_, ChunkEngine::create(*module_, plan_, schedule)));
        SYNCOPATE_TRY(keep(mirror_, PinnedWords::create(context_, device::kMirrorWords)));
        kernel_sums_ = fuse::sums_in_kernel(schedule);
        if (schedule.takes_turns) {
            SYNCOPATE_TRY(keep(turn_, EngineTurn::of(context_)));
        }
        if (kernel_sums_) {
            SYNCOPATE_TRY(tell_whom());
        }
        SYNCOPATE_TRY(take_late(schedule, options));
        SYNCOPATE_TRY(take_others(schedule, options.name));
        plan_.transfers.clear();
        SYNCOPATE_TRY(make_handles());
        return upload(table);
    }

    Status begin(CudaStream stream_number, std::span<const StridedCopy* const> inputs,
                 Capture capture) override {
        const CurrentContext current(*context_);
        const auto stream = reinterpret_cast<CUstream>(stream_number);
        SYNCOPATE_TRY(require_whole_calls());
        if (const Status noted = note_capture(stream, capture); !noted) {
            give_up(stream);
            return noted;
        }
        SYNCOPATE_TRY(enqueue_local_copies(*context_, *module_, inputs, stream));
        EngineTurn::Held held;
        if (turn_) {
            SYNCOPATE_TRY(keep(held, take_turn(stream)));
        }
        const Status begun = enqueue_before_kernel(stream);
        if (!begun) {
            give_up(stream);
            return begun;
        }
        held_ = std::move(held);
        return Done{};
    }

    Status end(CudaStream stream_number, std::span<const StridedCopy* const> outputs, bool ran) override {
        const CurrentContext current(*context_);
        const auto stream = reinterpret_cast<CUstream>(stream_number);
        const EngineTurn::Held held = std::move(held_);
        Status ended = enqueue_after_kernel(stream, outputs, ran);
        if (!ran || !ended) give_up(stream);
        return ended;
    }

    PreparedSum* sum_of(std::size_t index) override { return late_ ? late_->sum_of(index) : nullptr; }

    bool set_copies(std::size_t index, std::vector<StridedCopy> copies) override {
        for (std::vector<PreparedTransfer>* list : {&before_kernel_, &on_copy_stream_}) {
            const auto found = std::ranges::find(*list, index, &PreparedTransfer::index);
            if (found != list->end()) return found->set_copies(std::move(copies));
        }
        return false;
    }

    bool shift_sources(std::int32_t tensor, std::uint64_t distance) override {
        return engine_->shift_sources(tensor, distance);
    }

    bool shift_sums(std::uint64_t distance) override { return engine_->shift_sums(distance); }

    Result<FaultRecord> read_fault() const override {
        const Status ended = await_collectives();
        std::uint32_t words[emit::control::header_words] = {};
        SYNCOPATE_TRY(heap_.read(plan_.control(), words, sizeof(words)));
        const FaultRecord record = FaultRecord::from_words(words);
        if (!ended && !record.any()) return ended.error();  // a wait's fault says more
        return record;
    }

    std::uint32_t begun() const override {
        return mirror_ == nullptr ? 0 : std::atomic_ref(mirror_->host()[device::kMirrorBegun]).load();
    }

    bool is_faulty() const override {
        std::uint32_t word = 0;
        return poll_fault().any() ||
               !heap_.read(plan_.control() + 4 * emit::control::fault, &word, sizeof(word)) || word != 0;
    }

    void raise(std::uint32_t word) override {
        const CurrentContext current(*context_);
        for (int near = 0; near < plan_.num_ranks; ++near) {
            const std::uint64_t address =
                plan_.control_of(plan_.first_rank + near) + 4 * emit::control::fault;
            std::uint32_t seen = 0;
            // What fails here has failed before: then the peers' own deadlines tell them. A GPU's own fault that comes in
            // between is still known by its claim [P29].
            if (heap_.read(address, &seen, sizeof(seen)) && seen == 0)
                (void)heap_.write(address, &word, sizeof(word));
        }
        std::uint32_t none = 0;
        (void)std::atomic_ref(mirror_->host()[device::kMirrorFault]).compare_exchange_strong(none, word);
    }

    std::function<void()> settling() const override {
        return [context = context_] { (void)context->synchronize(); };
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
        if (Status done = context_->synchronize(); !done)
            return done;  // the watch sees to the library's kernels
        return await_collectives();
    }

    /// Gives up the library's kernels when a call that has begun, eager or replayed, has not ended within twice the
    /// waits' deadline, which have all ended by then [P25]. Nor does one end that was enqueued behind a fault, and
    /// tells of no begin. The watch's thread alone looks.
    void look() override {
        if (!nccl_ || deadline_ms_ == 0) return;
        const std::uint32_t now = begun();
        const bool open = now != ended() || poll_fault().any();
        if (!open || now != looked_at_) {
            looked_at_ = now;
            since_ = WaitingClock();
        } else if (!lost_ && since_.waited() > 2 * std::chrono::milliseconds(deadline_ms_)) {
            lost_ = true;
            nccl_->abort();
        }
    }

    /// What kernels wait for, they have been told not to [P35].
    void interrupt() override {
        if (!nccl_) return;
        lost_ = true;  // nobody looks any more
        nccl_->begin_abort();
    }
    /// All ops of a group have been interrupted by then: what captured graphs hold of NCCL is waited for once.
    Status drain() override {
        if (nccl_) nccl_->await_abort();
        return context_->synchronize();
    }

    /// Captured graphs hold the addresses of all that is written here [P36].
    Status renew(Rendezvous& rendezvous) override {
        const CurrentContext current(*context_);
        given_up_ = false;
        held_ = {};
        std::fill_n(mirror_->host(), device::kMirrorWords, 0u);
        SYNCOPATE_TRY(written_.restore(heap_, *lists_));
        if (late_) {
            SYNCOPATE_TRY(late_->renew());
        }
        if (kernel_sums_) {
            SYNCOPATE_TRY(tell_whom());
        }
        lost_ = false;
        return nccl_ ? nccl_->renew(rendezvous, rendezvous.timeout()) : Status(Done{});
    }

    bool was_captured() const override { return captured_; }

    /// The kernel needs nothing that sy_begin or the engine does before it starts, only what local copies
    /// or collectives bring.
    bool kernel_may_start_early() const override {
        const bool collects = std::ranges::any_of(before_kernel_, [](const PreparedTransfer& transfer) {
            return transfer.collective() != nullptr;
        });
        if (kernel_sums_) return true;  // it awaits all that came before by itself
        return !collects && !begins_with_kernel() && (!engine_->empty() || before_kernel_.empty());
    }

    bool programs_wait_for_each_other() const override { return kernel_sums_; }

    Status around_graph(CudaStream stream_number, const std::function<Status()>& launch) override {
        const CurrentContext current(*context_);
        const auto stream = reinterpret_cast<CUstream>(stream_number);
        SYNCOPATE_TRY(require_whole_calls());
        in_graph_ = false;
        EngineTurn::Held held;
        if (turn_) {
            SYNCOPATE_TRY(keep(held, take_turn(stream)));
        }
        SYNCOPATE_TRY(launch());
        return turn_ ? turn_->pass(stream, false) : Status(Done{});
    }

    void set_capturing(bool on) override { capturing_ = on; }

    std::size_t driver_calls() const override {
        if (nccl_) return 0;  // its library keeps more of a call than a graph has
        // A graph does not keep the order in which parts were enqueued: one that waits might stand before the kernel.
        if (late_ && num_hardware_queues() < late_->num_streams() + 2) return 0;
        // What begins, the kernel, what ends. The engine may begin instead; but with its turn such a call takes the host 13 us where
        // one without takes 6 to 8, and as a graph 7 (bench/host_time.py, two H200s).
        std::size_t calls = engine_->empty() ? 3 : 4;
        for (const auto* list : {&before_kernel_, &on_copy_stream_}) {
            for (const PreparedTransfer& transfer : *list)
                calls += (transfer.copies() ? transfer.copies()->size() : 0) + transfer.post_words.size();
        }
        return calls + (copy_stream_ ? 4 : 0) + (late_ ? 12 : 0);
    }

    std::uint64_t table_address() const override { return table_.address(*lists_); }

private:
    Result<EngineTurn::Held> take_turn(CUstream stream) {
        return turn_->take(stream, in_graph_, std::chrono::milliseconds(deadline_ms_));
    }

    /// What comes before the kernel of a call, or beside it.
    Status enqueue_before_kernel(CUstream stream) {
        SYNCOPATE_TRY(launch_begin(stream));
        if (fork_ && fork_first_) SYNCOPATE_CUDA(api_, cuEventRecord, fork_->get(), stream);
        for (const PreparedTransfer& transfer : before_kernel_) {
            SYNCOPATE_TRY(mover().enqueue(transfer, stream));
        }
        if (fork_ && !fork_first_) SYNCOPATE_CUDA(api_, cuEventRecord, fork_->get(), stream);
        if (!engine_->empty()) {
            SYNCOPATE_TRY(engine_->launch(stream));
        }
        if (!copy_stream_) return Done{};
        const CUstream lane = copy_stream_->stream();
        SYNCOPATE_CUDA(api_, cuStreamWaitEvent, lane, fork_->get(), 0);
        for (const PreparedTransfer& transfer : on_copy_stream_) {
            SYNCOPATE_TRY(mover().enqueue(transfer, lane));
        }
        SYNCOPATE_CUDA(api_, cuEventRecord, copy_stream_->join(), lane);
        return Done{};
    }

    /// What follows the kernel of a call; where it has not been launched, only what orders later calls.
    Status enqueue_after_kernel(CUstream stream, std::span<const StridedCopy* const> outputs, bool ran) {
        if (late_ && ran) {
            const CUevent before = copy_stream_ ? copy_stream_->join() : nullptr;
            SYNCOPATE_TRY(late_->enqueue(fork_->get(), before, end_arguments_));
            SYNCOPATE_TRY(late_->join(stream));
        }
        if (copy_stream_) SYNCOPATE_CUDA(api_, cuStreamWaitEvent, stream, copy_stream_->join(), 0);
        if (turn_) {
            SYNCOPATE_TRY(turn_->pass(stream, in_graph_));
        }
        if (!ran) return Done{};
        device::BoundaryArguments arguments = end_arguments_;
        if (late_ && late_->ends_call()) arguments.num_posts = 0;  // and there are no waits
        const std::int32_t num_posts = arguments.num_posts;
        if (!outputs.empty()) {  // they read what the waits are for, and what the posts let others overwrite
            arguments.num_posts = 0;
            SYNCOPATE_TRY(launch_end(arguments, stream));
            SYNCOPATE_TRY(enqueue_local_copies(*context_, *module_, outputs, stream));
            arguments.num_posts = num_posts;
            arguments.num_waits = 0;
        }
        return launch_end(arguments, stream);
    }

    [[nodiscard]] Status require_whole_calls() const {
        if (!given_up_) return Done{};
        return Error{"an earlier call was not launched whole, so there can be no other",
                     {.rank = plan_.rank},
                     ErrorClass::machine};
    }

    /// Whether the call that begins goes into a graph, now and at its end.
    Status note_capture(CUstream stream, Capture known) {
        if (known == Capture::unknown) {
            CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
            SYNCOPATE_CUDA(api_, cuStreamIsCapturing, stream, &state);
            known = state == CU_STREAM_CAPTURE_STATUS_NONE ? Capture::off : Capture::on;
        }
        in_graph_ = known == Capture::on;
        captured_ = captured_ || (in_graph_ && !capturing_);
        return Done{};
    }

    /// A call of which not all was enqueued: the words by which calls are told apart no longer agree. That is
    /// final [P32], and the other ranks are told, unless it was only captured.
    void give_up(CUstream stream) {
        CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
        if (api_.cuStreamIsCapturing(stream, &capturing) == CUDA_SUCCESS &&
            capturing != CU_STREAM_CAPTURE_STATUS_NONE)
            return;
        given_up_ = true;
        raise(emit::control::fault_of_peer | static_cast<std::uint32_t>(plan_.rank));
    }

    /// Stages of one rank that share nothing but tiles, or ranks whose kernels sum: nobody needs what
    /// sy_begin does. Of the former check() finds a fault, as there is no sy_begin to tell poll(); the latter
    /// tell it themselves.
    [[nodiscard]] bool begins_with_kernel() const {
        const bool at_boundaries = begin_arguments_.num_posts + begin_arguments_.num_waits +
                                       end_arguments_.num_posts + end_arguments_.num_waits >
                                   0;
        return (plan_.num_ranks == 1 || kernel_sums_) && !at_boundaries && engine_->empty() && !fork_ &&
               !nccl_ && before_kernel_.empty();
    }

    Status launch_begin(CUstream stream) {
        return engine_->begins_call() || begins_with_kernel()
                   ? Status(Done{})
                   : module_->launch(module_->begin, begin_arguments_, stream);
    }

    [[nodiscard]] std::uint32_t ended() const {
        return std::atomic_ref(mirror_->host()[device::kMirrorEnded]).load();
    }

    /// Until the calls of the library that have begun have ended, or look() has given them up [P25, P42].
    Status await_collectives() const {
        while (nccl_ && deadline_ms_ != 0 && !lost_ && begun() != ended())
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (!lost_) return Done{};
        return Error{fmt::format("what goes by nccl has not ended within {} ms: some rank has not joined it",
                                 2 * deadline_ms_),
                     {.rank = plan_.rank},
                     ErrorClass::machine};
    }

    /// Writes into the control block whom the kernel itself is to tell of a fault.
    Status tell_whom() {
        const std::uint64_t words[] = {mirror_->device(),
                                       plan_.control_of(plan_.first_rank) - plan_.control(),
                                       plan_.heap_stride, static_cast<std::uint64_t>(plan_.num_ranks)};
        static_assert(emit::control::first_block == emit::control::mirror + 2 &&
                      emit::control::next_block == emit::control::mirror + 4 &&
                      emit::control::num_ranks == emit::control::mirror + 6);
        return heap_.write(plan_.control() + 4 * emit::control::mirror, words, 7 * sizeof(std::uint32_t));
    }

    /// Hands over the transfers that follow the kernel's progress (late_transfers.hpp).
    Status take_late(const fuse::RankSchedule& schedule, const OpOptions& options) {
        const auto follows = [](const fuse::Transfer& transfer) { return transfer.step.follows_kernel(); };
        if (std::ranges::none_of(schedule.transfers, follows)) return Done{};
        SYNCOPATE_TAKE(std::unique_ptr<LateTransfers> late,
                       LateTransfers::create(context_, heap_, plan_, schedule, *module_, mover(), nccl_.get(),
                                             options.name));
        late_ = std::move(late);
        return Done{};
    }

    /// Prepares the transfers that do not follow the kernel, and are not the engine's: local copies and
    /// collectives for the caller's stream, in this order, early copies for the copy stream.
    Status take_others(const fuse::RankSchedule& schedule, const std::string& name) {
        std::vector<PreparedTransfer> collectives;
        for (PreparedTransfer& prepared : plan_.transfers) {
            const fuse::Transfer& transfer = schedule.transfers[prepared.index];
            switch (prepared.step.launch) {
                case fuse::Launch::local: before_kernel_.push_back(std::move(prepared)); break;
                case fuse::Launch::before: collectives.push_back(std::move(prepared)); break;
                case fuse::Launch::early:
                    if (!prepared.does_nothing()) on_copy_stream_.push_back(std::move(prepared));
                    break;
                case fuse::Launch::none:
                    if (is_by_engine(transfer) || fuse::is_kernel_sum(transfer)) break;
                    return error_at(
                        transfer.op,
                        fmt::format("op '{}': backend {} is not on cuda: there transfers go by copy_engine, "
                                    "tma_dedicated or ldst_dedicated",
                                    name, plan::name_of(transfer.backend)));
                case fuse::Launch::late:
                case fuse::Launch::sums: break;  // they follow the kernel
            }
        }
        std::ranges::move(collectives, std::back_inserter(before_kernel_));
        fork_first_ = schedule.copies_start_first;
        return Done{};
    }

    [[nodiscard]] StreamMover mover() const {
        return {api_, plan_, mirror_->host() + device::kMirrorPublished, nccl_.get()};
    }

    Status make_handles() {
        if (!on_copy_stream_.empty()) {
            SYNCOPATE_TRY(keep(copy_stream_, Lane::create(context_)));
        }
        return copy_stream_ || late_ ? keep(fork_, OwnedEvent::create(context_)) : Status(Done{});
    }

    [[nodiscard]] std::vector<device::WaitEntry> entries_of(const std::vector<fuse::Wait>& waits) const {
        std::vector<device::WaitEntry> entries;
        for (const fuse::Wait& wait : waits) {
            const auto word = static_cast<std::uint64_t>(emit::control::word_of(wait.signal));
            entries.push_back(
                {plan_.control() + 4 * word, static_cast<std::uint32_t>(wait.lag), wait.signal});
        }
        return entries;
    }

    /// What the kernels of a call read, and the table.
    Status upload(const std::vector<std::int32_t>& table) {
        /// What a call begins or ends with.
        struct Boundary {
            DeviceList<std::uint64_t> posts;
            std::size_t num_posts;
            DeviceList<device::WaitEntry> waits;
            std::size_t num_waits;
        };
        DeviceLists& lists = written_;
        const auto add = [&](const std::vector<std::uint64_t>& posts, const std::vector<fuse::Wait>& waits) {
            return Boundary{lists.add(posts), posts.size(), lists.add(entries_of(waits)), waits.size()};
        };
        const Boundary first = add(plan_.begin_posts, plan_.begin_waits);
        const Boundary last = add(plan_.end_posts, plan_.end_waits);
        engine_->add_to(lists);
        table_ = lists.add(table);
        SYNCOPATE_TRY(keep(lists_, lists.upload(context_, heap_)));

        const auto arguments = [&](const Boundary& boundary) {
            return device::BoundaryArguments{.control = reinterpret_cast<std::uint32_t*>(plan_.control()),
                                             .mirror = reinterpret_cast<std::uint32_t*>(mirror_->device()),
                                             .posts = boundary.posts.in(*lists_),
                                             .waits = boundary.waits.in(*lists_),
                                             .first_control = plan_.control_of(plan_.first_rank),
                                             .heap_stride = plan_.heap_stride,
                                             .num_posts = static_cast<std::int32_t>(boundary.num_posts),
                                             .num_waits = static_cast<std::int32_t>(boundary.num_waits),
                                             .rank = plan_.rank,
                                             .num_ranks = plan_.num_ranks,
                                             .tells_end = 0};
        };
        begin_arguments_ = arguments(first);
        end_arguments_ = arguments(last);
        if (nccl_) end_arguments_.tells_end = 1;
        const bool local = std::ranges::any_of(before_kernel_, [](const PreparedTransfer& transfer) {
            return transfer.collective() == nullptr;
        });
        engine_->place(*lists_, begin_arguments_, !fork_ && !local);
        return Done{};
    }

    Status launch_end(device::BoundaryArguments& arguments, CUstream stream) {
        if (arguments.num_posts == 0 && arguments.num_waits == 0 && arguments.tells_end == 0) return Done{};
        return module_->launch(module_->end, arguments, stream);
    }

    CallPlan plan_;
    std::shared_ptr<CudaContext> context_;
    const CudaApi& api_;
    SymmetricHeap& heap_;
    std::unique_ptr<DeviceModule> module_;
    std::unique_ptr<PinnedWords> mirror_;
    std::optional<ChunkEngine> engine_;
    bool kernel_sums_ = false;
    bool given_up_ = false;
    bool captured_ = false;                        ///< some call was, by the user
    bool capturing_ = false;                       ///< a call of ours
    bool in_graph_ = false;                        ///< the call in hand is one of these
    std::shared_ptr<EngineTurn> turn_;             ///< of a call in which ranks' kernels wait for each other
    EngineTurn::Held held_;                        ///< from a call's begin to its end
    std::vector<PreparedTransfer> before_kernel_;  ///< in the caller's stream
    std::vector<PreparedTransfer> on_copy_stream_;
    bool fork_first_ = false;  ///< the copy stream does not wait for those before the kernel
    std::optional<Lane> copy_stream_;
    std::unique_ptr<OwnedEvent> fork_;
    std::unique_ptr<LateTransfers> late_;
    std::unique_ptr<Nccl> nccl_;
    std::int64_t deadline_ms_ = 0;
    std::uint32_t looked_at_ = 0;     ///< by look(): the call that it has seen begin
    WaitingClock since_;              ///< then
    std::atomic<bool> lost_ = false;  ///< collectives were given up
    DeviceLists written_;             ///< what is in lists_ before the first call
    std::unique_ptr<DeviceBuffer> lists_;
    DeviceList<std::int32_t> table_;
    device::BoundaryArguments begin_arguments_{};
    device::BoundaryArguments end_arguments_{};
};

}  // namespace

Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& all,
                                                      const OpOptions& options) {
    if (heap.cuda_context() == nullptr) return usage_error("the heap is not on cuda");
    auto calls = std::make_unique<CudaCalls>(std::move(plan), heap.cuda_context(), heap);
    SYNCOPATE_TRY(calls->connect(all, options));
    const fuse::RankSchedule& schedule = all.ranks[at(heap.rank())];
    SYNCOPATE_TRY(calls->prepare(table, schedule, options));
    return std::unique_ptr<CallExecutor>(std::move(calls));
}

}  // namespace syncopate::runtime

#else

namespace syncopate::runtime {

Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan, const std::vector<std::int32_t>&,
                                                      SymmetricHeap&, const fuse::Schedule&,
                                                      const OpOptions&) {
    return machine_error("this is a build without CUDA: build where the CUDA toolkit is installed");
}

}  // namespace syncopate::runtime

#endif

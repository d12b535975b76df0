#include <utility>

#include "runtime/call/call_executor.hpp"
#include "runtime/host/host_channel.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/host/host_engine.hpp"
#include "syncopate/runtime/host/host_executor.hpp"
#include "syncopate/runtime/host/host_streams.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

class HostCalls final : public CallExecutor {
public:
    HostCalls(CallPlan plan, EngineTable engine, std::unique_ptr<HostChannel> channel,
              const std::vector<std::int32_t>& table, const fuse::RankSchedule& schedule,
              const OpOptions& options)
        : plan_(std::move(plan)),
          table_(table),
          control_(plan_.control()),
          channel_(std::move(channel)),
          executor_(plan_.transfers, control_, options.max_delay_us,
                    options.seed * 1'000'003 + static_cast<std::uint64_t>(plan_.rank)),
          streams_(plan_.transfers, schedule, control_, channel_.get(), options.max_delay_us,
                   options.seed * 1'000'003 + static_cast<std::uint64_t>(plan_.rank)),
          engine_(
              std::move(engine), control_,
              {.max_delay_us = options.max_delay_us,
               .seed = options.seed * 1'000'003 + static_cast<std::uint64_t>(plan_.rank),
               .counted_blocks = schedule.engine == fuse::EngineKernel::counted ? plan_.engine_blocks : 0}) {}

    // [P1, P2, P10, P11]
    Status begin(CudaStream, std::span<const StridedCopy* const> inputs, Capture) override {
        const std::uint32_t epoch = control_.load(emit::control::epoch) + 1;
        if (control_.faulty()) return failed(epoch);
        for (const StridedCopy* copy : inputs) copy_on_host(*copy);
        control_.store(emit::control::epoch, epoch);
        post(plan_.begin_posts, epoch);
        for (const fuse::Wait& wait : plan_.begin_waits) {
            if (!control_.wait(wait, epoch, emit::control::at_begin)) return failed(epoch);
        }
        control_.store(emit::control::published, epoch);
        start(epoch);
        return Done{};
    }

    // [P12, P13]
    Status end(CudaStream, std::span<const StridedCopy* const> outputs, bool ran) override {
        if (!ran) give_up();
        join();
        const std::uint32_t epoch = control_.load(emit::control::epoch);
        for (const fuse::Wait& wait : plan_.end_waits) {
            if (!control_.wait(wait, epoch, emit::control::at_end)) return failed(epoch);
        }
        if (control_.faulty()) return failed(epoch);
        for (const StridedCopy* copy : outputs) copy_on_host(*copy);
        post(plan_.end_posts, epoch);
        return Done{};
    }

    PreparedSum* sum_of(std::size_t index) override {
        PreparedSum* const sum = executor_.sum_of(index);
        return sum != nullptr ? sum : streams_.sum_of(index);
    }
    bool set_copies(std::size_t index, std::vector<StridedCopy> copies) override {
        return executor_.set_copies(index, copies) || streams_.set_copies(index, std::move(copies));
    }
    bool shift_sources(std::int32_t tensor, std::uint64_t distance) override {
        return engine_.shift_sources(tensor, distance);
    }
    std::uint32_t begun() const override { return control_.load(emit::control::epoch); }
    bool is_faulty() const override { return control_.faulty(); }
    void raise(std::uint32_t word) override {
        for (int near = 0; near < plan_.num_ranks; ++near) {
            const int rank = plan_.first_rank + near;
            // What a rank's own word says of itself, it has said itself.
            const bool of_itself = word == (emit::control::fault_of_peer | static_cast<std::uint32_t>(rank));
            if (!of_itself || rank == plan_.rank) (void)HostControl(plan_.control_of(rank)).raise_word(word);
        }
    }
    Result<FaultRecord> read_fault() const override { return control_.fault(); }
    FaultRecord poll_fault() const override { return control_.fault(); }
    Status synchronize() override {
        join();
        return Done{};
    }
    Status renew(Rendezvous& rendezvous) override {
        streams_.renew();
        engine_.renew();
        return channel_ ? channel_->renew(rendezvous) : Status(Done{});
    }
    std::uint64_t table_address() const override { return reinterpret_cast<std::uint64_t>(table_.data()); }

private:
    void start(std::uint32_t epoch) {
        executor_.start(epoch);
        streams_.start(epoch);
        engine_.start(epoch);
    }

    void join() {
        executor_.join();
        streams_.join();
        engine_.join();
    }

    static void post(const std::vector<std::uint64_t>& words, std::uint32_t epoch) {
        for (const std::uint64_t word : words) HostControl(word).store(0, epoch);
    }

    /// The kernel has not run, so what it should have made never comes.
    void give_up() {
        if (control_.faulty()) return;
        raise(emit::control::fault_of_peer | static_cast<std::uint32_t>(plan_.rank));
    }

    /// Tells the other ranks [P31]. FusedOp says what it was.
    Status failed(std::uint32_t epoch) {
        control_.leave_call(epoch);
        if (channel_) channel_->tell_fault();
        if (const FaultRecord record = control_.fault(); !record.of_peer()) {
            for (int near = 0; near < plan_.num_ranks; ++near) {
                const int rank = plan_.first_rank + near;
                if (rank != plan_.rank) HostControl(plan_.control_of(rank)).raise_peer(plan_.rank);
            }
        }
        return Error{"a signal did not come", {.rank = plan_.rank}, ErrorClass::machine};
    }

    CallPlan plan_;
    const std::vector<std::int32_t>& table_;
    HostControl control_;
    std::unique_ptr<HostChannel> channel_;  ///< null: nothing goes to other nodes
    HostExecutor executor_;
    HostStreams streams_;
    HostEngine engine_;
};

}  // namespace

Result<std::unique_ptr<CallExecutor>> make_host_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& schedules,
                                                      const OpOptions& options) {
    const fuse::RankSchedule& schedule = schedules.ranks[at(plan.rank)];
    SYNCOPATE_TAKE(EngineTable engine, make_engine_table(schedule, plan.transfers, plan.control()));
    SYNCOPATE_TAKE(
        std::unique_ptr<HostChannel> channel,
        HostChannel::create(heap.rendezvous(), schedules, options.name, HostControl(plan.control())));
    return std::unique_ptr<CallExecutor>(
        new HostCalls(std::move(plan), std::move(engine), std::move(channel), table, schedule, options));
}

}  // namespace syncopate::runtime

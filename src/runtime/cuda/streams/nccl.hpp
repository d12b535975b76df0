// NCCL for collectives that a plan leaves direct, and for what goes between nodes: the library is loaded at run time, as
// the driver is, and a communicator made for each list of ranks that has one; the channel between nodes has its own,
// on few multiprocessors. They are several: by sockets the bytes of each go through a thread of the host's. Where the channel puts
// (nccl_puts.hpp) it has one.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"
#include "runtime/cuda/streams/nccl_puts.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/call/collective.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class Nccl {
public:
    /// The ranks, and which of the channel's links it is, from 1; 0: it is for collectives.
    using Participants = std::pair<int, std::vector<std::int32_t>>;
    using Block = NcclBlock;

    /// The communicators that collectives by nccl of `schedule` and its channel need; null where it has none. Collective over
    /// all ranks of the rendezvous if some rank needs one. Fails (ErrorClass::machine) on all of them where
    /// one finds no library, naming what was looked for.
    static Result<std::unique_ptr<Nccl>> create(std::shared_ptr<CudaContext> context, Rendezvous& rendezvous,
                                                const fuse::Schedule& schedule, const std::string& name,
                                                Milliseconds timeout);
    ~Nccl();
    Nccl(const Nccl&) = delete;
    Nccl& operator=(const Nccl&) = delete;

    /// Communicators of those who are there now, in the place of the ones before, which are given up [P36]. Collective, as
    /// create.
    Status renew(Rendezvous& rendezvous, Milliseconds timeout);
    /// One call of the library [P25].
    Status enqueue(const PreparedCollective& collective, CUstream stream) const;
    /// A rank's sides of one round, which begin and end together: a group of sends and receives on each link that has a part
    /// of them, the first one on `stream`. Or puts, whose blocks are those of puts()->of(), on `stream` alone.
    Status exchange(std::span<const Block> blocks, CUstream stream) const;
    /// Of a channel that puts, else null.
    [[nodiscard]] const NcclPuts* puts() const { return puts_.get(); }
    /// Ends what is under way on this rank, which then has no result: a participant has not come. From any thread.
    void abort();
    /// The same, of several ops at a time: begins, and then waits until it is done, or has had the time for it.
    void begin_abort();
    void await_abort();

private:
    Nccl(std::shared_ptr<CudaContext> context, std::string name, std::vector<Participants> lists)
        : context_(std::move(context)), name_(std::move(name)), lists_(std::move(lists)) {}

    Status open_links();
    void part(int (*how)(void*));
    Status exchange_on(const Participants& link, std::span<const Block> blocks, CUstream stream) const;

    std::shared_ptr<CudaContext> context_;
    const NcclApi* api_ = nullptr;
    std::string name_;
    std::vector<Participants> lists_;  ///< in an order that all ranks have
    std::vector<std::int32_t> peers_;  ///< of this rank in the channel
    std::map<Participants, void*> communicators_;
    std::shared_ptr<NcclPuts>
        puts_;                  ///< of a channel that puts; it lasts as long as a communicator that knows it
    void* window_ = nullptr;    ///< of its rooms
    std::vector<Lane> beside_;  ///< of the channel's links but the first
    std::unique_ptr<OwnedEvent> begun_;  ///< a round, before its parts on these
    mutable std::timed_mutex calling_;   ///< while the library is called
    std::mutex parting_;                 ///< of what follows
    std::shared_future<void> parted_;    ///< the communicators given up last; none: nothing was
    std::chrono::steady_clock::time_point freed_by_{};
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

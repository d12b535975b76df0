// NCCL for collectives that a plan leaves direct: the library is loaded at run time, as the driver is, and a
// communicator made for each list of ranks that has one.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/call/collective.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

struct NcclApi;

class Nccl {
public:
    /// The communicators that collectives by nccl of `schedule` need; null where it has none. Collective over
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
    /// Ends what is under way on this rank, which then has no result: a participant has not come. From any thread.
    void abort();

private:
    Nccl(std::shared_ptr<CudaContext> context, std::string name, std::vector<std::vector<std::int32_t>> lists)
        : context_(std::move(context)), name_(std::move(name)), lists_(std::move(lists)) {}

    std::shared_ptr<CudaContext> context_;
    const NcclApi* api_ = nullptr;
    std::string name_;
    std::vector<std::vector<std::int32_t>> lists_;  ///< of participants, in an order that all ranks have
    std::map<std::vector<std::int32_t>, void*> communicators_;  ///< by participants
    mutable std::timed_mutex calling_;                          ///< while the library is called
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

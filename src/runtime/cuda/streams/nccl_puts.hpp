// A rank's part of a channel that puts (call/channel_way.hpp). What goes is put from a room to the peer's, each NCCL's own memory, which all
// ranks register as one window: neither the heap nor a user's tensor is one piece of memory, as NCCL wants it.
//
//   room of the sender                       room of the receiver
//     bytes | what it has published   ─put─►   bytes | the sender's word   ─► copied to its place, and posted
//
// NCCL counts one kind of signal a peer. Each rank awaits its peer's in the order in which that one gives them: a round begins with the
// signals that places are free, and a put ends with one; rounds have one order on all ranks.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/driver/cuda_handles.hpp"
#include "runtime/cuda/streams/nccl_api.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

/// What a rank sends to another one, or receives.
struct NcclBlock {
    bool sends = false;
    int peer = 0;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

class NcclPuts {
public:
    /// Of the sides that the rank has in `schedule`.
    NcclPuts(std::shared_ptr<CudaContext> context, const fuse::Schedule& schedule, int rank);
    ~NcclPuts();
    NcclPuts(const NcclPuts&) = delete;
    NcclPuts& operator=(const NcclPuts&) = delete;

    /// Of the side that is transfer `index`: its bytes in the room, and at their end, in a last word, what its sender has published.
    [[nodiscard]] const NcclBlock& of(std::size_t index) const { return sides_.at(index).block; }

    /// What the other ranks have to know of this one's: how large its room is, and where in it what each pair brings goes.
    void tell(Bytes& bytes) const;
    /// What each rank has told, from `begins` on, by rank; these become the ends.
    Status hear(const std::vector<Bytes>& all, std::vector<std::size_t>& begins);
    /// Once, of as many bytes as the rank with the most needs, since a window is as large on all. Collective; `takes_part`: on this rank.
    Status make_room(const NcclApi& api, Rendezvous& rendezvous, const std::string& label, bool takes_part,
                     Milliseconds timeout);
    /// Registers it with a communicator, of its ranks together, and signals each of `peers`, which connects them. NCCL's code: it may wait
    /// for ever. Without a window, which `window` then says, NCCL cannot put.
    int open(void* communicator, const std::vector<int>& peers, void*& window) const;
    /// A rank's sides of one round, whose blocks are those of of(), in order on `stream`. `place_of`: of a rank in the communicator.
    Status exchange(std::span<const NcclBlock> blocks, void* communicator, void* window,
                    const std::function<int(int)>& place_of, CUstream stream) const;
    /// Why NCCL cannot put, which it may show only when it is to.
    [[nodiscard]] Error cannot(const std::string& why) const;

private:
    struct Side {
        NcclBlock block;          ///< from the room's begin on until there is one
        std::int32_t pair = 0;    ///< its number
        std::uint64_t there = 0;  ///< of what is sent: its place in the peer's room
    };
    [[nodiscard]] std::uint64_t there(const NcclBlock& block) const;

    std::shared_ptr<CudaContext> context_;
    const NcclApi* api_ = nullptr;
    std::map<std::size_t, Side> sides_;  ///< by transfer
    std::uint64_t needed_ = 0;           ///< bytes of the room, on this rank
    std::uint64_t bytes_ = 0;            ///< on all
    void* room_ = nullptr;
};

/// Appends a value's bytes, and takes them again, for those of the same build.
template <typename Value>
void append(Bytes& bytes, const Value& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename Value>
[[nodiscard]] Value taken_from(const Bytes& bytes, std::size_t& where) {
    Value value{};
    bytes.copy(reinterpret_cast<char*>(&value), sizeof(value), where);
    where += sizeof(value);
    return value;
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

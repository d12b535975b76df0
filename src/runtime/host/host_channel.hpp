// Sends and receives between ranks of different nodes on device host, where a GPU would call NCCL: over TCP, a
// connection for each two ranks that have something for each other. It blocks as NCCL may: bytes leave when the
// receiver has said that it is there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/transfer.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class HostChannel {
public:
    /// A side of a round, with its index in the schedule.
    struct Side {
        const PreparedSide* side = nullptr;
        std::size_t index = 0;
    };

    /// Null where no rank of `schedule` has a side of a channel. Collective. `control`: of this rank.
    static Result<std::unique_ptr<HostChannel>> create(Rendezvous& rendezvous, const fuse::Schedule& schedule,
                                                       const std::string& name, HostControl control);
    ~HostChannel();

    /// Does a rank's sides of one round in call `epoch`: blocks until both ranks of each have done it. False
    /// after a fault, which it raises itself where its control block's deadline passes, or a peer tells of one.
    [[nodiscard]] bool exchange(std::span<const Side> round, std::uint32_t epoch);
    /// Tells the peers of a fault here. Once; with no exchange in progress on another thread.
    void tell_fault();
    /// Connects anew, after a fault of which all ranks know. Collective.
    Status renew(Rendezvous& rendezvous);

    /// What stands for a message of a pair of sides where ranks run by turns (turns.hpp), though it is no memory: `come`: its
    /// bytes; else that its receiver is there. The word's value is the call.
    [[nodiscard]] static const std::uint32_t* word_of(std::int32_t number, bool come) {
        return reinterpret_cast<const std::uint32_t*>(kFirstWord + 8 * static_cast<std::uint64_t>(number) +
                                                      (come ? 4 : 0));
    }
    [[nodiscard]] static bool is_word(std::uint64_t address) { return address >= kFirstWord; }
    /// Likewise where the bytes of a pair are while they are on their way: kMessageBytes that are no memory.
    [[nodiscard]] static std::uint64_t message_of(std::int32_t number) {
        return kFirstMessage + kMessageBytes * static_cast<std::uint64_t>(number);
    }
    static constexpr std::uint64_t kMessageBytes = 8;
    /// Likewise what stands for the frame by which `from` tells `to` of a fault.
    [[nodiscard]] static const std::uint32_t* fault_of(int from, int to) {
        return reinterpret_cast<const std::uint32_t*>(kFirstFault +
                                                      4 * (std::uint64_t{kMostRanks} * at(from) + at(to)));
    }
    /// For who records what is read and stored where (tests/explore).
    [[nodiscard]] static bool is_fault(std::uint64_t address) {
        return address >= kFirstFault && address < kFirstMessage;
    }

private:
    struct Frame;
    class Connection;
    static constexpr std::uint64_t kFirstWord = std::uint64_t{1} << 62;
    static constexpr std::uint64_t kFirstMessage = std::uint64_t{1} << 61;
    static constexpr std::uint64_t kFirstFault = std::uint64_t{1} << 60;
    static constexpr std::uint64_t kMostRanks = 1024;
    HostChannel(int rank, std::vector<int> peers, std::string name, HostControl control);
    void raise(const Side& side, std::uint32_t epoch) const;
    [[nodiscard]] bool gives_up();

    int rank_;
    std::vector<int> peers_;
    std::string name_;
    HostControl control_;
    bool told_ = false;
    std::map<int, std::unique_ptr<Connection>> connections_;  ///< by peer
    /// By pair, and whether this rank sends: bytes that it has gathered, or has yet to scatter.
    std::map<std::pair<std::int32_t, bool>, std::vector<std::byte>> gathered_;
};

}  // namespace syncopate::runtime

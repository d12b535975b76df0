#include "runtime/host/host_channel.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "runtime/host/tcp.hpp"
#include "runtime/signals/turns.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/call/channel_way.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

constexpr int kPollMs = 2;  ///< how long a fault here may go unseen

}  // namespace

/// What goes before bytes, or says something itself.
struct HostChannel::Frame {
    enum Kind : std::uint32_t { ready = 1, data = 2, fault = 3 };
    std::uint32_t kind = 0;
    std::uint32_t number = 0;  ///< of the pair of sides; of a fault the rank that tells
    std::uint32_t epoch = 0;
    std::uint32_t unused = 0;
    std::uint64_t bytes = 0;
};

/// One end of a connection: frames as they come, and bytes behind them.
class HostChannel::Connection {
public:
    explicit Connection(FileDescriptor socket) : socket_(std::move(socket)) {}

    [[nodiscard]] int fd() const { return socket_.get(); }
    [[nodiscard]] bool is_closed() const { return closed_; }
    /// Whether the peer has told of a fault, or has gone.
    [[nodiscard]] bool has_fault() const { return fault_ || closed_; }
    [[nodiscard]] bool is_out_of_step() const { return out_of_step_; }

    /// A frame: what does not go at once goes by flush().
    void put(const Frame& frame) {
        unsent_.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
        flush();
    }
    /// Whether all frames have gone.
    bool flush() {
        if (!unsent_.empty()) unsent_.erase(0, some(unsent_.data(), unsent_.size()));
        return unsent_.empty();
    }
    /// As many of the bytes behind the frames as go; how many.
    std::size_t put_some(const std::byte* from, std::size_t bytes) {
        const std::size_t put = flush() ? some(from, bytes) : 0;
        amid_ = put < bytes;
        return put;
    }
    /// Says that there is a fault here: by breaking off, where no frame can go.
    void put_fault(int rank) {
        if (!amid_) put({.kind = Frame::fault, .number = static_cast<std::uint32_t>(rank)});
        if (amid_ || !unsent_.empty()) (void)shutdown(fd(), SHUT_WR);
    }

    /// What comes next goes there, once its frame of `number` and `epoch` has come.
    void expect(std::uint32_t number, std::uint32_t epoch, std::byte* to, std::size_t bytes) {
        number_ = number;
        epoch_ = epoch;
        to_ = to;
        missing_ = bytes;
        expects_ = true;
        in_data_ = false;
    }
    [[nodiscard]] bool has_come() const { return !expects_; }
    /// Whether the peer has said that it receives.
    bool take_ready(std::uint32_t number, std::uint32_t epoch) {
        if (ready_.empty()) return false;
        out_of_step_ = out_of_step_ || ready_.front() != std::pair(number, epoch);
        ready_.pop_front();
        return true;
    }

    /// Reads what is there.
    void read() {
        while (!closed_ && !fault_ && !out_of_step_) {
            const bool body = in_data_ && missing_ > 0;
            char* const to = body ? reinterpret_cast<char*>(to_) : reinterpret_cast<char*>(&frame_) + held_;
            const ssize_t count = recv(fd(), to, body ? missing_ : sizeof(frame_) - held_, 0);
            if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) closed_ = true;
            if (count <= 0) return;
            if (body) {
                to_ += count;
                missing_ -= static_cast<std::size_t>(count);
            } else if ((held_ += static_cast<std::size_t>(count)) == sizeof(frame_)) {
                held_ = 0;
                take(frame_);
            }
            if (in_data_ && missing_ == 0) in_data_ = expects_ = false;
        }
    }

private:
    std::size_t some(const void* from, std::size_t bytes) {
        const ssize_t count = closed_ ? 0 : ::send(fd(), from, bytes, MSG_NOSIGNAL);
        if (count < 0 && errno != EAGAIN && errno != EINTR) closed_ = true;
        return count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    void take(const Frame& frame) {
        if (frame.kind == Frame::fault) fault_ = true;
        if (frame.kind == Frame::ready) ready_.emplace_back(frame.number, frame.epoch);
        if (frame.kind != Frame::data) return;
        in_data_ = expects_ && frame.number == number_ && frame.epoch == epoch_ && frame.bytes == missing_;
        out_of_step_ = !in_data_;
    }

    FileDescriptor socket_;
    std::string unsent_;    ///< of frames
    Frame frame_;           ///< that comes
    std::size_t held_ = 0;  ///< bytes of it
    std::deque<std::pair<std::uint32_t, std::uint32_t>> ready_;
    std::uint32_t number_ = 0, epoch_ = 0;
    std::byte* to_ = nullptr;
    std::size_t missing_ = 0;
    bool amid_ = false, expects_ = false, in_data_ = false, closed_ = false, fault_ = false,
         out_of_step_ = false;
};

HostChannel::HostChannel(int rank, std::vector<int> peers, std::string name, HostControl control)
    : rank_(rank), peers_(std::move(peers)), name_(std::move(name)), control_(control) {}
HostChannel::~HostChannel() = default;

Result<std::unique_ptr<HostChannel>> HostChannel::create(Rendezvous& rendezvous,
                                                         const fuse::Schedule& schedule,
                                                         const std::string& name, HostControl control) {
    bool any = schedule.part && !schedule.part->channel_ranks.empty();
    std::vector<int> peers;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        const bool own = &rank == &schedule.ranks[at(rendezvous.rank())];
        for (const fuse::Transfer& transfer : rank.transfers) {
            if (transfer.channel() == nullptr) continue;
            any = true;
            if (own) peers.push_back(transfer.channel()->sends ? transfer.dst_rank : transfer.src_rank);
        }
    }
    if (!any) return std::unique_ptr<HostChannel>();
    std::ranges::sort(peers);
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    std::unique_ptr<HostChannel> made(new HostChannel(rendezvous.rank(), std::move(peers), name, control));
    if (Status connected = made->renew(rendezvous); !connected) return connected.error();
    return made;
}

Status HostChannel::renew(Rendezvous& rendezvous) {
    connections_.clear();
    told_ = false;
    if (Turns* const turns = Turns::of_thread()) {
        for (const auto& [side, bytes] : gathered_) turns->store(word_of(side.first, side.second), 0);
        for (const int peer : peers_) turns->store(fault_of(rank_, peer), 0);
    }
    // Its two ways are one here; a name of neither is an error, as on cuda.
    const Result<ChannelWay> way = channel_way();
    SYNCOPATE_TAKE(auto made, connect_ranks(rendezvous, fmt::format("op-{}-channel", name_), peers_,
                                            way ? Status(Done{}) : way.error()));
    for (auto& [peer, socket] : made) connections_[peer] = std::make_unique<Connection>(std::move(socket));
    return Done{};
}

// [P42]
void HostChannel::tell_fault() {
    if (std::exchange(told_, true)) return;
    for (auto& [peer, connection] : connections_) {
        if (Turns* const turns = Turns::of_thread()) turns->store(fault_of(rank_, peer), 1);
        connection->put_fault(rank_);
    }
}

/// Where there is a fault here, which the peers are then told.
bool HostChannel::gives_up() {
    if (!control_.faulty()) return false;
    tell_fault();
    return true;
}

void HostChannel::raise(const Side& side, std::uint32_t epoch) const {
    control_.raise({side.side->signal, 0}, epoch,
                   emit::control::at_transfer(static_cast<std::int64_t>(side.index)));
}

namespace {

/// The bytes of a side, one after another.
class SideBytes {
public:
    /// `own`: the side's alone, for bytes that do not lie one after another.
    SideBytes(const PreparedSide& side, std::vector<std::byte>& own) : side_(side), own_(own) {
        if (side.is_contiguous()) return;
        own_.resize(side.bytes);
        if (side.sends) copy();
    }
    [[nodiscard]] std::byte* data() {
        return side_.is_contiguous() ? reinterpret_cast<std::byte*>(side_.copies.front().src) : own_.data();
    }
    /// Puts what has come where it belongs.
    void place() {
        if (!side_.is_contiguous()) copy();
    }
    /// Tells who records that the message is read, or written; and bytes at their own place with it.
    void touch(Turns& turns) const {
        const std::uint64_t place = side_.is_contiguous() ? side_.copies.front().src : 0;
        const std::uint64_t message = HostChannel::message_of(side_.number);
        if (side_.sends) {
            if (place != 0) turns.read(place, side_.bytes);
            turns.write(message, HostChannel::kMessageBytes);
        } else {
            turns.read(message, HostChannel::kMessageBytes);
            if (place != 0) turns.write(place, side_.bytes);
        }
    }

private:
    void copy() {
        for (const StridedCopy& one : side_.copies_by(reinterpret_cast<std::uint64_t>(own_.data())))
            copy_on_host(one);
    }

    const PreparedSide& side_;
    std::vector<std::byte>& own_;
};

}  // namespace

// [P40, P41]
bool HostChannel::exchange(std::span<const Side> round, std::uint32_t epoch) {
    struct Open {
        const Side& side;
        Connection& connection;
        SideBytes bytes;
        std::size_t sent = 0;
        bool ready = false;
        bool done = false;
    };
    std::vector<Open> open;
    for (const Side& side : round)
        open.push_back({side, *connections_.at(side.side->peer),
                        SideBytes(*side.side, gathered_[{side.side->number, side.side->sends}])});
    Turns* const turns = Turns::of_thread();
    for (Open& one : open) {
        const PreparedSide& side = *one.side.side;
        if (side.sends) continue;
        if (turns != nullptr) turns->store(word_of(side.number, false), epoch);
        const auto number = static_cast<std::uint32_t>(side.number);
        one.connection.expect(number, epoch, one.bytes.data(), side.bytes);
        one.connection.put({.kind = Frame::ready, .number = number, .epoch = epoch});
    }
    const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
    WaitingClock clock;
    std::vector<pollfd> polled;
    while (true) {
        polled.clear();
        bool all = true;
        for (Open& one : open) {
            if (one.done) continue;
            const PreparedSide& side = *one.side.side;
            Connection& to = one.connection;
            to.read();
            const bool flushed = to.flush();
            if (side.sends && !one.ready && to.take_ready(static_cast<std::uint32_t>(side.number), epoch)) {
                one.ready = true;
                if (gives_up()) return false;
                if (turns != nullptr) {
                    turns->awaited(word_of(side.number, false), epoch, false);
                    one.bytes.touch(*turns);
                    turns->store(word_of(side.number, true), epoch);
                }
                to.put({.kind = Frame::data,
                        .number = static_cast<std::uint32_t>(side.number),
                        .epoch = epoch,
                        .bytes = side.bytes});
            }
            if (side.sends && one.ready)
                one.sent += to.put_some(one.bytes.data() + one.sent, side.bytes - one.sent);
            one.done = side.sends ? one.ready && one.sent == side.bytes : to.has_come();
            if (one.done && !side.sends) {
                if (gives_up()) return false;
                if (turns != nullptr) {
                    turns->awaited(word_of(side.number, true), epoch, false);
                    one.bytes.touch(*turns);
                }
                one.bytes.place();
            }
            if (one.done) continue;
            if (to.has_fault()) control_.raise_peer(side.peer);
            if (to.is_out_of_step()) raise(one.side, epoch);
            all = false;
            const short events = !flushed || (side.sends && one.ready) ? POLLIN | POLLOUT : POLLIN;
            polled.push_back({to.is_closed() ? -1 : to.fd(), events, 0});
        }
        if (all) return true;
        if (deadline.count() != 0 && clock.waited() >= deadline) {
            for (const Open& one : open) {
                if (!one.done) raise(one.side, epoch);
            }
        }
        if (gives_up()) return false;
        if (turns != nullptr)
            turns->pause();
        else
            (void)poll(polled.data(), polled.size(), kPollMs);
    }
}

}  // namespace syncopate::runtime

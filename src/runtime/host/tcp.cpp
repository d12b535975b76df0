#include "runtime/host/tcp.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "runtime/heap/fields.hpp"
#include "runtime/heap/process.hpp"
#include "runtime/signals/turns.hpp"

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kToken = 32;
constexpr std::size_t kHello = kToken + 8;  ///< the token, then the rank

Error socket_error(std::string_view what) {
    return machine_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// The same on all processes that reach each other by the loop-back: of one machine, and no containers apart.
std::string network() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    std::error_code none;
    return id + '-' + std::filesystem::read_symlink("/proc/self/ns/net", none).string();
}

std::string host_name() {
    if (const char* given = std::getenv("SYNCOPATE_HOST_ADDRESS")) return given;
    char name[256] = {};
    return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

struct Listener {
    FileDescriptor socket;
    int port = 0;
};

Result<Listener> listen_here(bool loop_back, int backlog) {
    Listener made{FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), 0};
    if (!made.socket) return socket_error("socket(AF_INET)");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(loop_back ? INADDR_LOOPBACK : INADDR_ANY);
    socklen_t length = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (bind(made.socket.get(), name, length) != 0 || listen(made.socket.get(), std::max(backlog, 8)) != 0 ||
        getsockname(made.socket.get(), name, &length) != 0)
        return socket_error("listen for other nodes");
    made.port = ntohs(address.sin_port);
    return made;
}

/// Waits until `fd` is ready for `events`; false at the deadline.
bool is_ready(int fd, short events, Clock::time_point deadline) {
    while (true) {
        const auto left = std::chrono::duration_cast<Milliseconds>(deadline - now_on_host()).count();
        if (left <= 0) return false;
        pollfd entry{fd, events, 0};
        const bool by_turns = Turns::of_thread() != nullptr;
        if (poll(&entry, 1, by_turns ? 0 : static_cast<int>(std::min<long long>(left, 1'000))) > 0)
            return true;
        if (by_turns) sleep_on_host(Milliseconds{1});
    }
}

bool set_up(int fd) {
    const int on = 1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0;
}

Result<FileDescriptor> connect_to(const std::string& host, const std::string& port, const std::string& hello,
                                  Clock::time_point deadline) {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
        return machine_error(fmt::format("host {} is not known ({}): set SYNCOPATE_HOST_ADDRESS there", host,
                                         gai_strerror(code)));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> keep(found, freeaddrinfo);
    FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) return socket_error("socket(AF_INET)");
    if (connect(made.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
        return socket_error(fmt::format("connect to {}:{}", host, port));
    int failed = 0;
    socklen_t length = sizeof(failed);
    if (!is_ready(made.get(), POLLOUT, deadline) ||
        getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0 || failed != 0) {
        errno = failed != 0 ? failed : ETIMEDOUT;
        return socket_error(fmt::format("connect to {}:{}", host, port));
    }
    if (!set_up(made.get()) ||
        send(made.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != std::ssize(hello))
        return socket_error(fmt::format("send to {}:{}", host, port));
    return made;
}

/// Takes connections from `missing`, each of which shows `token`.
Status accept_all(const FileDescriptor& listener, const std::string& token, std::vector<int> missing,
                  Clock::time_point deadline, std::map<int, FileDescriptor>& to) {
    while (!missing.empty()) {
        if (!is_ready(listener.get(), POLLIN, deadline)) {
            return machine_error(fmt::format("rank {} of another node did not connect", missing.front()));
        }
        FileDescriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!client && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return socket_error("accept");
        if (!client || !set_up(client.get())) continue;
        std::string hello;
        const auto patience = std::min(deadline, now_on_host() + Milliseconds{2'000});
        while (hello.size() < kHello && is_ready(client.get(), POLLIN, patience)) {
            char bytes[kHello];
            const ssize_t count = recv(client.get(), bytes, kHello - hello.size(), 0);
            if (count <= 0) break;
            hello.append(bytes, static_cast<std::size_t>(count));
        }
        if (hello.size() != kHello || hello.compare(0, kToken, token) != 0) continue;
        int rank = -1;
        std::from_chars(hello.data() + kToken, hello.data() + kHello, rank, 16);
        if (std::erase(missing, rank) > 0) to[rank] = std::move(client);
    }
    return Done{};
}

}  // namespace

Result<std::map<int, FileDescriptor>> connect_ranks(Rendezvous& rendezvous, const std::string& label,
                                                    const std::vector<int>& peers, const Status& ready) {
    const auto deadline = now_on_host() + rendezvous.timeout();
    const int rank = rendezvous.rank();
    SYNCOPATE_TAKE(const std::vector<Bytes> networks,
                   agree(rendezvous, label + "-hosts",
                         ready ? Result<Bytes>(network() + " " + host_name()) : ready.error()));
    const auto network_of = [&](int of) { return fields_of(networks[at(of)])[0]; };
    const bool one_network =
        std::ranges::all_of(peers, [&](int peer) { return network_of(peer) == network_of(rank); });
    Result<Listener> listener = listen_here(one_network, static_cast<int>(peers.size()));
    const std::string token = random_hex(kToken / 2);
    SYNCOPATE_TAKE(const std::vector<Bytes> doors,
                   agree(rendezvous, label + "-doors",
                         listener ? Result<Bytes>(fmt::format("{} {}", listener->port, token))
                                  : Result<Bytes>(listener.error())));
    std::map<int, FileDescriptor> made;
    std::vector<int> lower;
    Status all = Done{};
    for (const int peer : peers) {
        if (peer < rank) {
            lower.push_back(peer);
            continue;
        }
        const auto door = fields_of(doors[at(peer)]);
        const bool near = network_of(peer) == network_of(rank);
        const auto host = near ? std::string("127.0.0.1") : std::string(fields_of(networks[at(peer)])[1]);
        Result<FileDescriptor> one = connect_to(host, std::string(door[0]),
                                                std::string(door[1]) + fmt::format("{:08x}", rank), deadline);
        if (!one) {
            all = one.error();
            break;
        }
        made[peer] = std::move(one).value();
    }
    if (all) all = accept_all(listener->socket, token, lower, deadline, made);
    SYNCOPATE_TAKE(const auto met,
                   agree(rendezvous, label, all ? Result<Bytes>("") : Result<Bytes>(all.error())));
    return made;
}

}  // namespace syncopate::runtime

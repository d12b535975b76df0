#include "runtime/heap/file_descriptor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

#include "runtime/heap/process.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

using Clock = std::chrono::steady_clock;

Error socket_error(const char* call) {
    return machine_error(fmt::format("{} failed: {}", call, std::strerror(errno)));
}

/// An address in the abstract namespace: it needs no file and goes with its socket.
struct Address {
    sockaddr_un name{};
    socklen_t length = 0;

    explicit Address(const std::string& text) {
        name.sun_family = AF_UNIX;
        const std::size_t size = std::min(text.size(), sizeof(name.sun_path) - 1);
        std::memcpy(name.sun_path + 1, text.data(), size);
        length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
    }
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Result<FileDescriptor> make_socket() {
    FileDescriptor socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_fd) return socket_error("socket(AF_UNIX)");
    return socket_fd;
}

/// Waits until `fd` is ready for `events`; false at the deadline.
bool ready(int fd, short events, Clock::time_point deadline) {
    for (;;) {
        const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()).count();
        pollfd entry{fd, events, 0};
        const int count = poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, 1'000)));
        if (count > 0) return true;
        if (count < 0 && errno != EINTR) return false;
        if (left <= 0) return false;
    }
}

bool same_user(int fd) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool send_descriptor(int socket_fd, int fd) {
    char byte = 'd';
    iovec data{&byte, 1};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL) == 1;
}

FileDescriptor receive_descriptor(int socket_fd) {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
    if (recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC) != 1) return FileDescriptor();
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
        return FileDescriptor();
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return FileDescriptor(fd);
}

/// Hands `own` to each of `count` ranks that shows `token`; returns early when `stop` is requested.
void serve(int listener, const FileDescriptor& own, const std::string& token, int count,
           Clock::time_point deadline, const std::stop_token& stop) {
    while (count > 0 && Clock::now() < deadline && !stop.stop_requested()) {
        if (!ready(listener, POLLIN, std::min(deadline, Clock::now() + Milliseconds{50}))) continue;
        const FileDescriptor client(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!client || !same_user(client.get())) continue;
        if (!ready(client.get(), POLLIN, std::min(deadline, Clock::now() + Milliseconds{2'000}))) continue;
        std::string shown(64, '\0');
        const ssize_t length = recv(client.get(), shown.data(), shown.size(), 0);
        if (length != static_cast<ssize_t>(token.size()) || shown.compare(0, token.size(), token) != 0)
            continue;
        if (send_descriptor(client.get(), own.get())) --count;
    }
}

Result<FileDescriptor> take(const std::string& name, const std::string& token, Clock::time_point deadline) {
    SYNCOPATE_TAKE(FileDescriptor made, make_socket());
    const FileDescriptor connection = std::move(made);
    const Address address(name);
    while (connect(connection.get(), address.get(), address.length) != 0) {
        // A full queue of connections shows as EAGAIN.
        if ((errno != EAGAIN && errno != EINTR) || Clock::now() >= deadline)
            return socket_error("connect to its socket");
        std::this_thread::sleep_for(Milliseconds{2});
    }
    if (!same_user(connection.get())) {
        return machine_error("its socket belongs to another user");
    }
    if (send(connection.get(), token.data(), token.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(token.size())) {
        return socket_error("send to its socket");
    }
    if (!ready(connection.get(), POLLIN, deadline)) return machine_error("no answer on its socket");
    FileDescriptor fd = receive_descriptor(connection.get());
    if (!fd) return machine_error("its answer held no descriptor (is the limit of open files reached?)");
    return fd;
}

Result<FileDescriptor> listen_at(const std::string& name, int backlog) {
    Result<FileDescriptor> made = make_socket();
    if (!made) return made;
    const Address address(name);
    if (bind(made->get(), address.get(), address.length) != 0) return socket_error("bind a Unix socket");
    if (listen(made->get(), std::max(backlog, 8)) != 0) return socket_error("listen on a Unix socket");
    return made;
}

}  // namespace

Result<std::vector<FileDescriptor>> exchange_descriptors(Rendezvous& rendezvous, const FileDescriptor& own,
                                                         Milliseconds timeout) {
    const auto deadline = Clock::now() + rendezvous.timeout(timeout);
    const int size = rendezvous.size();
    const std::string name = "syncopate-" + random_hex(16);
    const std::string token = random_hex(16);
    Result<FileDescriptor> listener = listen_at(name, size);
    std::jthread server;  // from now on: another rank may come before this one goes on
    if (listener) {
        server = std::jthread([&](const std::stop_token& stop) {
            serve(listener->get(), own, token, size - 1, deadline, stop);
        });
    }
    SYNCOPATE_TAKE(
        std::vector<Bytes> doors,
        agree(rendezvous, "sockets",
              listener ? Result<Bytes>(name + " " + token) : Result<Bytes>(listener.error()), timeout));

    std::vector<FileDescriptor> taken(static_cast<std::size_t>(size));
    Status got = Done{};
    for (int step = 1; step < size && got; ++step) {
        const int rank = (rendezvous.rank() + step) % size;
        const Bytes& door = doors[at(rank)];
        const std::size_t space = door.find(' ');
        Result<FileDescriptor> fd =
            take(door.substr(0, space), door.substr(std::min(space, door.size() - 1) + 1), deadline);
        if (fd) {
            taken[at(rank)] = std::move(fd).value();
        } else {
            got = Error{fmt::format("rank {} did not hand over its memory: {}", rank, fd.error().message),
                        {.rank = rendezvous.rank()},
                        ErrorClass::machine};
        }
    }
    // The listener must stay until all ranks have been served.
    SYNCOPATE_TAKE(
        std::vector<Bytes> all,
        agree(rendezvous, "descriptors", got ? Result<Bytes>("") : Result<Bytes>(got.error()), timeout));
    return taken;
}

}  // namespace syncopate::runtime

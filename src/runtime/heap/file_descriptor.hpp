// File descriptors with an owner, and how ranks hand them to each other.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

class FileDescriptor {
public:
    FileDescriptor() = default;
    explicit FileDescriptor(int fd) : fd_(fd) {}
    FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~FileDescriptor() { reset(); }

    [[nodiscard]] int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() {
        if (fd_ >= 0) close(fd_);
        fd_ = -1;
    }

private:
    int fd_ = -1;
};

/// Gives `own` to every other rank and takes theirs: the r-th of the result is rank r's (this rank's is
/// empty). Over Unix sockets in the abstract namespace with random names; both ends must run as the same
/// user. All ranks call it. Fails on every rank that lacks a descriptor after `timeout`, naming the rank that
/// did not give it.
Result<std::vector<FileDescriptor>> exchange_descriptors(Rendezvous& rendezvous, const FileDescriptor& own,
                                                         Milliseconds timeout);

}  // namespace syncopate::runtime

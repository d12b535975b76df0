// The heap on host: anonymous shared memory (memfd), mapped by every rank.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/heap/heap_memory.hpp"
#include "syncopate/runtime/heap/heap.hpp"

namespace syncopate::runtime {
namespace {

Error host_error(const char* call, std::uint64_t bytes) {
    return Error{
        fmt::format("{} of {} bytes failed: {}", call, bytes, std::strerror(errno)), {}, ErrorClass::machine};
}

/// Refuses `total` bytes, of heaps of `each` bytes, that this machine does not have. New pages are taken one
/// by one, when they are touched: asking for too many would succeed, and end with a process killed.
Status require_free(std::uint64_t total, std::uint64_t each) {
    Result<MemoryInfo> info = memory_info(Device{});
    if (!info) return info.error();
    if (total <= info->free) return Done{};
    const std::string what = total == each ? "a heap" : fmt::format("{} heaps", total / each);
    return Error{fmt::format("too little memory for {} of {} bytes on host: {} of {} bytes are free", what,
                             each, info->free, info->total),
                 {},
                 ErrorClass::machine};
}

class HostMemory final : public HeapMemory {
public:
    ~HostMemory() override {
        if (base_ != nullptr) munmap(base_, reserved_);
    }

    std::uint64_t granularity() const override { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }
    std::string identity() const override { return "host"; }

    Status create(std::uint64_t bytes) override {
        if (Status fits = require_free(bytes, bytes); !fits) return fits.error();
        own_ = FileDescriptor(memfd_create("syncopate-heap", MFD_CLOEXEC));
        if (!own_) return host_error("memfd_create", bytes);
        if (ftruncate(own_.get(), static_cast<off_t>(bytes)) != 0) return host_error("ftruncate", bytes);
        bytes_ = bytes;
        return Done{};
    }

    Result<FileDescriptor> export_own() override {
        FileDescriptor copy(dup(own_.get()));
        if (!copy) return host_error("dup", bytes_);
        return copy;
    }

    Status map(int rank, std::vector<FileDescriptor> peers, const std::vector<std::string>&) override {
        const std::uint64_t reserved = bytes_ * peers.size();
        if (Status fits = require_free(reserved, bytes_); !fits) return fits.error();
        void* range = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return host_error("mmap (reserve)", reserved);
        base_ = static_cast<std::byte*>(range);
        reserved_ = reserved;
        for (std::size_t r = 0; r < peers.size(); ++r) {
            const int fd = static_cast<int>(r) == rank ? own_.get() : peers[r].get();
            void* place = base_ + r * bytes_;
            if (mmap(place, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                return host_error(fmt::format("mmap of rank {}'s memory", r).c_str(), bytes_);
            }
        }
        return Done{};
    }

    std::uint64_t base() const override { return reinterpret_cast<std::uint64_t>(base_); }

    Status write(std::uint64_t address, const void* data, std::uint64_t bytes) override {
        std::memcpy(reinterpret_cast<void*>(address), data, bytes);
        return Done{};
    }
    Status read(std::uint64_t address, void* data, std::uint64_t bytes) const override {
        std::memcpy(data, reinterpret_cast<const void*>(address), bytes);
        return Done{};
    }
    Status zero(std::uint64_t address, std::uint64_t bytes) override {
        if (fresh_ && bytes == bytes_) {  // new pages are zero: do not touch them
            fresh_ = false;
            return Done{};
        }
        std::memset(reinterpret_cast<void*>(address), 0, bytes);
        return Done{};
    }

private:
    FileDescriptor own_;
    std::byte* base_ = nullptr;
    std::uint64_t reserved_ = 0;
    std::uint64_t bytes_ = 0;
    bool fresh_ = true;
};

}  // namespace

Result<std::unique_ptr<HeapMemory>> make_host_memory() { return std::unique_ptr<HeapMemory>(new HostMemory); }

}  // namespace syncopate::runtime

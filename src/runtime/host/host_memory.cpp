// The heap on host: anonymous shared memory (memfd), mapped by every rank.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/heap/heap_memory.hpp"
#include "runtime/signals/turns.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

Error host_error(const char* call, std::uint64_t bytes) {
    return machine_error(fmt::format("{} of {} bytes failed: {}", call, bytes, std::strerror(errno)));
}

/// Refuses `total` bytes, of heaps of `each` bytes, that this machine does not have. New pages are taken one
/// by one, when they are touched: asking for too many would succeed, and end with a process killed.
Status require_free(std::uint64_t total, std::uint64_t each) {
    SYNCOPATE_TAKE(MemoryInfo info, memory_info(Device{}));
    if (total <= info.free) return Done{};
    const std::string what = total == each ? "a heap" : fmt::format("{} heaps", total / each);
    return machine_error(fmt::format("too little memory for {} of {} bytes on host: {} of {} bytes are free",
                                     what, each, info.free, info.total));
}

class HostRange final : public AddressRange {
public:
    HostRange(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
    ~HostRange() override { munmap(base_, bytes_); }
    std::uint64_t base() const override { return reinterpret_cast<std::uint64_t>(base_); }
    [[nodiscard]] std::byte* at(std::uint64_t offset) const { return base_ + offset; }

private:
    std::byte* base_;
    std::uint64_t bytes_;
};

class HostMemory final : public HeapMemory {
public:
    std::uint64_t granularity() const override { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }
    std::string identity() const override { return "host"; }

    Status create(std::uint64_t bytes) override {
        SYNCOPATE_TRY(require_free(bytes, bytes));
        own_ = FileDescriptor(memfd_create("syncopate-heap", MFD_CLOEXEC));
        if (!own_) return host_error("memfd_create", bytes);
        if (ftruncate(own_.get(), static_cast<off_t>(bytes)) != 0) return host_error("ftruncate", bytes);
        bytes_ = bytes;
        fresh_ = true;
        return Done{};
    }

    Result<FileDescriptor> export_own() override {
        FileDescriptor copy(dup(own_.get()));
        if (!copy) return host_error("dup", bytes_);
        return copy;
    }

    Status reserve(std::size_t ranks) override {
        const std::uint64_t reserved = bytes_ * ranks;
        SYNCOPATE_TRY(require_free(reserved, bytes_));
        void* range = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return host_error("mmap (reserve)", reserved);
        range_ = std::make_shared<HostRange>(static_cast<std::byte*>(range), reserved);
        return Done{};
    }

    std::shared_ptr<AddressRange> range() const override { return range_; }
    void share(std::shared_ptr<AddressRange> range) override {
        range_ = std::static_pointer_cast<HostRange>(std::move(range));
    }

    Status map(const HeapRanks& ranks, std::vector<FileDescriptor> peers, const KeptBytes& kept) override {
        for (const auto& [offset, bytes] : kept) {
            const ssize_t written =
                pwrite(own_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
            if (written != static_cast<ssize_t>(bytes.size())) return host_error("pwrite", bytes.size());
        }
        for (std::size_t r = 0; r < peers.size(); ++r) {
            if (!ranks.maps(static_cast<int>(r))) continue;
            const int fd = static_cast<int>(r) == ranks.rank ? own_.get() : peers[r].get();
            void* place = range_->at(r * bytes_);
            if (mmap(place, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                return host_error(fmt::format("mmap of rank {}'s memory", r).c_str(), bytes_);
            }
        }
        return Done{};
    }

    Status map_alone(const HeapRanks& ranks) override {
        std::vector<FileDescriptor> same(ranks.identities.size());
        for (FileDescriptor& fd : same) fd = FileDescriptor(dup(own_.get()));
        return map(ranks, std::move(same), {});
    }

    /// Pages that nobody else sees take its place, at once: a thread that looks at a kept word finds it.
    void unmap(const HeapRanks& ranks, const KeptBytes& kept) override {
        for (std::size_t r = 0; range_ != nullptr && r < ranks.identities.size(); ++r) {
            if (!ranks.maps(static_cast<int>(r))) continue;
            void* fresh = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fresh == MAP_FAILED) continue;  // then the memory stays until the next one takes its place
            for (const auto& [offset, bytes] : kept) {
                if (static_cast<int>(r) == ranks.rank)
                    std::memcpy(static_cast<std::byte*>(fresh) + offset, bytes.data(), bytes.size());
            }
            if (mremap(fresh, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, range_->at(r * bytes_)) ==
                MAP_FAILED)
                munmap(fresh, bytes_);
        }
        own_.reset();
    }

    Status write(std::uint64_t address, const void* data, std::uint64_t bytes) override {
        if (Turns* const turns = Turns::of_thread()) turns->write(address, bytes);
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
        if (Turns* const turns = Turns::of_thread()) turns->write(address, bytes);
        std::memset(reinterpret_cast<void*>(address), 0, bytes);
        return Done{};
    }

private:
    FileDescriptor own_;
    std::shared_ptr<HostRange> range_;
    std::uint64_t bytes_ = 0;
    bool fresh_ = true;
};

}  // namespace

Result<std::unique_ptr<HeapMemory>> make_host_memory() { return std::unique_ptr<HeapMemory>(new HostMemory); }

}  // namespace syncopate::runtime

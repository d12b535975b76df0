// The heap on cuda: virtual memory management. Physical memory is made once by its rank and mapped by all;
// what each rank may touch is set per mapping. The memory goes when the last process has unmapped it.
#include <fmt/format.h>

#include "runtime/heap/heap_memory.hpp"

#if SYNCOPATE_HAS_CUDA

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

/// Its pieces, one a rank, are mapped and unmapped each by one thread.
class CudaRange final : public AddressRange {
public:
    CudaRange(std::shared_ptr<CudaContext> context, CUdeviceptr base, std::size_t ranks, std::uint64_t piece)
        : context_(std::move(context)), base_(base), piece_(piece), mapped_(ranks, 0) {}
    ~CudaRange() override {
        const CurrentContext current(*context_);
        for (std::size_t rank = 0; rank < mapped_.size(); ++rank) unmap(rank);
        context_->api().cuMemAddressFree(base_, mapped_.size() * piece_);
    }
    std::uint64_t base() const override { return base_; }
    [[nodiscard]] CUdeviceptr at(std::size_t rank) const { return base_ + rank * piece_; }
    void note_mapped(std::size_t rank) { mapped_[rank] = 1; }
    void unmap(std::size_t rank) {
        if (mapped_[rank] != 0) context_->api().cuMemUnmap(at(rank), piece_);
        mapped_[rank] = 0;
    }

private:
    std::shared_ptr<CudaContext> context_;
    CUdeviceptr base_;
    std::uint64_t piece_;
    std::vector<char> mapped_;
};

class CudaMemory final : public HeapMemory {
public:
    explicit CudaMemory(std::shared_ptr<CudaContext> retained) : api_(retained->api()) {
        context = std::move(retained);
    }

    ~CudaMemory() override {
        const CurrentContext current(*context);
        stream_.reset();
        range_.reset();
        if (created_) api_.cuMemRelease(own_);
    }

    /// What must hold of the device, and the granularity.
    Status open() {
        const CurrentContext current(*context);
        properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties_.location.id = context->ordinal();
        CUdevice device = 0;
        SYNCOPATE_CUDA(api_, cuDeviceGet, &device, context->ordinal());
        int supported = 0;
        SYNCOPATE_CUDA(api_, cuDeviceGetAttribute, &supported,
                       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
        if (supported == 0) {
            return machine_error(fmt::format("cuda:{} ({}) cannot share memory by file descriptor",
                                             context->ordinal(), context->name()));
        }
        std::size_t granularity = 0;
        SYNCOPATE_CUDA(api_, cuMemGetAllocationGranularity, &granularity, &properties_,
                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        granularity_ = granularity;
        SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> stream, OwnedStream::create(context, false));
        stream_ = std::move(stream);
        return Done{};
    }

    std::uint64_t granularity() const override { return granularity_; }
    std::string identity() const override { return context->uuid(); }

    Status create(std::uint64_t bytes) override {
        const CurrentContext current(*context);
        SYNCOPATE_TAKE(MemoryInfo info, context->memory());
        bytes_ = bytes;
        const CUresult code = api_.cuMemCreate(&own_, bytes, &properties_, 0);
        if (code == CUDA_ERROR_OUT_OF_MEMORY) {
            return machine_error(
                fmt::format("too little memory for a heap of {} bytes on cuda:{}: {} of {} bytes "
                            "are free (cuMemCreate: "
                            "CUDA_ERROR_OUT_OF_MEMORY)",
                            bytes, context->ordinal(), info.free, info.total));
        }
        if (code != CUDA_SUCCESS) return api_.error("cuMemCreate", code, fmt::format("{} bytes", bytes));
        created_ = true;
        return Done{};
    }

    Result<FileDescriptor> export_own() override {
        const CurrentContext current(*context);
        int fd = -1;
        SYNCOPATE_CUDA(api_, cuMemExportToShareableHandle, &fd, own_,
                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        return FileDescriptor(fd);
    }

    Status reserve(std::size_t ranks) override {
        const CurrentContext current(*context);
        CUdeviceptr base = 0;
        // Aligned as its physical pages are, so that large pages can be used throughout.
        SYNCOPATE_CUDA(api_, cuMemAddressReserve, &base, ranks * bytes_, granularity_, 0, 0);
        range_ = std::make_shared<CudaRange>(context, base, ranks, bytes_);
        return Done{};
    }

    std::shared_ptr<AddressRange> range() const override { return range_; }
    void share(std::shared_ptr<AddressRange> range) override {
        range_ = std::static_pointer_cast<CudaRange>(std::move(range));
    }

    Status map(const HeapRanks& ranks, std::vector<FileDescriptor> peers, const KeptBytes&) override {
        const CurrentContext current(*context);
        for (std::size_t r = 0; r < peers.size(); ++r) {
            const int rank = static_cast<int>(r);
            if (rank == ranks.rank) {
                SYNCOPATE_TRY(map_one(r, own_, "its own memory", ranks.ordinals));
                continue;
            }
            SYNCOPATE_TRY(check_peer(ranks.identities[r], rank));
            if (!ranks.maps(rank)) continue;
            const std::string whose = fmt::format("rank {}'s memory (GPU {}) on cuda:{}", r,
                                                  ranks.identities[r], context->ordinal());
            CUmemGenericAllocationHandle handle = 0;
            void* fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(peers[r].get()));
            if (const CUresult code = api_.cuMemImportFromShareableHandle(
                    &handle, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
                code != CUDA_SUCCESS) {
                return api_.error("cuMemImportFromShareableHandle", code,
                                  whose + "; every process must see every GPU (CUDA_VISIBLE_DEVICES)");
            }
            peers[r].reset();
            const Status done = map_one(r, handle, whose, ranks.ordinals);
            api_.cuMemRelease(handle);  // the mapping keeps the memory
            if (!done) return done;
        }
        return Done{};
    }

    Status map_alone(const HeapRanks& ranks) override {
        const CurrentContext current(*context);
        for (std::size_t r = 0; r < ranks.identities.size(); ++r) {
            if (!ranks.maps(static_cast<int>(r))) continue;
            SYNCOPATE_TRY(map_one(r, own_, "its own memory", ranks.ordinals));
        }
        return Done{};
    }

    void unmap(const HeapRanks& ranks, const KeptBytes&) override {
        const CurrentContext current(*context);
        for (std::size_t r = 0; range_ != nullptr && r < ranks.identities.size(); ++r) {
            if (ranks.maps(static_cast<int>(r))) range_->unmap(r);
        }
        if (created_) api_.cuMemRelease(own_);
        created_ = false;
    }

    Status synchronize() const override { return context->synchronize(); }

    // On a stream of its own: the default stream would wait for kernels that may be waiting for this very
    // write.
    Status write(std::uint64_t address, const void* data, std::uint64_t bytes) override {
        const CurrentContext current(*context);
        if (bytes == 0) return Done{};
        SYNCOPATE_CUDA(api_, cuMemcpyHtoDAsync, address, data, bytes, stream_->get());
        SYNCOPATE_CUDA(api_, cuStreamSynchronize, stream_->get());
        return Done{};
    }
    Status read(std::uint64_t address, void* data, std::uint64_t bytes) const override {
        const CurrentContext current(*context);
        if (bytes == 0) return Done{};
        SYNCOPATE_CUDA(api_, cuMemcpyDtoHAsync, data, address, bytes, stream_->get());
        SYNCOPATE_CUDA(api_, cuStreamSynchronize, stream_->get());
        return Done{};
    }
    Status zero(std::uint64_t address, std::uint64_t bytes) override {
        const CurrentContext current(*context);
        if (bytes == 0) return Done{};
        SYNCOPATE_CUDA(api_, cuMemsetD8Async, address, 0, bytes, stream_->get());
        SYNCOPATE_CUDA(api_, cuStreamSynchronize, stream_->get());
        return Done{};
    }

private:
    Status map_one(std::size_t r, CUmemGenericAllocationHandle handle, const std::string& whose,
                   const std::vector<int>& ordinals) {
        const CUdeviceptr place = range_->at(r);
        if (const CUresult code = api_.cuMemMap(place, bytes_, 0, handle, 0); code != CUDA_SUCCESS) {
            return api_.error("cuMemMap", code, whose);
        }
        range_->note_mapped(r);
        std::vector<CUmemAccessDesc> access(ordinals.size());
        for (std::size_t i = 0; i < ordinals.size(); ++i) {
            access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            access[i].location.id = ordinals[i];
            access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        }
        if (const CUresult code = api_.cuMemSetAccess(place, bytes_, access.data(), access.size());
            code != CUDA_SUCCESS) {
            return api_.error("cuMemSetAccess", code,
                              whose + "; is there peer-to-peer access between the two?");
        }
        return Done{};
    }

    /// Whether this GPU reaches the one named `uuid`. Of a GPU that this process does not see, nothing is
    /// known here.
    Status check_peer(const std::string& uuid, int rank) {
        if (uuid == context->uuid()) return Done{};
        int count = 0;
        SYNCOPATE_CUDA(api_, cuDeviceGetCount, &count);
        CUdevice mine = 0;
        SYNCOPATE_CUDA(api_, cuDeviceGet, &mine, context->ordinal());
        for (int ordinal = 0; ordinal < count; ++ordinal) {
            CUdevice device = 0;
            CUuuid id{};
            SYNCOPATE_CUDA(api_, cuDeviceGet, &device, ordinal);
            SYNCOPATE_CUDA(api_, cuDeviceGetUuid, &id, device);
            std::string text;
            for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
            if (text != uuid) continue;
            int reachable = 0;
            SYNCOPATE_CUDA(api_, cuDeviceCanAccessPeer, &reachable, mine, device);
            if (reachable != 0) return Done{};
            return machine_error(fmt::format("cuda:{} has no peer-to-peer access to cuda:{} (rank {}'s)",
                                             context->ordinal(), ordinal, rank));
        }
        return Done{};
    }

    const CudaApi& api_;
    CUmemAllocationProp properties_{};
    std::uint64_t granularity_ = 0;
    std::uint64_t bytes_ = 0;
    CUmemGenericAllocationHandle own_ = 0;
    bool created_ = false;
    std::shared_ptr<CudaRange> range_;
    std::unique_ptr<OwnedStream> stream_;
};

}  // namespace

Result<std::unique_ptr<HeapMemory>> make_cuda_memory(int ordinal) {
    SYNCOPATE_TAKE(std::shared_ptr<CudaContext> context, CudaContext::retain(ordinal));
    auto memory = std::make_unique<CudaMemory>(std::move(context));
    SYNCOPATE_TRY(memory->open());
    return std::unique_ptr<HeapMemory>(std::move(memory));
}

}  // namespace syncopate::runtime

#else

namespace syncopate::runtime {

Result<std::unique_ptr<HeapMemory>> make_cuda_memory(int ordinal) {
    Result<std::shared_ptr<CudaContext>> context = CudaContext::retain(ordinal);  // says why there is none
    return context.error();
}

}  // namespace syncopate::runtime

#endif

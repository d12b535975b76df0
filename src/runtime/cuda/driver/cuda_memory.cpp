// The heap on cuda: virtual memory management. Physical memory is made once by its rank and mapped by all;
// what each rank may touch is set per mapping. The memory goes when the last process has unmapped it.
#include <fmt/format.h>

#include "runtime/heap/heap_memory.hpp"

#if SYNCOPATE_HAS_CUDA

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {
namespace {

class CudaMemory final : public HeapMemory {
public:
    explicit CudaMemory(std::shared_ptr<CudaContext> retained) : api_(retained->api()) {
        context = std::move(retained);
    }

    ~CudaMemory() override {
        const CurrentContext current(*context);
        stream_.reset();
        for (std::size_t r = 0; r < mapped_.size(); ++r) {
            if (mapped_[r]) api_.cuMemUnmap(base_ + r * bytes_, bytes_);
        }
        if (base_ != 0) api_.cuMemAddressFree(base_, reserved_);
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
            return Error{fmt::format("cuda:{} ({}) cannot share memory by file descriptor",
                                     context->ordinal(), context->name()),
                         {},
                         ErrorClass::machine};
        }
        std::size_t granularity = 0;
        SYNCOPATE_CUDA(api_, cuMemGetAllocationGranularity, &granularity, &properties_,
                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        granularity_ = granularity;
        Result<std::unique_ptr<OwnedStream>> stream = OwnedStream::create(context, false);
        if (!stream) return stream.error();
        stream_ = std::move(stream).value();
        return Done{};
    }

    std::uint64_t granularity() const override { return granularity_; }
    std::string identity() const override { return context->uuid(); }

    Status create(std::uint64_t bytes) override {
        const CurrentContext current(*context);
        Result<MemoryInfo> info = context->memory();
        if (!info) return info.error();
        bytes_ = bytes;
        const CUresult code = api_.cuMemCreate(&own_, bytes, &properties_, 0);
        if (code == CUDA_ERROR_OUT_OF_MEMORY) {
            return Error{fmt::format("too little memory for a heap of {} bytes on cuda:{}: {} of {} bytes "
                                     "are free (cuMemCreate: "
                                     "CUDA_ERROR_OUT_OF_MEMORY)",
                                     bytes, context->ordinal(), info->free, info->total),
                         {},
                         ErrorClass::machine};
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

    Status map(int rank, std::vector<FileDescriptor> peers,
               const std::vector<std::string>& identities) override {
        const CurrentContext current(*context);
        reserved_ = bytes_ * peers.size();
        CUdeviceptr base = 0;
        // Aligned as its physical pages are, so that large pages can be used throughout.
        SYNCOPATE_CUDA(api_, cuMemAddressReserve, &base, reserved_, granularity_, 0, 0);
        base_ = base;
        mapped_.assign(peers.size(), false);
        for (std::size_t r = 0; r < peers.size(); ++r) {
            if (static_cast<int>(r) == rank) {
                if (Status done = map_one(r, own_, "its own memory"); !done) return done;
                continue;
            }
            const std::string whose =
                fmt::format("rank {}'s memory (GPU {}) on cuda:{}", r, identities[r], context->ordinal());
            if (Status reachable = check_peer(identities[r], static_cast<int>(r)); !reachable)
                return reachable;
            CUmemGenericAllocationHandle handle = 0;
            void* fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(peers[r].get()));
            if (const CUresult code = api_.cuMemImportFromShareableHandle(
                    &handle, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
                code != CUDA_SUCCESS) {
                return api_.error("cuMemImportFromShareableHandle", code,
                                  whose + "; every process must see every GPU (CUDA_VISIBLE_DEVICES)");
            }
            peers[r].reset();
            const Status done = map_one(r, handle, whose);
            api_.cuMemRelease(handle);  // the mapping keeps the memory
            if (!done) return done;
        }
        return Done{};
    }

    std::uint64_t base() const override { return base_; }

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
    Status map_one(std::size_t r, CUmemGenericAllocationHandle handle, const std::string& whose) {
        const CUdeviceptr place = base_ + r * bytes_;
        if (const CUresult code = api_.cuMemMap(place, bytes_, 0, handle, 0); code != CUDA_SUCCESS) {
            return api_.error("cuMemMap", code, whose);
        }
        mapped_[r] = true;
        CUmemAccessDesc access{};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = context->ordinal();
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (const CUresult code = api_.cuMemSetAccess(place, bytes_, &access, 1); code != CUDA_SUCCESS) {
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
            return Error{fmt::format("cuda:{} has no peer-to-peer access to cuda:{} (rank {}'s)",
                                     context->ordinal(), ordinal, rank),
                         {},
                         ErrorClass::machine};
        }
        return Done{};
    }

    const CudaApi& api_;
    CUmemAllocationProp properties_{};
    std::uint64_t granularity_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint64_t reserved_ = 0;
    CUdeviceptr base_ = 0;
    CUmemGenericAllocationHandle own_ = 0;
    bool created_ = false;
    std::vector<bool> mapped_;
    std::unique_ptr<OwnedStream> stream_;
};

}  // namespace

Result<std::unique_ptr<HeapMemory>> make_cuda_memory(int ordinal) {
    Result<std::shared_ptr<CudaContext>> context = CudaContext::retain(ordinal);
    if (!context) return context.error();
    auto memory = std::make_unique<CudaMemory>(std::move(context).value());
    if (Status opened = memory->open(); !opened) return opened.error();
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

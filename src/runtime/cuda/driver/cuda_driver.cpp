#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/try.hpp"

#include <fmt/format.h>

#if SYNCOPATE_HAS_CUDA

#include <dlfcn.h>

#include <array>

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {
namespace {

Error no_driver(const std::string& why) { return machine_error(fmt::format("no NVIDIA driver: {}", why)); }

Result<CudaApi> load_api() {
    // Never closed: the driver does not stand being unloaded.
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        return no_driver(why != nullptr ? why : "libcuda.so.1 cannot be opened");
    }
    const auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    if (get == nullptr) return no_driver("it is older than CUDA 12");

    CudaApi api;
    std::string missing;
    const auto load = [&](const char* name, int version, auto& function, bool needed) {
        void* address = nullptr;
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
        const CUresult code = get(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
        if (code == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS && address != nullptr) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        } else if (needed) {
            missing += fmt::format("{}{} of CUDA {}.{}", missing.empty() ? "" : ", ", name, version / 1000,
                                   version % 1000 / 10);
        }
    };
#define SYNCOPATE_LOAD(name, version) load(#name, version, api.name, true);
#define SYNCOPATE_LOAD_OPTIONAL(name, version) load(#name, version, api.name, false);
    SYNCOPATE_CUDA_FUNCTIONS(SYNCOPATE_LOAD)
    SYNCOPATE_CUDA_OPTIONAL_FUNCTIONS(SYNCOPATE_LOAD_OPTIONAL)
#undef SYNCOPATE_LOAD
#undef SYNCOPATE_LOAD_OPTIONAL
    if (!missing.empty()) return no_driver(fmt::format("the one installed lacks {}", missing));
    if (const CUresult code = api.cuInit(0); code != CUDA_SUCCESS)
        return no_driver(api.error("cuInit", code).message);
    return api;
}

}  // namespace

Error CudaApi::error(std::string_view call, CUresult code, std::string_view about) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown CUDA error";
    if (cuGetErrorString(code, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
    return machine_error(fmt::format("{} failed: {} ({}, {}){}{}", call, name, static_cast<int>(code), text,
                                     about.empty() ? "" : ": ", about));
}

Result<const CudaApi*> cuda_api() {
    static const Result<CudaApi> api = load_api();
    if (!api) return api.error();
    return &api.value();
}

Result<int> cuda_device_count() {
    SYNCOPATE_TAKE(const CudaApi* api, cuda_api());
    int count = 0;
    SYNCOPATE_CUDA(*api, cuDeviceGetCount, &count);
    return count;
}

Result<std::string> cuda_device_name(int ordinal) {
    SYNCOPATE_TAKE(const CudaApi* loaded, cuda_api());
    const CudaApi& api = *loaded;
    SYNCOPATE_TAKE(int count, cuda_device_count());
    if (ordinal < 0 || ordinal >= count) {
        return machine_error(
            fmt::format("there is no cuda:{}: this process sees {} GPUs (CUDA_VISIBLE_DEVICES limits them)",
                        ordinal, count));
    }
    CUdevice device = 0;
    SYNCOPATE_CUDA(api, cuDeviceGet, &device, ordinal);
    std::array<char, 256> name{};
    SYNCOPATE_CUDA(api, cuDeviceGetName, name.data(), static_cast<int>(name.size()) - 1, device);
    return std::string(name.data());
}

Result<std::shared_ptr<CudaContext>> CudaContext::retain(int ordinal) {
    SYNCOPATE_TAKE(std::string name, cuda_device_name(ordinal));
    const CudaApi& api = **cuda_api();
    CUdevice device = 0;
    SYNCOPATE_CUDA(api, cuDeviceGet, &device, ordinal);
    CUuuid uuid{};
    SYNCOPATE_CUDA(api, cuDeviceGetUuid, &uuid, device);
    int multiprocessors = 0;
    SYNCOPATE_CUDA(api, cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                   device);
    CUcontext context = nullptr;
    SYNCOPATE_CUDA(api, cuDevicePrimaryCtxRetain, &context, device);

    std::shared_ptr<CudaContext> made(new CudaContext);
    made->api_ = &api;
    made->handle_ = context;
    made->ordinal_ = ordinal;
    made->device_ = device;
    made->multiprocessors_ = multiprocessors;
    made->name_ = std::move(name);
    for (const char byte : uuid.bytes) made->uuid_ += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return made;
}

Result<std::shared_ptr<CudaContext>> CudaContext::current() {
    SYNCOPATE_TAKE(const CudaApi* api, cuda_api());
    CUcontext context = nullptr;
    CUdevice device = 0;  // a device handle is the ordinal
    SYNCOPATE_CUDA(*api, cuCtxGetCurrent, &context);
    if (context != nullptr) SYNCOPATE_CUDA(*api, cuCtxGetDevice, &device);
    return retain(device);
}

CudaContext::~CudaContext() {
    if (handle_ != nullptr) api_->cuDevicePrimaryCtxRelease(device_);
}

Result<MemoryInfo> CudaContext::memory() const {
    const CurrentContext current(*this);
    std::size_t free = 0;
    std::size_t total = 0;
    SYNCOPATE_CUDA(*api_, cuMemGetInfo, &free, &total);
    return MemoryInfo{free, total};
}

Status CudaContext::synchronize() const {
    const CurrentContext current(*this);
    SYNCOPATE_CUDA(*api_, cuCtxSynchronize);
    return Done{};
}

Result<std::unique_ptr<OwnedStream>> OwnedStream::create(std::shared_ptr<CudaContext> context,
                                                         bool high_priority) {
    const CudaApi& api = context->api();
    const CurrentContext current(*context);
    std::unique_ptr<OwnedStream> made(new OwnedStream(context));
    int least = 0;
    int greatest = 0;
    SYNCOPATE_CUDA(api, cuCtxGetStreamPriorityRange, &least, &greatest);
    SYNCOPATE_CUDA(api, cuStreamCreateWithPriority, &made->stream_, CU_STREAM_NON_BLOCKING,
                   high_priority ? greatest : least);
    return made;
}

OwnedStream::~OwnedStream() {
    const CurrentContext current(*context_);
    if (stream_ != nullptr) context_->api().cuStreamDestroy(stream_);
}

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::create(std::shared_ptr<CudaContext> context,
                                                           std::size_t bytes) {
    const CudaApi& api = context->api();
    const CurrentContext current(*context);
    std::unique_ptr<DeviceBuffer> made(new DeviceBuffer(context));
    made->bytes_ = bytes;
    if (const CUresult code = api.cuMemAlloc(&made->address_, bytes); code != CUDA_SUCCESS) {
        made->address_ = 0;
        return api.error("cuMemAlloc", code, fmt::format("{} bytes on cuda:{}", bytes, context->ordinal()));
    }
    return made;
}

DeviceBuffer::~DeviceBuffer() {
    const CurrentContext current(*context_);
    if (address_ != 0) context_->api().cuMemFree(address_);
}

}  // namespace syncopate::runtime

#else  // no CUDA in this build

namespace syncopate::runtime {
namespace {
Error not_built() {
    return machine_error("this is a build without CUDA: build where the CUDA toolkit is installed");
}
}  // namespace

Result<int> cuda_device_count() { return not_built(); }
Result<std::shared_ptr<CudaContext>> CudaContext::retain(int) { return not_built(); }
Result<std::shared_ptr<CudaContext>> CudaContext::current() { return not_built(); }
CudaContext::~CudaContext() = default;
Result<MemoryInfo> CudaContext::memory() const { return not_built(); }
Status CudaContext::synchronize() const { return not_built(); }

}  // namespace syncopate::runtime

#endif

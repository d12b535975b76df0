#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/try.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#if SYNCOPATE_HAS_CUDA

#include <cstring>
#include <utility>

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {

/// Buffers only grow; a smaller one stays until the end, since work in flight or a captured graph may name
/// it.
struct CudaKernel::Scratch {
    std::vector<std::unique_ptr<DeviceBuffer>> global;
    std::vector<std::unique_ptr<DeviceBuffer>> profile;

    static Status grow(std::vector<std::unique_ptr<DeviceBuffer>>& buffers,
                       const std::shared_ptr<CudaContext>& context, std::uint64_t bytes,
                       std::int64_t alignment) {
        if (bytes == 0 || (!buffers.empty() && buffers.back()->bytes() >= bytes)) return Done{};
        if (alignment > 256) {
            return machine_error(
                fmt::format("the kernel wants scratch aligned to {} bytes; 256 is given", alignment));
        }
        Result<std::unique_ptr<DeviceBuffer>> buffer = DeviceBuffer::create(context, bytes);
        if (!buffer) {
            Error error = buffer.error();
            error.message += "; before a graph is captured, launch once or call prepare()";
            return error;
        }
        buffers.push_back(std::move(buffer).value());
        return Done{};
    }
    static CUdeviceptr address(const std::vector<std::unique_ptr<DeviceBuffer>>& buffers) {
        return buffers.empty() ? 0 : buffers.back()->address();
    }
};

Result<TensorMap> make_tensor_map(const TensorMapRequest& request) {
    SYNCOPATE_TAKE(const CudaApi* api, cuda_api());
    const std::size_t rank = request.shape.size();
    if (rank < 1 || rank > 5 || request.strides.size() != rank || request.block.size() != rank) {
        return usage_error(
            fmt::format("a tensor map of {} axes, {} strides and a block of {} axes makes no sense", rank,
                        request.strides.size(), request.block.size()));
    }
    if (request.strides.back() != 1) {
        return Error{fmt::format("the last stride of a tensor map is 1, not {}", request.strides.back())};
    }
    // The driver counts axes from the innermost.
    cuuint64_t shape[5] = {};
    cuuint64_t strides[5] = {};  // bytes, of axes 1 and up
    cuuint32_t block[5] = {};
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    for (std::size_t i = 0; i < rank; ++i) {
        const std::int64_t extent = request.shape[i] * (i + 1 == rank && request.fp4_padded ? 2 : 1);
        shape[rank - 1 - i] = static_cast<cuuint64_t>(extent);
        block[rank - 1 - i] = static_cast<cuuint32_t>(request.block[i]);
        if (i + 1 < rank) {
            strides[rank - 2 - i] =
                static_cast<cuuint64_t>(request.strides[i]) * static_cast<cuuint64_t>(request.element_bytes);
        }
    }
    strides[rank - 1] =
        shape[rank - 1] * (rank == 1 ? static_cast<cuuint64_t>(request.element_bytes) : strides[rank - 2]);
    // TMA_DTYPE_DEVICE_TO_HOST in Triton's driver.py.
    int type = request.element_type;
    if (type == 8)
        type = 10;
    else if (type == 9)
        type = 8;
    else if (type == 10)
        type = 9;

    CUtensorMap made{};
    const CUresult code = api->cuTensorMapEncodeTiled(
        &made, static_cast<CUtensorMapDataType>(type), static_cast<cuuint32_t>(rank),
        reinterpret_cast<void*>(request.address), shape, strides, block, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        static_cast<CUtensorMapSwizzle>(request.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        request.pad_with_nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                             : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) {
        return api->error(
            "cuTensorMapEncodeTiled", code,
            fmt::format("address {:#x}, shape [{}], strides [{}] elements, block [{}], {} bytes an element, "
                        "type {}, swizzle {}",
                        request.address, fmt::join(request.shape, ", "), fmt::join(request.strides, ", "),
                        fmt::join(request.block, ", "), request.element_bytes, request.element_type,
                        request.swizzle));
    }
    TensorMap map;
    static_assert(sizeof(map.words) == sizeof(made));
    std::memcpy(map.words.data(), &made, sizeof(made));
    return map;
}

CudaKernel::CudaKernel() : scratch_(std::make_unique<Scratch>()) {}

CudaKernel::~CudaKernel() {
    if (context_ == nullptr) return;
    const CurrentContext current(*context_);
    if (module_ != nullptr) context_->api().cuModuleUnload(static_cast<CUmodule>(module_));
}

Result<std::unique_ptr<CudaKernel>> CudaKernel::load(std::shared_ptr<CudaContext> context,
                                                     std::span<const std::byte> image,
                                                     const std::string& name, const Options& options) {
    if (context == nullptr || image.empty() || options.num_warps < 1 || options.num_ctas < 1) {
        return usage_error("a kernel needs a context, an image, and at least one warp and program");
    }
    const CudaApi& api = context->api();
    const CurrentContext current(*context);
    std::unique_ptr<CudaKernel> made(new CudaKernel);
    made->context_ = context;
    made->options_ = options;
    CUmodule module = nullptr;
    SYNCOPATE_CUDA(api, cuModuleLoadData, &module, image.data());
    made->module_ = module;
    CUfunction function = nullptr;
    if (const CUresult code = api.cuModuleGetFunction(&function, module, name.c_str());
        code != CUDA_SUCCESS) {
        return api.error("cuModuleGetFunction", code, name);
    }
    made->function_ = function;
    // Lazy loading would load it at its first launch, which can wait for kernels that wait for this one.
    if (api.cuFuncLoad != nullptr) SYNCOPATE_CUDA(api, cuFuncLoad, function);
    SYNCOPATE_CUDA(api, cuFuncGetAttribute, &made->registers_, CU_FUNC_ATTRIBUTE_NUM_REGS, function);

    CUdevice device = 0;
    SYNCOPATE_CUDA(api, cuDeviceGet, &device, context->ordinal());
    int most_shared = 0;
    SYNCOPATE_CUDA(api, cuDeviceGetAttribute, &most_shared,
                   CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    if (options.shared_bytes > most_shared) {
        return machine_error(
            fmt::format("kernel {} wants {} bytes of shared memory, cuda:{} has {} for a program", name,
                        options.shared_bytes, context->ordinal(), most_shared));
    }
    if (options.shared_bytes > 49'152 && most_shared > 49'152) {
        int static_shared = 0;
        SYNCOPATE_CUDA(api, cuFuncSetCacheConfig, function, CU_FUNC_CACHE_PREFER_SHARED);
        SYNCOPATE_CUDA(api, cuFuncGetAttribute, &static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                       function);
        SYNCOPATE_CUDA(api, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                       most_shared - static_shared);
    }
    if (std::exchange(made->options_.beside, false)) SYNCOPATE_TRY(made->run_beside());
    if (options.num_ctas == 16) {
        SYNCOPATE_CUDA(api, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                       1);
    }
    SYNCOPATE_CUDA(api, cuOccupancyMaxActiveBlocksPerMultiprocessor, &made->resident_, function,
                   32 * options.num_warps, static_cast<std::size_t>(options.shared_bytes));
    SYNCOPATE_CUDA(api, cuDeviceGetAttribute, &made->multiprocessors_,
                   CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    return made;
}

Status CudaKernel::run_beside() {
    if (options_.beside) return Done{};
    const CudaApi& api = context_->api();
    const CurrentContext current(*context_);
    SYNCOPATE_CUDA(api, cuFuncSetAttribute, static_cast<CUfunction>(function_),
                   CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    options_.beside = true;
    return Done{};
}

std::uint64_t CudaKernel::blocks_of(Grid grid) const {
    return std::uint64_t{grid.x} * grid.y * grid.z * static_cast<std::uint64_t>(options_.num_ctas);
}

bool CudaKernel::runs_at_once(Grid grid) const {
    return blocks_of(grid) <=
           static_cast<std::uint64_t>(resident_) * static_cast<std::uint64_t>(multiprocessors_);
}

std::uint64_t CudaKernel::beyond(Grid grid, std::uint64_t waiting, int free) const {
    const auto room = static_cast<std::uint64_t>(std::max(multiprocessors_ - free, 0));
    const std::uint64_t stay =
        std::min(blocks_of(grid), waiting * static_cast<std::uint64_t>(options_.num_ctas));
    return stay - std::min(stay, room);
}

Status CudaKernel::prepare(Grid grid) {
    const std::uint64_t programs =
        std::uint64_t{grid.x} * grid.y * grid.z * static_cast<std::uint64_t>(options_.num_ctas);
    Status global = Scratch::grow(scratch_->global, context_,
                                  programs * static_cast<std::uint64_t>(options_.global_scratch_size),
                                  options_.global_scratch_align);
    if (!global) return global;
    return Scratch::grow(scratch_->profile, context_,
                         programs * static_cast<std::uint64_t>(options_.profile_scratch_size),
                         options_.profile_scratch_align);
}

Status CudaKernel::launch(Grid grid, CudaStream stream, const KernelArguments& arguments, bool early,
                          std::uint64_t started) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Done{};
    constexpr std::size_t kMost = 512;  // 4 KiB of parameters cannot hold more
    if (arguments.size() > kMost)
        return Error{fmt::format("{} kernel arguments are too many", arguments.size())};
    const CudaApi& api = context_->api();
    const CurrentContext current(*context_);
    SYNCOPATE_TRY(prepare(grid));

    void* parameters[kMost + 2];
    std::size_t count = 0;
    for (; count < arguments.size(); ++count) parameters[count] = const_cast<void*>(arguments.data(count));
    CUdeviceptr global = Scratch::address(scratch_->global);
    CUdeviceptr profile = Scratch::address(scratch_->profile);
    if (options_.triton) {
        parameters[count++] = &global;
        parameters[count++] = &profile;
    }

    CUlaunchAttribute attributes[5] = {};
    unsigned num_attributes = 0;
    if (options_.programmatic || early) {
        attributes[num_attributes].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[num_attributes++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (started != 0) {
        attributes[num_attributes].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
        attributes[num_attributes++].value.launchCompletionEvent.event = reinterpret_cast<CUevent>(started);
    }
    if (options_.cooperative) {
        attributes[num_attributes].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[num_attributes++].value.cooperative = 1;
    }
    if (options_.num_ctas != 1) {
        attributes[num_attributes].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[num_attributes].value.clusterDim.x = static_cast<unsigned>(options_.num_ctas);
        attributes[num_attributes].value.clusterDim.y = 1;
        attributes[num_attributes++].value.clusterDim.z = 1;
        attributes[num_attributes].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attributes[num_attributes++].value.clusterSchedulingPolicyPreference =
            CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    CUlaunchConfig config{};
    config.gridDimX = grid.x * static_cast<unsigned>(options_.num_ctas);
    config.gridDimY = grid.y;
    config.gridDimZ = grid.z;
    config.blockDimX = 32 * static_cast<unsigned>(options_.num_warps);
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(options_.shared_bytes);
    config.hStream = reinterpret_cast<CUstream>(stream);
    config.attrs = attributes;
    config.numAttrs = num_attributes;
    SYNCOPATE_CUDA(api, cuLaunchKernelEx, &config, static_cast<CUfunction>(function_), parameters, nullptr);
    return Done{};
}

}  // namespace syncopate::runtime

#else

namespace syncopate::runtime {

struct CudaKernel::Scratch {};

namespace {
Error not_built() {
    return machine_error("this is a build without CUDA: build where the CUDA toolkit is installed");
}
}  // namespace

Result<TensorMap> make_tensor_map(const TensorMapRequest&) { return not_built(); }
CudaKernel::CudaKernel() = default;
CudaKernel::~CudaKernel() = default;
Result<std::unique_ptr<CudaKernel>> CudaKernel::load(std::shared_ptr<CudaContext>, std::span<const std::byte>,
                                                     const std::string&, const Options&) {
    return not_built();
}
bool CudaKernel::runs_at_once(Grid) const { return false; }
std::uint64_t CudaKernel::beyond(Grid, std::uint64_t, int) const { return 0; }
Status CudaKernel::prepare(Grid) { return not_built(); }
Status CudaKernel::run_beside() { return not_built(); }
Status CudaKernel::launch(Grid, CudaStream, const KernelArguments&, bool, std::uint64_t) {
    return not_built();
}

}  // namespace syncopate::runtime

#endif

#include "runtime/cuda/driver/device_module.hpp"
#include "syncopate/try.hpp"

#if SYNCOPATE_HAS_CUDA

#include <cstddef>

// src/runtime/**/*.cu as a fatbin: made and embedded by cmake/Cuda.cmake.
extern "C" const unsigned char syncopate_device_fatbin[];
extern "C" const std::size_t syncopate_device_fatbin_size;

namespace syncopate::runtime {
namespace {

/// Lazy loading would load a kernel at its first launch, which can wait for kernels that wait for it.
Status load_now(const CudaApi& api, CUfunction function) {
    if (api.cuFuncLoad != nullptr) SYNCOPATE_CUDA(api, cuFuncLoad, function);
    int registers = 0;
    SYNCOPATE_CUDA(api, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    return Done{};
}

}  // namespace

Result<std::unique_ptr<DeviceModule>> DeviceModule::load(std::shared_ptr<CudaContext> context) {
    const CudaApi& api = context->api();
    if (syncopate_device_fatbin_size == 0) {
        return machine_error("this build holds no device code");
    }
    std::unique_ptr<DeviceModule> made(new DeviceModule(context));
    SYNCOPATE_CUDA(api, cuModuleLoadData, &made->module_, syncopate_device_fatbin);
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &made->begin, made->module_, "sy_begin");
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &made->end, made->module_, "sy_end");
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &made->await, made->module_, "sy_await");
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &made->reduce, made->module_, "sy_reduce");
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &made->copy_boxes, made->module_, "sy_copy_boxes");
    // What runs beside a kernel that fills the shared memory must leave the multiprocessor as that kernel has
    // it set: a multiprocessor changes its division only when it is idle.
    const auto functions = {made->begin, made->end, made->await, made->reduce, made->copy_boxes};
    for (CUfunction function : functions) {
        SYNCOPATE_CUDA(api, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                       CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    }
    for (CUfunction function : functions) {
        SYNCOPATE_TRY(load_now(api, function));
    }
    for (const auto& [engine, name] :
         {std::pair(&made->engine, "sy_engine"), std::pair(&made->engine_bulk, "sy_engine_bulk")}) {
        SYNCOPATE_TAKE(CUfunction function, made->engine_named(name));
        *engine = function;
    }
    return made;
}

Result<CUfunction> DeviceModule::engine_named(const std::string& name) const {
    const CudaApi& api = context_->api();
    CUfunction function = nullptr;
    SYNCOPATE_CUDA(api, cuModuleGetFunction, &function, module_, name.c_str());
    SYNCOPATE_CUDA(api, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                   static_cast<int>(kEngineSharedBytes));
    // It may start on a multiprocessor that a kernel with all the shared memory has just left, or leaves
    // free.
    SYNCOPATE_CUDA(api, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                   CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    SYNCOPATE_TRY(load_now(api, function));
    return function;
}

DeviceModule::~DeviceModule() {
    const CurrentContext current(*context_);
    if (module_ != nullptr) context_->api().cuModuleUnload(module_);
}

Status DeviceModule::launch_raw(CUfunction function, void* arguments, CUstream stream, unsigned blocks,
                                unsigned threads, unsigned shared_bytes) const {
    void* parameters[] = {arguments};
    CUlaunchConfig config{};
    config.gridDimX = blocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = shared_bytes;
    config.hStream = stream;
    SYNCOPATE_CUDA(context_->api(), cuLaunchKernelEx, &config, function, parameters, nullptr);
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

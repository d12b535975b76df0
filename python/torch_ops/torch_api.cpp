#include "torch_api.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace syncopate::torch_ops {
namespace {

TorchApi load() {
    // torch has been loaded before: by `import torch`, or by the program that is linked with it.
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == nullptr) torch = dlopen(nullptr, RTLD_LAZY);
    void* cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    const auto find = [&](const char* name, bool needed) {
        void* found = dlsym(torch, name);
        if (found == nullptr && cuda != nullptr) found = dlsym(cuda, name);
        if (found == nullptr && needed)
            throw std::runtime_error(
                std::string("syncopate's ops need PyTorch 2.11 or newer, loaded before them: there is no ") +
                name);
        return found;
    };
    TorchApi api;
#define SYNCOPATE_FIND(name) api.name = reinterpret_cast<decltype(api.name)>(find(#name, true));
    SYNCOPATE_TORCH_FUNCTIONS(SYNCOPATE_FIND)
#undef SYNCOPATE_FIND
#define SYNCOPATE_FIND(name) api.name = reinterpret_cast<decltype(api.name)>(find(#name, false));
    SYNCOPATE_TORCH_OPTIONAL_FUNCTIONS(SYNCOPATE_FIND)
#undef SYNCOPATE_FIND
    return api;
}

}  // namespace

const TorchApi& torch_api() {
    static const TorchApi api = load();
    return api;
}

void require(AOTITorchError code, const char* what) {
    if (code == 0) return;
    std::string message = std::string(what) + " failed";
    const TorchApi& api = torch_api();
    if (api.torch_exception_get_what_without_backtrace != nullptr)
        message += std::string(": ") + api.torch_exception_get_what_without_backtrace();
    throw std::runtime_error(message);
}

}  // namespace syncopate::torch_ops

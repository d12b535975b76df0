#include "runtime/cuda/streams/nccl_api.hpp"

#if SYNCOPATE_HAS_CUDA

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <type_traits>

#include "syncopate/runtime/call/channel_way.hpp"

namespace syncopate::runtime {
namespace {

Result<NcclApi> load_api() {
    // First the one that the process has already, as with PyTorch: two would be two sets of threads. Never
    // closed, as its kernels may be in use.
    std::string looked_for;
    void* library = nullptr;
    const auto try_open = [&](const char* file, int flags) {
        if (library != nullptr || file == nullptr) return;
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL | flags);
        if (library != nullptr || flags != 0) return;
        const char* why = dlerror();
        looked_for += fmt::format("{}{} ({})", looked_for.empty() ? "" : ", ", file,
                                  why == nullptr ? "cannot be opened" : why);
    };
    const char* named = std::getenv("SYNCOPATE_NCCL_LIBRARY");
    if (named != nullptr) {
        try_open(named, 0);
    } else {
        try_open("libnccl.so.2", RTLD_NOLOAD);
        try_open("libnccl.so.2", 0);
        try_open("libnccl.so", 0);
    }
    const std::string advice =
        "; install NCCL (pip install nvidia-nccl-cu12), set SYNCOPATE_NCCL_LIBRARY to its file, or expand "
        "the "
        "plan's collectives by a template (plan lower)";
    if (library == nullptr) return machine_error(fmt::format("no NCCL: looked for {}{}", looked_for, advice));
    NcclApi api;
    std::string missing;
    const auto load = [&](const char* name, auto& function) {
        void* address = dlsym(library, name);
        if (address == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    load("ncclGetUniqueId", api.GetUniqueId);
    load("ncclCommInitRank", api.CommInitRank);
    // Older ones have it for a shorter configuration, without the number of blocks.
    int version = 0;
    const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
    if (get_version != nullptr && get_version(&version) == 0 && version >= NcclApi::kOldest)
        api.CommInitRankConfig =
            reinterpret_cast<decltype(api.CommInitRankConfig)>(dlsym(library, "ncclCommInitRankConfig"));
    api.number = version;
    const auto load_if_there = [&](const char* name, auto& function) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    if (version >= NcclApi::kPuts) {
        load_if_there("ncclMemAlloc", api.MemAlloc);
        load_if_there("ncclMemFree", api.MemFree);
        load_if_there("ncclCommWindowRegister", api.CommWindowRegister);
        load_if_there("ncclPutSignal", api.PutSignal);
        load_if_there("ncclSignal", api.Signal);
        load_if_there("ncclWaitSignal", api.WaitSignal);
    }
    load("ncclCommDestroy", api.CommDestroy);
    load("ncclCommAbort", api.CommAbort);
    load("ncclGetErrorString", api.GetErrorString);
    load("ncclAllGather", api.AllGather);
    load("ncclReduceScatter", api.ReduceScatter);
    load("ncclAllReduce", api.AllReduce);
    load("ncclBroadcast", api.Broadcast);
    load("ncclSend", api.Send);
    load("ncclRecv", api.Recv);
    load("ncclGroupStart", api.GroupStart);
    load("ncclGroupEnd", api.GroupEnd);
    if (!missing.empty()) return machine_error(fmt::format("the NCCL found lacks {}{}", missing, advice));
    return api;
}

}  // namespace

Result<const NcclApi*> nccl_api() {
    static const Result<NcclApi> api = load_api();
    if (!api) return api.error();
    return &api.value();
}

std::string channel_on_cuda() {
    const Result<const NcclApi*> api = nccl_api();
    if (!api) return "NCCL, which is not there";
    const std::string lacks = (*api)->lacks();
    const Result<ChannelWay> way = channel_way();
    if (way && *way == ChannelWay::put && lacks.empty())
        return fmt::format("NCCL {} by ncclPutSignal", (*api)->version());
    return fmt::format("NCCL {} by sends and receives ({})", (*api)->version(),
                       lacks.empty() ? "SYNCOPATE_CHANNEL=put: by ncclPutSignal" : lacks);
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

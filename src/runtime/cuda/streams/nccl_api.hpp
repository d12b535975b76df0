// What of NCCL is called: functions of a library that is loaded at run time, as the driver is.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <climits>
#include <cstddef>
#include <string>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

/// What of NCCL's interface (2.10 and later) is called. Declared here, so that a build needs no header.
struct NcclApi {
    struct UniqueId {
        char bytes[128];
    };
    using Comm = void*;
    static constexpr int kOldest = 21700;  ///< of the configuration
    /// ncclConfig_t as of 2.17, which later ones take by its size and version.
    struct Config {
        std::size_t size = sizeof(Config);
        unsigned magic = 0xcafebeef;
        unsigned version = kOldest;
        int blocking = 1;
        int cga_cluster_size = INT_MIN;  // left open
        int min_ctas = 1;
        int max_ctas = 1;
        const char* net_name = nullptr;
    };
    int (*GetUniqueId)(UniqueId*) = nullptr;
    int (*CommInitRank)(Comm*, int, UniqueId, int) = nullptr;
    int (*CommInitRankConfig)(Comm*, int, UniqueId, int, Config*) = nullptr;  ///< 2.17 and later; else null
    int (*CommDestroy)(Comm) = nullptr;
    int (*CommAbort)(Comm) = nullptr;
    const char* (*GetErrorString)(int) = nullptr;
    int (*AllGather)(const void*, void*, std::size_t, int, Comm, CUstream) = nullptr;
    int (*ReduceScatter)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*AllReduce)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Broadcast)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Send)(const void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*Recv)(void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*GroupStart)() = nullptr;
    int (*GroupEnd)() = nullptr;
    /// ncclWaitSignalDesc_t: so many signals more of that peer.
    struct Awaited {
        int signals = 1;
        int peer = 0;
        int index = 0;  // of the signal, and of its context: there is one of each
        int context = 0;
    };
    /// Puts, of 2.29 and later; else null. Other libraries of that name have had functions of these names with other arguments.
    static constexpr int kPuts = 22900;
    static constexpr int kPutsInGraphs =
        23203;  ///< that are known to count their signals apart in each replay
    int (*MemAlloc)(void**, std::size_t) = nullptr;
    int (*MemFree)(void*) = nullptr;
    int (*CommWindowRegister)(Comm, void*, std::size_t, void**, int) = nullptr;
    int (*PutSignal)(const void*, std::size_t, int, int, void*, std::size_t, int, int, unsigned, Comm,
                     CUstream) = nullptr;
    int (*Signal)(int, int, int, unsigned, Comm, CUstream) = nullptr;
    int (*WaitSignal)(int, Awaited*, Comm, CUstream) = nullptr;
    int number = 0;

    [[nodiscard]] std::string version() const {
        return number == 0 ? "of an unknown version"
                           : fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
    }
    /// Why it cannot put; empty if it may.
    [[nodiscard]] std::string lacks() const {
        if (number < kPuts) return "ncclPutSignal begins with 2.29";
        const bool all = MemAlloc != nullptr && MemFree != nullptr && CommWindowRegister != nullptr &&
                         PutSignal != nullptr && Signal != nullptr && WaitSignal != nullptr;
        return all ? "" : "the file lacks ncclPutSignal, or what belongs to it";
    }

    [[nodiscard]] Error error(const char* call, int code) const {
        return machine_error(fmt::format("nccl{} failed: {} ({})", call, GetErrorString(code), code));
    }
};

/// Those of the process's library, else of the one that is found. Fails (ErrorClass::machine) naming what was looked for.
[[nodiscard]] Result<const NcclApi*> nccl_api();

constexpr int kUint8 = 1;  ///< of ncclDataType_t

#define SYNCOPATE_NCCL(api, name, ...)                                                               \
    do {                                                                                             \
        if (const int code_ = (api).name(__VA_ARGS__); code_ != 0) return (api).error(#name, code_); \
    } while (false)

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA

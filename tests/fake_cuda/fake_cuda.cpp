#include "fake_cuda/fake_cuda.hpp"

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/cuda/streams/copy_boxes.hpp"

namespace fake_cuda {
namespace {

constexpr int kGpus = 2;

/// What a handle points to.
struct Thing {
    std::string name;
};

struct State {
    std::mutex mutex;
    std::size_t calls = 0;
    std::size_t fails_at = 0;
    std::string always_fails;
    bool from_then_on = false;
    bool captures = false;
    std::set<CUstream> capturing;  ///< streams between StreamBeginCapture and StreamEndCapture
    std::string failed;
    std::map<std::string, int> left;
    std::vector<std::string> log, launches;
    int made = 0;  ///< numbers handles
};

State& state() {
    static State* const only =
        new State;  // what has static storage may free things after this would have gone
    return *only;
}

bool fails(const char* function) {
    State& now = state();
    const std::lock_guard lock(now.mutex);
    ++now.calls;
    if (now.always_fails == function) return true;
    if (now.fails_at == 0 || now.calls < now.fails_at) return false;
    if (now.calls > now.fails_at && !now.from_then_on) return false;
    if (now.failed.empty()) now.failed = function;
    return true;
}

CUresult note(std::string line) {
    const std::lock_guard lock(state().mutex);
    state().log.push_back(std::move(line));
    return CUDA_SUCCESS;
}

CUresult count(const char* kind, int change) {
    const std::lock_guard lock(state().mutex);
    state().left[kind] += change;
    return CUDA_SUCCESS;
}

/// `handle` is of a new `kind`.
template <typename Handle>
CUresult make(Handle* handle, const char* kind) {
    count(kind, 1);
    const std::lock_guard lock(state().mutex);
    *handle = reinterpret_cast<Handle>(new Thing{std::string(kind) + " " + std::to_string(++state().made)});
    return CUDA_SUCCESS;
}

template <typename Handle>
CUresult drop(Handle handle, const char* kind) {
    delete reinterpret_cast<Thing*>(handle);
    return count(kind, -1);
}

template <typename Handle>
std::string name_of(Handle handle) {
    return handle == nullptr ? "stream 0" : reinterpret_cast<Thing*>(handle)->name;
}

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The driver's functions, without their prefix.

CUresult Init(unsigned) { return CUDA_SUCCESS; }
CUresult DriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult GetErrorName(CUresult, const char** text) {
    return *text = "CUDA_ERROR_LAUNCH_FAILED", CUDA_SUCCESS;
}
CUresult GetErrorString(CUresult, const char** text) { return *text = "as the test wants", CUDA_SUCCESS; }

CUresult DeviceGetCount(int* count) { return *count = kGpus, CUDA_SUCCESS; }
CUresult DeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult DeviceGetName(char* name, int size, CUdevice) {
    std::strncpy(name, "fake GPU", static_cast<std::size_t>(size));
    return CUDA_SUCCESS;
}
CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
    std::memset(uuid->bytes, device + 1, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}
CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                ? 6
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232'448
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR          ? 9
                                                                                  : 1;
    return CUDA_SUCCESS;
}
CUresult DeviceCanAccessPeer(int* can, CUdevice, CUdevice) { return *can = 1, CUDA_SUCCESS; }
CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    *context = reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device + 1));
    return count("context", 1);
}
CUresult DevicePrimaryCtxRelease(CUdevice) { return count("context", -1); }

thread_local CUcontext current = nullptr;
CUresult CtxGetCurrent(CUcontext* context) { return *context = current, CUDA_SUCCESS; }
CUresult CtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult CtxGetDevice(CUdevice* device) {
    if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return *device = static_cast<CUdevice>(reinterpret_cast<std::intptr_t>(current)) - 1, CUDA_SUCCESS;
}
CUresult CtxSynchronize() { return CUDA_SUCCESS; }
CUresult CtxGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, CUDA_SUCCESS;
}

CUresult MemGetInfo(std::size_t* free, std::size_t* total) {
    return *free = *total = std::size_t{1} << 34, CUDA_SUCCESS;
}
CUresult MemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                           unsigned long long) {
    void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(place);
    return count("reserved range", 1);
}
CUresult MemAddressFree(CUdeviceptr address, std::size_t bytes) {
    munmap(at(address), bytes);
    return count("reserved range", -1);
}
// A handle of memory is its file descriptor.
CUresult MemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                   unsigned long long) {
    const int fd = memfd_create("fake GPU memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = static_cast<CUmemGenericAllocationHandle>(fd);
    return count("memory", 1);
}
CUresult MemRelease(CUmemGenericAllocationHandle handle) {
    close(static_cast<int>(handle));
    return count("memory", -1);
}
CUresult MemMap(CUdeviceptr address, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
                unsigned long long) {
    const int fd = static_cast<int>(handle);
    if (mmap(at(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    return count("mapping", 1);
}
CUresult MemUnmap(CUdeviceptr address, std::size_t bytes) {
    mmap(at(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return count("mapping", -1);
}
CUresult MemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }
CUresult MemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                     CUmemAllocationGranularity_flags) {
    return *bytes = std::size_t{1} << 21, CUDA_SUCCESS;
}
CUresult MemExportToShareableHandle(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                                    unsigned long long) {
    *static_cast<int*>(fd) = dup(static_cast<int>(handle));
    return CUDA_SUCCESS;
}
CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* fd,
                                      CUmemAllocationHandleType) {
    *handle =
        static_cast<CUmemGenericAllocationHandle>(dup(static_cast<int>(reinterpret_cast<std::intptr_t>(fd))));
    return count("memory", 1);
}
CUresult MemAlloc(CUdeviceptr* address, std::size_t bytes) {
    *address = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    return count("buffer", 1);
}
CUresult MemFree(CUdeviceptr address) {
    std::free(at(address));
    return count("buffer", -1);
}
CUresult MemHostAlloc(void** place, std::size_t bytes, unsigned) {
    *place = std::calloc(1, bytes);
    return count("pinned buffer", 1);
}
CUresult MemHostGetDevicePointer(CUdeviceptr* address, void* place, unsigned) {
    return *address = reinterpret_cast<CUdeviceptr>(place), CUDA_SUCCESS;
}
CUresult MemFreeHost(void* place) {
    std::free(place);
    return count("pinned buffer", -1);
}

CUresult MemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
    return std::memcpy(at(to), from, bytes), CUDA_SUCCESS;
}
CUresult MemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream) {
    return std::memcpy(to, at(from), bytes), CUDA_SUCCESS;
}
CUresult MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
    return std::memcpy(at(to), at(from), bytes), CUDA_SUCCESS;
}
CUresult Memcpy3DAsync(const CUDA_MEMCPY3D* c, CUstream) {
    for (std::size_t z = 0; z < c->Depth; ++z) {
        for (std::size_t y = 0; y < c->Height; ++y)
            std::memcpy(at(c->dstDevice + (z * c->dstHeight + y) * c->dstPitch),
                        at(c->srcDevice + (z * c->srcHeight + y) * c->srcPitch), c->WidthInBytes);
    }
    return CUDA_SUCCESS;
}
CUresult Memcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream) {
    for (std::size_t y = 0; y < c->Height; ++y)
        std::memcpy(at(c->dstDevice + y * c->dstPitch), at(c->srcDevice + y * c->srcPitch), c->WidthInBytes);
    return CUDA_SUCCESS;
}
CUresult MemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t bytes, CUstream) {
    return std::memset(at(address), value, bytes), CUDA_SUCCESS;
}

CUresult StreamCreateWithPriority(CUstream* stream, unsigned, int) { return make(stream, "stream"); }
CUresult StreamDestroy(CUstream stream) { return drop(stream, "stream"); }
CUresult StreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult StreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    return note(name_of(stream) + " waits for " + name_of(event));
}
CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    const std::lock_guard lock(state().mutex);
    *status = state().captures || state().capturing.contains(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                                     : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult StreamBatchMemOp(CUstream stream, unsigned, CUstreamBatchMemOpParams*, unsigned) {
    return note(name_of(stream) + " waits for a word");
}
CUresult EventCreate(CUevent* event, unsigned) { return make(event, "event"); }
CUresult EventDestroy(CUevent event) { return drop(event, "event"); }
CUresult EventRecord(CUevent event, CUstream stream) {
    return note(name_of(event) + " on " + name_of(stream));
}
CUresult EventQuery(CUevent) { return CUDA_SUCCESS; }
CUresult EventElapsedTime(float* milliseconds, CUevent, CUevent) {
    return *milliseconds = 1.0F, CUDA_SUCCESS;
}

CUresult StreamGetPriority(CUstream, int* priority) { return *priority = 0, CUDA_SUCCESS; }
CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult StreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    const std::lock_guard lock(state().mutex);
    return state().capturing.insert(stream), CUDA_SUCCESS;
}
CUresult StreamEndCapture(CUstream stream, CUgraph* graph) {
    {
        const std::lock_guard lock(state().mutex);
        state().capturing.erase(stream);
    }
    return make(graph, "graph");
}
CUresult GraphInstantiateWithFlags(CUgraphExec* ready, CUgraph, unsigned long long) {
    return make(ready, "executable graph");
}
CUresult GraphLaunch(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult GraphDestroy(CUgraph graph) { return drop(graph, "graph"); }
CUresult GraphExecDestroy(CUgraphExec ready) { return drop(ready, "executable graph"); }

CUresult ModuleLoadData(CUmodule* module, const void*) { return make(module, "module"); }
CUresult ModuleUnload(CUmodule module) { return drop(module, "module"); }
CUresult ModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    static std::map<std::string, Thing> functions;
    const std::lock_guard lock(state().mutex);
    *function = reinterpret_cast<CUfunction>(&functions.try_emplace(name, Thing{name}).first->second);
    return CUDA_SUCCESS;
}
CUresult FuncLoad(CUfunction) { return CUDA_SUCCESS; }
CUresult FuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 32, CUDA_SUCCESS; }
CUresult FuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult FuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
/// Grid and attributes of a launch, as take_launches() tells them.
std::string shape_of(const CUlaunchConfig& config) {
    std::string text = std::to_string(config.gridDimX) + "x" + std::to_string(config.gridDimY) + "x" +
                       std::to_string(config.gridDimZ);
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const CUlaunchAttribute& attribute = config.attrs[i];
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) text += " early";
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            text += " in clusters of " + std::to_string(attribute.value.clusterDim.x);
    }
    return text;
}
std::function<void(const std::string&, void**)>& player() {
    static std::function<void(const std::string&, void**)> play;
    return play;
}
/// The one kernel that is played here: calls' operands are copied by it, as by the driver.
void copy_boxes(const syncopate::runtime::device::CopyBoxesArguments& given) {
    for (std::uint32_t i = 0; i < given.num_boxes; ++i) {
        const auto& box = given.boxes[i];
        const std::uint32_t lines = box.units / box.row_units;
        for (std::uint32_t line = 0; line < lines; ++line) {
            const std::uint64_t plane = line / box.rows, row = line % box.rows;
            std::memcpy(at(box.dst + plane * box.dst_plane + row * box.dst_pitch),
                        at(box.src + plane * box.src_plane + row * box.src_pitch), box.row_units * 16ULL);
        }
    }
}
CUresult LaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
    {
        const std::lock_guard lock(state().mutex);
        state().launches.push_back(shape_of(*config));
    }
    if (name_of(function) == "sy_copy_boxes")
        copy_boxes(*static_cast<const syncopate::runtime::device::CopyBoxesArguments*>(*parameters));
    if (player()) player()(name_of(function), parameters);
    return note(name_of(function) + " on " + name_of(config->hStream));
}
CUresult OccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, std::size_t) {
    return *blocks = 1, CUDA_SUCCESS;
}
/// Its map begins with the address.
CUresult TensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void* address,
                              const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill) {
    std::memcpy(map, &address, sizeof(address));
    return CUDA_SUCCESS;
}

std::atomic<bool> counting{false};

enum class Kind { cannot_fail, may_fail, enqueues };

template <auto kFunction, Kind kKind>
struct Called;
template <typename... Given, CUresult (*kFunction)(Given...), Kind kKind>
struct Called<kFunction, kKind> {
    static inline const char* name = "";
    static inline std::atomic<std::size_t> times{0};
    static CUresult call(Given... given) {
        times.fetch_add(1, std::memory_order_relaxed);
        if (counting) return kKind == Kind::enqueues ? CUDA_SUCCESS : kFunction(given...);
        return kKind != Kind::cannot_fail && fails(name) ? CUDA_ERROR_LAUNCH_FAILED : kFunction(given...);
    }
};

std::map<std::string, std::atomic<std::size_t>*>& counters() {
    static std::map<std::string, std::atomic<std::size_t>*> made;
    return made;
}

template <auto kFunction, Kind kKind>
std::pair<const std::string, void*> entry(const char* name) {
    using Made = Called<kFunction, kKind>;
    Made::name = name;
    counters()[name] = &Made::times;
    return {name, reinterpret_cast<void*>(&Made::call)};
}

const std::map<std::string, void*>& functions() {
#define MAY_FAIL(function) entry<&function, Kind::may_fail>("cu" #function)
#define ENQUEUES(function) entry<&function, Kind::enqueues>("cu" #function)
#define CANNOT_FAIL(function) entry<&function, Kind::cannot_fail>("cu" #function)
    static const std::map<std::string, void*> all{
        CANNOT_FAIL(GetErrorName),
        CANNOT_FAIL(GetErrorString),
        CANNOT_FAIL(DriverGetVersion),
        CANNOT_FAIL(CtxGetCurrent),
        CANNOT_FAIL(CtxSetCurrent),
        CANNOT_FAIL(DevicePrimaryCtxRelease),
        CANNOT_FAIL(MemAddressFree),
        CANNOT_FAIL(MemRelease),
        CANNOT_FAIL(MemUnmap),
        CANNOT_FAIL(MemFree),
        CANNOT_FAIL(MemFreeHost),
        CANNOT_FAIL(StreamDestroy),
        CANNOT_FAIL(EventDestroy),
        CANNOT_FAIL(ModuleUnload),
        CANNOT_FAIL(GraphDestroy),
        CANNOT_FAIL(GraphExecDestroy),
        MAY_FAIL(Init),
        MAY_FAIL(DeviceGetCount),
        MAY_FAIL(DeviceGet),
        MAY_FAIL(DeviceGetName),
        MAY_FAIL(DeviceGetUuid),
        MAY_FAIL(DeviceGetAttribute),
        MAY_FAIL(DeviceCanAccessPeer),
        MAY_FAIL(DevicePrimaryCtxRetain),
        MAY_FAIL(CtxGetDevice),
        MAY_FAIL(CtxSynchronize),
        MAY_FAIL(CtxGetStreamPriorityRange),
        MAY_FAIL(MemGetInfo),
        MAY_FAIL(MemAddressReserve),
        MAY_FAIL(MemCreate),
        MAY_FAIL(MemMap),
        MAY_FAIL(MemSetAccess),
        MAY_FAIL(MemGetAllocationGranularity),
        MAY_FAIL(MemExportToShareableHandle),
        MAY_FAIL(MemImportFromShareableHandle),
        MAY_FAIL(MemAlloc),
        MAY_FAIL(MemHostAlloc),
        MAY_FAIL(MemHostGetDevicePointer),
        ENQUEUES(MemcpyHtoDAsync),
        MAY_FAIL(MemcpyDtoHAsync),
        ENQUEUES(MemcpyDtoDAsync),
        ENQUEUES(Memcpy2DAsync),
        ENQUEUES(Memcpy3DAsync),
        ENQUEUES(MemsetD8Async),
        MAY_FAIL(StreamCreateWithPriority),
        MAY_FAIL(StreamSynchronize),
        ENQUEUES(StreamWaitEvent),
        MAY_FAIL(StreamIsCapturing),
        ENQUEUES(StreamBatchMemOp),
        MAY_FAIL(EventCreate),
        ENQUEUES(EventRecord),
        MAY_FAIL(EventQuery),
        MAY_FAIL(EventElapsedTime),
        MAY_FAIL(StreamBeginCapture),
        MAY_FAIL(StreamGetPriority),
        CANNOT_FAIL(ThreadExchangeStreamCaptureMode),
        MAY_FAIL(StreamEndCapture),
        MAY_FAIL(GraphInstantiateWithFlags),
        ENQUEUES(GraphLaunch),
        MAY_FAIL(ModuleLoadData),
        MAY_FAIL(ModuleGetFunction),
        MAY_FAIL(FuncLoad),
        MAY_FAIL(FuncGetAttribute),
        MAY_FAIL(FuncSetAttribute),
        MAY_FAIL(FuncSetCacheConfig),
        ENQUEUES(LaunchKernelEx),
        MAY_FAIL(OccupancyMaxActiveBlocksPerMultiprocessor),
        MAY_FAIL(TensorMapEncodeTiled),
    };
#undef MAY_FAIL
#undef ENQUEUES
#undef CANNOT_FAIL
    return all;
}

}  // namespace

void on_launch(std::function<void(const std::string&, void**)> play) { player() = std::move(play); }

void only_count(bool on) { counting = on; }

std::size_t calls_of(const char* function) {
    (void)functions();
    return counters().at(function)->load();
}

std::size_t num_calls() {
    const std::lock_guard lock(state().mutex);
    return state().calls;
}

void fail_every(const std::string& function) {
    const std::lock_guard lock(state().mutex);
    state().always_fails = function;
}

void fail(std::size_t number, bool from_then_on) {
    State& now = state();
    const std::lock_guard lock(now.mutex);
    now.fails_at = number;
    now.from_then_on = from_then_on;
    now.failed.clear();
}

const std::string& failed() { return state().failed; }

std::string left() {
    std::string text;
    const std::lock_guard lock(state().mutex);
    for (const auto& [kind, number] : state().left) {
        if (number == 0) continue;
        text += (text.empty() ? "" : ", ") + std::to_string(number) + " " + kind + (number == 1 ? "" : "s");
    }
    return text;
}

std::vector<std::string> take_log() {
    const std::lock_guard lock(state().mutex);
    return std::exchange(state().log, {});
}

std::vector<std::string> take_launches() {
    const std::lock_guard lock(state().mutex);
    return std::exchange(state().launches, {});
}

void capture(bool on) { state().captures = on; }

namespace {
std::atomic<int> aborts{0};
std::atomic<std::uint32_t> received{0};
std::function<void()> in_abort;
std::atomic<int> nccl{22800};
std::atomic<bool> nccl_puts{true};
}  // namespace
void set_nccl(int version, bool puts) { nccl = version, nccl_puts = puts; }
int aborted() { return aborts; }
void on_abort(std::function<void()> play) { in_abort = std::move(play); }
void receive(std::uint32_t word) { received = word; }

}  // namespace fake_cuda

namespace {
/// By the address of one of them, communicators have numbers.
std::array<char, 256> communicators;
std::atomic<std::size_t> joined{0};

void note_side(const char* what, std::size_t bytes, int peer, const void* communicator, void* stream) {
    const auto number = static_cast<const char*>(communicator) - communicators.data();
    fake_cuda::note(std::string(what) + " " + std::to_string(bytes) + " bytes, rank " + std::to_string(peer) +
                    ", by communicator " + std::to_string(number) + " on " +
                    fake_cuda::name_of(static_cast<CUstream>(stream)));
}
}  // namespace

// NCCL, as far as it is called: collectives do nothing, and only words are received.
extern "C" {
int ncclGetUniqueId(void*) { return 0; }
struct NcclUniqueId {
    char bytes[128];
};
int ncclCommInitRank(void** made, int, NcclUniqueId, int) {
    *made = &communicators[joined++ % communicators.size()];
    return 0;
}
int ncclGetVersion(int* version) { return *version = fake_cuda::nccl, 0; }
int ncclCommInitRankConfig(void** made, int size, NcclUniqueId id, int rank, void*) {
    return ncclCommInitRank(made, size, id, rank);
}
int ncclCommDestroy(void*) { return 0; }
int ncclCommAbort(void*) {
    ++fake_cuda::aborts;
    if (fake_cuda::in_abort) fake_cuda::in_abort();
    return 0;
}
const char* ncclGetErrorString(int) { return "no error"; }
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*) { return 0; }
int ncclReduceScatter(const void*, void*, std::size_t, int, int, void*, void*) { return 0; }
int ncclAllReduce(const void*, void*, std::size_t, int, int, void*, void*) { return 0; }
int ncclBroadcast(const void*, void*, std::size_t, int, int, void*, void*) { return 0; }
int ncclSend(const void*, std::size_t bytes, int, int peer, void* communicator, void* stream) {
    note_side("send", bytes, peer, communicator, stream);
    return 0;
}
int ncclRecv(void* to, std::size_t bytes, int, int peer, void* communicator, void* stream) {
    note_side("receive", bytes, peer, communicator, stream);
    const std::uint32_t word = fake_cuda::received;
    if (bytes == sizeof(word)) std::memcpy(to, &word, bytes);
    return 0;
}
int ncclMemAlloc(void** made, std::size_t bytes) {
    *made = std::aligned_alloc(4096, bytes);
    std::memset(*made, 0, bytes);
    fake_cuda::note("room of " + std::to_string(bytes) + " bytes");
    return 0;
}
int ncclMemFree(void* memory) {
    std::free(memory);
    return 0;
}
int ncclCommWindowRegister(void*, void* memory, std::size_t, void** window, int flags) {
    *window = fake_cuda::nccl_puts && flags == 1 ? memory : nullptr;
    return 0;
}
/// It comes at once, as if this rank had put it to itself.
int ncclPutSignal(const void* from, std::size_t bytes, int, int peer, void* window, std::size_t at, int, int,
                  unsigned, void* communicator, void* stream) {
    note_side(("put at " + std::to_string(at) + " of").c_str(), bytes, peer, communicator, stream);
    auto* to = static_cast<char*>(window) + at;
    std::memmove(to, from, bytes);
    const std::uint32_t word = fake_cuda::received;
    std::memcpy(to + bytes - sizeof(word), &word, sizeof(word));
    return 0;
}
int ncclSignal(int peer, int, int, unsigned, void* communicator, void* stream) {
    note_side("signal", 0, peer, communicator, stream);
    return 0;
}
struct NcclAwaited {
    int signals, peer, index, context;
};
int ncclWaitSignal(int count, const NcclAwaited* awaited, void* communicator, void* stream) {
    for (int i = 0; i < count; ++i)
        note_side(("await " + std::to_string(awaited[i].signals) + ",").c_str(), 0, awaited[i].peer,
                  communicator, stream);
    return 0;
}
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
}

extern "C" CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult* found) {
    const auto known = fake_cuda::functions().find(name);
    *found = known == fake_cuda::functions().end() ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                                   : CU_GET_PROC_ADDRESS_SUCCESS;
    *function = known == fake_cuda::functions().end() ? nullptr : known->second;
    return CUDA_SUCCESS;
}

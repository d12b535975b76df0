// A chain of two products from CUTLASS's building blocks on a real GPU: relu(X W1ᵀ) W2ᵀ, tile by tile
// (sync_cutlass.cuh), against a plain product of each, and against itself in stream order.
//
//   syncopate_check_cutlass [--rows N] [--hidden N] [--inner N] [--calls N]
//
// Every call has another X, so that a tile that is read too early shows. Then µs of a call, as graphs
// replayed in turn: in stream order, tile by tile, and so with operand B before the wait. Exit 3 without a
// Hopper GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sync_cutlass.cuh"
#include "syncopate/sync/launch.cuh"

namespace {

using sync_cutlass::kBlockM, sync_cutlass::kBlockN, sync_cutlass::kThreads, sync_cutlass::make_product;
using Half = cutlass::half_t;
namespace sync = syncopate::sync;

void require(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    std::exit(1);
}

template <typename T>
T take(syncopate::Result<T> result, const char* what) {
    if (result) return *std::move(result);
    std::fprintf(stderr, "%s: %s\n", what, result.error().to_string().c_str());
    std::exit(1);
}

__global__ void fill(Half* to, std::size_t count, unsigned seed, float scale) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        unsigned h = static_cast<unsigned>(i) * 0x9e3779b1u + seed * 0x85ebca6bu;
        h ^= h >> 15;
        h *= 0x2c1b3c6du;
        h ^= h >> 13;
        to[i] = Half(scale * (static_cast<float>(h & 0xffffu) / 32768.0F - 1.0F));
    }
}

/// One thread an element.
__global__ void plain_product(const Half* a, const Half* b, Half* c, int m, int n, int k, bool relu) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    if (column >= n || row >= m) return;
    float sum = 0.0F;
    for (int i = 0; i < k; ++i)
        sum += float(a[std::size_t(row) * k + i]) * float(b[std::size_t(column) * k + i]);
    c[std::size_t(row) * n + column] = Half(relu ? fmaxf(sum, 0.0F) : sum);
}

__global__ void count_wrong(const Half* a, const Half* b, std::size_t count, float limit, unsigned* wrong) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const float x = float(a[i]), y = float(b[i]);
        if (!(fabsf(x - y) <= limit + 0.01F * fabsf(y))) atomicAdd(wrong, 1u);
    }
}

Half* allocate(std::size_t count) {
    void* memory = nullptr;
    require(cudaMalloc(&memory, count * sizeof(Half)), "memory");
    return static_cast<Half*>(memory);
}

struct Sizes {
    int rows = 768, hidden = 2048, inner = 1536;
};

struct Layers {
    explicit Layers(const Sizes& s)
        : sizes(s),
          x(allocate(std::size_t(s.rows) * s.hidden)),
          w1(allocate(std::size_t(s.inner) * s.hidden)),
          w2(allocate(std::size_t(s.hidden) * s.inner)),
          h(allocate(std::size_t(s.rows) * s.inner)),
          y(allocate(std::size_t(s.rows) * s.hidden)),
          plain_h(allocate(std::size_t(s.rows) * s.inner)),
          plain_y(allocate(std::size_t(s.rows) * s.hidden)),
          products{make_product(x, w1, h, s.rows, s.inner, s.hidden, false, true),
                   make_product(h, w2, y, s.rows, s.hidden, s.inner, true, false)} {
        fill<<<256, 256>>>(w1, std::size_t(s.inner) * s.hidden, 1, 2.0F / std::sqrt(float(s.hidden)));
        fill<<<256, 256>>>(w2, std::size_t(s.hidden) * s.inner, 2, 2.0F / std::sqrt(float(s.inner)));
    }
    void new_input(unsigned seed) const {
        fill<<<256, 256>>>(x, std::size_t(sizes.rows) * sizes.hidden, seed, 1.0F);
    }
    [[nodiscard]] unsigned wrong() const {
        const Sizes& s = sizes;
        unsigned* device = nullptr;
        unsigned count = 0;
        require(cudaMalloc(reinterpret_cast<void**>(&device), sizeof(count)), "memory");
        require(cudaMemset(device, 0, sizeof(count)), "memory");
        plain_product<<<dim3((s.inner + 127) / 128, s.rows), 128>>>(x, w1, plain_h, s.rows, s.inner, s.hidden,
                                                                    true);
        plain_product<<<dim3((s.hidden + 127) / 128, s.rows), 128>>>(h, w2, plain_y, s.rows, s.hidden,
                                                                     s.inner, false);
        count_wrong<<<256, 256>>>(h, plain_h, std::size_t(s.rows) * s.inner, 0.01F, device);
        count_wrong<<<256, 256>>>(y, plain_y, std::size_t(s.rows) * s.hidden, 0.01F, device);
        require(cudaMemcpy(&count, device, sizeof(count), cudaMemcpyDeviceToHost), "check");
        require(cudaFree(device), "memory");
        return count;
    }

    Sizes sizes;
    Half *x, *w1, *w2, *h, *y, *plain_h, *plain_y;
    std::array<sync_cutlass::Product, 2> products;
};

std::string chain_text(const Sizes& s) {
    const auto blocks = [](int n, int block) { return std::to_string((n + block - 1) / block); };
    const auto number = [](int n) { return std::to_string(n); };
    const std::string rows = "\"128*y:128*y+128\"", box = "[" + rows + ", \"128*x:128*x+128\"]";
    const std::string all = "[" + rows + ", \":\"]";
    return R"({"schema": "syncopate.chain/1", "tensors": {"X": [)" + number(s.rows) + ", " +
           number(s.hidden) + "], \"H\": [" + number(s.rows) + ", " + number(s.inner) + "], \"Y\": [" +
           number(s.rows) + ", " + number(s.hidden) + R"(]}, "stages": [{"name": "up", "grid": [)" +
           blocks(s.inner, kBlockN) + ", " + blocks(s.rows, kBlockM) + R"(], "reads": {"X": )" + all +
           R"(}, "writes": {"H": )" + box + R"(}}, {"name": "down", "grid": [)" + blocks(s.hidden, kBlockN) +
           ", " + blocks(s.rows, kBlockM) + R"(], "reads": {"H": )" + all + R"(}, "writes": {"Y": )" + box +
           "}}]}";
}

enum class Way { stream, tiles, early };

class Caller {
public:
    Caller(const Layers& layers, sync::DeviceChain& chain) : layers_(layers), chain_(chain) {
        for (const auto kernel : {sync_cutlass::product<false>, sync_cutlass::product<true>}) {
            require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         sizeof(sync_cutlass::SharedStorage)),
                    "shared memory");
        }
    }
    void call(Way way, cudaStream_t stream) const {
        chain_.use(way == Way::stream ? sync::Way::stream : sync::Way::tiles);
        const auto kernel = way == Way::early ? sync_cutlass::product<true> : sync_cutlass::product<false>;
        const sync::StageShape shape{.threads = dim3(kThreads),
                                     .shared_bytes = sizeof(sync_cutlass::SharedStorage)};
        for (std::size_t stage = 0; stage < 2; ++stage)
            take(sync::launch(chain_, stage, shape, stream, kernel, layers_.products[stage]), "launch");
    }

private:
    const Layers& layers_;
    sync::DeviceChain& chain_;
};

/// µs of a call.
float measure(const Caller& caller, Way way, cudaStream_t stream) {
    constexpr int kCalls = 20;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int call = 0; call < kCalls; ++call) caller.call(way, stream);
    require(cudaStreamEndCapture(stream, &graph), "capture");
    require(cudaGraphInstantiate(&ready, graph, 0), "graph");
    cudaEvent_t begin = nullptr, end = nullptr;
    require(cudaEventCreate(&begin), "event");
    require(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int round = 0; round < 7; ++round) {
        require(cudaEventRecord(begin, stream), "event");
        require(cudaGraphLaunch(ready, stream), "replay");
        require(cudaEventRecord(end, stream), "event");
        require(cudaEventSynchronize(end), "replay");
        float ms = 0;
        require(cudaEventElapsedTime(&ms, begin, end), "event");
        times.push_back(1000 * ms / kCalls);
    }
    std::sort(times.begin(), times.end());
    require(cudaGraphExecDestroy(ready), "graph");
    require(cudaGraphDestroy(graph), "graph");
    return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    Sizes sizes;
    int calls = 30;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--rows") == 0) sizes.rows = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--hidden") == 0) sizes.hidden = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--inner") == 0) sizes.inner = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--calls") == 0) calls = std::atoi(argv[i + 1]);
    }
    int major = 0;
    if (cudaFree(nullptr) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
        std::fprintf(stderr, "no Hopper GPU here\n");
        return 3;
    }
    const auto context = take(syncopate::runtime::CudaContext::current(), "context");
    const auto chain = take(sync::chain_from_json(chain_text(sizes), "chain"), "chain");
    const auto device = take(sync::DeviceChain::make(context, chain, 5'000), "chain");
    const Layers layers(sizes);
    const Caller caller(layers, *device);
    cudaStream_t stream = nullptr;
    require(cudaStreamCreate(&stream), "stream");
    unsigned wrong = 0;
    for (int call = 0; call < calls; ++call) {
        layers.new_input(100 + static_cast<unsigned>(call));
        require(cudaDeviceSynchronize(), "input");
        caller.call(static_cast<Way>(call % 3), stream);
        if (const syncopate::Status done = device->check(); !done) {
            std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
            return 1;
        }
        wrong += layers.wrong();
    }
    std::printf("cutlass: %s: %d calls, %u elements wrong\n", wrong == 0 ? "ok" : "wrong", calls, wrong);
    if (wrong != 0) return 1;
    const float in_order = measure(caller, Way::stream, stream);
    const float by_tiles = measure(caller, Way::tiles, stream);
    const float early = measure(caller, Way::early, stream);
    std::printf("M %d, hidden %d, inner %d: stream order %.1f us, tiles %.1f us, B before the wait %.1f us\n",
                sizes.rows, sizes.hidden, sizes.inner, in_order, by_tiles, early);
    return device->check() ? 0 : 1;
}

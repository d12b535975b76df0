// Two products on one GPU, H = relu(X W1) and Y = H W2, as a chain: tiles of the second start while the last wave of the first
// still runs, each as soon as the rows of H that it reads are complete. Ordinary template kernels, launched by name.
//
//   nvcc -std=c++20 -O3 -arch=sm_90 chain.cu -I PREFIX/include -L PREFIX/lib -lsyncopate -o chain
//   ./chain [ROWS [HIDDEN [INNER]]]        multiples of 64
//
// Prints what a call takes tile by tile and in stream order, which of them the chain keeps, and whether both gave the same bits.
// Exit 0: the same; 1: not, or a size is wrong; 3: there is no GPU here. docs/sync.md explains each step.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "syncopate/sync/launch.cuh"
#include "syncopate/sync/stage.cuh"

namespace cs = syncopate::sync;  // not "sync": <unistd.h> has a function of that name

constexpr int kTile = 64, kDepth = 16, kThreads = 256;  // a thread has 4 x 4 elements of a tile

/// C = A B, A [rows, depth], B [depth, columns]. kAwaits: an earlier stage makes A.
template <bool kAwaits, bool kRelu>
__global__ void __launch_bounds__(kThreads)
    product(const __grid_constant__ cs::StageArguments arguments, cs::Input<float> a, cs::Input<float> b,
            float* c, int columns, int depth) {
    const cs::Stage<> stage(arguments);
    const cs::Tile tile = stage.next_tile();    // in place of blockIdx
    if (kAwaits) stage.wait_by_block(0, tile);  // input 0: DeviceChain::input tells the number
    __shared__ float block_a[kDepth][kTile + 1], block_b[kDepth][kTile];
    const int row = static_cast<int>(tile.y) * kTile, column = static_cast<int>(tile.x) * kTile,
              thread = threadIdx.x;
    float sums[4][4] = {};
    for (int k = 0; k < depth; k += kDepth) {
        for (int i = thread; i < kTile * kDepth; i += kThreads) {
            block_a[i % kDepth][i / kDepth] = a[std::size_t(row + i / kDepth) * depth + k + i % kDepth];
            block_b[i / kTile][i % kTile] = b[std::size_t(k + i / kTile) * columns + column + i % kTile];
        }
        __syncthreads();
        for (int step = 0; step < kDepth; ++step) {
            for (int i = 0; i < 4; ++i) {
                for (int j = 0; j < 4; ++j)
                    sums[i][j] += block_a[step][thread / 16 * 4 + i] * block_b[step][thread % 16 + 16 * j];
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            const float sum = kRelu ? fmaxf(sums[i][j], 0.0f) : sums[i][j];
            c[std::size_t(row + thread / 16 * 4 + i) * columns + column + thread % 16 + 16 * j] = sum;
        }
    }
    stage.post(tile);  // who reads this tile may go on
    stage.end(tile);
}

/// What each block reads and writes, in launch order. W1 and W2 are not named: no stage writes them.
std::string chain_text(int rows, int hidden, int inner) {
    const auto stage = [&](const char* name, const char* from, const char* to, int columns) {
        return std::string("{\"name\": \"") + name + "\", \"grid\": [" + std::to_string(columns / kTile) +
               ", " + std::to_string(rows / kTile) + "], \"reads\": {\"" + from +
               "\": [\"64*y : 64*y+64\", \":\"]}, \"writes\": {\"" + to +
               "\": [\"64*y : 64*y+64\", \"64*x : 64*x+64\"]}}";
    };
    const auto tensor = [&](const char* name, int columns) {
        return std::string("\"") + name + "\": [" + std::to_string(rows) + ", " + std::to_string(columns) +
               "]";
    };
    return "{\"schema\": \"syncopate.chain/1\", \"tensors\": {" + tensor("X", hidden) + ", " +
           tensor("H", inner) + ", " + tensor("Y", hidden) + "}, \"stages\": [" +
           stage("up", "X", "H", inner) + ", " + stage("down", "H", "Y", hidden) + "]}";
}

template <typename T>
T take(syncopate::Result<T> result) {
    if (result) return *std::move(result);
    std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
    std::exit(static_cast<int>(result.error().error_class));
}

float* filled(std::size_t size, unsigned seed) {
    std::vector<float> values(size);
    for (float& value : values)
        value = static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 24) - 0.5f;
    float* device = nullptr;
    cudaMalloc(&device, size * sizeof(float));
    cudaMemcpy(device, values.data(), size * sizeof(float), cudaMemcpyHostToDevice);
    return device;
}

int main(int argc, char** argv) {
    const auto size = [&](int place, int otherwise) {
        return argc > place ? std::atoi(argv[place]) : otherwise;
    };
    const int rows = size(1, 832), hidden = size(2, 1024), inner = size(3, 2048);
    for (const int extent : {rows, hidden, inner}) {
        if (extent > 0 && extent % kTile == 0) continue;
        std::fprintf(stderr, "%d is no multiple of %d\n", extent, kTile);
        return 1;
    }
    const auto context = take(syncopate::runtime::CudaContext::current());
    const cs::Chain chain = take(cs::chain_from_json(chain_text(rows, hidden, inner), "chain"));
    const auto device =
        take(cs::DeviceChain::make(context, chain));  // refuses a chain that could read early or deadlock

    const std::size_t count = std::size_t(rows) * hidden;
    float *x = filled(count, 1), *w1 = filled(std::size_t(hidden) * inner, 2),
          *w2 = filled(std::size_t(inner) * hidden, 3);
    float *h = filled(std::size_t(rows) * inner, 4), *y = filled(count, 5);
    const cs::StageShape shape{.threads = {kThreads, 1, 1}};
    const auto call = [&](syncopate::runtime::CudaStream number) -> syncopate::Status {
        const auto stream = reinterpret_cast<cudaStream_t>(number);
        const auto up = cs::launch(*device, 0, shape, stream, product<false, true>, x, w1, h, inner, hidden);
        return up ? cs::launch(*device, 1, shape, stream, product<true, false>, h, w2, y, hidden, inner) : up;
    };
    const auto result = [&](cs::Way way) {
        device->use(way);
        cudaMemset(h, 0xff, std::size_t(rows) * inner * sizeof(float));  // NaN: an early read shows
        take(call(0));
        take(device->check());  // waits, and names a tile that waited in vain
        std::vector<float> values(count);
        cudaMemcpy(values.data(), y, count * sizeof(float), cudaMemcpyDeviceToHost);
        return values;
    };
    const bool same = result(cs::Way::tiles) == result(cs::Way::stream);

    const cs::WayTimes times = take(device->choose(call));  // once; calls keep the faster way from now on
    if (!times.tiles.empty())
        std::printf("%d x %d x %d: tiles %.1f us, stream order %.1f us; ", rows, hidden, inner,
                    times.tiles[times.tiles.size() / 2], times.stream[times.stream.size() / 2]);
    std::printf("%s is kept; %s\n", std::string(cs::name_of(device->way())).c_str(),
                same ? "the same bits" : "WRONG");
    return same ? 0 : 1;
}

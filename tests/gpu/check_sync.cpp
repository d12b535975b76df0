// Tile synchronisation on a real GPU: what each block finds is checked in the block, against the tile and the
// call's number, so that one stale word in a million calls is seen.
//
//   syncopate_check_sync [--calls N] [--replays N] [--image FILE]
//
//   grids      chains of all sizes, persistent or not, by loads or by TMA, with random delays, and while
//   another
//              stream presses
//   replays    a captured graph of 100 calls, replayed until there were N calls
//              (both by programmatic launch and by start events, there a tenth of them)
//   ways       stream order and tile by tile in turn, from call to call, and the choice between them
//   clusters   blocks of clusters, launched by a kernel's handle
//   deadline   a producer that never posts: the call ends, and names stage, tile and input
//
// Exit 0 when all is right, 3 where there is no GPU.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"
#include "syncopate/io.hpp"
#include "syncopate/sync/launch.hpp"

namespace syncopate::sync {
namespace {

/// Ends the program where something fails.
template <typename T>
T take(Result<T> result, const char* what) {
    if (result) return *std::move(result);
    fmt::print(stderr, "{}: {}\n", what, result.error().to_string());
    std::exit(static_cast<int>(result.error().error_class));
}

struct Check {  // as in sync_kernels.cu
    std::uint64_t made, wrong;
    std::uint32_t columns, rows, halo, all_rows, delay_ns;
};

struct Shape {
    std::uint32_t columns, all_rows;  ///< the producer's grid
    std::uint32_t consumer_columns;
    std::uint32_t rows, halo;
    std::uint32_t up_blocks, down_blocks;  ///< 0: not persistent
    bool tma;
};

constexpr std::uint32_t kWidth = 128;

std::string chain_text(const Shape& s) {
    const std::uint32_t tiles = (s.all_rows + s.rows - 1) / s.rows;
    return fmt::format(
        R"({{"schema": "syncopate.chain/1", "tensors": {{"Y": [{0}, {1}], "Z": [{2}, {3}]}}, "stages": [)"
        R"({{"name": "up", "grid": [{1}, {0}], "order": "auto", "writes": {{"Y": ["y", "x"]}}}},)"
        R"({{"name": "down", "grid": [{3}, {2}], "order": "auto", "reads": {{"Y": ["{4}*y-{5} : {4}*y+{4}+{5}", ":"]}},)"
        R"("writes": {{"Z": ["y", "x"]}}}}]}})",
        s.all_rows, s.columns, tiles, s.consumer_columns, s.rows, s.halo);
}

class Program {
public:
    explicit Program(const std::string& image) {
        context_ = take(runtime::CudaContext::current(), "context");
        image_ = take(read_file(image), "kernels");
        stream_ = take(runtime::OwnedStream::create(context_, false), "stream");
        other_ = take(runtime::OwnedStream::create(context_, false), "stream");
        wrong_ = take(runtime::DeviceBuffer::create(context_, 4), "memory");
        const runtime::CurrentContext current(*context_);
        context_->api().cuMemsetD8Async(wrong_->address(), 0, 4, nullptr);
        take(context_->synchronize(), "memory");
    }

    [[nodiscard]] std::unique_ptr<runtime::CudaKernel> kernel(const char* name, int warps) const {
        runtime::KernelOptions options;
        options.num_warps = warps;
        options.triton = false;
        return take(runtime::CudaKernel::load(context_, std::as_bytes(std::span(image_)), name, options),
                    name);
    }

    /// Words that were not as expected, since the program began.
    [[nodiscard]] std::uint32_t wrong() const {
        std::uint32_t count = 0;
        const runtime::CurrentContext current(*context_);
        take(context_->synchronize(), "run");
        context_->api().cuMemcpyDtoHAsync(&count, wrong_->address(), 4, nullptr);
        take(context_->synchronize(), "run");
        return count;
    }

    std::shared_ptr<runtime::CudaContext> context_;
    std::string image_;
    std::unique_ptr<runtime::OwnedStream> stream_, other_;
    std::unique_ptr<runtime::DeviceBuffer> wrong_;

    [[nodiscard]] runtime::CudaStream stream() const {
        return reinterpret_cast<runtime::CudaStream>(stream_->get());
    }
    [[nodiscard]] runtime::CudaStream other() const {
        return reinterpret_cast<runtime::CudaStream>(other_->get());
    }
};

/// A chain of two stages with its kernels.
struct Pair {
    Pair(const Program& program, const Shape& s, std::uint32_t delay_ns, const char* up_name = nullptr,
         std::uint32_t deadline_ms = 10'000, Launching launching = Launching::programmatic)
        : shape(s) {
        const Chain made = take(chain_from_json(chain_text(s), "chain"), "chain");
        chain = take(DeviceChain::make(program.context_, made, deadline_ms, launching), "chain");
        memory = take(
            runtime::DeviceBuffer::create(program.context_, std::size_t{s.columns} * s.all_rows * kWidth * 4),
            "memory");
        if (up_name == nullptr) up_name = s.up_blocks != 0 ? "check_produce_persistent" : "check_produce";
        up = program.kernel(up_name, 4);
        down = program.kernel(s.tma                ? "check_consume_tma"
                              : s.down_blocks != 0 ? "check_consume_persistent"
                                                   : "check_consume",
                              s.tma ? 5 : 4);
        check = {memory->address(), program.wrong_->address(), s.columns, s.rows, s.halo, s.all_rows,
                 delay_ns};
        take_way(chain->way());
    }
    void take_way(Way way) {
        chain->use(way);
        up_arguments = down_arguments = {};
        up_arguments.add(chain->arguments(0, {shape.up_blocks}));
        up_arguments.add(check);
        down_arguments.add(chain->arguments(1, {shape.down_blocks}));
        down_arguments.add(check);
    }
    Status call(runtime::CudaStream stream) {
        const Status launched = chain->launch(0, *up, up_arguments, stream, {shape.up_blocks});
        return launched ? chain->launch(1, *down, down_arguments, stream, {shape.down_blocks}) : launched;
    }

    Shape shape;
    Check check{};
    std::unique_ptr<DeviceChain> chain;
    std::unique_ptr<runtime::DeviceBuffer> memory;
    std::unique_ptr<runtime::CudaKernel> up, down;
    runtime::KernelArguments up_arguments, down_arguments;
};

const char* name_of(Launching launching) {
    return launching == Launching::programmatic ? "programmatic launch" : "start events";
}

bool grids(const Program& program, int calls, Launching launching) {
    const std::vector<Shape> shapes{
        {8, 2, 4, 1, 0, 0, 0, false},      {1, 1, 1, 1, 0, 0, 0, false},
        {24, 48, 48, 1, 0, 0, 0, false},   {24, 14, 48, 2, 0, 0, 0, false},
        {3, 33, 2, 4, 0, 0, 0, false},     {1, 56, 1, 1, 1, 0, 0, false},
        {8, 40, 8, 1, 0, 132, 132, false}, {8, 40, 8, 1, 0, 7, 0, false},
        {8, 40, 8, 1, 0, 0, 5, false},     {16, 24, 16, 1, 0, 0, 0, true},
        {5, 200, 3, 2, 1, 0, 0, true},     {40, 100, 40, 1, 0, 264, 264, false},
    };
    const auto press = program.kernel("check_press", 32);
    runtime::KernelArguments ns;
    ns.add(std::uint32_t{30'000});
    bool right = true;
    for (const Shape& shape : shapes) {
        Pair pair(program, shape, 8'000, nullptr, 10'000, launching);
        for (int call = 0; call < calls; ++call) {
            if (call % 4 == 0)
                take(press->launch({static_cast<std::uint32_t>(1 + call % 200), 1, 1}, program.other(), ns),
                     "press");
            take(pair.call(program.stream()), "launch");
        }
        take(pair.chain->check(), "grids");
        if (const std::uint32_t wrong = program.wrong(); wrong != 0) {
            fmt::print("grids: {} words wrong, of {}\n", wrong, chain_text(shape));
            right = false;
            break;
        }
    }
    if (right)
        fmt::print("grids: ok: {} chains, {} calls each, by {}\n", shapes.size(), calls, name_of(launching));
    return right;
}

/// The driver's functions for graphs, which the library itself does not need.
struct Graphs {
    Graphs() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        begin = reinterpret_cast<decltype(begin)>(dlsym(library, "cuStreamBeginCapture_v2"));
        end = reinterpret_cast<decltype(end)>(dlsym(library, "cuStreamEndCapture"));
        instantiate = reinterpret_cast<decltype(instantiate)>(dlsym(library, "cuGraphInstantiateWithFlags"));
        launch = reinterpret_cast<decltype(launch)>(dlsym(library, "cuGraphLaunch"));
    }
    CUresult (*begin)(CUstream, CUstreamCaptureMode) = nullptr;
    CUresult (*end)(CUstream, CUgraph*) = nullptr;
    CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long) = nullptr;
    CUresult (*launch)(CUgraphExec, CUstream) = nullptr;
};

bool replays(const Program& program, int count, Launching launching) {
    constexpr int kCalls = 100;
    const Graphs graphs;
    const runtime::CurrentContext current(*program.context_);
    const std::vector<Shape> shapes{{4, 4, 2, 1, 0, 0, 0, false}, {20, 8, 20, 1, 0, 0, 0, true}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        Pair pair(program, shapes[i], i == 0 ? 1'000 : 6'000, nullptr, 10'000, launching);
        CUgraph graph = nullptr;
        CUgraphExec ready = nullptr;
        CUstream stream = program.stream_->get();
        bool captured = graphs.begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS;
        for (int call = 0; call < kCalls; ++call) take(pair.call(program.stream()), "launch");
        captured = captured && graphs.end(stream, &graph) == CUDA_SUCCESS &&
                   graphs.instantiate(&ready, graph, 0) == CUDA_SUCCESS;
        if (!captured) {
            fmt::print("replays: the chain cannot be captured\n");
            return false;
        }
        const int times = (i == 0 ? count : count / 10) / kCalls;
        const auto start = std::chrono::steady_clock::now();
        for (int replay = 0; replay < times; ++replay) {
            if (graphs.launch(ready, stream) != CUDA_SUCCESS)
                return fmt::print("replays: launch failed\n"), false;
        }
        take(pair.chain->check(), "replays");
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        const std::uint32_t wrong = program.wrong();
        fmt::print("replays: {} calls in {:.1f} s by {}, {} words wrong\n", times * kCalls, seconds.count(),
                   name_of(launching), wrong);
        if (wrong != 0) return false;
    }
    return true;
}

bool ways(const Program& program, int calls) {
    for (const Shape& shape : std::vector<Shape>{{8, 2, 4, 1, 0, 0, 0, false},
                                                 {24, 14, 48, 2, 0, 0, 0, false},
                                                 {8, 40, 8, 1, 0, 132, 132, false},
                                                 {16, 24, 16, 1, 0, 0, 0, true}}) {
        for (const Launching launching : {Launching::programmatic, Launching::start_events}) {
            Pair pair(program, shape, 8'000, nullptr, 10'000, launching);
            for (int call = 0; call < calls; ++call) {
                pair.take_way(call / 3 % 2 == 0 ? Way::tiles : Way::stream);
                take(pair.call(program.stream()), "launch");
            }
            const WayTimes times = take(pair.chain->choose([&](runtime::CudaStream stream) {
                pair.take_way(pair.chain->way());
                return pair.call(stream);
            }),
                                        "choose");
            const bool measured = times.tiles.size() == times.stream.size() && !times.tiles.empty();
            pair.take_way(pair.chain->way());
            take(pair.call(program.stream()), "launch");
            take(pair.chain->check(), "ways");
            if (const std::uint32_t wrong = program.wrong(); wrong != 0 || !measured) {
                fmt::print("ways: {} words wrong, {} rounds, of {}\n", wrong, times.tiles.size(),
                           chain_text(shape));
                return false;
            }
        }
    }
    fmt::print("ways: ok\n");
    return true;
}

/// The handle of a kernel, in a module that stays.
void* handle_of(const Program& program, const char* name) {
    const runtime::CurrentContext current(*program.context_);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    if (program.context_->api().cuModuleLoadData(&module, program.image_.data()) != CUDA_SUCCESS ||
        program.context_->api().cuModuleGetFunction(&function, module, name) != CUDA_SUCCESS) {
        fmt::print(stderr, "{} is not there\n", name);
        std::exit(1);
    }
    return function;
}

bool clusters(const Program& program, int calls) {
    for (const std::uint32_t size : {2u, 4u, 8u}) {
        for (const std::uint32_t persistent : {0u, 64u}) {
            const Shape shape{8, 24, 16, 1, 0, 0, 0, false};
            Pair pair(program, shape, 8'000);
            const Function up{handle_of(program, persistent != 0 ? "check_produce_clusters_persistent"
                                                                 : "check_produce_clusters"),
                              {kWidth, 1, 1}};
            const Function down{handle_of(program, "check_consume_clusters"), {kWidth, 1, 1}};
            const Blocks up_blocks{persistent, size}, down_blocks{0, size};
            for (int call = 0; call < calls; ++call) {
                pair.chain->use(call % 5 == 4 ? Way::stream : Way::tiles);
                StageArguments first = pair.chain->arguments(0, up_blocks);
                StageArguments second = pair.chain->arguments(1, down_blocks);
                // Each way counts calls of its own: what the other one has left must not pass for this call's.
                std::array<void*, 2> of_up{&first, &pair.check}, of_down{&second, &pair.check};
                take(pair.chain->launch(0, up, of_up, program.stream(), up_blocks), "launch");
                take(pair.chain->launch(1, down, of_down, program.stream(), down_blocks), "launch");
            }
            take(pair.chain->check(), "clusters");
            if (const std::uint32_t wrong = program.wrong(); wrong != 0) {
                fmt::print("clusters: {} words wrong, {} blocks each\n", wrong, size);
                return false;
            }
        }
    }
    fmt::print("clusters: ok\n");
    return true;
}

bool deadline(const Program& program) {
    Pair pair(program, {8, 2, 4, 1, 0, 0, 0, false}, 0, "check_silent", 200);
    take(pair.call(program.stream()), "launch");
    const Status status = pair.chain->check();
    const bool named = !status && status.error().message.find("stage down, tile (") == 0 &&
                       status.error().message.find("waited in vain for Y for 200 ms") != std::string::npos;
    fmt::print("deadline: {}: {}\n", named ? "ok" : "wrong", status ? "no fault" : status.error().message);
    return named;
}

int run(int argc, char** argv) {
    int calls = 200;
    int count = 1'000'000;
    const std::string self = argv[0];
    std::string image = self.substr(0, self.rfind('/') + 1) + "sync_kernels.fatbin";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--calls") == 0) calls = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--replays") == 0) count = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--image") == 0) image = argv[i + 1];
    }
    const Program program(image);
    bool right = true;
    for (const Launching launching : {Launching::programmatic, Launching::start_events}) {
        right = right && grids(program, calls, launching) &&
                replays(program, launching == Launching::programmatic ? count : count / 10, launching);
    }
    right = right && ways(program, calls) && clusters(program, calls);
    right = right && deadline(program);  // the last: its consumers find nothing, and count that as wrong
    return right ? 0 : 1;
}

}  // namespace
}  // namespace syncopate::sync

int main(int argc, char** argv) { return syncopate::sync::run(argc, argv); }

// Host time of a call by the C API, without a GPU: on the driver stand-in of the tests, whose calls cost next to nothing. So it is
// what the library costs, whatever a driver costs on top.
//
//   syncopate compile matmul_reduce_scatter:N=256,K=256 --ranks 2 --rows 64 -o rs.sybundle
//   cmake --preset release -DSYNCOPATE_BENCHMARKS=ON && cmake --build build --target bench_c_route fake_cuda
//   LD_LIBRARY_PATH=build/fake_driver build/bin/bench_c_route rs.sybundle 64
//
// Ranks are threads. Median us of the calling thread of rank 0, driver calls of a call, and the bar of both: 8 us + 2 a driver call.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <time.h>

#include "syncopate/c.h"

namespace {

struct Store {
    std::mutex mutex;
    std::map<std::string, std::string> values;
};

int put(void* context, const char* key, const void* data, size_t bytes) {
    auto* store = static_cast<Store*>(context);
    const std::lock_guard lock(store->mutex);
    store->values.emplace(key, std::string(static_cast<const char*>(data), bytes));
    return 0;
}
int wait(void* context, const char* key, int64_t timeout_ms) {
    auto* store = static_cast<Store*>(context);
    for (int64_t slept = 0; slept < timeout_ms; ++slept) {
        {
            const std::lock_guard lock(store->mutex);
            if (store->values.contains(key)) return 0;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 1;
}
int get(void* context, const char* key, void* data, size_t capacity, size_t* bytes) {
    auto* store = static_cast<Store*>(context);
    const std::lock_guard lock(store->mutex);
    const std::string& value = store->values.at(key);
    *bytes = value.size();
    std::memcpy(data, value.data(), std::min(capacity, value.size()));
    return 0;
}

double now_us() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

void good(sy_code code) {
    if (code == SY_OK) return;
    std::fprintf(stderr, "%s\n", sy_last_error());
    std::exit(1);
}

void run(const char* file, int64_t rows, int32_t rank, int32_t ranks, const sy_store& store,
         std::atomic<int>& left) {
    sy_comm_config config{.size = sizeof config, .rank = rank, .num_ranks = ranks};
    config.device = SY_ON_CUDA, config.ordinal = rank, config.store = &store;
    sy_comm* comm = nullptr;
    sy_bundle* bundle = nullptr;
    sy_op* op = nullptr;
    good(sy_comm_create(&config, &comm));
    good(sy_bundle_open(file, &bundle));
    sy_prepare_config prepare{.size = sizeof prepare, .rows = rows};
    good(sy_prepare(comm, bundle, &prepare, &op));
    std::vector<sy_tensor> given(static_cast<size_t>(sy_num_operands(op)));
    std::vector<std::vector<int64_t>> shapes(given.size());
    std::vector<const sy_tensor*> tensors;
    for (size_t i = 0; i < given.size(); ++i) {
        sy_operand operand{.size = sizeof operand};
        good(sy_operand_at(op, static_cast<int32_t>(i), &operand));
        shapes[i].assign(operand.shape, operand.shape + operand.ndim);
        size_t bytes = operand.dtype_bits / 8U;
        for (const int64_t extent : shapes[i]) bytes *= static_cast<size_t>(extent);
        given[i].data =
            std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // the stand-in's memory is the CPU's
        given[i].device = {SY_CUDA, rank};
        given[i].ndim = operand.ndim;
        given[i].dtype = {operand.dtype_code, operand.dtype_bits, 1};
        given[i].shape = shapes[i].data();
        tensors.push_back(&given[i]);
    }
    const auto call = [&] {
        good(sy_run(op, tensors.data(), static_cast<int32_t>(tensors.size()), nullptr));
    };
    for (int i = 0; i < 10; ++i) call();
    --left;
    while (left > 0) std::this_thread::yield();  // driver calls are counted for all threads: the others wait
    if (rank == 0) {
        const auto count = reinterpret_cast<size_t (*)()>(
            dlsym(dlopen("libcuda.so.1", RTLD_NOW), "_ZN9fake_cuda9num_callsEv"));
        const size_t before = count == nullptr ? 0 : count();
        call();
        const size_t calls = count == nullptr ? 0 : count() - before;
        std::vector<double> times;
        for (int round = 0; round < 21; ++round) {
            constexpr int kCalls = 200;
            const double begin = now_us();
            for (int i = 0; i < kCalls; ++i) call();
            times.push_back((now_us() - begin) / kCalls);
        }
        std::ranges::sort(times);
        std::printf("%s, %lld rows: %.2f us a call, %zu driver calls: at most %zu us\n", file,
                    static_cast<long long>(rows), times[times.size() / 2], calls, 8 + 2 * calls);
        std::exit(0);
    }
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3) return std::fprintf(stderr, "c_route FILE ROWS\n"), 1;
    Store meet;
    const sy_store store{sizeof(sy_store), &meet, &put, &wait, &get};
    constexpr int32_t kRanks = 2;
    std::atomic<int> left = kRanks;
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank)
        threads.emplace_back(
            [&, rank] { run(arguments[1], std::atoll(arguments[2]), rank, kRanks, store, left); });
    for (std::thread& thread : threads) thread.join();
}

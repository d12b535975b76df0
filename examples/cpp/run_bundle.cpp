// An engine in C++, with no Python in the process: one process, a thread for each rank, operators from two bundles on
// one communicator, and their memory given back in between.
//
//     syncopate compile all_gather_matmul:N=96,K=64,dtype=fp32 --rows 16,64 --ranks 2 --arch host -o up.sybundle
//     syncopate compile matmul_reduce_scatter:N=64,K=96,dtype=fp32 --rows 16,64 --ranks 2 --arch host -o down.sybundle
//     example_run_bundle up.sybundle down.sybundle 50
//
// Each rank makes h = all_gather(x) @ w1, y = reduce_scatter(h @ w2), of bundles for host, and prints the largest
// element of y. It looks, when it has ended, whether some libpython has been loaded: then it fails.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "syncopate/c.h"

namespace {

/// The store through which the threads meet.
struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;

    static int set(void* self, const char* key, const void* data, size_t bytes) {
        auto& all = *static_cast<Meeting*>(self);
        const std::lock_guard lock(all.mutex);
        all.values[key] = std::string(static_cast<const char*>(data), bytes);
        all.changed.notify_all();
        return 0;
    }
    static int wait(void* self, const char* key, int64_t timeout_ms) {
        auto& all = *static_cast<Meeting*>(self);
        std::unique_lock lock(all.mutex);
        const auto there = [&] { return all.values.contains(key); };
        return all.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), there) ? 0 : 1;
    }
    static int get(void* self, const char* key, void* data, size_t capacity, size_t* bytes) {
        auto& all = *static_cast<Meeting*>(self);
        const std::lock_guard lock(all.mutex);
        const std::string& value = all.values.at(key);
        *bytes = value.size();
        std::memcpy(data, value.data(), std::min(capacity, value.size()));
        return 0;
    }
};

void need(sy_code code) {
    if (code != SY_OK) throw std::runtime_error(sy_last_error());
}

/// A matrix of fp32 on host.
struct Matrix {
    std::vector<int64_t> shape;
    std::vector<float> values;
    sy_tensor tensor{};

    explicit Matrix(const sy_operand& of) : shape(of.shape, of.shape + of.ndim) {
        values.assign(static_cast<size_t>(shape[0] * shape[1]), 0.0F);
        tensor = {values.data(), {SY_CPU, 0}, 2, {SY_FLOAT, 32, 1}, shape.data(), nullptr, 0};
    }
    void count_up(int from) {
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((i * 3 + static_cast<size_t>(from)) % 5) - 2.0F;
    }
};

/// An operator of a bundle, ready to be called.
class Operator {
public:
    Operator(sy_comm* comm, const char* file, int64_t rows) {
        sy_bundle* bundle = nullptr;
        need(sy_bundle_open(file, &bundle));
        const std::unique_ptr<sy_bundle, void (*)(sy_bundle*)> closed(bundle, sy_bundle_close);
        sy_prepare_config config{};
        config.size = sizeof(config);
        config.rows = rows;
        need(sy_prepare(comm, bundle, &config, &op_));
    }
    [[nodiscard]] Matrix matrix(int32_t index) const {
        sy_operand of{};
        of.size = sizeof(of);
        need(sy_operand_at(op_, index, &of));
        return Matrix(of);
    }
    void run(const Matrix& x, const Matrix& w, const Matrix& y) const {
        const sy_tensor* tensors[] = {&x.tensor, &w.tensor, &y.tensor};
        need(sy_run(op_, tensors, 3, nullptr));
    }
    void destroy() {
        need(sy_status(op_));
        need(sy_op_destroy(op_));
    }

private:
    sy_op* op_ = nullptr;
};

float layer(const char* const* files, int64_t rows, int rank, int ranks, Meeting& meeting) {
    const sy_store store{sizeof(sy_store), &meeting, Meeting::set, Meeting::wait, Meeting::get};
    sy_comm_config config{};
    config.size = sizeof(config);
    config.rank = rank;
    config.num_ranks = ranks;
    config.store = &store;
    sy_comm* comm = nullptr;
    need(sy_comm_create(&config, &comm));
    Operator up(comm, files[0], rows), down(comm, files[1], rows);
    Matrix x = up.matrix(0), w1 = up.matrix(1), h = up.matrix(2), w2 = down.matrix(1), y = down.matrix(2);
    x.count_up(rank);
    w1.count_up(1);
    w2.count_up(2);
    for (int step = 0; step < 2; ++step) {
        up.run(x, w1, h);
        down.run(h, w2, y);
        need(sy_release(comm));  // it sleeps
        need(sy_restore(comm));
    }
    up.destroy();
    down.destroy();
    sy_comm_destroy(comm);
    return *std::max_element(y.values.begin(), y.values.end());
}

bool has_python() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("libpython") != std::string::npos) return true;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: example_run_bundle UP DOWN ROWS\n";
        return 2;
    }
    sy_bundle* bundle = nullptr;
    sy_bundle_info info{};
    info.size = sizeof(info);
    if (sy_bundle_open(argv[1], &bundle) != SY_OK || sy_bundle_describe(bundle, &info) != SY_OK) {
        std::cerr << "error: " << sy_last_error() << '\n';
        return 1;
    }
    const int ranks = info.num_ranks;
    sy_bundle_close(bundle);
    Meeting meeting;
    std::vector<std::string> failures(static_cast<size_t>(ranks));
    std::vector<float> largest(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            const auto at = static_cast<size_t>(rank);
            try {
                largest[at] = layer(argv + 1, std::atoll(argv[3]), rank, ranks, meeting);
            } catch (const std::exception& failure) {
                failures[at] = failure.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t rank = 0; rank < failures.size(); ++rank) {
        if (!failures[rank].empty()) {
            std::cerr << "error: " << failures[rank] << '\n';
            return 1;
        }
        std::cout << "rank " << rank << ": the largest element is " << largest[rank] << '\n';
    }
    if (has_python()) std::cerr << "error: some libpython has been loaded\n";
    return has_python() ? 1 : 0;
}

// What tests of the C API have in common: a store that threads share, tensors, a bundle in a file.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bundle/samples.hpp"
#include "syncopate/c.h"

namespace syncopate::bundle::testing {

inline sy_store store_of(Store& store) {
    return {sizeof(sy_store), &store,
            [](void* context, const char* key, const void* data, size_t bytes) {
                static_cast<Store*>(context)->set(key, std::string(static_cast<const char*>(data), bytes));
                return 0;
            },
            [](void* context, const char* key, int64_t timeout_ms) {
                return static_cast<Store*>(context)->wait(key, timeout_ms) ? 0 : 1;
            },
            [](void* context, const char* key, void* data, size_t capacity, size_t* bytes) {
                const std::string value = static_cast<Store*>(context)->get(key);
                *bytes = value.size();
                std::memcpy(data, value.data(), std::min(capacity, value.size()));
                return 0;
            }};
}

/// A file that is gone at the end.
struct Written {
    explicit Written(const Bundle& made)
        : file((std::filesystem::temp_directory_path() /
                ("sy_c_test_" + std::to_string(getpid()) + "_" + std::to_string(++count) + ".sybundle"))
                   .string()) {
        EXPECT_TRUE(write_bundle(made, file));
    }
    ~Written() { std::filesystem::remove(file); }
    static inline std::atomic<int> count = 0;  // ranks are threads
    std::string file;
};

/// A tensor of fp32 with its memory.
struct Floats {
    explicit Floats(std::vector<int64_t> of) : shape(std::move(of)) {
        size_t count = 1;
        for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
        values.assign(count, -1.0F);
        tensor.data = values.data();
        tensor.device = {SY_CPU, 0};
        tensor.ndim = static_cast<int32_t>(shape.size());
        tensor.dtype = {SY_FLOAT, 32, 1};
        tensor.shape = shape.data();
    }
    std::vector<int64_t> shape;
    std::vector<float> values;
    sy_tensor tensor{};
};

inline sy_comm_config config_of(int rank, int size, const sy_store& store) {
    sy_comm_config config{};
    config.size = sizeof(config);
    config.rank = rank;
    config.num_ranks = size;
    config.store = &store;
    config.timeout_ms = 30'000;
    return config;
}

#define OK(call) ASSERT_EQ(call, SY_OK) << sy_last_error()

/// `work` on each of so many ranks, with its communicator and the bundle that it has opened.
inline void with_bundle(const Bundle& made, int ranks,
                        const std::function<void(sy_comm*, sy_bundle*, int)>& work) {
    const Written written(made);
    Store meet;
    const sy_store store = store_of(meet);
    on_ranks(ranks, [&](int rank) {
        const sy_comm_config config = config_of(rank, ranks, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        work(comm, opened, rank);
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    });
}

}  // namespace syncopate::bundle::testing

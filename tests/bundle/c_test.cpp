// The C API on host, ranks as threads.
#include "syncopate/c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <malloc.h>

#include "bundle/c_samples.hpp"
#include "bundle/samples.hpp"
#include "syncopate/bundle/host_kernel.hpp"

namespace syncopate::bundle {
namespace {

using testing::config_of;
using testing::Floats;
using testing::on_ranks;
using testing::sample;
using testing::Store;
using testing::store_of;
using testing::with_bundle;
using testing::Written;

sy_code prepare(sy_comm* comm, sy_bundle* opened, int64_t rows, sy_op** op) {
    sy_prepare_config config{};
    config.size = sizeof(config);
    config.rows = rows;
    return sy_prepare(comm, opened, &config, op);
}

/// y = all_gather(x) @ w with x[m, k] = m + k of its global row, w[k, n] = k - n.
void gather_once(sy_op* op, int rank, int64_t rows) {
    ASSERT_EQ(sy_num_operands(op), 3);
    std::vector<Floats> given;
    for (int32_t i = 0; i < 3; ++i) {
        sy_operand operand{};
        operand.size = sizeof(operand);
        OK(sy_operand_at(op, i, &operand));
        EXPECT_EQ(operand.writes, i == 2);
        given.emplace_back(std::vector<int64_t>(operand.shape, operand.shape + operand.ndim));
    }
    const int64_t k = given[1].shape[0];
    const int64_t n = given[1].shape[1];
    const int64_t first = rank == 0 ? 0 : rows - given[0].shape[0];
    for (int64_t i = 0; i < given[0].shape[0] * k; ++i)
        given[0].values[static_cast<size_t>(i)] = static_cast<float>(first + i / k + i % k);
    for (int64_t i = 0; i < k * n; ++i)
        given[1].values[static_cast<size_t>(i)] = static_cast<float>(i / n - i % n);
    const sy_tensor* tensors[] = {&given[0].tensor, &given[1].tensor, &given[2].tensor};
    OK(sy_run(op, tensors, 3, nullptr));
    OK(sy_status(op));
    ASSERT_EQ(given[2].shape[0], rows);
    for (int64_t row = 0; row < rows; row += 5) {
        for (int64_t column = 0; column < n; column += 7) {
            float wanted = 0;
            for (int64_t i = 0; i < k; ++i) wanted += static_cast<float>((row + i) * (i - column));
            ASSERT_EQ(given[2].values[static_cast<size_t>(row * n + column)], wanted)
                << row << ", " << column;
        }
    }
}

const char* const kGather = "all_gather_matmul:N=48,K=32,dtype=fp32,ranks=2,sms=4";

TEST(C, RunsAnOperatorOnThreadsForSeveralNumbersOfRows) {
    const Written written(sample(kGather));
    Store meet;
    const sy_store store = store_of(meet);
    on_ranks(2, [&](int rank) {
        const sy_comm_config config = config_of(rank, 2, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        std::vector<sy_op*> ops;
        for (const int64_t rows : {16, 64, 37}) {
            sy_op*& op = ops.emplace_back(nullptr);
            OK(prepare(comm, opened, rows, &op));
            gather_once(op, rank, rows);
            gather_once(op, rank, rows);
        }
        sy_bundle_close(opened);
        gather_once(ops.front(), rank, 16);
        for (sy_op* op : ops) OK(sy_op_destroy(op));
        sy_comm_destroy(comm);
    });
}

TEST(C, GivesMemoryBackAndGoesOnAfterwards) {
    with_bundle(sample(kGather), 2, [&](sy_comm* comm, sy_bundle* opened, int rank) {
        sy_op* op = nullptr;
        OK(prepare(comm, opened, 64, &op));
        for (int round = 0; round < 3; ++round) {
            gather_once(op, rank, 64);
            OK(sy_release(comm));
            sy_memory memory{};
            memory.size = sizeof(memory);
            OK(sy_comm_memory(comm, &memory));
            EXPECT_EQ(memory.bytes, memory.released);
            EXPECT_GT(memory.released, 0U);
            const sy_tensor* none[3] = {nullptr, nullptr, nullptr};
            EXPECT_EQ(sy_run(op, none, 3, nullptr), SY_USAGE);
            OK(sy_status(op));
            OK(sy_restore(comm));
            OK(sy_comm_memory(comm, &memory));
            EXPECT_EQ(memory.released, 0U);
        }
        gather_once(op, rank, 64);
        OK(sy_op_destroy(op));
    });
}

TEST(C, SaysWhatItWillTakeAndKeepsToABudget) {
    const Written written(sample(kGather));
    sy_bundle* opened = nullptr;
    ASSERT_EQ(sy_bundle_open(written.file.c_str(), &opened), SY_OK);
    sy_workspace workspace{};
    workspace.size = sizeof(workspace);
    ASSERT_EQ(sy_workspace_size(opened, 64, &workspace), SY_OK);
    EXPECT_EQ(workspace.all, workspace.mapped + workspace.own);
    Store meet;
    const sy_store store = store_of(meet);
    on_ranks(2, [&](int rank) {
        sy_comm_config config = config_of(rank, 2, store);
        config.budget = workspace.mapped;
        sy_comm* comm = nullptr;
        OK(sy_comm_create(&config, &comm));
        sy_op* op = nullptr;
        sy_op* more = nullptr;
        OK(prepare(comm, opened, 64, &op));
        sy_memory memory{};
        memory.size = sizeof(memory);
        OK(sy_comm_memory(comm, &memory));
        EXPECT_EQ(memory.bytes, workspace.mapped);
        EXPECT_EQ(prepare(comm, opened, 64, &more), SY_MACHINE);
        EXPECT_NE(std::string(sy_last_error()).find("does not fit the group's budget"), std::string::npos)
            << sy_last_error();
        gather_once(op, rank, 64);
        OK(sy_op_destroy(op));
        sy_comm_destroy(comm);
    });
    sy_bundle_close(opened);
}

TEST(C, WhatOneRankCannotSetUpFailsOnAll) {
    const Written written(sample(kGather));
    Store meet;
    const sy_store store = store_of(meet);
    std::atomic<int> failures = 0;
    on_ranks(2, [&](int rank) {
        const sy_comm_config config = config_of(rank, 2, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        sy_op* op = nullptr;
        if (prepare(comm, opened, rank == 0 ? 64 : 65, &op) != SY_OK) ++failures;  // the bundle has no 65
        EXPECT_EQ(op, nullptr);
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    });
    EXPECT_EQ(failures, 2);
}

TEST(C, RefusesCallsThatMakeNoSenseWithTheReason) {
    const auto expect = [](sy_code code, sy_code wanted, const char* text) {
        EXPECT_EQ(code, wanted);
        EXPECT_NE(std::string(sy_last_error()).find(text), std::string::npos) << sy_last_error();
    };
    sy_comm* comm = nullptr;
    sy_bundle* opened = nullptr;
    sy_comm_config config{};
    expect(sy_comm_create(nullptr, &comm), SY_USAGE, "sy_comm_config: it is NULL");
    expect(sy_comm_create(&config, &comm), SY_USAGE, "sy_comm_config.size is 0");
    config.size = sizeof(config);
    expect(sy_comm_create(&config, &comm), SY_USAGE, "rank 0 of 0 makes no sense");
    struct Newer {
        sy_comm_config known;
        uint64_t more;
    } newer{};
    newer.known.size = sizeof(newer);
    newer.more = 1;
    expect(sy_comm_create(&newer.known, &comm), SY_USAGE, "does not know");
    expect(sy_bundle_open("/does/not/exist", &opened), SY_INPUT, "/does/not/exist");
    expect(sy_bundle_open(nullptr, &opened), SY_USAGE, "NULL");
    expect(sy_prepare(nullptr, nullptr, nullptr, nullptr), SY_USAGE, "NULL");
    expect(sy_run(nullptr, nullptr, 0, nullptr), SY_USAGE, "NULL");
    EXPECT_EQ(sy_op_destroy(nullptr), SY_OK);
    sy_comm_destroy(nullptr);
    sy_bundle_close(nullptr);
    sy_abort(nullptr);
}

/// Entries of a folder of /proc/self, or lines of a file there.
size_t entries(const char* name) {
    const std::filesystem::path path = std::filesystem::path("/proc/self") / name;
    if (std::filesystem::is_directory(path))
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
    std::ifstream lines(path);
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(lines), {}, '\n'));
}

TEST(C, AHundredOpsMadeAndDroppedLeaveNoMemoryNoFilesAndNoThreads) {
    const Written written(sample(kGather));
    const auto make_and_drop = [&](int count) {
        for (int i = 0; i < count; ++i) {
            Store meet;
            const sy_store store = store_of(meet);
            on_ranks(2, [&](int rank) {
                const sy_comm_config config = config_of(rank, 2, store);
                sy_comm* comm = nullptr;
                sy_bundle* opened = nullptr;
                sy_op* op = nullptr;
                OK(sy_comm_create(&config, &comm));
                OK(sy_bundle_open(written.file.c_str(), &opened));
                OK(prepare(comm, opened, 16, &op));
                gather_once(op, rank, 16);
                OK(sy_op_destroy(op));
                sy_bundle_close(opened);
                sy_comm_destroy(comm);
            });
        }
    };
    make_and_drop(10);
    const size_t files = entries("fd"), mappings = entries("maps"), threads = entries("task");
    const size_t bytes = mallinfo2().uordblks;
    make_and_drop(100);
    EXPECT_EQ(entries("fd"), files);
    EXPECT_EQ(entries("task"), threads);
    EXPECT_LT(entries("maps"), mappings + 20);  // of the allocator, for threads
    EXPECT_LT(mallinfo2().uordblks, bytes + 100'000);
}

TEST(C, GroupsOfOneProcessCallSideBySide) {
    const Written written(sample(kGather));
    std::array<Store, 2> meet;
    on_ranks(4, [&](int thread) {
        const int rank = thread / 2;
        const sy_store store = store_of(meet[static_cast<size_t>(thread % 2)]);
        const sy_comm_config config = config_of(rank, 2, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        std::vector<sy_op*> ops;
        for (const int64_t rows : {16, 37}) {
            OK(prepare(comm, opened, rows, &ops.emplace_back(nullptr)));
        }
        for (int round = 0; round < 20; ++round) gather_once(ops[round % 2], rank, round % 2 == 0 ? 16 : 37);
        for (sy_op* op : ops) OK(sy_op_destroy(op));
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    });
}

TEST(C, TheStatusWhichAnotherThreadAsksForIsOfCallsThatHaveEnded) {
    with_bundle(sample(kGather), 2, [&](sy_comm* comm, sy_bundle* opened, int rank) {
        sy_op* op = nullptr;
        OK(prepare(comm, opened, 16, &op));
        std::atomic<bool> ended = false;
        std::atomic<int> asked = 0;
        std::thread other([&] {
            for (; !ended || asked == 0; ++asked) EXPECT_EQ(sy_status(op), SY_OK) << sy_last_error();
        });
        for (int call = 0; call < 200; ++call) gather_once(op, rank, 16);
        ended = true;
        other.join();
        OK(sy_op_destroy(op));
    });
}

TEST(C, NamesTheTensorThatDoesNotFit) {
    const Written written(sample("matmul_all_reduce:N=48,K=32,dtype=fp32,ranks=1,sms=4"));
    Store meet;
    const sy_store store = store_of(meet);
    const sy_comm_config config = config_of(0, 1, store);
    sy_comm* comm = nullptr;
    sy_bundle* opened = nullptr;
    sy_op* op = nullptr;
    OK(sy_comm_create(&config, &comm));
    OK(sy_bundle_open(written.file.c_str(), &opened));
    OK(prepare(comm, opened, 16, &op));
    Floats x({16, 32}), w({32, 48}), y({16, 48});
    const sy_tensor* tensors[] = {&x.tensor, &w.tensor, &y.tensor};
    const auto expect = [&](const char* text) {
        EXPECT_EQ(sy_run(op, tensors, 3, nullptr), SY_USAGE);
        EXPECT_NE(std::string(sy_last_error()).find(text), std::string::npos) << sy_last_error();
    };
    EXPECT_EQ(sy_run(op, tensors, 2, nullptr), SY_USAGE);
    x.tensor.dtype.bits = 16;
    expect("x: its dtype is (2, 16 bits), not fp32");
    x.tensor.dtype.bits = 32;
    w.shape[1] = 47;
    expect("w: axis 1 has 47 elements, not 48");
    w.shape[1] = 48;
    y.tensor.device.type = SY_CUDA;
    expect("y: it lies on device (2, 0), not on host");
    y.tensor.device.type = SY_CPU;
    OK(sy_run(op, tensors, 3, nullptr));
    OK(sy_op_destroy(op));
    sy_bundle_close(opened);
    sy_comm_destroy(comm);
}

}  // namespace
}  // namespace syncopate::bundle

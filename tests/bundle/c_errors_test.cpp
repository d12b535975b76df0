// The C API in the hands of somebody who gets things wrong: each mistake has its code and a text that names it.
#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <string>

#include "bundle/c_samples.hpp"

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

const char* const kAlone = "matmul_all_reduce:N=48,K=32,dtype=fp32,ranks=1,sms=4";
const char* const kGather = "all_gather_matmul:N=48,K=32,dtype=fp32,ranks=2,sms=4";

void expect(sy_code code, sy_code wanted, const std::string& text) {
    EXPECT_EQ(code, wanted) << sy_last_error();
    EXPECT_NE(std::string(sy_last_error()).find(text), std::string::npos)
        << sy_last_error() << "\nwanted: " << text;
}

template <typename T>
T sized() {
    T made{};
    made.size = sizeof(T);
    return made;
}

sy_prepare_config of_rows(int64_t rows) {
    auto made = sized<sy_prepare_config>();
    made.rows = rows;
    return made;
}

/// A rank alone, with an op of 16 rows.
struct Alone {
    Alone() {
        const sy_store store = store_of(meet);
        const sy_comm_config config = config_of(0, 1, store);
        EXPECT_EQ(sy_comm_create(&config, &comm), SY_OK) << sy_last_error();
        EXPECT_EQ(sy_bundle_open(written.file.c_str(), &opened), SY_OK) << sy_last_error();
        const sy_prepare_config prepare = of_rows(16);
        EXPECT_EQ(sy_prepare(comm, opened, &prepare, &op), SY_OK) << sy_last_error();
    }
    ~Alone() {
        (void)sy_op_destroy(op);
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

    Written written{sample(kAlone)};
    Store meet;
    sy_comm* comm = nullptr;
    sy_bundle* opened = nullptr;
    sy_op* op = nullptr;
    Floats x{{16, 32}}, w{{32, 48}}, y{{16, 48}};
    std::array<const sy_tensor*, 3> tensors{&x.tensor, &w.tensor, &y.tensor};
};

TEST(CErrors, NamesEveryArgumentThatIsNull) {
    Alone it;
    const sy_prepare_config prepare = of_rows(16);
    auto memory = sized<sy_memory>();
    auto workspace = sized<sy_workspace>();
    auto info = sized<sy_bundle_info>();
    auto operand = sized<sy_operand>();
    sy_op* op = nullptr;
    sy_comm* comm = nullptr;
    const sy_comm_config config{};
    expect(sy_comm_create(nullptr, &comm), SY_USAGE, "sy_comm_config: it is NULL");
    expect(sy_comm_create(&config, nullptr), SY_USAGE, "comm: it is NULL");
    expect(sy_comm_memory(nullptr, &memory), SY_USAGE, "comm: it is NULL");
    expect(sy_comm_memory(it.comm, nullptr), SY_USAGE, "sy_memory: it is NULL");
    expect(sy_release(nullptr), SY_USAGE, "comm: it is NULL");
    expect(sy_restore(nullptr), SY_USAGE, "comm: it is NULL");
    expect(sy_recover(nullptr, nullptr, nullptr), SY_USAGE, "comm: it is NULL");
    expect(sy_bundle_open(nullptr, &it.opened), SY_USAGE, "file, bundle: one is NULL");
    expect(sy_bundle_open("x", nullptr), SY_USAGE, "file, bundle: one is NULL");
    expect(sy_bundle_describe(nullptr, &info), SY_USAGE, "bundle: it is NULL");
    expect(sy_bundle_describe(it.opened, nullptr), SY_USAGE, "sy_bundle_info: it is NULL");
    expect(sy_workspace_size(nullptr, 16, &workspace), SY_USAGE, "bundle: it is NULL");
    expect(sy_workspace_size(it.opened, 16, nullptr), SY_USAGE, "sy_workspace: it is NULL");
    expect(sy_prepare(nullptr, it.opened, &prepare, &op), SY_USAGE, "comm: it is NULL");
    expect(sy_prepare(it.comm, nullptr, &prepare, &op), SY_USAGE, "bundle: it is NULL");
    expect(sy_prepare(it.comm, it.opened, nullptr, &op), SY_USAGE, "sy_prepare_config: it is NULL");
    expect(sy_prepare(it.comm, it.opened, &prepare, nullptr), SY_USAGE, "op: it is NULL");
    EXPECT_EQ(sy_num_operands(nullptr), 0);
    expect(sy_operand_at(nullptr, 0, &operand), SY_USAGE, "op: it is NULL");
    expect(sy_operand_at(it.op, 0, nullptr), SY_USAGE, "sy_operand: it is NULL");
    expect(sy_run(nullptr, it.tensors.data(), 3, nullptr), SY_USAGE, "op: it is NULL");
    expect(sy_run(it.op, nullptr, 3, nullptr), SY_USAGE, "tensors: it is NULL");
    expect(sy_status(nullptr), SY_USAGE, "op: it is NULL");
    expect(sy_poll(nullptr), SY_USAGE, "op: it is NULL");
    expect(sy_op_reset(nullptr), SY_USAGE, "op: it is NULL");
    EXPECT_EQ(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_OK) << "and goes on: " << sy_last_error();
}

TEST(CErrors, RefusesStructsThatSayTheWrongSizeOrAskForMoreThanIsKnown) {
    Alone it;
    auto memory = sized<sy_memory>();
    for (const size_t size : {size_t{0}, size_t{7}, size_t{5000}, std::numeric_limits<size_t>::max()}) {
        memory.size = size;
        expect(sy_comm_memory(it.comm, &memory), SY_USAGE,
               "sy_memory.size is " + std::to_string(size) + ": set it to sizeof(sy_memory)");
    }
    struct {
        sy_prepare_config known;
        uint64_t more;
    } newer{of_rows(16), 0};
    newer.known.size = sizeof(newer);
    sy_op* op = nullptr;
    ASSERT_EQ(sy_prepare(it.comm, it.opened, &newer.known, &op), SY_OK)
        << "what is not asked for is no matter";
    EXPECT_EQ(sy_op_destroy(op), SY_OK);
    newer.more = 1;
    expect(sy_prepare(it.comm, it.opened, &newer.known, &op), SY_USAGE,
           "sy_prepare_config asks for what version 1 of the library does not know");
    sy_prepare_config older = of_rows(16);
    older.size = offsetof(sy_prepare_config, deadline_ms);
    older.deadline_ms = -7;  // which it does not have
    ASSERT_EQ(sy_prepare(it.comm, it.opened, &older, &op), SY_OK) << sy_last_error();
    EXPECT_EQ(sy_op_destroy(op), SY_OK);
}

TEST(CErrors, WritesNoMoreOfAStructThanItsSize) {
    Alone it;
    auto info = sized<sy_bundle_info>();
    info.size = offsetof(sy_bundle_info, num_ranks);
    info.num_ranks = -3;
    ASSERT_EQ(sy_bundle_describe(it.opened, &info), SY_OK);
    EXPECT_STREQ(info.arch, "host");
    EXPECT_EQ(info.num_ranks, -3);
}

TEST(CErrors, RefusesACommunicatorThatMakesNoSense) {
    Store meet;
    const sy_store store = store_of(meet);
    const auto refused = [&](auto change, const std::string& text) {
        sy_comm_config config = config_of(0, 2, store);
        change(config);
        sy_comm* comm = nullptr;
        expect(sy_comm_create(&config, &comm), SY_USAGE, text);
        EXPECT_EQ(comm, nullptr);
    };
    refused([](auto& config) { config.rank = 2; }, "rank 2 of 2 makes no sense");
    refused([](auto& config) { config.rank = -1; }, "rank -1 of 2 makes no sense");
    refused([](auto& config) { config.num_ranks = 1 << 20; }, "rank 0 of 1048576 makes no sense");
    refused([](auto& config) { config.device = static_cast<sy_device_kind>(3); },
            "sy_comm_config.device is 3");
    refused([](auto& config) { config.device = SY_ON_CUDA, config.ordinal = -1; },
            "GPUs are numbered from 0");
    refused([](auto& config) { config.timeout_ms = -1; }, "sy_comm_config.timeout_ms is -1");
    refused([](auto& config) { config.joins = 1, config.store = nullptr; }, "needs a store");
    sy_store lacking = store;
    lacking.get = nullptr;
    refused([&](auto& config) { config.store = &lacking; }, "sy_store: it needs set, wait and get");
    lacking = store;
    lacking.size = offsetof(sy_store, wait);
    refused([&](auto& config) { config.store = &lacking; }, "sy_store: it needs set, wait and get");
    lacking.size = 0;
    refused([&](auto& config) { config.store = &lacking; }, "sy_store.size is 0");
}

TEST(CErrors, OpensNothingThatIsNoFile) {
    sy_bundle* opened = nullptr;
    for (const char* file : {"/dev/zero", "/dev/null"})
        expect(sy_bundle_open(file, &opened), SY_INPUT, std::string(file) + ": is no file on a disk");
    expect(sy_bundle_open("/tmp", &opened), SY_INPUT, "/tmp: is a directory");
    expect(sy_bundle_open("", &opened), SY_INPUT, "the name of a file is empty");
    EXPECT_EQ(opened, nullptr);
}

TEST(CErrors, RefusesWhatWasDestroyed) {
    Alone it;
    sy_op* const op = it.op;
    ASSERT_EQ(sy_op_destroy(op), SY_OK);
    const std::string gone = "op: it has been destroyed";
    auto operand = sized<sy_operand>();
    expect(sy_run(op, it.tensors.data(), 3, nullptr), SY_USAGE, gone);
    expect(sy_status(op), SY_USAGE, gone);
    expect(sy_poll(op), SY_USAGE, gone);
    expect(sy_op_reset(op), SY_USAGE, gone);
    expect(sy_operand_at(op, 0, &operand), SY_USAGE, gone);
    expect(sy_op_destroy(op), SY_USAGE, gone);
    EXPECT_EQ(sy_num_operands(op), 0);
    sy_abort(op);
    const sy_prepare_config prepare = of_rows(16);
    sy_op* another = nullptr;
    sy_bundle_close(it.opened);
    sy_bundle_close(it.opened);
    expect(sy_prepare(it.comm, it.opened, &prepare, &another), SY_USAGE, "bundle: it has been destroyed");
    expect(sy_prepare(it.comm, reinterpret_cast<sy_bundle*>(it.comm), &prepare, &another), SY_USAGE,
           "is no handle of this kind");
    sy_comm_destroy(it.comm);
    sy_comm_destroy(it.comm);
    expect(sy_release(it.comm), SY_USAGE, "comm: it has been destroyed");
    EXPECT_EQ(another, nullptr);
}

TEST(CErrors, AnOpOutlivesItsCommunicator) {
    Alone it;
    sy_comm_destroy(it.comm);
    EXPECT_EQ(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_OK) << sy_last_error();
    EXPECT_EQ(sy_op_destroy(it.op), SY_OK) << sy_last_error();
}

TEST(CErrors, RefusesRowsThatTheBundleHasNot) {
    Alone it;
    auto workspace = sized<sy_workspace>();
    for (const int64_t rows : {int64_t{0}, int64_t{-1}, int64_t{65}, std::numeric_limits<int64_t>::max(),
                               std::numeric_limits<int64_t>::min()}) {
        const sy_prepare_config prepare = of_rows(rows);
        sy_op* op = nullptr;
        EXPECT_NE(sy_workspace_size(it.opened, rows, &workspace), SY_OK) << rows;
        EXPECT_NE(std::string(sy_last_error()).find("rows"), std::string::npos) << sy_last_error();
        EXPECT_NE(sy_prepare(it.comm, it.opened, &prepare, &op), SY_OK) << rows;
        EXPECT_EQ(op, nullptr);
    }
}

TEST(CErrors, NamesTheTensorThatLacksSomething) {
    Alone it;
    const auto refused = [&](const std::string& text) {
        expect(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_USAGE, text);
    };
    it.tensors[1] = nullptr;
    refused("w: it is NULL");
    it.tensors[1] = &it.w.tensor;
    it.x.tensor.data = nullptr;
    refused("x: its data is NULL");
    it.x.tensor.data = it.x.values.data();
    it.y.tensor.shape = nullptr;
    refused("y: its shape is NULL");
    it.y.tensor.shape = it.y.shape.data();
    it.y.tensor.ndim = -2;
    refused("y: it has -2 axes, not 2");
    it.y.tensor.ndim = 2;
    it.x.tensor.dtype.lanes = 2;
    refused("x: its dtype is");
    it.x.tensor.dtype.lanes = 1;
    expect(sy_run(it.op, it.tensors.data(), -1, nullptr), SY_USAGE,
           "-1 tensors are given, and a call takes 3");
    expect(sy_run(it.op, it.tensors.data(), 4, nullptr), SY_USAGE, "4 tensors are given, and a call takes 3");
    auto operand = sized<sy_operand>();
    expect(sy_operand_at(it.op, 3, &operand), SY_USAGE, "there is no operand 3: it has 3");
    expect(sy_operand_at(it.op, -1, &operand), SY_USAGE, "there is no operand -1");
    EXPECT_EQ(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_OK) << sy_last_error();
}

TEST(CErrors, AWrongConfigOnOneRankIsToldToTheOthers) {
    with_bundle(sample(kGather), 2, [&](sy_comm* comm, sy_bundle* opened, int rank) {
        sy_op* op = nullptr;
        sy_prepare_config prepare = of_rows(64);
        if (rank == 1) prepare.size = 5000;
        expect(sy_prepare(comm, opened, &prepare, &op), SY_USAGE, "sy_prepare_config.size is 5000");
        prepare.size = sizeof(prepare);
        expect(sy_prepare(comm, rank == 0 ? nullptr : opened, &prepare, &op), SY_USAGE, "is NULL");
        OK(sy_prepare(comm, opened, &prepare, &op)) << "and the group goes on";
        OK(sy_op_destroy(op));
    });
}

TEST(CErrors, AStoreThatFailsIsNamed) {
    Store meet;
    sy_store store = store_of(meet);
    const Written written(sample(kAlone));
    const auto prepared_with = [&](const std::string& text) {
        const sy_comm_config config = config_of(0, 1, store);
        sy_comm* comm = nullptr;
        sy_bundle* opened = nullptr;
        OK(sy_comm_create(&config, &comm));
        OK(sy_bundle_open(written.file.c_str(), &opened));
        const sy_prepare_config prepare = of_rows(16);
        sy_op* op = nullptr;
        expect(sy_prepare(comm, opened, &prepare, &op), SY_MACHINE, text);
        EXPECT_EQ(op, nullptr);
        sy_bundle_close(opened);
        sy_comm_destroy(comm);
    };
    store.set = [](void*, const char*, const void*, size_t) { return 1; };
    prepared_with("the store could not set ");
}

TEST(CErrors, ABudgetThatIsAByteTooSmallIsRefusedOnAllRanks) {
    const Written written(sample(kGather));
    sy_bundle* opened = nullptr;
    OK(sy_bundle_open(written.file.c_str(), &opened));
    auto workspace = sized<sy_workspace>();
    OK(sy_workspace_size(opened, 64, &workspace));
    Store meet;
    const sy_store store = store_of(meet);
    on_ranks(2, [&](int rank) {
        sy_comm_config config = config_of(rank, 2, store);
        if (rank == 0) config.budget = workspace.mapped - 1;
        sy_comm* comm = nullptr;
        OK(sy_comm_create(&config, &comm));
        const sy_prepare_config prepare = of_rows(64);
        sy_op* op = nullptr;
        expect(sy_prepare(comm, opened, &prepare, &op), SY_MACHINE, "does not fit the group's budget");
        auto memory = sized<sy_memory>();
        OK(sy_comm_memory(comm, &memory));
        EXPECT_EQ(memory.bytes, 0U);
        sy_comm_destroy(comm);
    });
    sy_bundle_close(opened);
}

TEST(CErrors, WhatIsReleasedIsNeitherCalledNorPreparedAndMayBeDestroyed) {
    Alone it;
    OK(sy_release(it.comm));
    OK(sy_release(it.comm)) << "twice is once";
    const sy_prepare_config prepare = of_rows(64);
    sy_op* op = nullptr;
    expect(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_USAGE, "released: restore it first");
    expect(sy_prepare(it.comm, it.opened, &prepare, &op), SY_USAGE, "released: restore it first");
    OK(sy_restore(it.comm));
    OK(sy_restore(it.comm));
    OK(sy_run(it.op, it.tensors.data(), 3, nullptr));
    OK(sy_release(it.comm));
    OK(sy_op_destroy(it.op));
    auto memory = sized<sy_memory>();
    OK(sy_comm_memory(it.comm, &memory));
    EXPECT_EQ(memory.bytes, 0U);
    OK(sy_restore(it.comm));
    OK(sy_prepare(it.comm, it.opened, &prepare, &op)) << "and the group goes on";
    OK(sy_op_destroy(op));
}

TEST(CErrors, RecoverLooksAtItsArgumentsBeforeItChangesAnything) {
    Alone it;
    auto group = sized<sy_group>();
    group.size = 3;
    expect(sy_recover(it.comm, nullptr, &group), SY_USAGE, "sy_group.size is 3");
    auto config = sized<sy_recover_config>();
    config.deadline_ms = -1;
    group.size = sizeof(group);
    expect(sy_recover(it.comm, &config, &group), SY_USAGE, "sy_recover_config.deadline_ms is -1");
    EXPECT_EQ(sy_run(it.op, it.tensors.data(), 3, nullptr), SY_OK) << sy_last_error();
}

}  // namespace
}  // namespace syncopate::bundle

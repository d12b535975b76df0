// Going on after a fault through the C API: ranks as threads, and as processes that die.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bundle/c_samples.hpp"
#include "bundle/samples.hpp"
#include "runtime/fork.hpp"
#include "syncopate/c.h"

namespace syncopate::bundle {
namespace {

using runtime::testing::run_ranks;
using runtime::testing::TemporaryDirectory;
using testing::on_ranks;
using testing::sample;

constexpr int64_t kDeadline = 2'000;  // ms, of calls
constexpr int64_t kToCome = 8'000;

/// A store that processes share, as a folder; keys are names of files.
struct Folder {
    std::filesystem::path path;

    [[nodiscard]] std::filesystem::path file(const char* key) const {
        std::string name(key);
        std::ranges::replace(name, '/', '_');
        return path / name;
    }
    [[nodiscard]] std::filesystem::path written(const void* data, size_t bytes) const {
        static std::atomic<int> count = 0;
        const std::filesystem::path made =
            path / (".new" + std::to_string(getpid()) + "." + std::to_string(++count));
        std::ofstream(made, std::ios::binary)
            .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
        return made;
    }
};

sy_store store_of(Folder& folder) {
    sy_store store{};
    store.size = sizeof(store);
    store.context = &folder;
    store.set = [](void* context, const char* key, const void* data, size_t bytes) {
        const Folder& of = *static_cast<Folder*>(context);
        std::filesystem::rename(of.written(data, bytes), of.file(key));
        return 0;
    };
    store.wait = [](void* context, const char* key, int64_t timeout_ms) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        while (!std::filesystem::exists(static_cast<Folder*>(context)->file(key))) {
            if (std::chrono::steady_clock::now() > end) return 1;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return 0;
    };
    store.get = [](void* context, const char* key, void* data, size_t capacity, size_t* bytes) {
        std::ostringstream text;
        text << std::ifstream(static_cast<Folder*>(context)->file(key), std::ios::binary).rdbuf();
        *bytes = text.str().size();
        std::memcpy(data, text.str().data(), std::min(capacity, *bytes));
        return 0;
    };
    store.set_first = [](void* context, const char* key, const void* data, size_t bytes) {
        const Folder& of = *static_cast<Folder*>(context);
        const std::filesystem::path made = of.written(data, bytes);
        (void)::link(made.c_str(), of.file(key).c_str());  // fails where there is one
        std::filesystem::remove(made);
        return 0;
    };
    return store;
}

/// One rank: a communicator, and an all-reduce of x = rank + 1 with w = 1.
class Rank {
public:
    Rank(Folder& folder, int rank, int size, bool joins = false) : store_(store_of(folder)) {
        sy_comm_config config = testing::config_of(rank, size, store_);
        config.joins = joins ? 1 : 0;
        EXPECT_EQ(sy_comm_create(&config, &comm_), SY_OK) << sy_last_error();
        group_.size = sizeof(group_);
        group_.rank = rank;
        group_.num_ranks = size;
    }
    ~Rank() {
        if (op_ != nullptr) (void)sy_op_destroy(op_);
        sy_comm_destroy(comm_);
    }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    [[nodiscard]] sy_code prepare() {
        if (op_ != nullptr) (void)sy_op_destroy(std::exchange(op_, nullptr));
        const std::string file =
            "sy_recover_" + std::to_string(getpid()) + "_" + std::to_string(group_.rank) + ".sybundle";
        const auto path = (std::filesystem::temp_directory_path() / file).string();
        const auto made = sample(
            "matmul_all_reduce:N=16,K=16,dtype=fp32,sms=4,ranks=" + std::to_string(group_.num_ranks), {16});
        EXPECT_TRUE(write_bundle(made, path));
        sy_bundle* opened = nullptr;
        sy_code code = sy_bundle_open(path.c_str(), &opened);
        std::filesystem::remove(path);
        if (code != SY_OK) return code;
        sy_prepare_config config{};
        config.size = sizeof(config);
        config.rows = 16;
        config.deadline_ms = kDeadline;
        code = sy_prepare(comm_, opened, &config, &op_);
        sy_bundle_close(opened);
        return code;
    }

    /// The call's code; `right`: what came out is what all ranks give.
    [[nodiscard]] sy_code call(bool& right) {
        std::vector<float> x(256, static_cast<float>(group_.rank + 1)), w(256, 1.0F), y(256, -1.0F);
        int64_t shape[] = {16, 16};
        sy_tensor tensors[3] = {};
        float* const data[] = {x.data(), w.data(), y.data()};
        for (int i = 0; i < 3; ++i) {
            tensors[i].data = data[i];
            tensors[i].device = {SY_CPU, 0};
            tensors[i].ndim = 2;
            tensors[i].dtype = {SY_FLOAT, 32, 1};
            tensors[i].shape = shape;
        }
        const sy_tensor* given[] = {&tensors[0], &tensors[1], &tensors[2]};
        const sy_code code = sy_run(op_, given, 3, nullptr);
        const float wanted = 16.0F * static_cast<float>(group_.num_ranks * (group_.num_ranks + 1) / 2);
        right = std::ranges::all_of(y, [wanted](float value) { return value == wanted; });
        return code;
    }
    [[nodiscard]] bool calls_right() {
        bool right = false;
        return call(right) == SY_OK && right;
    }
    [[nodiscard]] bool call_fails() {
        bool right = false;
        return call(right) == SY_MACHINE && sy_poll(op_) == SY_MACHINE;
    }

    [[nodiscard]] sy_code recover(int64_t deadline_ms = kToCome) {
        sy_recover_config config{};
        config.size = sizeof(config);
        config.deadline_ms = deadline_ms;
        return sy_recover(comm_, &config, &group_);
    }
    [[nodiscard]] sy_code recover_to(Folder& folder, int rank, int size) {
        store_ = store_of(folder);
        sy_recover_config config{};
        config.size = sizeof(config);
        config.deadline_ms = kToCome;
        config.store = &store_;
        config.rank = rank;
        config.num_ranks = size;
        return sy_recover(comm_, &config, &group_);
    }

    [[nodiscard]] sy_op* op() const { return op_; }
    [[nodiscard]] const sy_group& group() const { return group_; }

private:
    sy_store store_;
    sy_comm* comm_ = nullptr;
    sy_op* op_ = nullptr;
    sy_group group_{};
};

TEST(CRecover, GoesOnWithAllOpsWhereARankWasLate) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    on_ranks(3, [&](int number) {
        Rank rank(folder, number, 3);
        ASSERT_EQ(rank.prepare(), SY_OK) << sy_last_error();
        ASSERT_TRUE(rank.calls_right()) << sy_last_error();
        for (int round = 0; round < 2; ++round) {
            if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2 * kDeadline));
            ASSERT_TRUE(rank.call_fails());
            ASSERT_EQ(rank.recover(20'000), SY_OK) << sy_last_error();
            EXPECT_EQ(rank.group().renewed, 1);
            EXPECT_EQ(rank.group().rank, number);
            EXPECT_EQ(rank.group().num_ranks, 3);
            for (int call = 0; call < 3; ++call) ASSERT_TRUE(rank.calls_right()) << sy_last_error();
        }
        ASSERT_EQ(rank.prepare(), SY_OK) << sy_last_error();  // also with what was loaded before
        ASSERT_TRUE(rank.calls_right()) << sy_last_error();
    });
}

TEST(CRecover, ResetsOneOpOfALateRank) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    on_ranks(2, [&](int number) {
        Rank rank(folder, number, 2);
        ASSERT_EQ(rank.prepare(), SY_OK) << sy_last_error();
        if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2 * kDeadline));
        ASSERT_TRUE(rank.call_fails());
        ASSERT_EQ(sy_op_reset(rank.op()), SY_OK) << sy_last_error();
        ASSERT_TRUE(rank.calls_right()) << sy_last_error();
    });
}

TEST(CRecover, GoesOnWithoutAProcessThatWasKilled) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    run_ranks({0, 1, 2}, [&](int number) {
        Rank rank(folder, number, 3);
        RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
        RANK_CHECK(rank.calls_right(), sy_last_error());
        if (number == 0) {  // in its place another process ends well
            std::fflush(nullptr);
            _exit(0);
        }
        RANK_CHECK(rank.call_fails(), "a call without rank 0 ends well");
        RANK_CHECK(rank.recover() == SY_OK, sy_last_error());
        const sy_group& group = rank.group();
        RANK_CHECK(group.num_ranks == 2 && group.rank == number - 1 && group.renewed == 0, "another group");
        RANK_CHECK(group.ranks[0] == 1 && group.ranks[1] == 2, "of other ranks");
        bool right = false;
        RANK_CHECK(rank.call(right) == SY_USAGE, "an op of three ranks goes on with two");
        RANK_CHECK(std::string(sy_last_error()).find("gone on with 2") != std::string::npos, sy_last_error());
        RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
        for (int call = 0; call < 3; ++call) RANK_CHECK(rank.calls_right(), sy_last_error());
        return true;
    });
}

TEST(CRecover, TakesAProcessThatWasStartedAgain) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    run_ranks({0, 1, 2}, [&](int number) {
        const int in_group = number == 2 ? 1 : number;  // 2: started again for 1
        const bool again = number == 2;
        if (again) runtime::testing::await(directory, "died");
        Rank rank(folder, in_group, 2, again);
        if (!again) {
            RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
            RANK_CHECK(rank.calls_right(), sy_last_error());
        }
        if (number == 1) {
            runtime::testing::tell(directory, "died");
            std::fflush(nullptr);
            _exit(0);
        }
        if (number == 0) RANK_CHECK(rank.call_fails(), "a call without rank 1 ends well");
        RANK_CHECK(rank.recover(20'000) == SY_OK, sy_last_error());
        RANK_CHECK(rank.group().num_ranks == 2 && rank.group().rank == in_group, "another group");
        bool right = false;
        RANK_CHECK(again || rank.call(right) == SY_USAGE, "an op goes on that the new process has not");
        RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
        RANK_CHECK(rank.calls_right(), sy_last_error());
        return true;
    });
}

TEST(CRecover, GoesToANewStoreWhereTheOldOneIsLost) {
    const TemporaryDirectory first;
    const TemporaryDirectory second;
    Folder old{first.path()};
    Folder fresh{second.path()};
    run_ranks({0, 1, 2}, [&](int number) {
        Rank rank(old, number, 3);
        RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
        if (number == 1) {  // it is gone, without a word
            std::fflush(nullptr);
            _exit(0);
        }
        RANK_CHECK(rank.call_fails(), "a call without rank 1 ends well");
        RANK_CHECK(rank.recover_to(fresh, number / 2, 2) == SY_OK, sy_last_error());
        RANK_CHECK(rank.group().num_ranks == 2 && rank.group().rank == number / 2, "another group");
        RANK_CHECK(rank.prepare() == SY_OK, sy_last_error());
        RANK_CHECK(rank.calls_right(), sy_last_error());
        return true;
    });
}

/// A store that cannot set a key once for all ranks takes all of them, or fails.
TEST(CRecover, FailsWithoutSetFirstWhereARankIsMissing) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    on_ranks(2, [&](int number) {
        sy_store store = store_of(folder);
        store.size = offsetof(sy_store, set_first);  // as a program of an earlier version has it
        sy_comm_config config{};
        config.size = offsetof(sy_comm_config, joins);
        config.rank = number;
        config.num_ranks = 2;
        config.store = &store;
        sy_comm* comm = nullptr;
        ASSERT_EQ(sy_comm_create(&config, &comm), SY_OK) << sy_last_error();
        sy_recover_config recover{};
        recover.size = sizeof(recover);
        recover.deadline_ms = number == 0 ? 300 : 30'000;
        if (number == 0) {
            EXPECT_EQ(sy_recover(comm, &recover, nullptr), SY_MACHINE);
            EXPECT_NE(std::string(sy_last_error()).find("not all of 2 came"), std::string::npos)
                << sy_last_error();
        }
        sy_comm_destroy(comm);
    });
}

TEST(CRecover, RefusesWhatMakesNoSense) {
    const TemporaryDirectory directory;
    Folder folder{directory.path()};
    EXPECT_EQ(sy_recover(nullptr, nullptr, nullptr), SY_USAGE);
    EXPECT_EQ(sy_op_reset(nullptr), SY_USAGE);
    Rank rank(folder, 0, 1);
    EXPECT_EQ(rank.recover_to(folder, 3, 2), SY_USAGE);
    EXPECT_NE(std::string(sy_last_error()).find("rank 3 of 2"), std::string::npos) << sy_last_error();
    sy_comm_config config{};
    config.size = sizeof(config);
    config.num_ranks = 1;
    config.joins = 1;
    sy_comm* comm = nullptr;
    EXPECT_NE(sy_comm_create(&config, &comm), SY_OK);
}

}  // namespace
}  // namespace syncopate::bundle

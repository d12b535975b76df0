// Ranks as forked processes: each runs the same body and reports by its exit code and its standard error.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime::testing {

/// A new empty directory, removed at the end.
class TemporaryDirectory {
public:
    TemporaryDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "syncopate-test-XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~TemporaryDirectory() {
        std::error_code failure;
        std::filesystem::remove_all(path_, failure);
    }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

/// Between ranks, beside what is tested: `name` is so, and until it is.
inline void tell(const TemporaryDirectory& directory, const std::string& name) {
    std::ofstream(directory.path() / name) << "";
}
inline void await(const TemporaryDirectory& directory, const std::string& name) {
    while (!std::filesystem::exists(directory.path() / name))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// In a rank: says what is wrong and ends the process.
#define RANK_CHECK(condition, text)                                                             \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, std::string(text).c_str()); \
            return false;                                                                       \
        }                                                                                       \
    } while (false)

/// Runs `body` in a process for each rank of `ranks`. Each must end with true within a minute; none is left
/// behind.
inline void run_ranks(const std::vector<int>& ranks, const std::function<bool(int)>& body) {
    std::vector<pid_t> pids;
    for (const int rank : ranks) {
        std::fflush(nullptr);
        const pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid == 0) {
            const bool good = body(rank);
            std::fflush(nullptr);
            _exit(good ? 0 : 1);
        }
        pids.push_back(pid);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(20);
    for (std::size_t i = 0; i < pids.size(); ++i) {
        int status = 0;
        pid_t ended = 0;
        while ((ended = waitpid(pids[i], &status, WNOHANG)) == 0 &&
               std::chrono::steady_clock::now() < deadline) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        if (ended == 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], &status, 0);
            ADD_FAILURE() << "rank " << ranks[i] << " did not end";
            continue;
        }
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << "rank " << ranks[i] << ": status " << status;
    }
}

inline std::vector<int> all_ranks(int size) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    return ranks;
}

}  // namespace syncopate::runtime::testing

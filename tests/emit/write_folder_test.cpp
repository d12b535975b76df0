#include "syncopate/emit/write_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "syncopate/emit/folder.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::emit {
namespace {

namespace fs = std::filesystem;

Artifact artifact_of(std::int64_t rows) {
    const std::string text = R"(import triton
import triton.language as tl


@triton.jit
def copy(a_ptr, b_ptr, M, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(b_ptr + at, tl.load(a_ptr + at, mask=at < M), mask=at < M)
)" + std::string(static_cast<std::size_t>(rows / 64), '\n');
    const plan::Mesh mesh{{{"gpu", 2}}};
    auto plan = plan::make_plan("all_gather", mesh, {"A", {rows}, plan::DType::fp32}, {});
    kernel::Arguments arguments;
    arguments.scalars = {{"M", rows}, {"BLOCK", std::int64_t{16}}};
    arguments.tensors = {{"b_ptr", {{rows}, {}, plan::DType::fp32, {}}}};
    auto made = make_artifact(text, "copy.py", "copy", arguments, *std::move(plan), {{"a_ptr", "A"}}, {});
    EXPECT_TRUE(made.ok()) << made.error().to_string();
    EXPECT_TRUE(add_import(*made, "pkg/helpers.py", "ROWS = " + std::to_string(rows) + "\n"));
    return *std::move(made);
}

class WriteFolder : public ::testing::Test {
protected:
    void SetUp() override {
        const char* name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
        root_ = fs::temp_directory_path() / ("syncopate-write-" + std::to_string(::getpid()) + "-" + name);
        fs::create_directories(root_);
    }
    void TearDown() override { fs::remove_all(root_); }

    [[nodiscard]] Status write(const Artifact& artifact) const {
        return write_folder(artifact, folder_().string());
    }
    [[nodiscard]] fs::path folder_() const { return root_ / "out"; }
    /// The rows of what the folder holds; 0: it is refused.
    [[nodiscard]] std::int64_t rows() const {
        const auto read = artifact_from_folder(folder_().string());
        return read ? read->launch.plan.tensors[0].shape[0] : 0;
    }
    /// Names of all files, by path from the root.
    [[nodiscard]] std::string files() const {
        std::map<std::string, int> names;
        for (const auto& entry : fs::recursive_directory_iterator(root_))
            if (!entry.is_directory()) ++names[entry.path().lexically_relative(root_).string()];
        std::string text;
        for (const auto& [name, count] : names) text += name + " ";
        return text;
    }
    /// A process that is gone, which had `made` in hand.
    [[nodiscard]] static std::string gone() {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(0);
        int status = 0;
        ::waitpid(child, &status, 0);
        return std::to_string(child);
    }

    /// Runs `work` in a process that is killed when it is about to change the disk for the n-th time: whether it was.
    /// nullopt: it cannot be traced.
    [[nodiscard]] static std::optional<bool> killed_before(int n, const std::function<bool()>& work) {
        const pid_t child = ::fork();
        if (child == 0) {
            if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
            ::raise(SIGSTOP);
            ::_exit(work() ? 0 : 1);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        if (WIFEXITED(status)) return std::nullopt;
        ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
        for (;;) {
            ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
            ::waitpid(child, &status, 0);
            if (WIFEXITED(status)) {
                EXPECT_EQ(WEXITSTATUS(status), 0);
                return false;
            }
            __ptrace_syscall_info info{};
            if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) <= 0) {
                ::kill(child, SIGKILL);
                ::waitpid(child, &status, 0);
                return std::nullopt;
            }
            if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_disk(info) || --n > 0) continue;
            ::kill(child, SIGKILL);
            ::waitpid(child, &status, 0);
            return true;
        }
    }
    [[nodiscard]] static bool changes_disk(const __ptrace_syscall_info& info) {
        const auto call = static_cast<long>(info.entry.nr);
        if (call == SYS_openat) return (info.entry.args[2] & (O_CREAT | O_TRUNC)) != 0;
        for (const long other : {SYS_write, SYS_writev, SYS_fsync, SYS_fdatasync, SYS_mkdirat, SYS_unlinkat,
                                 SYS_renameat, SYS_renameat2, SYS_linkat, SYS_fchmod}) {
            if (call == other) return true;
        }
#ifdef SYS_rename
        for (const long other : {SYS_rename, SYS_mkdir, SYS_unlink, SYS_rmdir, SYS_link, SYS_chmod}) {
            if (call == other) return true;
        }
#endif
        return false;
    }

    static constexpr const char* kAll = "out/kernel.py out/original.py out/pkg/helpers.py out/schedule.json ";
    fs::path root_;
};

TEST_F(WriteFolder, WritesWhatIsReadAgainAndLeavesNothingElse) {
    ASSERT_TRUE(write(artifact_of(64)));
    EXPECT_EQ(files(), kAll);
    EXPECT_EQ(rows(), 64);
    ASSERT_TRUE(write(artifact_of(128)));
    EXPECT_EQ(files(), kAll);
    EXPECT_EQ(rows(), 128);
}

TEST_F(WriteFolder, TakesEveryWayToNameAFolder) {
    const Artifact artifact = artifact_of(64);
    fs::create_directories(root_ / "there");
    fs::create_directory_symlink(root_ / "there", root_ / "link");
    for (const char* name : {"new", "slash/", "a/b/c", "there", "link", "dots/../more", "./here"}) {
        const Status written = write_folder(artifact, (root_ / name).string());
        EXPECT_TRUE(written) << name << ": " << (written ? "" : written.error().to_string());
        EXPECT_TRUE(artifact_from_folder((root_ / name).lexically_normal().string()).ok()) << name;
    }
}

TEST_F(WriteFolder, LeavesTheUsersFilesAlone) {
    fs::create_directories(folder_());
    std::ofstream(folder_() / "notes.txt") << "mine";
    ASSERT_TRUE(write(artifact_of(64)));
    ASSERT_TRUE(write(artifact_of(128)));
    EXPECT_EQ(*read_file((folder_() / "notes.txt").string()), "mine");
    fs::remove(folder_() / "schedule.json");
    const Status refused = write(artifact_of(64));
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("that fuse has not written"), std::string::npos);
}

// A mixture is what a kill between two renames leaves, and what copying files about makes.
TEST_F(WriteFolder, IsRefusedWhereItIsAMixture) {
    const Artifact old = artifact_of(64);
    const Artifact other = artifact_of(128);
    for (const auto& [name, text] : files_of(other)) {
        fs::remove_all(folder_());
        ASSERT_TRUE(write(old));
        std::ofstream(folder_() / name) << *text;
        EXPECT_EQ(rows(), 0) << name;
        ASSERT_TRUE(write(other)) << "and is written over";
        EXPECT_EQ(rows(), 128);
    }
}

TEST_F(WriteFolder, RemovesWhatKilledWritersHaveLeft) {
    fs::create_directories(root_ / (".out.new." + gone()));
    std::ofstream(root_ / (".out.new." + gone())) << "";
    const std::string living = ".out.new." + std::to_string(::getppid());
    std::ofstream(root_ / living) << "";
    ASSERT_TRUE(write(artifact_of(64)));
    EXPECT_EQ(files(), living + " " + kAll);
    fs::create_directories(folder_() / (".new." + gone()) / "pkg");
    std::ofstream(folder_() / ".new.notes") << "a user's";
    ASSERT_TRUE(write(artifact_of(64)));
    fs::remove(folder_() / ".new.notes");
    EXPECT_EQ(files(), living + " " + kAll);
}

// Killed for real, before each of the calls by which it changes the disk.
TEST_F(WriteFolder, HoldsTheOldOrTheNewOrIsRefusedWhereverTheWriterIsKilled) {
    const Artifact old = artifact_of(64);
    const Artifact other = artifact_of(128);
    for (const bool there : {false, true}) {
        int kills = 0;
        for (bool ended = false; !ended; ++kills) {
            fs::remove_all(root_);
            fs::create_directories(root_);
            if (there) {
                ASSERT_TRUE(write(old));
                std::ofstream(folder_() / "notes.txt") << "mine";
            }
            const auto killed = killed_before(kills + 1, [&] { return write(other).ok(); });
            if (!killed) GTEST_SKIP() << "no process may trace another one here";
            ended = !*killed;
            const std::int64_t found = rows();
            EXPECT_TRUE(found == 0 || found == 128 || (there && found == 64)) << found;
            if (!there && !ended) {
                EXPECT_TRUE(found == 128 || !fs::exists(folder_())) << "a new folder is there whole";
            }
            const Status next = write(other);
            ASSERT_TRUE(next) << "after kill " << kills << ": " << next.error().to_string();
            EXPECT_EQ(rows(), 128);
            if (there) {
                EXPECT_EQ(*read_file((folder_() / "notes.txt").string()), "mine");
                fs::remove(folder_() / "notes.txt");
            }
            EXPECT_EQ(files(), kAll) << "after kill " << kills;
        }
        EXPECT_GT(kills, 12);
    }
}

// Into an empty folder of the user's the first files may have come, and schedule.json not.
TEST_F(WriteFolder, GoesOnWhereAKilledWriterHadFilledAFolderInPart) {
    const Artifact artifact = artifact_of(64);
    fs::create_directories(folder_());
    const fs::path left = folder_() / (".new." + gone());
    fs::create_directories(left);
    std::ofstream(left / "schedule.json") << artifact.schedule_json;
    std::ofstream(folder_() / "kernel.py") << artifact.sources[0].kernel;
    ASSERT_TRUE(write(artifact_of(128)));
    EXPECT_EQ(rows(), 128);
    EXPECT_EQ(files(), kAll);
    fs::remove_all(folder_());
    fs::create_directories(left);
    std::ofstream(left / "schedule.json") << artifact.schedule_json;
    std::ofstream(folder_() / "kernel.py") << "a user's";
    EXPECT_FALSE(write(artifact_of(128))) << "that one is not of the killed writer";
}

TEST_F(WriteFolder, LeavesNothingWhereItFails) {
    const Artifact artifact = artifact_of(64);
    std::ofstream(root_ / "file") << "";
    EXPECT_FALSE(write_folder(artifact, (root_ / "file").string()));
    EXPECT_FALSE(write_folder(artifact, (root_ / "file" / "below").string()));
    fs::create_directories(folder_() / "kernel.py");
    EXPECT_FALSE(write(artifact));
    EXPECT_EQ(files(), "file ");
    fs::remove_all(folder_());
    fs::create_directories(folder_());
    std::ofstream(folder_() / "pkg") << "a file where a folder is to be";
    EXPECT_FALSE(write(artifact));
    EXPECT_EQ(files(), "file out/pkg ");
    EXPECT_FALSE(write_folder(artifact, "/proc/none/out"));
}

TEST_F(WriteFolder, TellsTwoFilesOfOneNameApart) {
    Artifact artifact = artifact_of(64);
    EXPECT_TRUE(add_import(artifact, "pkg/helpers.py", "ROWS = 64\n"));
    EXPECT_FALSE(add_import(artifact, "pkg/helpers.py", "ROWS = 65\n"));
    EXPECT_FALSE(add_import(artifact, "kernel.py", ""));
    EXPECT_FALSE(add_import(artifact, "schedule.json", ""));
}

}  // namespace
}  // namespace syncopate::emit

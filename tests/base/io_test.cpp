#include "syncopate/io.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace syncopate {
namespace {

class Io : public ::testing::Test {
protected:
    Io() { std::filesystem::create_directories(folder_); }
    ~Io() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path folder_ =
        std::filesystem::path(::testing::TempDir()) /
        ("syncopate_io_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));

    [[nodiscard]] std::string in(const char* name) const { return (folder_ / name).string(); }
};

TEST_F(Io, WhatIsWrittenIsRead) {
    const std::string bytes("a\0\xff\n", 4);
    ASSERT_TRUE(write_file_atomically(in("f"), bytes));
    EXPECT_EQ(*read_file(in("f")), bytes);
}

TEST_F(Io, AFileIsReplacedWholeAndKeepsItsPermissions) {
    ASSERT_TRUE(write_file_atomically(in("f"), std::string(5000, 'x')));
    std::filesystem::permissions(in("f"), std::filesystem::perms(0640));
    ASSERT_TRUE(write_file_atomically(in("f"), "new"));
    EXPECT_EQ(*read_file(in("f")), "new");
    EXPECT_EQ(std::filesystem::status(in("f")).permissions(), std::filesystem::perms(0640));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Io, ANewFileHasThePermissionsOfAnyNewFile) {
    const mode_t before = ::umask(027);
    const Status written = write_file_atomically(in("f"), "new");
    ::umask(before);
    ASSERT_TRUE(written);
    EXPECT_EQ(std::filesystem::status(in("f")).permissions(), std::filesystem::perms(0640));
}

TEST_F(Io, ALinkStaysALink) {
    ASSERT_TRUE(write_file_atomically(in("target"), "old"));
    std::filesystem::create_symlink("target", folder_ / "link");
    ASSERT_TRUE(write_file_atomically(in("link"), "new"));
    EXPECT_TRUE(std::filesystem::is_symlink(in("link")));
    EXPECT_EQ(*read_file(in("target")), "new");
}

TEST_F(Io, ADeviceIsWrittenInPlace) {
    ASSERT_TRUE(write_file_atomically("/dev/null", "gone"));
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(Io, AFailureNamesThePath) {
    EXPECT_EQ(read_file(in("none")).error().to_string(),
              in("none") + ": cannot be opened: No such file or directory");
    EXPECT_EQ(read_file(folder_.string()).error().to_string(),
              folder_.string() + ": is a directory; expected a file");
    EXPECT_EQ(write_file_atomically(folder_.string(), "x").error().to_string(),
              folder_.string() + ": is a directory; expected a file to write");
    EXPECT_EQ(write_file_atomically(in("no/f"), "x").error().to_string(),
              in("no/f") + ": cannot be written: No such file or directory");
}

}  // namespace
}  // namespace syncopate

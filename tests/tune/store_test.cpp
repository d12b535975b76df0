// The store keeps what searches found, for many processes at once, and no file that it cannot use stops it.
#include "syncopate/tune/store/store.hpp"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "syncopate/io.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace syncopate::tune {
namespace {

namespace fs = std::filesystem;

class Store : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "syncopate-store-XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder = pattern;
        file = folder / "deep" / "tuning.sqlite";
    }
    void TearDown() override { fs::remove_all(folder); }

    static ResultKey key(std::int64_t rows, const std::string& family = "all_gather_matmul:N=64,K=64") {
        return {
            .kernel = "k1", .device = "H200", .versions = "v1", .family = family, .rows = rows, .ranks = 8};
    }
    static TuningResult result(std::int64_t rows, std::int64_t when = 100) {
        return {.key = key(rows),
                .strategy = R"({"split":)" + std::to_string(rows) + "}",
                .us = 10,
                .default_us = 11,
                .unfused_us = 12,
                .when = when,
                .trials = {{.name = "a", .strategy = R"({"split":1})", .us = 10, .ratio = 0.9, .rounds = 3},
                           {.name = "b", .strategy = R"({"split":2})", .refused = "no room"}}};
    }
    [[nodiscard]] std::size_t set_aside() const {
        std::size_t count = 0;
        for (const auto& entry : fs::directory_iterator(file.parent_path())) {
            const std::string name = entry.path().filename().string();
            count += name.find(".set-aside-") != std::string::npos &&
                     name.find("-wal") == std::string::npos && name.find("-shm") == std::string::npos;
        }
        return count;
    }
    void write(const std::string& text) const {
        fs::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary) << text;
    }
    void sql(const char* text) const {
        sqlite3* database = nullptr;
        ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
        ASSERT_EQ(sqlite3_exec(database, text, nullptr, nullptr, nullptr), SQLITE_OK)
            << sqlite3_errmsg(database);
        sqlite3_close(database);
    }

    fs::path folder;
    fs::path file;
    const std::function<bool(const std::string&)> any = [](const std::string&) { return true; };
};

TEST_F(Store, GivesBackWhatWasPut) {
    ASSERT_TRUE(StoreFile(file).put(result(128)));
    StoreFile store(file);
    EXPECT_EQ(store.list(), std::vector{result(128)});
    TuningResult bare = result(128);
    bare.trials.clear();
    EXPECT_EQ(store.exact(key(128)), bare);
    EXPECT_FALSE(store.exact(key(256)));
    EXPECT_TRUE(store.messages().empty());
    EXPECT_FALSE(store.in_memory());
}

TEST_F(Store, TellsKernelsDevicesVersionsRanksAndFamiliesApart) {
    StoreFile store(file);
    ASSERT_TRUE(store.put(result(128)));
    for (auto change : std::vector<void (*)(ResultKey&)>{
             [](ResultKey& k) { k.kernel = "k2"; }, [](ResultKey& k) { k.device = "H100"; },
             [](ResultKey& k) { k.versions = "v2"; }, [](ResultKey& k) { k.ranks = 4; },
             [](ResultKey& k) { k.family = "all_gather_matmul:N=128,K=64"; }}) {
        ResultKey other = key(128);
        change(other);
        EXPECT_FALSE(store.exact(other));
        EXPECT_FALSE(store.nearest(other, any));
    }
}

TEST_F(Store, TakesTheNearestRowsWhoseStrategyIsLegal) {
    StoreFile store(file);
    for (const std::int64_t rows : {128, 512, 4096}) ASSERT_TRUE(store.put(result(rows)));
    EXPECT_EQ(store.nearest(key(512), any)->key.rows, 512);
    EXPECT_EQ(store.nearest(key(200), any)->key.rows, 128);
    EXPECT_EQ(store.nearest(key(300), any)->key.rows, 512);
    EXPECT_EQ(store.nearest(key(256), any)->key.rows, 512) << "of two as near, the one of more rows";
    EXPECT_EQ(store.nearest(key(32), any)->key.rows, 128) << "by a factor of four";
    EXPECT_FALSE(store.nearest(key(31), any)) << "beyond it";
    EXPECT_EQ(store.nearest(key(16384), any)->key.rows, 4096);
    const auto not_512 = [](const std::string& strategy) { return strategy != R"({"split":512})"; };
    EXPECT_EQ(store.nearest(key(300), not_512)->key.rows, 128);
    EXPECT_FALSE(store.nearest(key(300), [](const std::string&) { return false; }));
}

TEST_F(Store, AProblemWithoutRowsIsFoundByItselfOnly) {
    StoreFile store(file);
    ASSERT_TRUE(store.put(result(0)));
    EXPECT_TRUE(store.nearest(key(0), any));
    EXPECT_FALSE(store.nearest(key(1), any));
}

TEST_F(Store, ForgetsByPrefixAndByKey) {
    StoreFile store(file);
    TuningResult other = result(64);
    other.key.family = "matmul_all_reduce:N=64,K=64";
    for (const TuningResult& one : {result(128), result(256), other}) ASSERT_TRUE(store.put(one));
    EXPECT_EQ(store.list("matmul_").size(), 1U);
    EXPECT_EQ(*store.forget("all_gather_matmul:N=64"), 2);
    EXPECT_EQ(store.list(), std::vector{other});
    EXPECT_TRUE(store.trials(key(128)).empty());
    ASSERT_TRUE(store.forget(other.key));
    EXPECT_TRUE(store.list().empty());
    EXPECT_EQ(*store.forget("%"), 0) << "no pattern";
}

TEST_F(Store, KeepsTrialsOfASearchThatHasNotEnded) {
    StoreFile store(file);
    const Trial trial{.name = "a", .strategy = "{}", .estimate_us = 5, .us = 6, .ratio = 1.5, .rounds = 3};
    ASSERT_TRUE(store.put_trial(key(128), trial));
    EXPECT_EQ(StoreFile(file).trials(key(128)), std::vector{trial});
    EXPECT_FALSE(store.exact(key(128)));
}

TEST_F(Store, ExportedResultsImportElsewhereAndTheLaterOneStays) {
    StoreFile store(file);
    ASSERT_TRUE(store.put(result(128, 100)));
    ASSERT_TRUE(store.put(result(256, 100)));
    const std::string text = results_to_json(store.list());
    const auto read = results_from_json(text, "t.json");
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(*read, store.list());
    StoreFile other(folder / "other.sqlite");
    TuningResult newer = result(128, 200);
    newer.us = 7;
    ASSERT_TRUE(other.put(newer));
    EXPECT_EQ(*other.merge(*read), 1);
    EXPECT_EQ(other.exact(key(128))->us, 7);
    EXPECT_EQ(other.exact(key(256))->us, 10);
}

TEST_F(Store, AFileOfResultsIsReadStrictly) {
    const auto problem = [](const std::string& text) {
        const auto read = results_from_json(text, "t.json");
        return read ? std::string("none") : read.error().to_string();
    };
    std::string good = results_to_json({result(128)});
    EXPECT_EQ(problem(good), "none");
    EXPECT_EQ(problem("[]"), "t.json:1:1: what `tune --export` writes is an empty list; expected an object");
    EXPECT_EQ(problem("{}"),
              "t.json:1:1: what `tune --export` writes is an empty object; it needs \"schema\", \"results\"");
    EXPECT_EQ(problem(R"({"schema": "x/1", "results": []})"),
              "t.json:1:12: schema is \"x/1\"; this version reads \"syncopate.tuning/1\"");
    for (const char* text : {"{", "results of today", "\xff\xfe"})
        EXPECT_TRUE(problem(text).starts_with("t.json:1:")) << text << problem(text);
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return problem(text);
    };
    const auto ends = [&](const std::string& from, const std::string& to, const std::string& end) {
        const std::string said = changed(from, to);
        EXPECT_TRUE(said.starts_with("t.json:") && said.ends_with(end)) << said;
    };
    ends("\"us\": 10.0", "\"us\": -1", ": results[0].us is -1; expected 0 to 1e+15");
    ends("\"ranks\": 8", "\"ranks\": 8.5",
         ": results[0].ranks is the number 8.5; expected an integer that fits 64 bits");
    EXPECT_NE(changed("\"kernel\"", "\"colonel\"").find("results[0] has an unknown key \"colonel\""),
              std::string::npos);
    ends("\"ranks\": 8", "\"ranks\": 0", ": results[0].ranks is 0; expected 1 to 4096");
    EXPECT_NE(changed("\"when\": 100", "\"when\": 99700000000").find("results[0].when is 99700000000; exp"),
              std::string::npos);
    ends("\"refused\": \"\"", "\"refused\": 1",
         ": results[0].trials[0].refused is the number 1; expected a string");
}

TEST_F(Store, ADamagedFileIsSetAsideWithAMessageAndWorkGoesOn) {
    write("this is no database, but long enough to be taken for the header of one ........................");
    StoreFile store(file);
    ASSERT_EQ(store.messages().size(), 1U);
    EXPECT_NE(store.messages()[0].find("is damaged"), std::string::npos) << store.messages()[0];
    EXPECT_NE(store.messages()[0].find("tuning.sqlite.set-aside-1"), std::string::npos)
        << store.messages()[0];
    ASSERT_TRUE(store.put(result(128)));
    EXPECT_EQ(StoreFile(file).list().size(), 1U);
    EXPECT_EQ(set_aside(), 1U);
    EXPECT_NE(read_file((file.string() + ".set-aside-1"))->find("no database"), std::string::npos);
}

TEST_F(Store, DamageThatShowsWhileItIsUsedIsSetAsideToo) {
    {
        StoreFile store(file);
        for (std::int64_t rows = 1; rows < 400; ++rows) ASSERT_TRUE(store.put(result(rows)));
    }
    const auto size = static_cast<std::streamoff>(fs::file_size(file));
    ASSERT_GT(size, 8 * 4096);
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(2 * 4096);
    bytes << std::string(static_cast<std::size_t>(size) - 3 * 4096, '\x5a');
    bytes.close();
    StoreFile store(file);
    EXPECT_TRUE(store.list().empty());
    ASSERT_TRUE(store.put(result(128)));
    EXPECT_EQ(store.list().size(), 1U);
    EXPECT_EQ(set_aside(), 1U);
    EXPECT_EQ(store.messages().size(), 1U);
}

TEST_F(Store, ANewerFileIsSetAsideAndKept) {
    ASSERT_TRUE(StoreFile(file).put(result(128)));
    sql("PRAGMA user_version = 7");
    StoreFile store(file);
    ASSERT_EQ(store.messages().size(), 1U);
    EXPECT_NE(store.messages()[0].find("is of version 7, this program knows version 1"), std::string::npos);
    EXPECT_TRUE(store.list().empty());
    ASSERT_TRUE(store.put(result(256)));
    EXPECT_EQ(set_aside(), 1U);
}

TEST_F(Store, ADatabaseOfSomethingElseIsLeftWhole) {
    fs::create_directories(file.parent_path());
    sql("CREATE TABLE recipes(name TEXT)");
    StoreFile store(file);
    ASSERT_EQ(store.messages().size(), 1U);
    EXPECT_NE(store.messages()[0].find("is a database of something else"), std::string::npos);
    EXPECT_EQ(set_aside(), 1U);
}

TEST_F(Store, WithoutATableItIsDamaged) {
    ASSERT_TRUE(StoreFile(file).put(result(128)));
    sql("DROP TABLE winners");
    StoreFile store(file);
    ASSERT_TRUE(store.put(result(256)));
    EXPECT_EQ(store.list().size(), 1U);
    EXPECT_EQ(set_aside(), 1U);
}

TEST_F(Store, WhereNoFileCanBeItLivesInMemory) {
    write("a file where the folder should be");
    StoreFile store(file / "below" / "tuning.sqlite");
    EXPECT_TRUE(store.in_memory());
    ASSERT_EQ(store.messages().size(), 1U);
    EXPECT_NE(store.messages()[0].find("cannot be used"), std::string::npos);
    ASSERT_TRUE(store.put(result(128)));
    EXPECT_EQ(store.list().size(), 1U);
}

/// Runs `work` in so many processes at once; how many of them ended well.
int in_processes(int count, const std::function<void(int)>& work) {
    for (int i = 0; i < count; ++i) {
        if (::fork() == 0) {
            work(i);
            ::_exit(testing::Test::HasFailure() ? 1 : 0);
        }
    }
    int good = 0;
    for (int i = 0; i < count; ++i) {
        int status = 0;
        ::wait(&status);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return good;
}

TEST_F(Store, ManyProcessesWriteAtOnceAndNothingIsLost) {
    constexpr int kProcesses = 8;
    constexpr int kEach = 20;
    const int good = in_processes(kProcesses, [&](int process) {
        StoreFile store(file);
        for (int i = 0; i < kEach; ++i) {
            EXPECT_TRUE(store.put(result(1 + process * kEach + i)));
            EXPECT_TRUE(store.exact(key(1 + process * kEach)));
        }
        EXPECT_TRUE(store.messages().empty());
    });
    EXPECT_EQ(good, kProcesses);
    EXPECT_EQ(StoreFile(file).list().size(), static_cast<std::size_t>(kProcesses * kEach));
}

TEST_F(Store, ManyProcessesThatFindItDamagedSetItAsideOnce) {
    write(std::string(5000, 'x'));
    const int good = in_processes(8, [&](int process) {
        StoreFile store(file);
        EXPECT_TRUE(store.put(result(1 + process)));
    });
    EXPECT_EQ(good, 8);
    EXPECT_EQ(StoreFile(file).list().size(), 8U);
    EXPECT_EQ(set_aside(), 1U);
}

TEST_F(Store, AProcessThatIsKilledLeavesItUsable) {
    for (int round = 0; round < 5; ++round) {
        const pid_t child = ::fork();
        if (child == 0) {
            StoreFile store(file);
            for (std::int64_t rows = 1;; ++rows) (void)store.put(result(rows));
        }
        ::usleep(50'000);
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
    }
    StoreFile store(file);
    for (const TuningResult& one : store.list()) EXPECT_EQ(one.trials.size(), 2U) << "whole or not at all";
    ASSERT_TRUE(store.put(result(1'000'000)));
    EXPECT_TRUE(store.messages().empty());
}

class Environment : public testing::Test {
protected:
    void TearDown() override {
        for (const char* name : {"SYNCOPATE_CACHE_DIR", "XDG_CACHE_HOME", "SYNCOPATE_TUNE"}) ::unsetenv(name);
    }
};

TEST_F(Environment, TheStoreIsInTheUsersCacheFolder) {
    ::setenv("HOME", "/home/someone", 1);
    EXPECT_EQ(store_path(), "/home/someone/.cache/syncopate/tuning.sqlite");
    ::setenv("XDG_CACHE_HOME", "/cache", 1);
    EXPECT_EQ(store_path(), "/cache/syncopate/tuning.sqlite");
    ::setenv("SYNCOPATE_CACHE_DIR", "/mine", 1);
    EXPECT_EQ(store_path(), "/mine/tuning.sqlite");
}

TEST_F(Environment, TheMeasuredMachineIsBesideTheStore) {
    ::setenv("XDG_CACHE_HOME", "/cache", 1);
    EXPECT_EQ(measured_machine_path(), "/cache/syncopate/machine.json");
    ::setenv("SYNCOPATE_CACHE_DIR", "/mine", 1);
    EXPECT_EQ(measured_machine_path(), "/mine/machine.json");
}

TEST_F(Environment, AStoreWithoutAFolderIsInMemoryAndSaysSo) {
    StoreFile store{std::filesystem::path()};
    EXPECT_TRUE(store.in_memory());
    ASSERT_EQ(store.messages().size(), 1U);
    EXPECT_NE(store.messages()[0].find("set SYNCOPATE_CACHE_DIR"), std::string::npos);
}

TEST_F(Environment, TheModeIsOffReadOrAuto) {
    EXPECT_EQ(*tune_mode(), TuneMode::read);
    ::setenv("SYNCOPATE_TUNE", "off", 1);
    EXPECT_EQ(*tune_mode(), TuneMode::off);
    ::setenv("SYNCOPATE_TUNE", "auto", 1);
    EXPECT_EQ(*tune_mode(), TuneMode::tune);
    ::setenv("SYNCOPATE_TUNE", "yes", 1);
    EXPECT_EQ(tune_mode().error().to_string(), "SYNCOPATE_TUNE=yes: expected off, read or auto");
}

}  // namespace
}  // namespace syncopate::tune

#include "tune/store/store_connection.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "syncopate/cache_folder.hpp"
#include "tune/store/sqlite.hpp"

namespace syncopate::tune {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kApplication = 0x53796e63;  // "Sync": whose file it is
constexpr int kBusyMilliseconds = 10'000;
constexpr int kMostSetAside = 1000;

constexpr const char* kTables = R"(
CREATE TABLE winners(
    kernel TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, family TEXT NOT NULL,
    ranks INTEGER NOT NULL, row_count INTEGER NOT NULL,
    strategy TEXT NOT NULL, us REAL NOT NULL, default_us REAL NOT NULL, unfused_us REAL NOT NULL,
    made INTEGER NOT NULL,
    PRIMARY KEY(kernel, device, versions, family, ranks, row_count)) WITHOUT ROWID;
CREATE TABLE trials(
    kernel TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, family TEXT NOT NULL,
    ranks INTEGER NOT NULL, row_count INTEGER NOT NULL,
    strategy TEXT NOT NULL, name TEXT NOT NULL, estimate_us REAL NOT NULL, us REAL NOT NULL,
    ratio REAL NOT NULL, rounds INTEGER NOT NULL, refused TEXT NOT NULL,
    PRIMARY KEY(kernel, device, versions, family, ranks, row_count, strategy)) WITHOUT ROWID;
PRAGMA application_id = 1400467043;
PRAGMA user_version = 1;
)";
static_assert(kApplication == 1400467043 && kVersion == 1, "kTables says both");

/// Held by the one process that replaces a file. Where it cannot be had, nobody else can write there either.
class FileLock {
public:
    explicit FileLock(const fs::path& path)
        : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    ~FileLock() {
        if (file_ >= 0) ::close(file_);
    }
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

private:
    int file_;
};

std::int64_t pragma(sqlite3* database, std::string_view sql, int& code) {
    Statement statement(database, sql);
    const std::int64_t value = statement.row() ? statement.next_integer() : 0;
    code = statement.result();
    return value;
}

}  // namespace

StoreFile::Connection::Connection(fs::path file) : path(std::move(file)) {
    if (path.empty()) {
        path = "tuning.sqlite";
        use_memory("there is no folder for it: set SYNCOPATE_CACHE_DIR");
        return;
    }
    if (path == kInMemory) {
        open_memory();
        return;
    }
    (void)make_folder(path.parent_path());  // what is wrong shows when the file is opened
    std::string why;
    const State state = open(why);
    if (state == State::unusable) {
        replace(why);
    } else if (state == State::unreachable) {
        use_memory(why);
    }
}

void StoreFile::Connection::say(const std::string& message) {
    if (std::find(messages.begin(), messages.end(), message) == messages.end()) messages.push_back(message);
}

void StoreFile::Connection::close() {
    sqlite3_close(database);
    database = nullptr;
}

int StoreFile::Connection::noted(int code) {
    if (code == SQLITE_OK || code == SQLITE_CORRUPT) {
        if (code == SQLITE_CORRUPT && why_.empty() && sqlite3_errcode(database) != SQLITE_OK)
            why_ = sqlite3_errmsg(database);
        return code;
    }
    why_ = sqlite3_errmsg(database);
    // A table that is not there: the file is a store by its number only.
    const bool strange = code == SQLITE_ERROR && why_.rfind("no such", 0) == 0;
    return !memory && (code == SQLITE_NOTADB || strange) ? SQLITE_CORRUPT : code;
}

bool StoreFile::Connection::is_sound() {
    if (execute("SELECT 1 FROM winners, trials LIMIT 1") != SQLITE_OK) return false;
    Statement check(database, "PRAGMA quick_check(1)");
    return check.row() && check.next_text() == "ok";
}

Error StoreFile::Connection::failure() {
    const Error error{"the store of tuning results: " + why_, {.file = path.string()}, ErrorClass::machine};
    say(error.to_string());
    return error;
}

StoreFile::Connection::State StoreFile::Connection::open(std::string& why) {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
    int code = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(database, kBusyMilliseconds);
        execute("BEGIN");  // all three as they are at one time: another process may be making the tables
        const std::int64_t version = pragma(database, "PRAGMA user_version", code);
        if (code == SQLITE_OK) {
            const std::int64_t application = pragma(database, "PRAGMA application_id", code);
            const std::int64_t tables = pragma(database, "SELECT count(*) FROM sqlite_master", code);
            if (code == SQLITE_OK) code = execute("COMMIT");
            if (code == SQLITE_OK && version == 0 && tables == 0) return make_tables(why);
            if (code == SQLITE_OK && application != kApplication) {
                why = "is a database of something else";
                return State::unusable;
            }
            if (code == SQLITE_OK && version == kVersion) return State::usable;
            if (code == SQLITE_OK) {
                why = "is of version " + std::to_string(version) + ", this program knows version " +
                      std::to_string(kVersion);
                return State::unusable;
            }
        }
    }
    const bool told =
        database != nullptr && sqlite3_errcode(database) != SQLITE_OK;  // what failed was the last call
    why = told ? sqlite3_errmsg(database) : sqlite3_errstr(code);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        why = "is damaged (" + why + ")";
        return State::unusable;
    }
    return State::unreachable;
}

StoreFile::Connection::State StoreFile::Connection::make_tables(std::string& why) {
    // Writers and readers then need not wait for each other. Where the file system has no shared memory,
    // SQLite stays with its journal, and they do.
    execute("PRAGMA journal_mode = WAL");
    int code = execute("BEGIN IMMEDIATE");
    if (code == SQLITE_OK && pragma(database, "PRAGMA user_version", code) == 0 && code == SQLITE_OK) {
        code = execute(kTables);
    }
    if (code == SQLITE_OK) code = execute("COMMIT");
    if (code == SQLITE_OK) return State::usable;
    why = sqlite3_errmsg(database);
    return State::unreachable;
}

void StoreFile::Connection::replace(const std::string& why) {
    close();
    std::string still;
    {
        const FileLock lock(path.string() + ".lock");
        if (open(still) == State::usable && is_sound()) return;  // another process has replaced it
        close();
        fs::path aside;
        for (int number = 1; number <= kMostSetAside; ++number) {
            aside = path.string() + ".set-aside-" + std::to_string(number);
            if (!fs::exists(aside)) break;
        }
        std::error_code error;
        fs::rename(path, aside, error);
        if (error) {
            use_memory(why + ", and cannot be renamed: " + error.message());
            return;
        }
        for (const char* suffix : {"-wal", "-shm"}) {  // they belong to what was renamed
            std::error_code none;
            fs::rename(path.string() + suffix, aside.string() + suffix, none);
        }
        say(path.string() + ": the store of tuning results " + why + "; it is now " +
            aside.filename().string() + ", and a new one is begun");
        if (open(still) == State::usable) return;
    }
    use_memory(still);
}

void StoreFile::Connection::use_memory(const std::string& why) {
    close();
    say(path.string() + ": the store of tuning results cannot be used (" + why +
        "); what is found now is forgotten at the end");
    open_memory();
}

void StoreFile::Connection::open_memory() {
    memory = true;
    sqlite3_open_v2(":memory:", &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    execute(kTables);
}

}  // namespace syncopate::tune

// The file behind a store: opened, made, and set aside where it cannot be used.
#pragma once

#include <sqlite3.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/tune/store/store.hpp"

namespace syncopate::tune {

struct StoreFile::Connection {
    explicit Connection(std::filesystem::path file);
    ~Connection() { sqlite3_close(database); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Does `work` (which returns SQLite's code), and once more with a new file where the old one turns out
    /// to be damaged. Other errors become an Error, and a message.
    template <typename Work>
    Status run(const Work& work) {
        int code = noted(work());
        if (code == SQLITE_CORRUPT && !memory) {
            replace(why_.empty() ? "is damaged" : "is damaged (" + why_ + ")");
            code = noted(work());
        }
        return code == SQLITE_OK ? Status(Done{}) : Status(failure());
    }
    /// The same as one transaction: all of it or nothing.
    template <typename Work>
    Status transact(const Work& work) {
        return run([&] {
            int code = execute("BEGIN IMMEDIATE");
            if (code != SQLITE_OK) return code;
            code = work();
            if (code == SQLITE_OK) code = execute("COMMIT");
            code = noted(code);  // a ROLLBACK forgets why
            if (code != SQLITE_OK && sqlite3_get_autocommit(database) == 0) execute("ROLLBACK");
            return code;
        });
    }
    int execute(const char* sql) { return sqlite3_exec(database, sql, nullptr, nullptr, nullptr); }
    void say(const std::string& message);

    std::filesystem::path path;
    sqlite3* database = nullptr;
    bool memory = false;
    std::vector<std::string> messages;

private:
    enum class State : std::uint8_t { usable, unusable, unreachable };

    /// Keeps what SQLite says of an error. SQLITE_CORRUPT for all that means that the file is damaged.
    int noted(int code);
    [[nodiscard]] bool is_sound();
    [[nodiscard]] Error failure();
    State open(std::string& why);
    State make_tables(std::string& why);
    void close();
    /// Gives the file another name, unless another process has done so meanwhile, and makes a new one.
    void replace(const std::string& why);
    void use_memory(const std::string& why);
    void open_memory();

    std::string why_;  ///< of the last error
};

}  // namespace syncopate::tune

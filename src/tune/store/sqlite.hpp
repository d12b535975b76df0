// A statement of SQLite as a value: bound left to right, stepped row by row, finalised at its end.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace syncopate::tune {

class Statement {
public:
    Statement(sqlite3* database, std::string_view sql)
        : code_(
              sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr)) {}
    ~Statement() { sqlite3_finalize(statement_); }
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;

    /// The next parameter. The text is copied.
    Statement& text(std::string_view value) {
        // SQLite's own name for "make a copy", which is a cast of -1.
        const auto copy = reinterpret_cast<sqlite3_destructor_type>(-1);  // NOLINT(performance-no-int-to-ptr)
        const char* bytes = value.data() == nullptr ? "" : value.data();  // no bytes at all are NULL
        return after(
            sqlite3_bind_text(statement_, ++parameter_, bytes, static_cast<int>(value.size()), copy));
    }
    Statement& integer(std::int64_t value) {
        return after(sqlite3_bind_int64(statement_, ++parameter_, value));
    }
    Statement& real(double value) { return after(sqlite3_bind_double(statement_, ++parameter_, value)); }

    /// Whether there is one more row; false at the end and after an error.
    bool row() {
        if (code_ == SQLITE_OK || code_ == SQLITE_ROW) code_ = sqlite3_step(statement_);
        return code_ == SQLITE_ROW;
    }
    /// Runs to its end. SQLITE_OK, or the first error.
    int run() {
        while (row()) {
        }
        return result();
    }
    /// SQLITE_OK unless something failed.
    [[nodiscard]] int result() const {
        return code_ == SQLITE_DONE || code_ == SQLITE_ROW ? SQLITE_OK : code_;
    }

    /// The next column of the row.
    std::string next_text() {
        const int column = column_++ % sqlite3_column_count(statement_);
        const unsigned char* bytes = sqlite3_column_text(statement_, column);
        const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_, column));
        return bytes == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(bytes), size);
    }
    std::int64_t next_integer() {
        return sqlite3_column_int64(statement_, column_++ % sqlite3_column_count(statement_));
    }
    double next_real() {
        return sqlite3_column_double(statement_, column_++ % sqlite3_column_count(statement_));
    }

private:
    Statement& after(int code) {
        if (code_ == SQLITE_OK) code_ = code;
        return *this;
    }

    sqlite3_stmt* statement_ = nullptr;
    int code_;
    int parameter_ = 0;
    int column_ = 0;
};

}  // namespace syncopate::tune

#include "syncopate/tune/store/store.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "syncopate/cache_folder.hpp"
#include "tune/store/sqlite.hpp"
#include "tune/store/store_connection.hpp"

namespace syncopate::tune {
namespace {

constexpr const char* kOfKey =
    " WHERE kernel = ? AND device = ? AND versions = ? AND family = ? AND ranks = ? AND row_count = ?";

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

Statement& bind(Statement& statement, const ResultKey& key) {
    return statement.text(key.kernel)
        .text(key.device)
        .text(key.versions)
        .text(key.family)
        .integer(key.ranks)
        .integer(key.rows);
}

/// The columns of a winner, as kWinnerColumns names them.
constexpr const char* kWinnerColumns =
    "SELECT kernel, device, versions, family, ranks, row_count, strategy, us, default_us, unfused_us, made "
    "FROM winners";
TuningResult winner_of(Statement& row) {
    TuningResult result;
    result.key.kernel = row.next_text();
    result.key.device = row.next_text();
    result.key.versions = row.next_text();
    result.key.family = row.next_text();
    result.key.ranks = static_cast<std::int32_t>(row.next_integer());
    result.key.rows = row.next_integer();
    result.strategy = row.next_text();
    result.us = row.next_real();
    result.default_us = row.next_real();
    result.unfused_us = row.next_real();
    result.when = row.next_integer();
    return result;
}

int read_trials(sqlite3* database, const ResultKey& key, std::vector<Trial>& trials) {
    Statement rows(database,
                   std::string("SELECT name, strategy, estimate_us, us, ratio, rounds, refused FROM trials") +
                       kOfKey + " ORDER BY refused != '', ratio, name");
    bind(rows, key);
    trials.clear();
    while (rows.row()) {
        Trial trial;
        trial.name = rows.next_text();
        trial.strategy = rows.next_text();
        trial.estimate_us = rows.next_real();
        trial.us = rows.next_real();
        trial.ratio = rows.next_real();
        trial.rounds = static_cast<std::int32_t>(rows.next_integer());
        trial.refused = rows.next_text();
        trials.push_back(std::move(trial));
    }
    return rows.result();
}

int write_trial(sqlite3* database, const ResultKey& key, const Trial& trial) {
    Statement insert(
        database,
        "INSERT OR REPLACE INTO trials(kernel, device, versions, family, ranks, row_count, strategy, "
        "name, estimate_us, us, ratio, rounds, refused) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    return bind(insert, key)
        .text(trial.strategy)
        .text(trial.name)
        .real(trial.estimate_us)
        .real(trial.us)
        .real(trial.ratio)
        .integer(trial.rounds)
        .text(trial.refused)
        .run();
}

int write_result(sqlite3* database, const TuningResult& result) {
    Statement insert(
        database,
        "INSERT OR REPLACE INTO winners(kernel, device, versions, family, ranks, row_count, strategy, "
        "us, default_us, unfused_us, made) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    int code = bind(insert, result.key)
                   .text(result.strategy)
                   .real(result.us)
                   .real(result.default_us)
                   .real(result.unfused_us)
                   .integer(result.when)
                   .run();
    for (const Trial& trial : result.trials) {
        if (code == SQLITE_OK) code = write_trial(database, result.key, trial);
    }
    return code;
}

int forget_key(sqlite3* database, const ResultKey& key) {
    for (const char* table : {"trials", "winners"}) {
        Statement erase(database, std::string("DELETE FROM ") + table + kOfKey);
        if (const int code = bind(erase, key).run(); code != SQLITE_OK) return code;
    }
    return SQLITE_OK;
}

}  // namespace

Result<TuneMode> tune_mode() {
    const std::string value = environment("SYNCOPATE_TUNE");
    if (value.empty() || value == "read") return TuneMode::read;
    if (value == "off") return TuneMode::off;
    if (value == "auto") return TuneMode::tune;
    return usage_error("SYNCOPATE_TUNE=" + value + ": expected off, read or auto");
}

std::filesystem::path store_path() {
    const std::filesystem::path folder = cache_folder();
    return folder.empty() ? folder : folder / "tuning.sqlite";
}

StoreFile::StoreFile(std::filesystem::path path)
    : connection_(std::make_unique<Connection>(std::move(path))) {}
StoreFile::~StoreFile() = default;
StoreFile::StoreFile(StoreFile&&) noexcept = default;
StoreFile& StoreFile::operator=(StoreFile&&) noexcept = default;

const std::filesystem::path& StoreFile::path() const { return connection_->path; }
bool StoreFile::in_memory() const { return connection_->memory; }
const std::vector<std::string>& StoreFile::messages() const { return connection_->messages; }

std::optional<TuningResult> StoreFile::exact(const ResultKey& key) {
    std::optional<TuningResult> found;
    (void)connection_->run([&] {
        found.reset();
        Statement row(connection_->database, std::string(kWinnerColumns) + kOfKey);
        bind(row, key);
        if (row.row()) found = winner_of(row);
        return row.result();
    });
    return found;
}

std::optional<TuningResult> StoreFile::nearest(const ResultKey& key,
                                               const std::function<bool(const std::string&)>& legal) {
    if (key.rows <= 0) {
        std::optional<TuningResult> found = exact(key);
        return found && legal(found->strategy) ? found : std::nullopt;
    }
    const auto distance = [&](const TuningResult& result) {
        return std::abs(std::log(static_cast<double>(result.key.rows) / static_cast<double>(key.rows)));
    };
    std::vector<TuningResult> found;
    (void)connection_->run([&] {
        found.clear();
        Statement rows(connection_->database,
                       std::string(kWinnerColumns) +
                           " WHERE kernel = ? AND device = ? AND versions = ? AND family = ? AND ranks = ? "
                           "AND row_count > 0 ORDER BY row_count DESC");
        rows.text(key.kernel).text(key.device).text(key.versions).text(key.family).integer(key.ranks);
        while (rows.row()) {
            TuningResult result = winner_of(rows);
            if (distance(result) <= std::log(kNearestRows) + 1e-9) found.push_back(std::move(result));
        }
        return rows.result();
    });
    // Of two that are as near, the one of more rows.
    std::stable_sort(found.begin(), found.end(),
                     [&](const TuningResult& a, const TuningResult& b) { return distance(a) < distance(b); });
    for (TuningResult& result : found) {
        if (legal(result.strategy)) return std::move(result);
    }
    return std::nullopt;
}

std::vector<TuningResult> StoreFile::list(std::string_view prefix) {
    std::vector<TuningResult> results;
    (void)connection_->run([&] {
        results.clear();
        Statement rows(connection_->database,
                       std::string(kWinnerColumns) +
                           " WHERE substr(family, 1, ?) = ? "
                           "ORDER BY family, row_count, ranks, device, versions, kernel");
        rows.integer(static_cast<std::int64_t>(prefix.size())).text(prefix);
        while (rows.row()) results.push_back(winner_of(rows));
        int code = rows.result();
        for (TuningResult& result : results) {
            if (code == SQLITE_OK) code = read_trials(connection_->database, result.key, result.trials);
        }
        return code;
    });
    return results;
}

std::vector<Trial> StoreFile::trials(const ResultKey& key) {
    std::vector<Trial> trials;
    (void)connection_->run([&] { return read_trials(connection_->database, key, trials); });
    return trials;
}

Status StoreFile::put(const TuningResult& result) {
    return connection_->transact([&] { return write_result(connection_->database, result); });
}

Status StoreFile::put_trial(const ResultKey& key, const Trial& trial) {
    return connection_->transact([&] { return write_trial(connection_->database, key, trial); });
}

Result<std::int64_t> StoreFile::merge(const std::vector<TuningResult>& results) {
    std::int64_t changed = 0;
    const Status done = connection_->transact([&] {
        changed = 0;
        int code = SQLITE_OK;
        for (const TuningResult& result : results) {
            Statement here(connection_->database, std::string("SELECT made FROM winners") + kOfKey);
            bind(here, result.key);
            if (here.row() && here.next_integer() >= result.when) continue;
            code = here.result();
            if (code == SQLITE_OK) code = forget_key(connection_->database, result.key);
            if (code == SQLITE_OK) code = write_result(connection_->database, result);
            if (code != SQLITE_OK) return code;
            ++changed;
        }
        return code;
    });
    if (!done) return done.error();
    return changed;
}

Result<std::int64_t> StoreFile::forget(std::string_view prefix) {
    std::int64_t winners = 0;
    const Status done = connection_->transact([&] {
        int code = SQLITE_OK;
        for (const char* table : {"trials", "winners"}) {
            Statement erase(connection_->database,
                            std::string("DELETE FROM ") + table + " WHERE substr(family, 1, ?) = ?");
            code = erase.integer(static_cast<std::int64_t>(prefix.size())).text(prefix).run();
            if (code != SQLITE_OK) return code;
        }
        winners = sqlite3_changes(connection_->database);  // of the last statement
        return code;
    });
    if (!done) return done.error();
    return winners;
}

Status StoreFile::forget(const ResultKey& key) {
    return connection_->transact([&] { return forget_key(connection_->database, key); });
}

}  // namespace syncopate::tune

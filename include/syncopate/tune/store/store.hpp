// The store of tuning results: one SQLite file under the user's cache folder, which many processes of many
// runs may read and write at once. What cannot be used is set aside, never deleted: a file that is damaged,
// that a newer version wrote, or that is no store at all gets another name, a new one takes its place, and a
// message says so. Where no file can be written, the store lives in memory, and says that too. So work never
// stops for the store's sake.
//
//     winners   kernel, device, versions, family, ranks, rows → strategy, us, default_us, unfused_us, when
//     trials    the same and a strategy → name, estimate_us, us, ratio, rounds, refused
//
// A search writes its trials as it goes, so that one that was interrupted goes on where it was (search.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/store/results.hpp"

namespace syncopate::tune {

/// What operators do with the store: SYNCOPATE_TUNE.
enum class TuneMode : std::uint8_t {
    off,   ///< choose by the estimate
    read,  ///< take stored winners; the default
    tune,  ///< "auto": as read, and search where nothing is stored for just this problem
};
/// From the environment. Fails (ErrorClass::usage) for a value that is none of off, read and auto.
[[nodiscard]] Result<TuneMode> tune_mode();

/// tuning.sqlite in the cache folder (cache_folder.hpp); empty where there is none: the store is then in
/// memory.
[[nodiscard]] std::filesystem::path store_path();

/// A path of a store that is in memory on purpose.
inline constexpr const char* kInMemory = ":memory:";

/// The key's bucket of rows: rows that differ by no more than this factor may share a strategy.
inline constexpr double kNearestRows = 4.0;

/// One connection. An object serves one thread, and no process but the one that opened it: after a fork, open
/// another.
class StoreFile {
public:
    /// Never fails; messages() says what had to be set aside, or why the store is in memory.
    explicit StoreFile(std::filesystem::path path = store_path());
    ~StoreFile();
    StoreFile(StoreFile&&) noexcept;
    StoreFile& operator=(StoreFile&&) noexcept;
    StoreFile(const StoreFile&) = delete;
    StoreFile& operator=(const StoreFile&) = delete;

    /// The winner of exactly this key.
    [[nodiscard]] std::optional<TuningResult> exact(const ResultKey& key);
    /// The winner of the nearest number of rows, by factor, that `legal` (of its JSON) accepts; the key's own
    /// first. None beyond kNearestRows.
    [[nodiscard]] std::optional<TuningResult> nearest(const ResultKey& key,
                                                      const std::function<bool(const std::string&)>& legal);
    /// All winners, or those of families that begin with `prefix`, with their trials; by family, rows and
    /// ranks.
    [[nodiscard]] std::vector<TuningResult> list(std::string_view prefix = {});
    /// What an earlier search of the key has looked at.
    [[nodiscard]] std::vector<Trial> trials(const ResultKey& key);

    /// Writes, in the place of what was there. Whole or not at all.
    Status put(const TuningResult& result);
    Status put_trial(const ResultKey& key, const Trial& trial);
    /// Adds results of elsewhere in one transaction; of two of one key the later one stays. Returns how many
    /// changed.
    Result<std::int64_t> merge(const std::vector<TuningResult>& results);
    /// Forgets winners and trials of families that begin with `prefix`. Returns how many winners there were.
    Result<std::int64_t> forget(std::string_view prefix);
    /// Forgets one key: a search begins anew.
    Status forget(const ResultKey& key);

    [[nodiscard]] const std::filesystem::path& path() const;
    [[nodiscard]] bool in_memory() const;
    /// What happened that a person should know, each once.
    [[nodiscard]] const std::vector<std::string>& messages() const;

private:
    struct Connection;
    std::unique_ptr<Connection> connection_;
};

}  // namespace syncopate::tune

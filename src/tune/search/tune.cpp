#include "syncopate/tune/search/tune.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

namespace syncopate::tune {
namespace {

/// Compiling a strategy may take one rank much longer than another.
constexpr runtime::Milliseconds kPatience{600'000};

std::string to_bytes(const std::vector<double>& values) {
    std::string bytes(values.size() * sizeof(double), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

/// What an earlier search of the key has measured, by rank 0's store.
Result<std::vector<Trial>> earlier_trials(const ResultKey& key, runtime::Rendezvous& rendezvous,
                                          StoreFile* store) {
    TuningResult carried{.key = key};
    if (store != nullptr) carried.trials = store->trials(key);
    SYNCOPATE_TAKE(const std::string text, share(rendezvous, results_to_json({carried})));
    SYNCOPATE_TAKE(const std::vector<TuningResult> read, results_from_json(text, "rank 0's trials"));
    return read.front().trials;
}

}  // namespace

Result<std::vector<double>> largest(runtime::Rendezvous& rendezvous, const std::vector<double>& values) {
    SYNCOPATE_TAKE(const std::vector<runtime::Bytes> all,
                   runtime::all_gather(rendezvous, "tune", to_bytes(values), kPatience));
    std::vector<double> found = values;
    for (const runtime::Bytes& bytes : all) {
        if (bytes.size() != values.size() * sizeof(double)) {
            return usage_error("ranks tune different things: all must call alike");
        }
        std::vector<double> theirs(values.size());
        if (!theirs.empty()) std::memcpy(theirs.data(), bytes.data(), bytes.size());
        for (std::size_t i = 0; i < found.size(); ++i) found[i] = std::max(found[i], theirs[i]);
    }
    return found;
}

Result<std::string> share(runtime::Rendezvous& rendezvous, const std::string& text) {
    SYNCOPATE_TAKE(const std::vector<runtime::Bytes> all,
                   runtime::all_gather(rendezvous, "the choice of a strategy",
                                       rendezvous.rank() == 0 ? text : std::string()));
    return all.front();
}

Result<Tuned> tune_problem(const ResultKey& key, std::span<const Contender> contenders,
                           std::ptrdiff_t unfused, const SearchOptions& options, Measuring measuring,
                           runtime::Rendezvous& rendezvous, StoreFile* store, bool again) {
    if (store != nullptr && again) (void)store->forget(key);  // messages() says what failed
    SYNCOPATE_TAKE(const std::vector<Trial> earlier, earlier_trials(key, rendezvous, store));
    measuring.agree = [&](const std::vector<double>& values) { return largest(rendezvous, values); };
    measuring.record = [&](const Trial& trial) {
        if (store != nullptr) (void)store->put_trial(key, trial);
    };
    SearchOptions all = options;
    all.unfused = unfused;
    SYNCOPATE_TAKE(const SearchResult found, find_fastest(contenders, all, measuring, earlier));
    Tuned tuned{.winner = contenders[found.winner].name,
                .resumed = earlier.size(),
                .in_time = found.in_time,
                .instead = found.instead};
    tuned.result = {.key = key,
                    .strategy = contenders[found.winner].strategy,
                    .us = found.us,
                    .when = static_cast<std::int64_t>(std::time(nullptr))};
    std::size_t baseline = 0;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
        if (!contenders[i].baseline) continue;
        double& us =
            static_cast<std::ptrdiff_t>(i) == unfused ? tuned.result.unfused_us : tuned.result.default_us;
        us = found.baseline_us[baseline++];
    }
    for (const Trial& trial : found.trials) {
        if (trial.rounds > 0 || !trial.refused.empty()) tuned.result.trials.push_back(trial);
    }
    if (store != nullptr) (void)store->put(tuned.result);
    return tuned;
}

}  // namespace syncopate::tune

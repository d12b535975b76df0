#include "syncopate/tune/store/snapshot.hpp"

#include <utility>
#include <vector>

#include "syncopate/try.hpp"
#include "syncopate/tune/store/results.hpp"

namespace syncopate::tune {

Result<Snapshot> snapshot_here() {
    Snapshot snapshot;
    SYNCOPATE_TAKE(snapshot.machines, machine_texts());
    SYNCOPATE_TAKE(const TuneMode mode, tune_mode());
    std::vector<TuningResult> winners;
    if (mode != TuneMode::off) winners = StoreFile().list();
    for (TuningResult& winner : winners) {
        winner.trials.clear();
        winner.when = 0;  // clocks of ranks differ, and the reader takes no time that lies in the future
    }
    snapshot.results = results_to_json(winners);
    return snapshot;
}

Result<StoreFile> store_of(const std::string& results) {
    SYNCOPATE_TAKE(const std::vector<TuningResult> winners, results_from_json(results, "the ranks' store"));
    StoreFile file(kInMemory);
    SYNCOPATE_TRY(file.merge(winners));
    return file;
}

}  // namespace syncopate::tune

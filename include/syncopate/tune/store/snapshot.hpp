// Snapshot: what a process chooses by, as text. Ranks whose files differ choose alike by the snapshot of one of them, also
// where none can wait for another.
#pragma once

#include <string>

#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/store/store.hpp"

namespace syncopate::tune {

struct Snapshot {
    MachineTexts machines;
    /// The store's winners without their trials, as results_to_json writes them. None where SYNCOPATE_TUNE is off.
    std::string results;
    bool operator==(const Snapshot&) const = default;
};

/// Of this process, as it would choose now. Fails where SYNCOPATE_MACHINE or SYNCOPATE_TUNE is wrong; a store or a
/// measured machine that cannot be read is none.
[[nodiscard]] Result<Snapshot> snapshot_here();

/// A store in memory of these results, which must be of a snapshot.
[[nodiscard]] Result<StoreFile> store_of(const std::string& results);

}  // namespace syncopate::tune

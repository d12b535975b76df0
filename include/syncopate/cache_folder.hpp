// The folder in which Syncopate keeps what it can make again: emitted kernels, the measured machine, results
// of tuning.
#pragma once

#include <filesystem>

namespace syncopate {

/// $SYNCOPATE_CACHE_DIR, else $XDG_CACHE_HOME/syncopate, else .cache/syncopate in the user's home; variables
/// that are empty count as not set. Empty where nothing names a home. The folder need not exist.
[[nodiscard]] std::filesystem::path cache_folder();

}  // namespace syncopate

// The folder in which Syncopate keeps what it can make again: emitted kernels, the measured machine, results
// of tuning.
#pragma once

#include <filesystem>

#include "syncopate/result.hpp"

namespace syncopate {

/// $SYNCOPATE_CACHE_DIR, else $XDG_CACHE_HOME/syncopate, else .cache/syncopate in the user's home; variables
/// that are empty count as not set. Empty where nothing names a home. The folder need not exist.
[[nodiscard]] std::filesystem::path cache_folder();

/// Makes the folder and those above it where they are missing, for this user alone whatever the umask is. Fails with
/// the system's words.
Status make_folder(const std::filesystem::path& folder);

/// The same for what is executed: fails where another user than this one or root owns the folder or the one above
/// it, may write into it, or could put another one in its place: those above have a sticky bit, or are not open.
Status make_private_folder(const std::filesystem::path& folder);

}  // namespace syncopate

// Writes the folder that `syncopate run` takes, so that a reader, a failure or a kill at any moment finds the old folder, the
// new one, or one that is refused: never a mixture that runs.
//
//   DIR is new      all files in .DIR.new.PID beside it ── one rename ──▶ DIR
//   DIR is there    all files in DIR/.new.PID ── a rename each, schedule.json last ──▶ DIR
//
// In between the old schedule.json has other digests than the new files beside it (emit/folder.hpp). What writers that were
// killed have left is removed by the next one.
#pragma once

#include <string>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

/// `inputs`: files that were read, which are not overwritten. Of what is there, only what was written by this is.
/// Returns when all is on the disk.
[[nodiscard]] Status write_folder(const Artifact& artifact, const std::string& folder,
                                  const std::vector<std::string>& inputs = {});

}  // namespace syncopate::emit

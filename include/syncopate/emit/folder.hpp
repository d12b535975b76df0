// The folder that `syncopate fuse -o DIR` writes, read again: what `syncopate run DIR` runs. A file that is
// missing, is no text or does not say what fuse writes is an error that names it; so is one whose parts do
// not fit together (a binding to a tensor that the plan lacks, a shape that is not the plan's, a file of which
// schedule.json has another digest).
#pragma once

#include <functional>
#include <map>
#include <string>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

/// schedule.json, and the kernels' files by the names of files_of.
[[nodiscard]] Result<Artifact> artifact_from_folder(const std::string& folder);

/// The same of texts by name, which stood in a folder; `folder` is for messages.
using FilesOfFolder = std::map<std::string, std::string, std::less<>>;
[[nodiscard]] Result<Artifact> artifact_from_files(const FilesOfFolder& files, const std::string& folder);

}  // namespace syncopate::emit

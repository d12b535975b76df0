// Whole files in and out, for the command and the tests. "-" is standard input or standard output.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/result.hpp"

namespace syncopate {

/// The bytes of the file at `path`. Fails, naming the path, if it cannot be opened, is a directory or is
/// longer than 4 GiB.
[[nodiscard]] Result<std::string> read_file(const std::string& path);

/// Replaces the file at `path` with `text`: a temporary file beside it, then a rename, so that a reader or a
/// crash sees the old file or the new one and never a part. Keeps the permissions of a file that was there
/// and follows symbolic links; a device or a pipe is written in place. Fails, naming the path, leaving
/// nothing behind.
Status write_file_atomically(const std::string& path, std::string_view text);

/// Waits until what was written to the file or folder at `path` is on the disk, as far as its file system can. Fails,
/// naming the path.
Status sync_to_disk(const std::string& path);

}  // namespace syncopate

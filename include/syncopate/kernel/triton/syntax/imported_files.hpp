// The files that a kernel's file takes along: what `fuse` writes must find its imports where it lies.
#pragma once

#include <string>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::kernel {

struct ImportedFile {
    std::string path;  ///< from the folder of the kernel's file, as in "helpers.py" or "sub/__init__.py"
    std::string text;
};

/// The files beside `file`, and in folders below, that it imports, directly or through one another, in no
/// particular order. Fails with file:line:col at a relative import that leads above that folder, or to
/// nothing. Other imports (of packages, installed or on the path) are left out: they are found as before.
[[nodiscard]] Result<std::vector<ImportedFile>> imported_files(const std::string& source,
                                                               const std::string& file);

}  // namespace syncopate::kernel

// The front end for Triton: from Python source to what a kernel is, without running it.
#pragma once

#include <string>
#include <vector>

#include "syncopate/kernel/model/explained.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/model/tiles.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

/// Reads the kernel `name` of `source` (NAME@LINE where several functions have that name; the only
/// @triton.jit kernel with stores when `name` is empty; helpers are not kernels) and analyses it for
/// `arguments`. Fails with file:line:col for a syntax error, a directive that contradicts what is inferred or
/// names an unknown variable, a missing argument, and an address that cannot be inferred — naming the
/// expression and the directive that would settle it.
[[nodiscard]] Result<Kernel> analyse(const std::string& source, std::string file, const std::string& name,
                                     const Arguments& arguments);

/// As analyse(), of other tiles than those of `loops`.
[[nodiscard]] Result<Kernel> analyse_as(const std::string& source, std::string file, const std::string& name,
                                        const Arguments& arguments, Tiles tiles);

/// As analyse(), with the reasons.
[[nodiscard]] Result<Explained> analyse_and_explain(const std::string& source, std::string file,
                                                    const std::string& name, const Arguments& arguments);

/// The files beside `file`, and in folders below, that it imports, directly or through one another, in no
/// particular order. Fails with file:line:col at a relative import that leads above that folder, or to
/// nothing. Other imports (of packages, installed or on the path) are left out: they are found as before.
[[nodiscard]] Result<std::vector<ImportedFile>> imported_files(const std::string& source,
                                                               const std::string& file);

}  // namespace syncopate::kernel::triton

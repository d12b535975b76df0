// Files of other packages that kernels call into, and that need not be there to be read.
#pragma once

#include <string_view>

namespace syncopate::kernel::triton {

/// What of the module at this path addresses may follow from, in Triton's language; empty: it is none of these.
[[nodiscard]] std::string_view known_module(std::string_view path);

/// Whether a file of this path is no file, but text that is known.
[[nodiscard]] inline bool is_known_module(std::string_view path) { return path.starts_with('<'); }

}  // namespace syncopate::kernel::triton

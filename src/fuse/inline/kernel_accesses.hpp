// What a kernel loads and stores, as the passes ask that send these calls elsewhere: inline.cpp and
// inline_reads.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/model/program.hpp"

namespace syncopate::fuse {

enum class Access : std::uint8_t { load, store };

/// The parameter through which the kernel writes `tensor`; null if it does not.
[[nodiscard]] const kernel::Param* writer_of(const BoundKernel& program, std::int32_t tensor);

/// The one parameter that is bound to `tensor`; null if there is none, or another one too.
[[nodiscard]] const kernel::Param* only_param(const BoundKernel& program, std::int32_t tensor);

/// Why emit could not change some load or store through `param`, as `backend` (tma_inline, ldst_inline)
/// would; empty if it can: every one of them goes through what that backend changes, and can be changed.
[[nodiscard]] std::string objection_to_calls(const kernel::Kernel& kernel, const kernel::Param& param,
                                             plan::Backend backend, Access access);

/// Why what a tile loads or stores through `param`, `box`, is not whole blocks of rows of its descriptor;
/// empty if it is, and without a descriptor. One that spans all heaps does not clip rows where the tensor
/// ends.
[[nodiscard]] std::string objection_to_rows(const kernel::Kernel& kernel, const kernel::Tile& tile,
                                            const kernel::Param& param, const plan::Region& box,
                                            Access access);

/// Rows from a place in `from` to the same place in `to`, in rows of the tensor of `from`; nullopt when the
/// two are not laid out alike. `to` may be a slot of a staging tensor, which has an axis more.
[[nodiscard]] std::optional<std::int64_t> rows_between(const plan::Plan& plan, const plan::Chunk& from,
                                                       const plan::Chunk& to);

/// Whether a rank's kernel makes some of `chunk`, or (`all`) all of it.
[[nodiscard]] bool is_made(const plan::Plan& plan, std::int32_t rank, const plan::Chunk& chunk, bool all);

}  // namespace syncopate::fuse

// Directives: comments `# @sy.NAME …` that name what cannot be inferred or override it (docs/kernels.md).
// Reading them and tying each to its statement is done here; analyse compares them with what the evaluation
// found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernel/triton/syntax/syntax.hpp"

namespace syncopate::kernel::triton {

enum class DirectiveKind : std::uint8_t {
    axis_count,
    num_tiles,
    tile_id,
    persistent_init,
    dispatch,
    pid_map,
    producer_epilogue,
    host_entry,
    kernel_launch,
    reads,
    writes,
    any_order,
};

/// One bound of a range in a footprint; null: the tensor's own.
struct DirectiveRange {
    Expr* begin = nullptr;
    Expr* end = nullptr;
    bool single = false;  ///< the one coordinate `begin`
};

/// pid_map, AXIS=lo..hi: what the `range` of a tile's loop over the axis begins and ends with.
struct DirectiveBounds {
    std::string axis;
    Expr* low = nullptr;
    Expr* high = nullptr;
};

struct Directive {
    DirectiveKind kind = DirectiveKind::axis_count;
    SourceRange where;                   ///< from the `@` to the end of the comment
    const Stmt* statement = nullptr;     ///< in the kernel: the statement it trails or stands above
    std::string axis;                    ///< axis_count: the axis
    bool looped = false;                 ///< axis_count: NAME=range, an axis that a tile loops over
    Expr* block = nullptr;               ///< axis_count: block=…
    bool persistent = false;             ///< tile_id persistent
    bool begins = false;                 ///< persistent_init, dispatch: `begin`, not `end`
    std::int32_t param = -1;             ///< reads, writes
    std::string item;                    ///< … of a parameter that is a tuple: "[0]", which tensor of it
    std::vector<DirectiveRange> ranges;  ///< reads, writes: one per axis of the tensor
    std::vector<std::pair<std::string, Expr*>> mapping;  ///< pid_map: tile axis → variable
    std::vector<DirectiveBounds> bounds;                 ///< pid_map: loop axis → bounds
};

/// The directives of `kernel` (a parsed function), and the host ones of the rest of the file, in source
/// order. Fails at the first unknown directive, malformed argument, unknown variable or unpaired begin or
/// end.
[[nodiscard]] Result<std::vector<Directive>> read_directives(Module& module, std::int32_t kernel);

}  // namespace syncopate::kernel::triton

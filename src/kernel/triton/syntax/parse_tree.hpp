// How parsing reads tree-sitter's tree: a node's kind, fields and children, and Python's operators by their
// spelling. Internal to parse_*.cpp, so that expressions, calls and statements can each have a file.
#pragma once

#include <tree_sitter/api.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernel/triton/syntax/syntax.hpp"

namespace syncopate::kernel::triton {

inline std::string_view type(TSNode node) { return ts_node_type(node); }

inline TSNode field(TSNode node, std::string_view name) {
    return ts_node_child_by_field_name(node, name.data(), static_cast<std::uint32_t>(name.size()));
}

inline bool present(TSNode node) { return !ts_node_is_null(node); }

/// The named children that are not comments.
inline std::vector<TSNode> children(TSNode node) {
    std::vector<TSNode> result;
    const std::uint32_t count = ts_node_named_child_count(node);
    result.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_named_child(node, i);
        if (type(child) != "comment" && type(child) != "line_continuation") result.push_back(child);
    }
    return result;
}

/// Whether a dotted path of an import leads into Triton.
inline bool is_of_triton(std::string_view path) { return path == "triton" || path.starts_with("triton."); }

/// The operator of an expression or a comparison ("+", "not in"); nullopt for text that is none. In
/// parse_expression.cpp.
[[nodiscard]] std::optional<Operator> binary_operator(std::string_view text);

}  // namespace syncopate::kernel::triton

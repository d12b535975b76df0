// The few facts about a stretch of Python that emit needs beyond the kernel's sites.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace syncopate::emit::triton {

/// A half-open byte range.
struct Span {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
};

/// An argument of a call; `keyword` is empty for a positional one.
struct CallArgument {
    std::string keyword;
    Span whole;
    Span value;
};

struct Call {
    Span callee;
    std::vector<CallArgument> arguments;
};

/// A list or tuple display with at least one item.
struct List {
    Span whole;
    std::vector<Span> items;
};

struct Identifier {
    std::string name;
    Span where;
};

struct Facts {
    std::vector<Span> returns;            ///< return statements, in source order
    std::vector<Span> strings;            ///< string literals, from quote to quote
    std::vector<Identifier> identifiers;  ///< each occurrence
    std::vector<Identifier> assigned;     ///< those that are targets of an assignment, or of a loop
    std::vector<Call> calls;              ///< in source order, an outer one before those inside it
    std::vector<List> lists;              ///< in source order
    bool has_error = false;               ///< the whole source, not only the stretch
};

/// The facts about what lies within `span` of `source`.
[[nodiscard]] Facts facts_of(std::string_view source, Span span);

}  // namespace syncopate::emit::triton

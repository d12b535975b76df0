// The lines of the user's program that MLIR text names, where it was printed with locations:
//
//     #loc3 = loc("/home/me/model.py":31:4 to :9)
//     #loc8 = loc("mlp"(#loc3))
//     %2 = stablehlo.dot_general … loc(#loc8)
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace syncopate::ingest {

/// What stands behind '=' of an alias, by its name without '#'.
using MlirAliases = std::map<std::string_view, std::string_view>;

/// "/home/me/model.py:31" for what stands in an operation's loc(…): a file's place, or the innermost one of a
/// name's, a call's or the first of several fused ones. Empty if there is none.
[[nodiscard]] std::string line_of(std::string_view location, const MlirAliases& aliases);

}  // namespace syncopate::ingest

// The files of share/topologies/, embedded when the library is built (cmake/Embed.cmake), so that they are
// found by name wherever the library is.
#pragma once

#include <span>
#include <string_view>

namespace syncopate::plan {

struct ShippedTopology {
    std::string_view name;  ///< the file's, without ".json"
    std::string_view text;
};

[[nodiscard]] std::span<const ShippedTopology> shipped_topologies();

}  // namespace syncopate::plan

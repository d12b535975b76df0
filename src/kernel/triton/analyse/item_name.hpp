// Names of what a launch gives: a parameter, or an item of one that is a tuple, as in "a_ptrs[1]" or
// "sizes[0][2]".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace syncopate::kernel::triton {

struct ItemName {
    std::string parameter;
    std::vector<std::int64_t> path;  ///< empty: the parameter itself
};

/// Null where `name` has another form, or an index beyond what a launch could mean.
[[nodiscard]] std::optional<ItemName> item_name(std::string_view name);

/// "a_ptrs" and 1: "a_ptrs[1]".
[[nodiscard]] std::string item_of(const std::string& name, std::int64_t index);

}  // namespace syncopate::kernel::triton

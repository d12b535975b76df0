#include "kernel/triton/analyse/item_name.hpp"

#include <charconv>

namespace syncopate::kernel::triton {

std::optional<ItemName> item_name(std::string_view name) {
    constexpr std::size_t kDeepest = 4;
    constexpr std::int64_t kMost = 1 << 12;
    ItemName made;
    std::size_t open = name.find('[');
    made.parameter = name.substr(0, open);
    while (open < name.size()) {
        std::int64_t index = 0;
        const char* end = name.data() + name.size();
        const auto [stop, code] = std::from_chars(name.data() + open + 1, end, index);
        if (code != std::errc() || stop == end || *stop != ']' || index < 0 || index >= kMost)
            return std::nullopt;
        made.path.push_back(index);
        open = static_cast<std::size_t>(stop - name.data()) + 1;
        if (open < name.size() && name[open] != '[') return std::nullopt;
    }
    if (made.path.size() > kDeepest) return std::nullopt;
    return made;
}

std::string item_of(const std::string& name, std::int64_t index) {
    return name + "[" + std::to_string(index) + "]";
}

}  // namespace syncopate::kernel::triton

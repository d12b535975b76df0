// The files of share/machines/, embedded when the library is built (cmake/Embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace syncopate::tune {

struct ShippedMachine {
    std::string_view name;  ///< the file's, without ".json"
    std::string_view text;
};

[[nodiscard]] std::span<const ShippedMachine> shipped_machines();

}  // namespace syncopate::tune

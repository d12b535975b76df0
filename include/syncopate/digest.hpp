// A digest by which a text is told from others that it may be mixed up with: of 64 bits (FNV-1a), the same on all machines.
// It is no protection against who makes a text on purpose.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace syncopate {

[[nodiscard]] std::uint64_t hash(std::string_view text);

/// The same as 16 hexadecimal digits.
[[nodiscard]] std::string digest(std::string_view text);

}  // namespace syncopate

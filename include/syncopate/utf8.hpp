// Characters of a text that comes from a user, which may be any bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace syncopate {

/// One character of a text, as UTF-8 has it (RFC 3629).
struct Character {
    std::string_view bytes;
    char32_t code = 0;
    bool valid = true;  ///< false: one byte that is no UTF-8
};

/// The character that begins at byte `at`, which is inside the text.
[[nodiscard]] Character character_at(std::string_view text, std::size_t at);

/// Whether a terminal would act on the character, or show nothing for it, instead of showing it: control
/// characters, bytes that are no UTF-8, marks that reorder text.
[[nodiscard]] bool is_hidden(const Character& c);

}  // namespace syncopate

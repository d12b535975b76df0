#include "syncopate/utf8.hpp"

#include <algorithm>
#include <array>

namespace syncopate {

Character character_at(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const unsigned first = byte(at);
    if (first < 0x80) return {text.substr(at, 1), first};
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    const Character broken{text.substr(at, 1), 0, false};
    if (first < 0xc2 || first > 0xf4) return broken;
    char32_t code = first & (0x7fU >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(at + i) & 0xc0U) != 0x80U) return broken;
        code = code << 6 | (byte(at + i) & 0x3fU);
    }
    constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return broken;
    return {text.substr(at, length), code};
}

bool is_hidden(const Character& c) {
    struct CodeRange {
        char32_t first;
        char32_t last;
    };
    static constexpr std::array<CodeRange, 6> kHidden{
        {{0, 0x1f}, {0x7f, 0x9f}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}}};
    return !c.valid || std::ranges::any_of(kHidden, [&](const CodeRange& range) {
        return c.code >= range.first && c.code <= range.last;
    });
}

}  // namespace syncopate

#include "syncopate/digest.hpp"

#include <fmt/format.h>

namespace syncopate {

std::uint64_t hash(std::string_view text) {
    std::uint64_t made = 0xcbf29ce484222325U;
    for (const char byte : text) made = (made ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
    return made;
}

std::string digest(std::string_view text) { return fmt::format("{:016x}", hash(text)); }

}  // namespace syncopate

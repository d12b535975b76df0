#include "syncopate/digest.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace syncopate {

std::string digest(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
    return fmt::format("{:016x}", hash);
}

}  // namespace syncopate

// The container of a bundle: named sections of bytes in one file, each with its size and digest, data only.
//
//   offset 0   "SYBUNDLE"            8 bytes
//          8   version               u32: kVersion
//         12   number of sections    u32
//         16   bytes of the file     u64
//         24   bytes of the head     u64: up to the first section, its own digest included
//         32   of each section, rising by name:
//                offset, bytes       u64 each; the offset a multiple of 16
//                digest              u64: FNV-1a of its bytes (digest.hpp)
//                length of its name  u32, then 4 bytes of 0, then the name, filled up with zeros to a multiple of 8
//        end   digest of the head so far, u64
//   then the sections, in this order, each filled up with zeros to a multiple of 16
//
// All numbers are little-endian. There is one way to write a container: what is read and written again has the same
// bytes. The digests tell damage, and not who made the file: a bundle holds machine code, so it is to be trusted as a
// library is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "syncopate/result.hpp"

namespace syncopate::bundle {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kMostSections = 1 << 16;
inline constexpr std::uint32_t kMostNameBytes = 1024;

/// Bytes by name. A name is not empty and at most kMostNameBytes long.
using Sections = std::map<std::string, std::string, std::less<>>;

/// A container as bytes.
[[nodiscard]] std::string pack(const Sections& sections);

/// The sections of `bytes`, the content of `file`. Fails for what is no bundle, of a newer version, cut off or
/// damaged, naming the file and the section.
[[nodiscard]] Result<Sections> unpack(std::string_view bytes, const std::string& file);

}  // namespace syncopate::bundle

// What the host gives to the kernel of copy_boxes.cu. Plain C++17: nvcc reads it too.
#pragma once

#include <cstdint>

namespace syncopate::runtime::device {

inline constexpr std::uint32_t kMostBoxes = 16;
inline constexpr std::uint32_t kCopyThreads = 256;
inline constexpr std::uint32_t kCopyUnits = 4;  ///< of 16 bytes, that a thread has under way at once
inline constexpr std::uint32_t kCopyPiece = kCopyThreads * kCopyUnits;

/// `planes` of `rows` of `row_units` times 16 bytes; strides in bytes, multiples of 16, as the addresses.
struct CopyBox {
    std::uint64_t src;
    std::uint64_t dst;
    std::uint64_t src_pitch;
    std::uint64_t dst_pitch;
    std::uint64_t src_plane;
    std::uint64_t dst_plane;
    std::uint32_t row_units;
    std::uint32_t rows;
    std::uint32_t units;       ///< of all planes
    std::uint32_t end_pieces;  ///< pieces of kCopyPiece units of this box and those before it
};

/// The parameter of sy_copy_boxes.
struct CopyBoxesArguments {
    CopyBox boxes[kMostBoxes];
    std::uint32_t num_boxes;
};

}  // namespace syncopate::runtime::device

// Cost: how long tiles and transfers are likely to take. Estimates, for choosing an order only: nothing that
// must hold depends on them. The constants are those of an H200 (measured limits of the target machine).
//
// A tile of r x c outputs over a reduction of length K is taken for a matrix product on one Hopper
// multiprocessor. Per 16 steps of K the tensor cores need r * c / 128 cycles, and shared memory, 128 bytes a
// cycle, takes the operands in ((r + c) * 32 bytes) and gives them to one matrix instruction per 64 rows
// (each reads (64 + c) * 32 bytes). The longer of the two counts: a 128 x 128 tile takes 0.63 of a 128 x 256
// one, as measured (0.61 to 0.62).
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::fuse {

/// Bytes that one copy stream moves to a peer in a microsecond.
inline constexpr double kLinkBytesPerMicrosecond = 360e3;

/// By tile id, microseconds on one program. A kernel that is no matrix product gets times in proportion to
/// what it writes.
[[nodiscard]] std::vector<double> estimate_tile_times(const kernel::Kernel& kernel);

/// Whether some tile takes so much longer than another that packing pays: by more than a third.
[[nodiscard]] bool differ(const std::vector<double>& times);

}  // namespace syncopate::fuse

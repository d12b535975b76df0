// Cost: how long tiles and transfers are likely to take, and from which size on another way pays. Estimates,
// for choosing among schedules that are all right: nothing that must hold depends on them. The figures are a
// machine's: its file (share/machines/) states them.
//
// A tile of r x c outputs over a reduction of length K is taken for a matrix product on one multiprocessor.
// Per 16 steps of K the tensor cores do 32 * r * c operations, and shared memory takes the operands in
// ((r + c) * 32 bytes) and gives them to one matrix instruction per 64 rows (each reads (64 + c) * 32 bytes).
// The longer of the two counts: on H200 a 128 x 128 tile takes 0.63 of a 128 x 256 one, as measured (0.61 to
// 0.62).
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::fuse {

/// Figures of a machine by which the passes choose, by the names and in the units of its file
/// (tune/machine/machine.hpp).
struct Costs {
    double copy_stream_gbps = 0;  ///< what one copy stream moves to a peer
    double sm_tflops = 0;         ///< 16-bit products, one multiprocessor while all work
    double tile_us = 0;           ///< a tile's begin and end that nothing hides
    double two_streams_mib =
        0;  ///< larger chunks lose more by sharing the link than starting them costs (place.hpp)
    double summed_store_mib = 0;  ///< what a sum stores at peers beside the kernel, at most (sum_stores.hpp)
    double last_store_mib = 0;    ///< the same of a rank's last sum, when little of the kernel is left
    double part_rounds =
        0;  ///< of tiles, that make a part of a sum: a shorter one gains less than its launch costs
    bool operator==(const Costs&) const = default;
};

/// Those of the machine that stands for one that nobody named: the build reads them from its file.
[[nodiscard]] const Costs& usual_costs();

inline constexpr double kMib = 1 << 20;  ///< bytes

/// By tile id, microseconds on one program: of as many operations as the kernel states, else a matrix product's. Of another
/// kernel they are in proportion to what it writes.
[[nodiscard]] std::vector<double> estimate_tile_times(const kernel::Kernel& kernel, const Costs& costs);

/// Whether some tile takes so much longer than another that packing pays: by more than a third.
[[nodiscard]] bool differ(const std::vector<double>& times);

}  // namespace syncopate::fuse

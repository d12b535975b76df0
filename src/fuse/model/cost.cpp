#include "syncopate/fuse/model/cost.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::fuse {
namespace {

/// Of Hopper's multiprocessors, in a cycle: 512 dense multiply-adds of 16 bits in each of four tensor cores; to and
/// from shared memory.
constexpr double kCycleFlop = 4096;
constexpr double kCycleBytes = 128;

/// Of cycles in which the tensor cores work.
double cycles_per_us(const Costs& costs) { return costs.sm_tflops * 1e6 / kCycleFlop; }

double tile_time(const kernel::Tile& tile, const Costs& costs) {
    double rows = 1;
    double columns = 1;
    for (const auto& [param, box] : tile.writes) {
        if (box.empty() || plan::is_empty(box)) continue;
        const auto inner = static_cast<double>(box.back().size());
        const double outer = static_cast<double>(plan::num_elements(box)) / inner;
        if (inner * outer > rows * columns) {
            rows = outer;
            columns = inner;
        }
    }
    // The largest operand is rows x K or K x columns, and may be in several boxes.
    double largest = 0;
    auto exact =
        tile.read_boxes.begin();  // both are in the order of names: no look-up for each of many tiles
    for (const auto& [param, whole] : tile.reads) {
        double volume = 0;
        while (exact != tile.read_boxes.end() && exact->first < param) ++exact;
        const bool known = exact != tile.read_boxes.end() && exact->first == param && !exact->second.empty();
        for (const plan::Region& box :
             known
                 ? std::span<const plan::Region>(static_cast<const std::vector<plan::Region>&>(exact->second))
                 : std::span<const plan::Region>(&whole, 1))
            volume += plan::is_empty(box) ? 0 : static_cast<double>(plan::num_elements(box));
        largest = std::max(largest, volume);
    }
    const double depth = tile.reads.size() < 2 ? 16 : largest * std::min(rows, columns) / (rows * columns);
    const double multiply = rows * columns * 32 / kCycleFlop;
    const double shared = ((rows + columns) * 32 + std::ceil(rows / 64) * (64 + columns) * 32) / kCycleBytes;
    return costs.tile_us + depth / 16 * std::max(multiply, shared) / cycles_per_us(costs);
}

}  // namespace

std::vector<double> estimate_tile_times(const kernel::Kernel& kernel, const Costs& costs) {
    std::vector<double> times;
    times.reserve(kernel.tiles.size());
    const double stated = costs.tile_us + kernel.operations / kCycleFlop / cycles_per_us(costs);
    for (const kernel::Tile& tile : kernel.tiles)
        times.push_back(kernel.operations > 0 ? stated : tile_time(tile, costs));
    return times;
}

bool differ(const std::vector<double>& times) {
    const auto [shortest, longest] = std::minmax_element(times.begin(), times.end());
    return shortest != times.end() && *longest > 4.0 / 3.0 * *shortest;
}

}  // namespace syncopate::fuse

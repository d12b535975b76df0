// A call of a user's program on a machine: its tiles as the machine's figures tell from what they touch, and
// the rest as the player plays it.
#include <algorithm>
#include <cmath>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "tune/play/player.hpp"

namespace syncopate::tune {
namespace {

double elements(const kernel::ByWritten<plan::Region>& boxes) {
    double sum = 0;
    for (const auto& [param, box] : boxes) {
        if (!box.empty() && !plan::is_empty(box)) sum += static_cast<double>(plan::num_elements(box));
    }
    return sum;
}

double item_bytes(const kernel::Kernel& kernel, const std::string& param) {
    const auto found = kernel.arguments.tensors.find(param);
    return found == kernel.arguments.tensors.end() ? 2.0
                                                   : static_cast<double>(plan::size_of(found->second.dtype));
}

double bytes(const kernel::Kernel& kernel, const kernel::ByRead<plan::Region>& boxes) {
    double sum = 0;
    for (const auto& [param, box] : boxes) {
        if (!box.empty() && !plan::is_empty(box))
            sum += static_cast<double>(plan::num_elements(box)) * item_bytes(kernel, std::string(param));
    }
    return sum;
}

/// Of operands [r, K] and [K, c] of a tile [r, c]: 2 r c K, which is twice the root of the three sizes'
/// product.
double operations(const kernel::Tile& tile) {
    std::vector<double> sizes;
    for (const auto& [param, box] : tile.reads) {
        if (!box.empty() && !plan::is_empty(box))
            sizes.push_back(static_cast<double>(plan::num_elements(box)));
    }
    if (sizes.size() < 2) return 0;
    std::ranges::sort(sizes, std::greater<>());
    return 2 * std::sqrt(sizes[0] * sizes[1] * elements(tile.writes));
}

}  // namespace

std::vector<double> program_tile_us(const Machine& machine, const kernel::Kernel& kernel) {
    std::vector<double> times;
    times.reserve(kernel.tiles.size());
    const Rates& rates = machine.rates;
    bool wide = false;  // some operand has more than 16 bits an element
    for (const kernel::Param& param : kernel.params) wide |= param.read && item_bytes(kernel, param.name) > 2;
    const double tflops = rates.sm_tflops * (wide ? faster(plan::DType::fp32) : 1);
    for (const kernel::Tile& tile : kernel.tiles) {
        const double multiply = operations(tile) / (tflops * kFlopsPerUs);
        const double load = bytes(kernel, tile.reads) / (rates.sm_load_gbps * kBytesPerUs);
        times.push_back(std::max(multiply, load) + rates.tile_us);
    }
    return times;
}

Estimate estimate_program(const fuse::StagedProgram& program, const fuse::Decisions& work,
                          const Machine& machine, const Strategy& strategy) {
    const bool beside = fuse::is_engine(strategy.backend);
    const std::int64_t sms = machine.num_sms - (beside ? strategy.engine_blocks.value_or(0) : 0);
    std::vector<StageTiles> stages;
    for (const fuse::Stage& stage : program.stages) {
        StageTiles& made = stages.emplace_back();
        made.us = program_tile_us(machine, stage.kernel);
        made.programs =
            std::clamp<std::int64_t>(stage.kernel.num_programs(), 1, std::max<std::int64_t>(1, sms));
        made.phase_us = machine.rates.phase_us;
        made.memory_gbps = made.again_gbps = machine.rates.memory_gbps;
    }
    const double fixed_us = machine.rates.call_us + machine.rates.fused_us;
    return play(program, work, stages, fixed_us, machine, strategy);
}

}  // namespace syncopate::tune

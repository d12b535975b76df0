#include <string>
#include <vector>

#include "syncopate/kernel/model/unwritten.hpp"

namespace syncopate::kernel {
namespace {

/// Beyond so many boxes that are left nobody reads them.
constexpr std::size_t kMostLeft = 64;

plan::Region whole_of(const std::vector<std::int64_t>& shape) {
    plan::Region whole;
    for (const std::int64_t extent : shape) whole.push_back({0, extent});
    return whole;
}

/// What no tile writes of `param`; nothing where that is not surely so.
std::vector<plan::Region> left_of(const Kernel& kernel, const std::string& param, const plan::Region& whole) {
    std::int64_t written = 0;
    for (const Tile& tile : kernel.tiles) {
        if (tile.inexact_writes.contains(param)) return {};
        const auto boxes = tile.write_boxes.find(param);
        if (boxes == tile.write_boxes.end()) continue;
        for (const plan::Region& box : boxes->second) written += plan::num_elements(box);
    }
    if (written == 0 || written >= plan::num_elements(whole)) return {};
    std::vector<plan::Region> left{whole};
    for (const Tile& tile : kernel.tiles) {
        const auto boxes = tile.write_boxes.find(param);
        if (boxes == tile.write_boxes.end()) continue;
        for (const plan::Region& box : boxes->second) plan::take(left, box);
        if (left.size() > kMostLeft) return {};
    }
    return left;
}

}  // namespace

std::vector<std::string> left_unwritten(const Kernel& kernel) {
    std::vector<std::string> lines;
    for (const Param& param : kernel.params) {
        const auto tensor = kernel.arguments.tensors.find(param.name);
        if (!param.written || tensor == kernel.arguments.tensors.end()) continue;
        const std::vector<plan::Region> left = left_of(kernel, param.name, whole_of(tensor->second.shape));
        if (left.empty()) continue;
        const std::string more =
            left.size() > 1 ? " and " + std::to_string(left.size() - 1) + " more parts" : "";
        lines.push_back(kernel.file + ":" + std::to_string(kernel.line) +
                        ": no program of the grid that is given writes " + param.name +
                        plan::to_string(left.front()) + more);
    }
    return lines;
}

}  // namespace syncopate::kernel

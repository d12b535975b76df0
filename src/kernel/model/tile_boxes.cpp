#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::kernel {
namespace {

template <std::size_t kFew>
std::span<const plan::Region> boxes_of(const ByParameter<SharedBoxes, kFew>& exact,
                                       const ByParameter<plan::Region, kFew>& bounding,
                                       const std::string& param) {
    if (const auto boxes = exact.find(param); boxes != exact.end() && !boxes->second.empty())
        return boxes->second;
    if (const auto box = bounding.find(param); box != bounding.end() && !plan::is_empty(box->second))
        return {&box->second, 1};
    return {};
}

}  // namespace

std::span<const plan::Region> boxes_read(const Tile& tile, const std::string& param) {
    return boxes_of(tile.read_boxes, tile.reads, param);
}

std::span<const plan::Region> boxes_written(const Tile& tile, const std::string& param) {
    return boxes_of(tile.write_boxes, tile.writes, param);
}

}  // namespace syncopate::kernel

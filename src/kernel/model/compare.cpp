#include "syncopate/kernel/model/compare.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::kernel {
namespace {

using Boxes = std::vector<plan::Region>;

Boxes all_of(std::span<const plan::Region> boxes) { return {boxes.begin(), boxes.end()}; }

/// Boxes as numbers, which can be sorted.
using Key = std::vector<std::int64_t>;

void add(Key& key, const Boxes& boxes) {
    key.push_back(static_cast<std::int64_t>(boxes.size()));
    for (const plan::Region& box : boxes) {
        for (const plan::Interval& interval : box) {
            key.push_back(interval.begin);
            key.push_back(interval.end);
        }
    }
}

/// Whether two unions of disjoint boxes hold the same elements.
bool same(const Boxes& a, const Boxes& b) {
    if (a == b) return true;
    const auto covered = [](const Boxes& boxes, const Boxes& by) {
        return std::ranges::all_of(boxes, [&](const plan::Region& box) {
            Boxes left{box};
            for (const plan::Region& cover : by) plan::take(left, cover);
            return left.empty();
        });
    };
    return covered(a, b) && covered(b, a);
}

std::string text_of(const Boxes& boxes) {
    std::string text;
    for (const plan::Region& box : boxes) text += (text.empty() ? "" : " and ") + plan::to_string(box);
    return text.empty() ? "nothing" : text;
}

/// "tile 5 (m = 1, n = 2)"
std::string name_of(const Kernel& kernel, const Tile& tile) {
    std::string text;
    for (std::size_t axis = 0; axis < kernel.axes.size() && axis < tile.coord.size(); ++axis)
        text += (axis == 0 ? "" : ", ") + kernel.axes[axis].name + " = " + std::to_string(tile.coord[axis]);
    return "tile " + std::to_string(tile.id) + (text.empty() ? "" : " (" + text + ")");
}

class Comparison {
public:
    Comparison(const Kernel& stated, const Kernel& found) : stated_(stated), found_(found) {
        for (const Param& param : stated.params) {
            const Param* other = found.find_param(param.name);
            if (other == nullptr || stated.arguments.tensors.count(param.name) == 0) continue;
            params_.push_back(param.name);
            if ((param.written || other->written) && is_exact(param.name, true))
                written_.push_back(param.name);
        }
    }

    Status run() const {
        std::map<Key, const Tile*> by_written;
        for (const Tile& tile : found_.tiles) by_written.emplace(key_of(tile), &tile);
        if (stated_.tiles.size() != found_.tiles.size() && !written_.empty() &&
            by_written.size() == found_.tiles.size()) {
            return fail("it states " + std::to_string(stated_.tiles.size()) + " tiles, and " + found_.name +
                        " has " + std::to_string(found_.tiles.size()));
        }
        for (const Tile& tile : stated_.tiles) {
            const auto other = by_written.find(key_of(tile));
            if (other == by_written.end()) return no_tile_writes(tile);
            for (const std::string& param : params_) {
                if (!is_exact(param, false)) continue;
                const Boxes here = all_of(boxes_read(tile, param));
                const Boxes there = all_of(boxes_read(*other->second, param));
                if (same(here, there)) continue;
                return fail(name_of(stated_, tile) + " is stated to read " + text_of(here) + " of " + param +
                            ", and " + found_.name + " reads " + text_of(there));
            }
        }
        return Done{};
    }

private:
    [[nodiscard]] bool is_exact(const std::string& param, bool writes) const {
        const auto holds = [&](const Kernel& kernel) {
            return std::ranges::none_of(kernel.tiles, [&](const Tile& tile) {
                return (writes ? tile.inexact_writes : tile.inexact_reads).contains(param);
            });
        };
        return holds(stated_) && holds(found_);
    }

    [[nodiscard]] Key key_of(const Tile& tile) const {
        Key key;
        for (const std::string& param : written_) {
            Boxes boxes = all_of(boxes_written(tile, param));
            if (boxes.size() > 1) {  // stated in parts, or stored in parts: one box where they make one
                plan::Region around = boxes.front();
                std::int64_t elements = 0;
                for (const plan::Region& box : boxes) {
                    around = plan::bounding_box(around, box);
                    elements += plan::num_elements(box);
                }
                if (plan::num_elements(around) == elements) boxes.assign(1, around);
            }
            add(key, boxes);
        }
        return key;
    }

    [[nodiscard]] Status no_tile_writes(const Tile& tile) const {
        for (const std::string& param : written_) {
            const Boxes boxes = all_of(boxes_written(tile, param));
            const bool any = std::ranges::any_of(found_.tiles, [&](const Tile& other) {
                return same(boxes, all_of(boxes_written(other, param)));
            });
            if (any) continue;
            return fail(name_of(stated_, tile) + " is stated to write " + text_of(boxes) + " of " + param +
                        ", and no tile of " + found_.name + " does");
        }
        return fail(name_of(stated_, tile) + " is stated to write what no tile of " + found_.name +
                    " writes");
    }

    [[nodiscard]] Status fail(const std::string& what) const {
        Location where;
        where.file = stated_.file;
        where.line = stated_.line;
        return Error{"statement of " + stated_.name + ": " + what, where};
    }

    const Kernel& stated_;
    const Kernel& found_;
    std::vector<std::string> params_, written_;
};

}  // namespace

Status require_same_footprints(const Kernel& stated, const Kernel& found) {
    return Comparison(stated, found).run();
}

}  // namespace syncopate::kernel

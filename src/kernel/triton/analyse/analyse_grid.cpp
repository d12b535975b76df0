// The launch grid, when it is not given: from the tile loop of a persistent kernel, from a directive, from
// the tile counts that addresses follow from, or by search for the first program that writes nothing.
#include <algorithm>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"

namespace syncopate::kernel::triton {

/// Whether the program at `id` of a grid of unknown extent writes anything.
Result<bool> Analysis::writes_at(const std::array<std::int64_t, 3>& id) {
    forget();
    const Status status = evaluator_.run(id, {id[0] + 1, id[1] + 1, id[2] + 1});
    if (!status && !evaluator_.arithmetic_error) return status.error();
    const auto& touched = evaluator_.found.touched;
    const bool writes = status && std::any_of(touched.begin(), touched.end(),
                                              [](const Touch& t) { return t.write && !t.shadow; });
    forget();
    return writes;
}

bool Analysis::written_tensor_known() const {
    for (std::size_t p = 0; p < evaluator_.tensors.size(); ++p) {
        if (evaluator_.param_written[p] && !evaluator_.tensors[p].shape.empty()) return true;
    }
    return false;
}

Error Analysis::needs_grid(const std::string& why) const {
    return module_.error(function_.name_range,
                         "the launch grid of `" + function_.name + "` does not follow from the kernel (" +
                             why +
                             "): give --grid X[,Y[,Z]], or mark the number of tiles with `# @sy.num_tiles`");
}

Status Analysis::find_grid() {
    if (const Status status = search_grid(); !status) return status;
    if (grid_[1] > effort_.programs / grid_[0] || grid_[2] > effort_.programs / (grid_[0] * grid_[1]))
        return needs_grid("more than " + std::to_string(effort_.programs) + " programs write something");
    return Done{};
}

Status Analysis::search_grid() {
    // The first program shows what kind of kernel this is.
    forget();
    const Status first =
        evaluator_.run({0, 0, 0}, arguments_.grid.value_or(std::array<std::int64_t, 3>{0, 0, 0}));
    if (!first && !evaluator_.arithmetic_error) return first;
    const Findings& found = evaluator_.found;
    persistent_ = found.tile_loop != nullptr;
    if (arguments_.grid) {
        grid_ = *arguments_.grid;
        if (std::any_of(grid_.begin(), grid_.end(), [](std::int64_t extent) { return extent < 1; }) ||
            grid_[0] > effort_.programs || grid_[1] > effort_.programs / grid_[0] ||
            grid_[2] > effort_.programs / (grid_[0] * grid_[1])) {
            return module_.error(function_.name_range, "the grid must have from 1 to " +
                                                           std::to_string(effort_.programs) +
                                                           " programs; give another --grid");
        }
        return first;
    }
    if (!first) return first;
    if (persistent_) {
        if (found.tile_start != 0 || found.tile_step < 1)
            return needs_grid("its tile loop does not start at the program id");
        grid_ = {std::clamp<std::int64_t>(std::min(found.tile_step, found.tile_stop), 1, effort_.programs), 1,
                 1};
        return Done{};
    }
    if (loop_programs_ > 0) {
        grid_ = {std::min(loop_programs_, effort_.programs), 1, 1};
        return Done{};
    }
    if (const Directive* given = directive(DirectiveKind::num_tiles)) {
        const auto value = found.watched.find(given->statement);
        if (value != found.watched.end() && value->second > 0) {
            if (value->second > effort_.programs) return needs_grid("too many tiles");
            grid_ = {value->second, 1, 1};
            return Done{};
        }
    }
    std::array<bool, 3> used{}, places{};  // addresses, and those of stores, follow from the program's axis
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        if (source.kind != TaintSource::Kind::program_id) continue;
        const auto bit = std::min<std::size_t>(i, 63);
        if (((found.read_taint | found.write_taint) >> bit & 1) != 0)
            used[static_cast<std::size_t>(source.grid_axis)] = true;
        if ((found.write_taint >> bit & 1) != 0) places[static_cast<std::size_t>(source.grid_axis)] = true;
    }
    if (!used[0] && !used[1] && !used[2]) return Done{};  // one program does it all
    const bool can_search = written_tensor_known();
    if (used[0] && !used[1] && !used[2]) {
        std::int64_t product = 1;
        bool any = false;
        for (const TileAxis& axis : counted_axes(found.write_taint)) {
            any = true;
            if (axis.count < 1 || axis.count > effort_.programs)
                return needs_grid("a tile count is out of range");
            product = std::min(product * axis.count, effort_.programs + 1);
        }
        if (any && product <= effort_.programs) {
            grid_ = {product, 1, 1};
            if (!can_search) return Done{};
            const auto last = writes_at({product - 1, 0, 0});
            if (!last) return last.error();
            const auto beyond = writes_at({product, 0, 0});
            if (!beyond) return beyond.error();
            if (*last && !*beyond) return Done{};
        }
    }
    if (!can_search) return needs_grid("the shape of no tensor that it writes is known");
    for (std::size_t axis = 0; axis < 3; ++axis) {
        grid_[axis] = 1;
        if (!used[axis]) continue;
        if (!places[axis])
            return needs_grid("where it stores does not depend on axis " + std::string(1, "xyz"[axis]) +
                              " of it");
        if (!one_by_one_) {
            const std::int64_t extent = leap(axis);
            if (extent > 0) {
                grid_[axis] = extent;
                leapt_[axis] = true;
                continue;
            }
        }
        std::array<std::int64_t, 3> id{};
        while (true) {
            id[axis] = grid_[axis];
            const auto writes = writes_at(id);
            if (!writes) return writes.error();
            if (!*writes) break;
            if (++grid_[axis] > effort_.programs) return needs_grid("every program writes something");
        }
    }
    return Done{};
}

/// How many programs along an axis write, if those that do come first (`wrote_all` looks, once all have run):
/// found in leaps, then by halves. 0: not found.
std::int64_t Analysis::leap(std::size_t axis) {
    const auto writes = [&](std::int64_t at) {
        std::array<std::int64_t, 3> id{};
        id[axis] = at;
        return writes_at(id);
    };
    std::int64_t writing = 0, beyond = 1;
    for (;; beyond *= 2) {
        if (beyond > effort_.programs) return 0;
        const auto any = writes(beyond);
        if (!any) return 0;
        if (!*any) break;
        writing = beyond;
    }
    while (beyond - writing > 1) {
        const std::int64_t middle = writing + (beyond - writing) / 2;
        const auto any = writes(middle);
        if (!any) return 0;
        (*any ? writing : beyond) = middle;
    }
    return beyond;
}

/// Whether the programs along the axes that were leapt along all write, as the leaps took for granted.
bool Analysis::wrote_all() const {
    const Findings& found = evaluator_.found;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (!leapt_[axis]) continue;
        const std::int64_t stride = axis == 0 ? 1 : axis == 1 ? grid_[0] : grid_[0] * grid_[1];
        for (std::int64_t i = 0; i < grid_[axis]; ++i) {
            const TileRecord& tile = found.tiles[static_cast<std::size_t>(i * stride)];
            const auto first = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.begin),
                       last = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.end);
            if (std::none_of(first, last, [](const Touch& t) { return t.write && !t.shadow; })) return false;
        }
    }
    return true;
}

}  // namespace syncopate::kernel::triton

// The axes of the tile space: which tile counts make it up, what they are called, and each tile's
// coordinates.
#include <algorithm>
#include <string>
#include <utility>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/tiles.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

/// Tile counts among the sources in `taint`, in source order; the same count computed twice is one axis.
std::vector<TileAxis> Analysis::counted_axes(std::uint64_t taint) {
    std::vector<const TaintSource*> counts;
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        if (source.kind == TaintSource::Kind::count && (taint >> std::min<std::size_t>(i, 63) & 1) != 0)
            counts.push_back(&source);
    }
    std::sort(counts.begin(), counts.end(), [](const TaintSource* a, const TaintSource* b) {
        return std::pair(!a->in_kernel, a->expr->where.begin) <
               std::pair(!b->in_kernel, b->expr->where.begin);
    });
    std::vector<TileAxis> axes;
    block_texts_.clear();
    count_exprs_.clear();
    for (const TaintSource* source : counts) {
        const std::string name(module_.text(source->expr->count_of->where));
        const std::string block(module_.text(source->expr->count_by->where));
        bool known = false;
        for (std::size_t a = 0; a < axes.size(); ++a)
            known = known || (axes[a].name == name && block_texts_[a] == block);
        if (known) continue;
        axes.push_back({name, source->count, source->block});
        block_texts_.push_back(block);
        count_exprs_.push_back(source->expr);
    }
    return axes;
}

std::int64_t Analysis::product(const std::vector<TileAxis>& axes) {
    std::int64_t total = 1;
    for (const TileAxis& axis : axes) total = wrap_multiply(total, axis.count);
    return total;
}

/// Gives the axes that counted_axes has just found the names that directives give their counts.
void Analysis::name_counts(std::vector<TileAxis>& axes) const {
    for (const Directive& d : directives_) {
        if (d.kind != DirectiveKind::axis_count || d.looped) continue;
        for (std::size_t a = 0; a < axes.size(); ++a) {
            if (d.statement->value == count_exprs_[a]) axes[a].name = d.axis;
        }
    }
}

/// Axes from directives, or from the tile counts that addresses follow from; and the products tile ×
/// block whose factors are coordinates.
void Analysis::note_axes() {
    const std::int64_t tiles = persistent_ ? evaluator_.found.tile_stop : grid_[0] * grid_[1] * grid_[2];
    const Findings& found = evaluator_.found;
    std::uint64_t placing = found.write_taint | found.bound_taint;
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const bool named = std::any_of(directives_.begin(), directives_.end(), [&](const Directive& d) {
            return d.kind == DirectiveKind::axis_count && !d.looped &&
                   d.statement->value == evaluator_.sources[i].expr;
        });
        if (named) placing |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
    }
    placing_ = counted_axes(placing);
    name_counts(placing_);
    axes_ = counted_axes(found.write_taint);
    if (axes_.empty() || product(axes_) != tiles) axes_ = counted_axes(found.write_taint | found.bound_taint);
    if (product(axes_) != tiles)
        axes_ = counted_axes(found.write_taint | found.read_taint | found.bound_taint | found.all_counts);
    name_counts(axes_);
    named_ = axes_;
    if (product(axes_) != tiles || axes_.size() > kMostAxes) {
        // Several tiles may be parts of one sum: then counts make up what is stored.
        axes_ = counted_axes(found.write_taint);
        name_counts(axes_);
        const std::int64_t stored = product(axes_);
        if (axes_.empty() || axes_.size() >= kMostAxes || stored < 1 || tiles % stored != 0) axes_.clear();
        parts_ = axes_;
    }
    if (directive(DirectiveKind::pid_map) != nullptr) return;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
        if (std::count(block_texts_.begin(), block_texts_.end(), block_texts_[a]) != 1) continue;
        for (const std::int32_t f : functions_)
            mark_products(module_.functions[at(f)].body, static_cast<std::int32_t>(a));
    }
}

void Analysis::mark_products(const std::vector<Stmt*>& body, std::int32_t axis) {
    const std::string& block = block_texts_[at(axis)];
    for (const Stmt* s : flattened(body)) {
        for (Expr* e : flattened(s->value)) {
            if (e->kind != ExprKind::binary || e->op != Operator::multiply || e->axis >= 0) continue;
            const bool right = module_.text(e->kids[1]->where) == block;
            if (!right && module_.text(e->kids[0]->where) != block) continue;
            e->axis = axis;
            e->axis_side = right ? 0 : 1;
        }
    }
}

/// Why the grid that is given cannot be that of tiles with these axes.
std::optional<std::string> Analysis::objection_to_grid(const std::vector<TileAxis>& axes) const {
    if (!arguments_.grid || persistent_) return std::nullopt;
    const std::int64_t programs = grid_[0] * grid_[1] * grid_[2];
    if (programs != product(axes))
        return "the launch has " + std::to_string(programs) + " programs, and its tile axes, " +
               axis_names() + ", make " + std::to_string(product(axes)) + " tiles";
    for (std::int32_t axis = 0; axis < 3; ++axis) {
        const bool asks = std::ranges::any_of(evaluator_.sources, [&](const TaintSource& source) {
            return source.kind == TaintSource::Kind::program_id && source.grid_axis == axis;
        });
        if (!asks && grid_[at(axis)] > 1)
            return "the launch has " + std::to_string(grid_[at(axis)]) + " programs along axis " +
                   std::string(1, "xyz"[axis]) + ", whose id the kernel does not ask for";
    }
    return std::nullopt;
}

Status Analysis::name_axes(Kernel& kernel) {
    kernel.axes = axes_;
    if (const Directive* map = directive(DirectiveKind::pid_map)) {
        // Coordinates were recorded in the order of the mapping.
        std::vector<TileAxis> ordered;
        for (const auto& entry : map->mapping) {  // clang 14 captures no structured bindings
            const std::string& name = entry.first;
            const auto axis =
                std::find_if(named_.begin(), named_.end(), [&](const TileAxis& a) { return a.name == name; });
            if (axis == named_.end())
                return module_.error(
                    map->where,
                    "`" + name + "` is not a tile axis of this kernel: write one of " + axis_names());
            ordered.push_back(*axis);
        }
        kernel.axes = ordered;
        if (kernel.tiles.empty() || set_recorded_coordinates(kernel, evaluator_.found.tiles)) return Done{};
        if (const auto why = objection_to_grid(ordered))
            return module_.error(function_.name_range, *why + ": give the grid of the launch with --grid");
        return module_.error(map->where,
                             "this `@sy.pid_map` does not number the tiles: its variables do not take "
                             "each pair of coordinates of " +
                                 axis_names() +
                                 " once; map each axis to the variable that holds its coordinate");
    }
    if (set_recorded_coordinates(kernel, evaluator_.found.tiles)) {
        order_axes_by_writes(kernel);
        return Done{};
    }
    if (kernel.tiles.empty() || set_coordinates_by_writes(kernel, placing_)) return Done{};
    if (!set_parts(kernel)) set_programs(kernel);
    return Done{};
}

/// Axes of tiles that share what they store, as those of a sum split along K do: the axes of what is stored,
/// and the parts of each.
bool Analysis::set_parts(Kernel& kernel) {
    // The tiles of each place, in order.
    std::map<std::vector<std::int64_t>, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < kernel.tiles.size(); ++i) {
        std::vector<std::int64_t> key;
        for (const auto& [param, region] : kernel.tiles[i].writes) {
            for (const plan::Interval& along : region) key.insert(key.end(), {along.begin, along.end});
        }
        places[key].push_back(i);
    }
    const std::size_t parts = places.begin()->second.size();
    const bool alike = std::ranges::all_of(places, [&](const auto& p) { return p.second.size() == parts; });
    if (parts < 2 || places.size() < 2 || !alike) return false;
    Kernel stored;
    stored.axes = parts_;
    std::vector<TileRecord> records;
    TileAxis along{"K", static_cast<std::int64_t>(parts), 0};
    for (const auto& [place, tiles] : places) {
        stored.tiles.push_back(kernel.tiles[tiles[0]]);
        records.push_back(evaluator_.found.tiles[tiles[0]]);
        if (along.block == 0) along.block = distance(kernel.tiles[tiles[0]], kernel.tiles[tiles[1]]);
    }
    if (!set_recorded_coordinates(stored, records) && !set_coordinates_by_writes(stored, placing_))
        return false;
    if (std::ranges::any_of(stored.axes, [](const TileAxis& axis) { return axis.name == "K"; }))
        along.name = "PART";
    kernel.axes = stored.axes;
    kernel.axes.push_back(along);
    std::size_t next = 0;
    for (const auto& [place, tiles] : places) {
        for (std::size_t part = 0; part < parts; ++part) {
            TileCoord& coord = kernel.tiles[tiles[part]].coord;
            coord = stored.tiles[next].coord;
            coord.push_back(static_cast<std::int64_t>(part));
        }
        ++next;
    }
    axis_notes_[along.name] = "the tiles along " + along.name + " store to the same places: parts of a sum";
    return true;
}

/// How far what one tile reads is from what another one does, along the first axis of a tensor where it is.
std::int64_t Analysis::distance(const Tile& from, const Tile& to) {
    for (const auto& [param, region] : from.reads) {
        const auto other = to.reads.find(param);
        if (other == to.reads.end()) continue;
        for (std::size_t d = 0; d < region.size(); ++d) {
            const std::int64_t apart = other->second[d].begin - region[d].begin;
            if (apart > 0) return apart;
        }
    }
    return 0;
}

/// Axes of tiles of which nothing else is known: those of the launch, or the ids of a loop over tiles.
void Analysis::set_programs(Kernel& kernel) {
    kernel.axes.clear();
    if (persistent_) {
        kernel.axes.push_back({"T", static_cast<std::int64_t>(kernel.tiles.size()), 1});
        for (Tile& tile : kernel.tiles) tile.coord = {tile.id};
        axis_notes_["T"] = "axis T counts the rounds of the loop over tiles";
        return;
    }
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (grid_[axis] > 1) axes.push_back(axis);
    }
    if (axes.empty()) axes.push_back(0);
    for (const std::size_t axis : axes) {
        const std::string name = axes.size() == 1 ? "P" : std::string(1, "XYZ"[axis]);
        kernel.axes.push_back({name, grid_[axis], 1});
        axis_notes_[name] = "axis " + name + " counts the programs of the launch";
    }
    for (Tile& tile : kernel.tiles) {
        const std::array<std::int64_t, 3> at{tile.program % grid_[0], tile.program / grid_[0] % grid_[1],
                                             tile.program / grid_[0] / grid_[1]};
        tile.coord.clear();
        for (const std::size_t axis : axes) tile.coord.push_back(at[axis]);
    }
}

std::string Analysis::axis_names() const { return axis_names(named_); }

std::string Analysis::axis_names(const std::vector<TileAxis>& axes) {
    std::string names;
    for (const TileAxis& axis : axes)
        names += (names.empty() ? "" : ", ") + axis.name + " (" + std::to_string(axis.count) + ")";
    return names.empty() ? "unknown" : names;
}

}  // namespace syncopate::kernel::triton

// The axes of the tile space: which tile counts make it up, what they are called, and each tile's
// coordinates.
#include <algorithm>
#include <string>
#include <utility>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/tiles.hpp"

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
        if (d.kind != DirectiveKind::axis_count || d.axis.empty()) continue;
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
            return d.kind == DirectiveKind::axis_count && d.statement->value == evaluator_.sources[i].expr;
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
    if (product(axes_) != tiles || axes_.size() > kMostAxes) axes_.clear();
    if (directive(DirectiveKind::pid_map) != nullptr) return;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
        if (std::count(block_texts_.begin(), block_texts_.end(), block_texts_[a]) != 1) continue;
        for (const std::int32_t f : functions_)
            mark_products(module_.functions[static_cast<std::size_t>(f)].body, static_cast<std::int32_t>(a));
    }
}

void Analysis::mark_products(const std::vector<Stmt*>& body, std::int32_t axis) {
    const std::string& block = block_texts_[static_cast<std::size_t>(axis)];
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

Status Analysis::name_axes(Kernel& kernel) {
    kernel.axes = axes_;
    if (const Directive* map = directive(DirectiveKind::pid_map)) {
        // Coordinates were recorded in the order of the mapping.
        std::vector<TileAxis> ordered;
        for (const auto& entry : map->mapping) {  // clang 14 captures no structured bindings
            const std::string& name = entry.first;
            const Expr* variable = entry.second;
            if (variable == nullptr) continue;
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
    kernel.axes.clear();
    return Done{};
}

std::string Analysis::axis_names() const {
    std::string names;
    for (const TileAxis& axis : named_)
        names += (names.empty() ? "" : ", ") + axis.name + " (" + std::to_string(axis.count) + ")";
    return names.empty() ? "unknown" : names;
}

}  // namespace syncopate::kernel::triton

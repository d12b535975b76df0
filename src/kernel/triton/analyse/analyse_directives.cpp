// What directives state, held against what the analysis found.
#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

namespace {

/// Whether it calls anything: a load, or a function that may.
bool calls_something(const Expr* expr) {
    if (expr == nullptr) return false;
    if (expr->kind == ExprKind::call || expr->kind == ExprKind::method) return true;
    return std::ranges::any_of(expr->kids, calls_something) ||
           std::ranges::any_of(expr->keywords, [](const auto& one) { return calls_something(one.second); });
}

}  // namespace

Status Analysis::check_directives(Kernel& kernel) {
    for (const Directive& d : directives_) {
        Status status = Done{};
        switch (d.kind) {
            case DirectiveKind::axis_count: status = check_axis_count(d, kernel); break;
            case DirectiveKind::num_tiles: status = check_num_tiles(d, kernel); break;
            case DirectiveKind::tile_id: status = check_tile_id(d, kernel); break;
            case DirectiveKind::persistent_init:
                if (!d.begins) status = check_once(d, kernel);
                break;
            case DirectiveKind::dispatch:
                if (!d.begins) check_dispatch(d, kernel);
                break;
            case DirectiveKind::pid_map: status = check_pid_map(d); break;
            case DirectiveKind::reads:
            case DirectiveKind::writes: status = check_stated(d); break;
            case DirectiveKind::any_order: status = check_any_order(d, kernel); break;
            case DirectiveKind::producer_epilogue: status = check_epilogue(d, kernel); break;
            case DirectiveKind::host_entry:
            case DirectiveKind::kernel_launch: break;
        }
        if (!status) return status;
    }
    return Done{};
}

/// The `begin` of the directive's `end`.
const Directive& Analysis::begin_of(const Directive& end) const {
    const Directive* begin = &end;
    for (const Directive& d : directives_)
        if (d.kind == end.kind && d.begins && d.where.begin < end.where.begin) begin = &d;
    return *begin;
}

/// The lines that are marked as run once per program, up to this `end`.
Status Analysis::check_once(const Directive& d, const Kernel& kernel) const {
    if (!kernel.persistent)
        return module_.error(d.where,
                             "this kernel has no loop over tiles: all of its lines run once per program; "
                             "leave the directive out");
    const SourceRange& loop = evaluator_.found.tile_loop->where;
    const SourceRange& header = text_of(kernel).sites.tile_loop_header;
    const std::uint32_t from = begin_of(d).where.begin;
    const std::string line = "the tile loop (line " + std::to_string(header.line) + ")";
    if (header.begin > from && header.begin < d.where.begin)
        return module_.error(d.where, line +
                                          " lies inside the lines marked as run once per program; move this "
                                          "`end` above it");
    if (from > header.begin && from < loop.end)
        return module_.error(begin_of(d).where,
                             "these lines run once per tile, not once per program: they "
                             "lie in " +
                                 line + "; move the directive above it");
    return Done{};
}

/// Nothing but a `pid_map` says what lines of dispatch are to come to.
void Analysis::check_dispatch(const Directive& d, Kernel& kernel) const {
    const Directive& begin = begin_of(d);
    const Directive* map = directive(DirectiveKind::pid_map);
    if (map != nullptr && map->where.begin > begin.where.begin && map->where.begin < d.where.begin) return;
    const Location where = module_.error(begin.where, {}).location;
    kernel.warnings.push_back(where.file + ":" + std::to_string(where.line) +
                              ": `@sy.dispatch` is held against nothing: no `@sy.pid_map` in it says which "
                              "variables hold the tile's coordinates");
}

Status Analysis::check_epilogue(const Directive& d, const Kernel& kernel) const {
    const Sites& sites = text_of(kernel).sites;
    if (evaluator_.found.last_store == nullptr)
        return module_.error(d.where, "no tile stores anything that a post could follow: leave it out");
    if (sites.last_store.end > d.where.begin) {
        return module_.error(d.where, "a tile still stores after this: its last store ends on line " +
                                          std::to_string(last_line(sites.last_store)) +
                                          "; move the directive below that line");
    }
    const Stmt* loop = evaluator_.found.tile_loop;
    if (loop != nullptr && d.where.begin >= loop->where.end && d.where.column <= loop->where.column + 2)
        return module_.error(d.where, "this is after the loop over tiles (line " +
                                          std::to_string(loop->header.line) +
                                          "), not after each tile's last store: move it into the loop");
    return Done{};
}

/// That each AXIS=lo..hi holds of a loop of the tile; tile axes are held by name_axes.
Status Analysis::check_pid_map(const Directive& d) const {
    for (const DirectiveBounds& stated : d.bounds) {
        const bool named = std::ranges::any_of(directives_, [&](const Directive& one) {
            return one.kind == DirectiveKind::axis_count && one.looped && one.axis == stated.axis;
        });
        if (!named)
            return module_.error(d.where,
                                 "`" + stated.axis +
                                     "` is not an axis that a tile loops over: name it at its count, "
                                     "`# @sy.axis_count " +
                                     stated.axis + "=range`");
        bool holds = false;
        std::string loops;
        for (const auto& [key, is_so] : evaluator_.found.bounds) {
            if (key.first != &stated) continue;
            holds = holds || is_so;
            loops += (loops.empty() ? "" : ", ") + quoted(module_, key.second->value->where) + " (line " +
                     std::to_string(key.second->header.line) + ")";
        }
        if (holds) continue;
        return module_.error(stated.low->where,
                             "no loop of a tile runs from " + std::string(module_.text(stated.low->where)) +
                                 " to " + std::string(module_.text(stated.high->where)) + ": " +
                                 (loops.empty() ? "it has none of which the bounds are known"
                                                : "its loops run over " + loops) +
                                 "; write what the loop's `range` begins and ends with");
    }
    return Done{};
}

Status Analysis::check_stated(const Directive& d) const {
    const std::string name = function_.parameters[at(d.param)].name + d.item;
    const auto memory = std::ranges::find(evaluator_.memory_names, name);
    if (memory == evaluator_.memory_names.end()) return Done{};
    const auto& shape = evaluator_.tensors[at(memory - evaluator_.memory_names.begin())].shape;
    const bool empty = shape.empty() || std::ranges::find(shape, std::int64_t{0}) != shape.end() ||
                       evaluator_.found.tiles.empty();
    if (empty || evaluator_.found.stated.contains(&d)) return Done{};
    return module_.error(d.where, "this states no element of `" + name +
                                      "` in any tile: write ranges as begin:end, within the tensor");
}

/// A loop whose order is said to be free is one of a tile, and loads; in some launches no tile may run it.
Status Analysis::check_any_order(const Directive& d, Kernel& kernel) const {
    const std::vector<LoopSite>& sites = text_of(kernel).sites.loops;
    bool found = false, divisible = false;
    for (std::size_t i = 0; i < sites.size(); ++i) {
        if (sites[i].statement.begin != d.statement->where.begin) continue;
        found = true;
        divisible = divisible || kernel.loops[i].divisible;
    }
    const bool may_load = std::ranges::any_of(flattened(d.statement->body), [](const Stmt* inner) {
        return calls_something(inner->value) || calls_something(inner->target);
    });
    if (!found && may_load) return Done{};  // no tile of this launch runs it
    if (!found)
        return module_.error(d.where,
                             "this is no loop in which a tile loads, so that nothing arrives for its "
                             "ranges: leave the directive out");
    if (divisible) return Done{};
    const Location where = module_.error(d.where, {}).location;
    kernel.warnings.push_back(where.file + ":" + std::to_string(where.line) +
                              ": `@sy.any_order` is of no use: the loop stays whole, since it may end early, "
                              "or is no range that can be cut");
    return Done{};
}

/// Of a footprint that is stated narrower than what the kernel was followed to touch.
Error Analysis::contradiction(const TileMaker::Beyond& beyond) const {
    const std::string& name = evaluator_.memory_names[at(beyond.memory)];
    const DirectiveKind kind = beyond.write ? DirectiveKind::writes : DirectiveKind::reads;
    const auto stated = std::ranges::find_if(directives_, [&](const Directive& d) {
        return d.kind == kind && d.param >= 0 && function_.parameters[at(d.param)].name + d.item == name;
    });
    const SourceRange& where = stated == directives_.end() ? function_.name_range : stated->where;
    return module_.error(where, "tile " + std::to_string(beyond.tile) +
                                    (beyond.write ? " writes " : " reads ") + name +
                                    plan::to_string(beyond.region) + ", which this does not state");
}

/// The value that the statement of a directive has assigned; nullopt where it was not run.
std::optional<std::int64_t> Analysis::watched(const Directive& d) const {
    const auto found = evaluator_.found.watched.find(d.statement);
    return found == evaluator_.found.watched.end() ? std::nullopt : std::optional(found->second);
}

/// Whether the block size that a directive states is the one that the statement counts.
Status Analysis::check_block(const Directive& d) const {
    if (d.block == nullptr) return Done{};
    const Expr& assigned = *d.statement->value;
    if (!assigned.is_count)
        return module_.error(d.block->where,
                             "block=" + std::string(module_.text(d.block->where)) +
                                 " cannot be held against " + quoted(module_, assigned.where) +
                                 ", which is not seen to count blocks: write tl.cdiv(…, " +
                                 std::string(module_.text(d.block->where)) + ") there, or leave block= out");
    const auto dense = [&](const Expr* e) {  // a directive's words hold no blanks
        std::string text(module_.text(e->where));
        std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
        return text;
    };
    if (dense(assigned.count_by) == dense(d.block)) return Done{};
    const auto number = [&](const Expr* e) -> std::optional<std::int64_t> {
        if (e->kind == ExprKind::literal && std::holds_alternative<std::int64_t>(e->literal))
            return std::get<std::int64_t>(e->literal);
        const auto given = arguments_.scalars.find(e->text);
        if (given == arguments_.scalars.end() || !std::holds_alternative<std::int64_t>(given->second))
            return std::nullopt;
        return std::get<std::int64_t>(given->second);
    };
    const auto said = number(d.block), used = number(assigned.count_by);
    if (said && used && *said == *used) return Done{};
    return module_.error(d.block->where, "block=" + std::string(module_.text(d.block->where)) +
                                             " contradicts " + quoted(module_, assigned.where) +
                                             ", which counts blocks of another size: write block=" +
                                             std::string(module_.text(assigned.count_by->where)));
}

/// The value that the statement of a directive has assigned, which has to be known.
Result<std::int64_t> Analysis::counted(const Directive& d) const {
    if (const std::optional<std::int64_t> value = watched(d)) return *value;
    return module_.error(d.where, "nothing holds this: " + quoted(module_, d.statement->where) +
                                      " is not run, or assigns no whole number that is known; leave the "
                                      "directive out");
}

Status Analysis::check_axis_count(const Directive& d, const Kernel& kernel) const {
    SYNCOPATE_TRY(check_block(d));
    SYNCOPATE_TAKE(const std::int64_t value, counted(d));
    for (const Directive& other : directives_) {
        if (other.kind != DirectiveKind::axis_count || other.axis != d.axis || &other >= &d) continue;
        if (module_.text(other.statement->value->where) == module_.text(d.statement->value->where) &&
            other.looped == d.looped)
            continue;
        return module_.error(d.where, "axis `" + d.axis + "` is named on line " +
                                          std::to_string(other.where.line) +
                                          " already, for another count: give each axis a name of its own");
    }
    if (d.looped) return check_loop_count(d, kernel, value);
    const auto axis = std::find_if(kernel.axes.begin(), kernel.axes.end(),
                                   [&](const TileAxis& a) { return a.name == d.axis; });
    if (axis != kernel.axes.end() && axis->count != value) {
        return module_.error(d.where, "axis " + d.axis + " has " + std::to_string(axis->count) +
                                          " tiles, the variable marked as its count is " +
                                          std::to_string(value) +
                                          ": mark the assignment of that axis's count");
    }
    if (axis == kernel.axes.end()) {
        return module_.error(d.where, "no tile follows from this count: the tile axes are " +
                                          axis_names(kernel.axes) + "; leave the directive out, or write `" +
                                          d.axis + "=range` if a tile loops over this axis");
    }
    return Done{};
}

/// A count of what a tile loops over: as many as some loop has iterations, or all loops of one tile together.
Status Analysis::check_loop_count(const Directive& d, const Kernel& kernel, std::int64_t value) const {
    const auto same = [&](const TileAxis& axis) { return axis.name == d.axis; };
    if (std::ranges::any_of(kernel.axes, same))
        return module_.error(d.where, "`" + d.axis +
                                          "` is a tile axis, not one that a tile loops over: write `" +
                                          d.axis + "`, or another name");
    const std::vector<LoopSite>& sites = text_of(kernel).sites.loops;
    std::string loops;
    std::int64_t longest = 0;
    for (const Tile& tile : kernel.tiles) {
        std::int64_t all = 0;
        for (std::size_t i = 0; i < kernel.loops.size(); ++i) all += kernel.trips_of(tile, i);
        longest = std::max(longest, all);
    }
    for (std::size_t i = 0; i < kernel.loops.size(); ++i) {
        if (kernel.loops[i].trips == value) return Done{};
        loops += (loops.empty() ? "" : ", ") + std::to_string(kernel.loops[i].trips) + " (line " +
                 std::to_string(sites[i].header.line) + ")";
    }
    if (!loops.empty() && longest == value) return Done{};
    return module_.error(
        d.where, "the variable marked as the count of `" + d.axis + "` is " + std::to_string(value) +
                     ", but " +
                     (loops.empty() ? "no loop of a tile loads"
                                    : "the loops in which a tile loads run at most so often: " + loops) +
                     "; mark what a loop counts, or leave the directive out");
}

Status Analysis::check_num_tiles(const Directive& d, const Kernel& kernel) const {
    SYNCOPATE_TAKE(const std::int64_t value, counted(d));
    if (value != static_cast<std::int64_t>(kernel.tiles.size())) {
        return module_.error(d.where, "the variable marked as the number of tiles is " +
                                          std::to_string(value) + ", but the launch runs " +
                                          std::to_string(kernel.tiles.size()) +
                                          " tiles: mark the total of the tile counts, or give "
                                          "the launch with --grid");
    }
    return Done{};
}

Status Analysis::check_tile_id(const Directive& d, const Kernel& kernel) const {
    const Sites& sites = text_of(kernel).sites;
    if (d.persistent && !kernel.persistent)
        return module_.error(d.where,
                             "`persistent`: this kernel has no loop over tiles; write `@sy.tile_id`");
    const std::string& variable = d.statement->target->text;
    const bool is_id = std::any_of(sites.tile_ids.begin(), sites.tile_ids.end(), [&](const TileIdSite& s) {
        return std::find(s.variables.begin(), s.variables.end(), variable) != s.variables.end() ||
               std::any_of(s.program_ids.begin(), s.program_ids.end(), [&](const ProgramId& id) {
                   return s.kind == TileIdSite::Kind::entry && d.statement->where.begin <= id.call.begin &&
                          id.call.end <= d.statement->where.end;
               });
    });
    const bool starts_loop = kernel.persistent && d.persistent;  // start_pid, where the loop starts
    if (!is_id && !starts_loop)
        return module_.error(d.where,
                             "`" + variable +
                                 "` is not a tile's linear id: no address follows from it as one; mark "
                                 "the assignment "
                                 "of the variable from which tl.load and tl.store find their place");
    if (kernel.persistent && !d.persistent)
        return module_.error(d.where, "this kernel loops over its tiles; write `@sy.tile_id persistent`");
    return Done{};
}

std::int32_t Analysis::last_line(const SourceRange& range) const {
    const std::string_view text = module_.text(range);
    return range.line + static_cast<std::int32_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace syncopate::kernel::triton

// What directives state, held against what the analysis found.
#include <algorithm>
#include <optional>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

Status Analysis::check_directives(const Kernel& kernel) {
    const Sites& sites = text_of(kernel).sites;
    const Directive* init = nullptr;
    for (const Directive& d : directives_) {
        Status status = Done{};
        switch (d.kind) {
            case DirectiveKind::axis_count: status = check_axis_count(d, kernel); break;
            case DirectiveKind::num_tiles: status = check_num_tiles(d, kernel); break;
            case DirectiveKind::tile_id: status = check_tile_id(d, kernel); break;
            case DirectiveKind::persistent_init:
                if (d.begins) init = &d;
                if (!d.begins && init != nullptr && kernel.persistent &&
                    sites.tile_loop_header.begin > init->where.begin &&
                    sites.tile_loop_header.begin < d.where.begin) {
                    return module_.error(d.where, "the tile loop (line " +
                                                      std::to_string(sites.tile_loop_header.line) +
                                                      ") lies inside the lines marked as run once per "
                                                      "program; move this `end` above it");
                }
                break;
            case DirectiveKind::producer_epilogue:
                if (sites.last_store.end > d.where.begin) {
                    return module_.error(d.where,
                                         "a tile still stores after this: its last store ends on line " +
                                             std::to_string(last_line(sites.last_store)) +
                                             "; move the directive below that line");
                }
                break;
            default: break;
        }
        if (!status) return status;
    }
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
    const Expr& assigned = *d.statement->value;
    if (d.block == nullptr || !assigned.is_count ||
        module_.text(assigned.count_by->where) == module_.text(d.block->where))
        return Done{};
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

Status Analysis::check_axis_count(const Directive& d, const Kernel& kernel) const {
    const std::optional<std::int64_t> value = watched(d);
    if (d.axis.empty()) return Done{};
    SYNCOPATE_TRY(check_block(d));
    const auto axis = std::find_if(kernel.axes.begin(), kernel.axes.end(),
                                   [&](const TileAxis& a) { return a.name == d.axis; });
    if (axis != kernel.axes.end() && value && axis->count != *value) {
        return module_.error(d.where, "axis " + d.axis + " has " + std::to_string(axis->count) +
                                          " tiles, the variable marked as its count is " +
                                          std::to_string(*value) +
                                          ": mark the assignment of that axis's count");
    }
    if (axis == kernel.axes.end() && !kernel.axes.empty() && axis_notes_.empty()) {
        return module_.error(d.where, "no tile follows from this count: the tile axes are " + axis_names() +
                                          "; leave the directive out, or write `" + d.axis +
                                          "=range` if a tile loops over this axis");
    }
    return Done{};
}

Status Analysis::check_num_tiles(const Directive& d, const Kernel& kernel) const {
    const std::optional<std::int64_t> value = watched(d);
    if (value && *value != static_cast<std::int64_t>(kernel.tiles.size())) {
        return module_.error(d.where, "the variable marked as the number of tiles is " +
                                          std::to_string(*value) + ", but the launch runs " +
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

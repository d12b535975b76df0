#include "kernel/sites.hpp"

#include <algorithm>
#include <cstdint>

namespace syncopate::kernel {
namespace {

/// The statement `variable = CALL` (or CALL.to(…)) of the kernel; null when the call is part of something
/// larger.
const Stmt* assignment_of(const std::vector<Stmt*>& body, const Expr* call) {
    for (const Stmt* s : flattened(body)) {
        if (s->kind != StmtKind::assign || s->target->kind != ExprKind::name) continue;
        const bool casts = s->value->kind == ExprKind::method && s->value->builtin == Builtin::cast;
        if (s->value == call || (casts && s->value->kids[0] == call)) return s;
    }
    return nullptr;
}

bool returns_early(const std::vector<Stmt*>& body, bool top) {
    for (std::size_t i = 0; i < body.size(); ++i) {
        const Stmt* s = body[i];
        if (s->kind == StmtKind::give_back && !(top && i + 1 == body.size())) return true;
        if (returns_early(s->body, false) || returns_early(s->otherwise, false)) return true;
    }
    return false;
}

bool is_literal(const Expr* e, std::int64_t value) {
    return e->kind == ExprKind::literal && std::holds_alternative<std::int64_t>(e->literal) &&
           std::get<std::int64_t>(e->literal) == value;
}

std::optional<ReductionLoop> reduction_of(const Module& module, const Function& kernel,
                                          const Evaluator& evaluator) {
    const LoopRecord* only = nullptr;
    for (const LoopRecord& record : evaluator.loops) {
        if (!record.reads || record.statement == nullptr) continue;
        if (only != nullptr) return std::nullopt;
        only = &record;
    }
    if (only == nullptr || !only->in_kernel || only->statement->kind != StmtKind::for_loop)
        return std::nullopt;
    const Stmt& statement = *only->statement;
    ReductionLoop loop;
    loop.statement = statement.where;
    loop.header = statement.header;
    loop.iterable = statement.value->where;
    if (statement.target->kind == ExprKind::name) loop.variable = statement.target->text;
    loop.indent = statement.where.column - 1;
    loop.trips = only->trips;
    const Expr& over = *statement.value;
    if (over.kind == ExprKind::call && over.builtin == Builtin::range) {
        const auto& parts = over.kids;
        const bool from_zero = parts.size() == 1 || (parts.size() >= 2 && is_literal(parts[0], 0));
        const bool by_one = parts.size() < 3 || is_literal(parts[2], 1);
        if (!parts.empty() && from_zero && by_one)
            loop.bound = module.text(parts[parts.size() == 1 ? 0 : 1]->where);
    }
    for (const auto& [param, advance] : only->slices) {
        if (advance.dim < 0 || !only->same_trips || evaluator.read_outside[static_cast<std::size_t>(param)])
            continue;
        loop.slices.push_back({kernel.parameters[static_cast<std::size_t>(param)].name, advance.dim,
                               advance.base, advance.step, advance.extent});
    }
    return loop;
}

/// The statement of `body` that holds `inner`; null if none does.
const Stmt* holder_of(const std::vector<Stmt*>& body, const Stmt& inner) {
    const auto found = std::find_if(body.begin(), body.end(), [&](const Stmt* s) {
        return s->where.begin <= inner.where.begin && inner.where.end <= s->where.end;
    });
    return found == body.end() ? nullptr : *found;
}

}  // namespace

Result<Sites> find_sites(const Module& module, std::int32_t index, const Evaluator& evaluator) {
    const Function& kernel = module.functions[static_cast<std::size_t>(index)];
    const Findings& found = evaluator.found;
    Sites sites;
    sites.function = kernel.whole;
    sites.name = kernel.name_range;
    sites.parameters = kernel.parameters_range;
    sites.body = kernel.body_range;
    sites.body_indent = kernel.body_indent;
    sites.imports_end = module.imports_end;
    sites.persistent = found.tile_loop != nullptr;
    sites.early_return = returns_early(kernel.body, true);
    if (found.last_store != nullptr) {
        sites.last_store = found.last_store->where;
        const std::vector<Stmt*>& body = found.tile_loop != nullptr ? found.tile_loop->body : kernel.body;
        if (const Stmt* holder = holder_of(body, *found.last_store)) sites.stored = holder->where;
    }
    if (found.tile_loop != nullptr) sites.tile_loop_header = found.tile_loop->header;
    sites.reduction = reduction_of(module, kernel, evaluator);

    std::vector<TileIdSite> grid;
    std::vector<std::int32_t> grid_axes;
    for (std::size_t i = 0; i < evaluator.sources.size(); ++i) {
        const TaintSource& source = evaluator.sources[i];
        const std::uint64_t bit = std::uint64_t{1} << std::min<std::size_t>(i, 63);
        TileIdSite site;
        site.guards_reads = (found.read_taint & bit) != 0;
        site.guards_writes = (found.write_taint & bit) != 0;
        if (!site.guards_reads && !site.guards_writes) continue;
        switch (source.kind) {
            case TaintSource::Kind::count: break;
            case TaintSource::Kind::tile_loop:
                site.kind = TileIdSite::Kind::rebind;
                site.variables = {source.expr->text};
                site.anchor = found.tile_loop->header;
                site.indent = found.tile_loop->body.front()->where.column - 1;
                sites.tile_ids.push_back(site);
                break;
            case TaintSource::Kind::carried_id:
                if (!source.is_tile_id) {
                    return module.error(source.expr->where, "addresses follow from `" + source.expr->text +
                                                                "`, which is carried from tile to tile and "
                                                                "is not the id of the tile here: use the "
                                                                "variable of the loop over tiles");
                }
                site.kind = TileIdSite::Kind::use;
                site.variables = {source.expr->text};
                site.anchor = source.expr->where;
                site.indent = source.expr->where.column - 1;
                sites.tile_ids.push_back(site);
                break;
            case TaintSource::Kind::program_id: {
                if (found.tile_loop != nullptr || !source.in_kernel) break;
                const Stmt* assigned = assignment_of(kernel.body, source.expr);
                if (assigned == nullptr) {
                    site.kind = TileIdSite::Kind::use;
                    site.variables = {std::string(module.text(source.expr->where))};
                    site.anchor = source.expr->where;
                    site.indent = source.expr->where.column - 1;
                } else {
                    site.variables = {assigned->target->text};
                    site.anchor = assigned->where;
                    site.indent = assigned->where.column - 1;
                }
                grid.push_back(site);
                grid_axes.push_back(source.grid_axis);
                break;
            }
        }
    }
    const bool one_axis =
        std::all_of(grid_axes.begin(), grid_axes.end(), [](std::int32_t axis) { return axis == 0; });
    const bool all_assigned = std::all_of(
        grid.begin(), grid.end(), [](const TileIdSite& s) { return s.kind == TileIdSite::Kind::rebind; });
    if (one_axis || !all_assigned) {
        sites.tile_ids.insert(sites.tile_ids.end(), grid.begin(), grid.end());
    } else {
        TileIdSite site;
        site.kind = TileIdSite::Kind::rebind_grid;
        site.guards_reads = site.guards_writes = false;
        site.variables.assign(
            static_cast<std::size_t>(*std::max_element(grid_axes.begin(), grid_axes.end())) + 1, "_");
        for (std::size_t i = 0; i < grid.size(); ++i) {
            site.variables[static_cast<std::size_t>(grid_axes[i])] = grid[i].variables[0];
            site.guards_reads = site.guards_reads || grid[i].guards_reads;
            site.guards_writes = site.guards_writes || grid[i].guards_writes;
            if (grid[i].anchor.end > site.anchor.end)
                site.anchor = grid[i].anchor, site.indent = grid[i].indent;
        }
        sites.tile_ids.push_back(site);
    }
    std::sort(sites.tile_ids.begin(), sites.tile_ids.end(),
              [](const TileIdSite& a, const TileIdSite& b) { return a.anchor.begin < b.anchor.begin; });
    return sites;
}

}  // namespace syncopate::kernel

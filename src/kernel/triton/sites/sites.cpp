#include "kernel/triton/sites/sites.hpp"
#include "syncopate/at.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace syncopate::kernel::triton {
namespace {

/// Whether a statement of the kernel's own block is `variable = CALL`. A cast is more: what replaces the id
/// must come before it.
const Stmt* assignment_of(const std::vector<Stmt*>& body, const Expr* call) {
    const auto found = std::find_if(body.begin(), body.end(), [&](const Stmt* s) {
        return s->kind == StmtKind::assign && s->target->kind == ExprKind::name && s->value == call;
    });
    return found == body.end() ? nullptr : *found;
}

bool is_docstring(const Stmt& s) {
    return s.kind == StmtKind::expression && s.value->kind == ExprKind::literal;
}

/// Whether the function may end in it.
bool returns(const Stmt& s) {
    const auto one = [](const Stmt* inner) { return returns(*inner); };
    return s.kind == StmtKind::give_back || std::ranges::any_of(s.body, one) ||
           std::ranges::any_of(s.otherwise, one);
}

/// Whether an access is made before `statement` of the kernel's own block begins.
bool is_before(const AccessForm& access, const Stmt& statement) {
    return access.within != nullptr && access.within->where.begin < statement.where.begin;
}

/// Where a kernel of one tile a program takes its tile: where its ids are assigned, if that is one place,
/// from which all else follows; else at the entry, for all ids.
TileIdSite grid_site(const Function& kernel, const std::vector<const TaintSource*>& ids,
                     const Findings& found, const std::array<std::int64_t, 3>& grid) {
    TileIdSite site;
    std::int32_t axes = 1;
    for (std::int32_t a = 0; a < 3; ++a) {
        if (grid[at(a)] > 1) axes = a + 1;
    }
    std::array<const Stmt*, 3> assigned{};
    bool simple = true;
    std::size_t first = kernel.body.size();
    std::size_t last = 0;
    for (const TaintSource* id : ids) {
        site.program_ids.push_back({id->expr->where, id->grid_axis});
        axes = std::max(axes, id->grid_axis + 1);
        const Stmt* statement = assignment_of(kernel.body, id->expr);
        const Stmt*& place = assigned[at(id->grid_axis)];
        simple = simple && statement != nullptr && place == nullptr;
        if (!simple) continue;
        place = statement;
        const auto at = static_cast<std::size_t>(
            std::find(kernel.body.begin(), kernel.body.end(), statement) - kernel.body.begin());
        first = std::min(first, at);
        last = std::max(last, at);
    }
    // Nothing between the assignments that could use an id that is not yet the tile's; nothing above them
    // that would touch memory before the tile may, or end the kernel before it is known whose tile is done.
    simple = simple && !ids.empty() && ids.size() == static_cast<std::size_t>(axes) &&
             last - first + 1 == ids.size() && std::ranges::none_of(found.accesses, [&](const auto& access) {
                 return is_before(access.second, *kernel.body[first]);
             });
    simple =
        simple && std::none_of(kernel.body.begin(), kernel.body.begin() + static_cast<std::ptrdiff_t>(first),
                               [](const Stmt* s) { return returns(*s); });
    if (simple) {
        site.kind = axes == 1 ? TileIdSite::Kind::rebind : TileIdSite::Kind::rebind_grid;
        for (std::int32_t a = 0; a < axes; ++a) site.variables.push_back(assigned[at(a)]->target->text);
        site.anchor = kernel.body[last]->where;
    } else {
        site.kind = TileIdSite::Kind::entry;
        const std::array<std::string, 3> names{"sy_x", "sy_y", "sy_z"};
        site.variables.assign(names.begin(), names.begin() + axes);
        const auto begin = std::find_if_not(kernel.body.begin(), kernel.body.end(),
                                            [](const Stmt* s) { return is_docstring(*s); });
        site.anchor = (*begin)->where;
    }
    site.indent = kernel.body_indent;  // a statement may follow another one in its line
    return site;
}

bool returns_early(const std::vector<Stmt*>& body) {
    const bool ends = !body.empty() && body.back()->kind == StmtKind::give_back;
    return std::any_of(body.begin(), body.end() - (ends ? 1 : 0), [](const Stmt* s) { return returns(*s); });
}

/// The statement of `body` that holds `inner`; null if none does.
const Stmt* holder_of(const std::vector<Stmt*>& body, const Stmt& inner) {
    const auto found = std::find_if(body.begin(), body.end(), [&](const Stmt* s) {
        return s->where.begin <= inner.where.begin && inner.where.end <= s->where.end;
    });
    return found == body.end() ? nullptr : *found;
}

}  // namespace

Result<Sites> find_sites(const Module& module, std::int32_t index, const Evaluator& evaluator,
                         const std::array<std::int64_t, 3>& grid) {
    const Function& kernel = module.functions[at(index)];
    const Findings& found = evaluator.found;
    Sites sites;
    sites.function = kernel.whole;
    sites.name = kernel.name_range;
    sites.parameters = kernel.parameters_range;
    sites.body = kernel.body_range;
    sites.body_indent = kernel.body_indent;
    sites.imports_end = module.imports_end;
    sites.early_return = returns_early(kernel.body);
    if (found.last_store != nullptr) {
        sites.last_store = found.last_store->where;
        const std::vector<Stmt*>& body = found.tile_loop != nullptr ? found.tile_loop->body : kernel.body;
        if (const Stmt* holder = holder_of(body, *found.last_store)) sites.stored = holder->where;
    }
    const Stmt* tiles = found.tile_loop != nullptr ? holder_of(kernel.body, *found.tile_loop) : nullptr;
    for (const auto& [key, form] : found.accesses) {
        const auto& [call, param] = key;
        if (param < 0) continue;
        const AccessSite site{evaluator.memory_names[at(param)],
                              call->where,
                              form.by,
                              form.made != nullptr ? form.made->where : SourceRange{},
                              form.rows,
                              form.taken};
        if (form.stores) sites.stores.push_back(site);
        if (form.loads) sites.loads.push_back(site);
        // A loop within a branch: what a helper does there may be done before it.
        const auto is_early = [&] {
            const bool in_helper =
                call->where.begin < kernel.whole.begin || call->where.end > kernel.whole.end;
            return is_before(form, *tiles) ||
                   (form.within == tiles && tiles != found.tile_loop && form.outside &&
                    (in_helper || call->where.begin < found.tile_loop->where.begin));
        };
        if (form.loads && tiles != nullptr && is_early()) sites.early_loads.push_back(site);
    }
    for (std::vector<AccessSite>* accesses : {&sites.stores, &sites.loads, &sites.early_loads}) {
        std::ranges::sort(*accesses, [](const AccessSite& a, const AccessSite& b) {
            return std::tie(a.call.begin, a.param) < std::tie(b.call.begin, b.param);
        });
    }
    if (found.tile_loop != nullptr) sites.tile_loop_header = found.tile_loop->header;

    std::vector<const TaintSource*> ids;
    for (std::size_t i = 0; i < evaluator.sources.size(); ++i) {
        const TaintSource& source = evaluator.sources[i];
        const std::uint64_t bit = std::uint64_t{1} << std::min<std::size_t>(i, 63);
        TileIdSite site{.bit = bit};
        site.guards_reads = (found.read_taint & bit) != 0;
        site.guards_writes = (found.write_taint & bit) != 0;
        for (std::size_t param = 0; param < evaluator.param_read_taint.size(); ++param) {
            if ((evaluator.param_read_taint[param] & bit) != 0)
                site.reads.push_back(evaluator.memory_names[param]);
        }
        if (source.kind == TaintSource::Kind::program_id && found.tile_loop == nullptr) {
            if (source.in_kernel)
                ids.push_back(&source);  // also one that no address follows from: a seed, a branch
            else
                sites.foreign_id = source.expr->where;
        }
        // Wherever it is read: a seed or a branch may follow from it, too.
        const bool moved = source.kind == TaintSource::Kind::carried_id && found.tile_loop != nullptr;
        if (!site.guards_reads && !site.guards_writes && !moved) continue;
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
                site.kind = TileIdSite::Kind::use;
                site.variables = {source.expr->text};
                site.anchor = source.expr->where;
                site.indent = source.expr->where.column - 1;
                sites.tile_ids.push_back(site);
                break;
            case TaintSource::Kind::program_id: break;  // below, all together
        }
    }
    // One program need not ask which it is.
    const bool alone = grid == std::array<std::int64_t, 3>{1, 1, 1} && sites.foreign_id.end == 0 &&
                       std::ranges::any_of(kernel.body, [](const Stmt* s) { return !is_docstring(*s); });
    if (found.tile_loop == nullptr && (alone || !ids.empty())) {
        // All that such a program does is its tile's, whether or not an address was seen to follow from an
        // id.
        TileIdSite site = grid_site(kernel, ids, found, grid);
        site.guards_reads = site.guards_writes = true;
        sites.tile_ids.push_back(std::move(site));
    }
    std::sort(sites.tile_ids.begin(), sites.tile_ids.end(),
              [](const TileIdSite& a, const TileIdSite& b) { return a.anchor.begin < b.anchor.begin; });
    return sites;
}

}  // namespace syncopate::kernel::triton

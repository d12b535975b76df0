// The reasons for what the analysis found, in words.
#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/sites/sites.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

std::vector<Note> Analysis::notes(const Kernel& kernel) {
    const Sites& sites = text_of(kernel).sites;
    std::vector<Note> all;
    const auto note = [&](const SourceRange& where, std::string text) {
        all.push_back({where.line, std::move(text)});
    };
    const Findings& found = evaluator_.found;
    if (found.tile_loop != nullptr) {
        note(found.tile_loop->header,
             "each round of this loop is one tile: it starts from the program's id, and its rounds hand "
             "nothing on "
             "to each other but ids");
    } else if (why_no_tiles_) {
        note(why_no_tiles_->where,
             "no loop over tiles: " + why_no_tiles_->why + "; so what a program does is one tile");
    } else {
        note(sites.name, "no loop runs over tiles: what a program does is one tile");
    }
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        const std::size_t bit = std::min<std::size_t>(i, 63);
        const bool reads = (found.read_taint >> bit & 1) != 0, writes = (found.write_taint >> bit & 1) != 0;
        if (!reads && !writes) continue;
        const std::string follow = reads && writes ? "loads and stores follow"
                                   : reads         ? "loads follow"
                                                   : "stores follow";
        if (source.kind == TaintSource::Kind::program_id && found.tile_loop == nullptr)
            note(source.expr->where, quoted(module_, source.expr->where) + " numbers tiles along axis " +
                                         std::string(1, "xyz"[source.grid_axis]) + " of the grid: " + follow +
                                         " from it");
        if (source.kind == TaintSource::Kind::carried_id)
            note(source.expr->where, "`" + source.expr->text +
                                         "` is the tile's id once more, counted apart: " + follow +
                                         " from it");
    }
    note_idle_programs(kernel, all);
    note_axes_found(kernel, all);
    note_loops(kernel, all);
    if (sites.last_store.line > 0)
        note(sites.last_store, kernel.persistent ? "the last store of a round: a tile is complete after it"
                                                 : "the last store of a program");
    return all;
}

/// Programs at the end of an axis of the grid that is given, which store nothing.
void Analysis::note_idle_programs(const Kernel& kernel, std::vector<Note>& all) const {
    const Findings& found = evaluator_.found;
    if (!arguments_.grid || kernel.persistent) return;
    std::array<std::int64_t, 3> busy{};
    for (std::size_t tile = 0; tile < found.tiles.size(); ++tile) {
        const auto touched =
            std::span(found.touched)
                .subspan(found.tiles[tile].begin, found.tiles[tile].end - found.tiles[tile].begin);
        if (std::ranges::none_of(touched,
                                 [](const Touch& t) { return t.write && (t.begin < t.end || t.leaves); }))
            continue;
        const std::array<std::int64_t, 3> at = program_of(tile);
        for (std::size_t axis = 0; axis < 3; ++axis) busy[axis] = std::max(busy[axis], at[axis] + 1);
    }
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (busy[axis] == 0 || busy[axis] >= grid_[axis]) continue;
        all.push_back({text_of(kernel).sites.name.line,
                       "programs from " + std::to_string(busy[axis]) + " on along axis " + "xyz"[axis] +
                           " of the grid store nothing: " + std::to_string(busy[axis]) + " would do"});
    }
}

void Analysis::note_axes_found(const Kernel& kernel, std::vector<Note>& all) {
    std::set<std::pair<std::int32_t, std::string>> told;
    const auto note = [&](const SourceRange& where, std::string text) {
        if (told.emplace(where.line, text).second) all.push_back({where.line, std::move(text)});
    };
    for (const TileAxis& axis : kernel.axes) {
        if (const auto why = axis_notes_.find(axis.name); why != axis_notes_.end()) {
            note(text_of(kernel).sites.last_store, why->second);
            continue;
        }
        const TaintSource* count = nullptr;
        for (const TaintSource& source : evaluator_.sources) {
            if (source.kind != TaintSource::Kind::count || source.count != axis.count ||
                source.block != axis.block)
                continue;
            if (count == nullptr || module_.text(source.expr->count_of->where) == axis.name) count = &source;
        }
        if (count != nullptr)
            note(count->expr->where,
                 quoted(module_, count->expr->where) + " counts the tiles of axis " + axis.name);
        else
            note(text_of(kernel).sites.last_store,
                 "axis " + axis.name + " follows from where the tiles store");
    }
    for (const std::int32_t f : functions_) {
        for (const Stmt* s : flattened(module_.functions[at(f)].body)) {
            for (const Expr* e : flattened(s->value)) {
                if (e->axis < 0 || static_cast<std::size_t>(e->axis) >= axes_.size()) continue;
                note(e->where, quoted(module_, e->kids[at(e->axis_side)]->where) +
                                   " is a tile's coordinate along " + axes_[at(e->axis)].name);
            }
        }
    }
}

void Analysis::note_loops(const Kernel& kernel, std::vector<Note>& all) {
    std::vector<const LoopRecord*> loading;
    for (const LoopRecord& record : evaluator_.loops) {
        if (record.reads && record.statement != nullptr) loading.push_back(&record);
    }
    for (const LoopRecord* record : loading) {
        std::string text = "this loop of a tile loads";
        const std::vector<LoopSite>& sites = text_of(kernel).sites.loops;
        const auto site = std::ranges::find_if(sites, [&](const LoopSite& loop) {
            return loop.statement.begin == record->statement->where.begin;
        });
        if (site == sites.end())
            text += "; it is no `for` of the tile's own over a range, so it stays whole";
        else if (!kernel.loops[at(site - sites.begin())].divisible)
            text += "; it stays whole, since it may end early, or is no range that can be cut";
        else
            text += ", and can run in ranges as its data arrives";
        all.push_back({record->statement->header.line, std::move(text)});
    }
}

}  // namespace syncopate::kernel::triton

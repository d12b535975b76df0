// The front end as a whole: parse, read directives, run every program of the launch, and put together
// what a kernel is. Each step is a file of its own beside this one.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/tiles.hpp"
#include "kernel/triton/sites/sites.hpp"
#include "kernel/triton/syntax/choose_kernel.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

Result<Kernel> Analysis::run() {
    SYNCOPATE_TRY(evaluator_.bind());
    evaluator_.by_program = effort_.tiles == Tiles::programs;
    Result<Kernel> kernel = with_tiles();
    if (kernel || !evaluator_.no_tiles) return kernel;
    // The loop that looked like one over tiles is none: start over, each program one tile.
    why_no_tiles_ = std::exchange(evaluator_.no_tiles, std::nullopt);
    const Findings before = std::move(evaluator_.found);
    evaluator_.found = Findings{};
    evaluator_.by_program = true;
    std::fill(evaluator_.loops.begin(), evaluator_.loops.end(), LoopRecord{});
    if (!arguments_.grid && before.strided_x && before.tile_step > 1)
        loop_programs_ = std::min(before.tile_step, before.tile_stop);
    return with_tiles();
}

Result<Kernel> Analysis::with_tiles() {
    evaluator_.restart();
    SYNCOPATE_TAKE(const std::vector<Way> ways, ways_to_a_grid());
    std::vector<std::string> doubts;
    const auto add = [&](const std::string& why) {
        if (!why.empty() && std::ranges::find(doubts, why) == doubts.end()) doubts.push_back(why);
    };
    bool overflow_ends = false;  // a grid ends with the first program whose addresses overflow
    bool complete = false;       // all programs of the grid found in leaps write
    for (const Way way : ways) {
        if (way == Way::each && complete) break;  // it would come to the same
        evaluator_.restart();
        SYNCOPATE_TAKE(const auto why, propose(way));
        if (why) {
            add(*why);
            continue;
        }
        for (std::size_t axis = 0; overflow_ && axis < 3; ++axis)
            overflow_ends = overflow_ends || (overflow_at_[axis] > 0 && overflow_at_[axis] == grid_[axis]);
        Result<Kernel> kernel = on_grid();
        if (!kernel) {
            if (way == Way::given || evaluator_.no_tiles || !evaluator_.arithmetic_error) return kernel;
            // What it advises is for a launch that is given.
            const std::string& message = kernel.error().message;
            add(message.substr(0, message.find(": give ")) + " (line " +
                std::to_string(kernel.error().location.line) + ")");
            continue;
        }
        const auto doubtful = is_stated(way) ? std::nullopt : doubt(*kernel, way);
        if (!doubtful) {
            Result<Kernel> made = finished(*std::move(kernel));
            return made ? std::move(made) : Result<Kernel>(with_hint(made.error()));
        }
        add(*doubtful);
        if (way == Way::counts) counted_ = grid_[0];
        complete = way == Way::leaps && wrote_all();
    }
    if (overflow_ends) return *overflow_;
    std::string all;
    for (const std::string& one : doubts) all += (all.empty() ? "" : "; ") + one;
    return needs_grid(all);
}

/// An error of a kernel whose grid is inferred, with what speaks for the grid being wrong.
Error Analysis::with_hint(Error error) {
    fails_ = true;
    for (std::size_t m = 0; m < evaluator_.tensors.size(); ++m) {
        if (!evaluator_.param_written[m] || evaluator_.tensors[m].shape.empty()) continue;
        const std::string early = ends_early(static_cast<std::int32_t>(m));
        if (early.empty()) continue;
        error.message = early + ". So " + error.message;
        break;
    }
    return error;
}

/// Runs all programs of the grid.
Result<Kernel> Analysis::on_grid() {
    note_axes();
    SYNCOPATE_TRY(run_programs());
    if (evaluator_.found.tile_loop != nullptr && !persistent_)
        return no_tiles(evaluator_.found.tile_loop->where, "the first program does not come to it");
    Kernel kernel;
    kernel.name = function_.name;
    kernel.grid = grid_;
    kernel.arguments = arguments_;
    (void)add_params(kernel);
    SYNCOPATE_TRY(number_tiles(kernel));
    return kernel;
}

/// Why rounds of the tile loop cannot be exchanged between programs, and where: a round may follow from the
/// program's id only as the id of its tile, which fused kernels replace wherever it is read.
std::optional<std::pair<SourceRange, std::string>> Analysis::objection_to_tiles() const {
    const Findings& found = evaluator_.found;
    if (evaluator_.by_program || found.tile_loop == nullptr) return std::nullopt;
    if (found.own_id != nullptr) {
        return std::pair(found.own_id->where,
                         quoted(module_, found.own_id->where) +
                             " in it follows from the program's id, not from the tile's");
    }
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        if (source.kind != TaintSource::Kind::carried_id) continue;
        const std::string name = "`" + source.expr->text + "`";
        if (!source.is_tile_id) {
            return std::pair(source.expr->where,
                             name + " is carried from tile to tile, and is not the id of the tile there");
        }
        if ((found.count_taint >> std::min<std::size_t>(i, 63) & 1) != 0)
            return std::pair(source.expr->where, "the next tile's id is counted from " + name + " there");
    }
    return std::nullopt;
}

/// The rest of what the kernel is.
Result<Kernel> Analysis::finished(Kernel kernel) {
    kernel.params.clear();
    const std::vector<const Parameter*> origins = add_params(kernel);
    SYNCOPATE_TRY(name_axes(kernel));
    if (auto objection = objection_to_tiles())
        return no_tiles(objection->first, std::move(objection->second));
    SYNCOPATE_TAKE(Sites sites, find_sites(module_, index_, evaluator_, kernel.grid));
    sites.loops = std::move(loop_sites_);
    for (const Parameter* parameter : origins) sites.parameter.push_back(parameter->where);
    kernel.line = sites.name.line;
    kernel.persistent = evaluator_.found.tile_loop != nullptr;
    kernel.accesses = accesses_of(sites, module_.source);
    const auto text = std::make_shared<Text>();
    text->source = module_.source;
    text->sites = std::move(sites);
    kernel.origin = text;
    SYNCOPATE_TRY(check_directives(kernel));
    add_warnings(kernel, *text);
    kernel.in_order = awaits_tiles();
    return kernel;
}

/// The parameters, those that tuples hold one by one. By parameter of the kernel: where the signature has it.
std::vector<const Parameter*> Analysis::add_params(Kernel& kernel) const {
    std::vector<const Parameter*> origins;
    for (std::size_t p = 0; p < function_.parameters.size(); ++p) {
        const Parameter& parameter = function_.parameters[p];
        const Error here = module_.error(parameter.where, {});
        const auto add = [&](const std::string& name, std::int32_t memory) {
            Param made;
            made.name = name;
            made.where = here.location;
            made.excerpt = here.excerpt;
            made.kind = parameter.constant ? ParamKind::constant : ParamKind::scalar;
            if (const auto m = static_cast<std::size_t>(memory); memory >= 0) {
                made.read = evaluator_.param_read[m];
                made.written = evaluator_.param_written[m];
                if (evaluator_.param_descriptor[m])
                    made.kind = ParamKind::descriptor;
                else if (evaluator_.param_pointer[m])
                    made.kind = ParamKind::pointer;
            }
            kernel.params.push_back(std::move(made));
            origins.push_back(&parameter);
        };
        bool is_tuple = false;
        for (const Evaluator::Item& item : evaluator_.tuple_items) {
            if (item.parameter != static_cast<std::int32_t>(p)) continue;
            add(item.name, item.memory);
            is_tuple = true;
        }
        if (!is_tuple) add(parameter.name, static_cast<std::int32_t>(p));
    }
    return origins;
}

Error Analysis::no_tiles(const SourceRange& where, std::string why) {
    evaluator_.no_tiles = {where, std::move(why)};
    return module_.error(where, "not a loop over tiles");
}

const Directive* Analysis::directive(DirectiveKind kind) const {
    const auto found = std::find_if(directives_.begin(), directives_.end(),
                                    [&](const Directive& d) { return d.kind == kind; });
    return found == directives_.end() ? nullptr : &*found;
}

void Analysis::forget() {
    evaluator_.found.touched.clear();
    evaluator_.found.tiles.clear();
}

/// Whether the sorted ids of a tile loop that does not stride over programs number tiles.
Status Analysis::check_ids(const std::vector<std::int64_t>& ids) {
    std::int64_t i = 0;
    for (const std::int64_t id : ids) {
        if (id != i) break;
        ++i;
    }
    if (i < static_cast<std::int64_t>(ids.size()) || i < evaluator_.found.tile_stop)
        return no_tiles(evaluator_.found.tile_loop->where,
                        "its variable does not number the tiles from 0 on, each of them once");
    return Done{};
}

Status Analysis::number_tiles(Kernel& kernel) {
    std::vector<TileRecord>& records = evaluator_.found.tiles;
    if (persistent_)
        std::sort(records.begin(), records.end(),
                  [](const TileRecord& a, const TileRecord& b) { return a.id < b.id; });
    const auto count = static_cast<std::int64_t>(records.size());
    // Ranges of programs of their own, as those of stream-K, may begin at the programs' ids by chance.
    const bool strided =
        evaluator_.found.strided && (evaluator_.found.tile_step > 1 || grid_[0] * grid_[1] * grid_[2] == 1);
    if (persistent_ && !strided) {
        std::vector<std::int64_t> ids;
        for (const TileRecord& record : records) ids.push_back(record.id);
        SYNCOPATE_TRY(check_ids(ids));
    }
    for (std::int64_t i = 0; i < count; ++i) {
        const TileRecord& record = records[at(i)];
        if (record.id == i) continue;
        const bool twice = i > 0 && record.id == records[at(i - 1)].id;
        return module_.error(evaluator_.found.tile_loop->header,
                             (twice ? "tile " + std::to_string(record.id) + " is run by two programs"
                                    : "tile " + std::to_string(i) + " is run by no program") +
                                 " of a grid of " + std::to_string(grid_[0]) +
                                 "; give the grid of the launch with --grid");
    }
    if (persistent_ && count < evaluator_.found.tile_stop) {
        return module_.error(evaluator_.found.tile_loop->header,
                             "tile " + std::to_string(count) + " of " +
                                 std::to_string(evaluator_.found.tile_stop) +
                                 " is run by no program of a grid of " + std::to_string(grid_[0]) +
                                 "; give the grid of the launch with --grid");
    }
    kernel.tiles.reserve(records.size());
    FoundLoops loops = find_loops(module_, index_, evaluator_);
    if (loops.wrong) return *loops.wrong;
    kernel.tiles_differ = loops.tiles_differ;
    TileMaker maker(evaluator_.found, evaluator_.memory_names, evaluator_.tensors,
                    loops.tiles_differ ? std::move(loops.index) : std::vector<std::int32_t>{});
    for (const TileRecord& record : records) kernel.tiles.push_back(maker.make(record));
    if (maker.beyond()) return contradiction(*maker.beyond());
    for (std::size_t loop = 0; loop < maker.uneven().size(); ++loop) {
        if (!maker.uneven()[loop]) continue;
        loops.loops[loop].divisible = false;
        loops.sites[loop].bound.clear();
    }
    kernel.loops = std::move(loops.loops);
    loop_sites_ = std::move(loops.sites);
    return Done{};
}

namespace {

Result<Explained> analysed(const std::string& source, std::string file, const std::string& name,
                           const Arguments& arguments, bool explains, const Effort& effort) {
    SYNCOPATE_TAKE(std::unique_ptr<Module> parsed, Module::parse(source, file));
    Module& module = *parsed;
    SYNCOPATE_TAKE(const std::int32_t index, choose_kernel(module, name));
    std::set<std::int32_t> reachable;
    SYNCOPATE_TRY(parse_reachable(module, index, reachable));
    SYNCOPATE_TAKE(std::vector<Directive> directives, read_directives(module, index));
    Analysis analysis(module, index, arguments, std::move(directives), std::move(reachable), effort);
    Result<Kernel> kernel = analysis.run();
    if (!kernel) {
        Error error = kernel.error();
        error.message += analysis.hint();
        return error;
    }
    Explained made{std::move(*kernel), {}, {}};
    made.kernel.file = std::move(file);
    made.kernel.by_line = name.find('@') != std::string::npos;
    if (explains) {
        made.places = places_of(made.kernel);
        made.notes = analysis.notes(made.kernel);
    }
    return made;
}

}  // namespace

Result<Kernel> analyse(const std::string& source, std::string file, const std::string& name,
                       const Arguments& arguments) {
    return analyse(source, std::move(file), name, arguments, Effort{});
}

Result<Kernel> analyse_as(const std::string& source, std::string file, const std::string& name,
                          const Arguments& arguments, Tiles tiles) {
    Effort effort;
    effort.tiles = tiles;
    return analyse(source, std::move(file), name, arguments, effort);
}

Result<Kernel> analyse(const std::string& source, std::string file, const std::string& name,
                       const Arguments& arguments, const Effort& effort) {
    SYNCOPATE_TAKE(Explained made, analysed(source, std::move(file), name, arguments, false, effort));
    return std::move(made.kernel);
}

Result<Explained> analyse_and_explain(const std::string& source, std::string file, const std::string& name,
                                      const Arguments& arguments) {
    return analysed(source, std::move(file), name, arguments, true, Effort{});
}

}  // namespace syncopate::kernel::triton

// The front end as a whole: parse, lower, read directives, run every program of the launch, and put together
// what a kernel is. Each step is a file of its own beside this one.
#include <algorithm>
#include <deque>
#include <set>

#include "kernel/directive.hpp"
#include "kernel/evaluate.hpp"
#include "kernel/sites.hpp"
#include "kernel/syntax.hpp"
#include "kernel/tiles.hpp"
#include "syncopate/kernel/kernel.hpp"

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kMostPrograms = 1 << 20;

/// Lowers `function` and every function of the file that it may call.
Status lower_reachable(Module& module, std::int32_t function, std::set<std::int32_t>& seen) {
    std::deque<std::int32_t> pending{function};
    while (!pending.empty()) {
        const std::int32_t next = pending.front();
        pending.pop_front();
        if (!seen.insert(next).second) continue;
        if (const Status status = module.lower(next); !status) return status;
        for (const std::string& callee : module.functions[static_cast<std::size_t>(next)].calls)
            pending.push_back(module.find(callee));
    }
    return Done{};
}

Result<std::vector<std::int32_t>> kernels_of(Module& module) {
    std::set<std::string> called;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        if (!module.functions[i].jit) continue;
        if (const Status status = module.lower(static_cast<std::int32_t>(i)); !status) return status.error();
        const Function& function = module.functions[i];
        for (const std::string& callee : function.calls) {
            if (callee != function.name) called.insert(callee);
        }
    }
    std::vector<std::int32_t> kernels;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        if (module.functions[i].jit && !called.contains(module.functions[i].name))
            kernels.push_back(static_cast<std::int32_t>(i));
    }
    return kernels;
}

Result<std::int32_t> choose_kernel(Module& module, const std::string& name) {
    Location file;
    file.file = module.file;
    if (!name.empty()) {
        const std::int32_t found = module.find(name);
        if (found >= 0 && module.functions[static_cast<std::size_t>(found)].jit) return found;
        if (found >= 0)
            return module.error(module.functions[static_cast<std::size_t>(found)].name_range,
                                "`" + name + "` is not under @triton.jit");
        std::string known;
        for (const Function& f : module.functions) {
            if (f.jit) known += (known.empty() ? "" : ", ") + f.name;
        }
        return Error{"no function `" + name + "`" +
                         (known.empty() ? std::string(": the file has no @triton.jit function")
                                        : "; under @triton.jit are: " + known),
                     file};
    }
    const auto kernels = kernels_of(module);
    if (!kernels) return kernels.error();
    std::vector<std::int32_t> storing;
    for (const std::int32_t k : *kernels) {
        std::set<std::int32_t> reachable;
        if (const Status status = lower_reachable(module, k, reachable); !status) return status.error();
        if (std::any_of(reachable.begin(), reachable.end(), [&](std::int32_t f) {
                return module.functions[static_cast<std::size_t>(f)].has_stores;
            })) {
            storing.push_back(k);
        }
    }
    if (storing.size() == 1) return storing[0];
    std::string names;
    for (const std::int32_t k : storing)
        names += (names.empty() ? "" : ", ") + module.functions[static_cast<std::size_t>(k)].name;
    return Error{storing.empty() ? "the file has no @triton.jit kernel that stores anything"
                                 : "the file has several kernels; name one of: " + names,
                 file};
}

class Analysis {
public:
    Analysis(Module& module, std::int32_t index, const Arguments& arguments,
             std::vector<Directive> directives, std::set<std::int32_t> functions)
        : module_(module),
          index_(index),
          function_(module.functions[static_cast<std::size_t>(index)]),
          arguments_(arguments),
          directives_(std::move(directives)),
          functions_(std::move(functions)),
          evaluator_(module, index, arguments_, directives_) {}

    Result<Kernel> run() {
        if (const Status status = evaluator_.bind(); !status) return status.error();
        if (const Status status = find_grid(); !status) return status.error();
        note_axes();
        if (const Status status = run_programs(); !status) return status.error();
        Kernel kernel;
        kernel.name = function_.name;
        kernel.grid = grid_;
        kernel.arguments = arguments_;
        for (std::size_t p = 0; p < function_.parameters.size(); ++p) {
            const Parameter& parameter = function_.parameters[p];
            Param made;
            made.name = parameter.name;
            made.where = parameter.where;
            made.read = evaluator_.param_read[p];
            made.written = evaluator_.param_written[p];
            made.kind = evaluator_.param_descriptor[p] ? ParamKind::descriptor
                        : evaluator_.param_pointer[p]  ? ParamKind::pointer
                        : parameter.constant           ? ParamKind::constant
                                                       : ParamKind::scalar;
            kernel.params.push_back(std::move(made));
        }
        if (const Status status = number_tiles(kernel); !status) return status.error();
        if (const Status status = name_axes(kernel); !status) return status.error();
        Result<Sites> sites = find_sites(module_, index_, evaluator_);
        if (!sites) return sites.error();
        kernel.sites = std::move(*sites);
        if (const Status status = check_directives(kernel); !status) return status.error();
        return kernel;
    }

private:
    const Directive* directive(DirectiveKind kind) const {
        const auto found = std::find_if(directives_.begin(), directives_.end(),
                                        [&](const Directive& d) { return d.kind == kind; });
        return found == directives_.end() ? nullptr : &*found;
    }

    void forget() {
        evaluator_.found.touched.clear();
        evaluator_.found.tiles.clear();
    }

    /// Whether the program at `id` of a grid of unknown extent writes anything.
    Result<bool> writes_at(const std::array<std::int64_t, 3>& id) {
        forget();
        const Status status = evaluator_.run(id, {id[0] + 1, id[1] + 1, id[2] + 1});
        if (!status && !evaluator_.arithmetic_error) return status.error();
        const auto& touched = evaluator_.found.touched;
        const bool writes = status && std::any_of(touched.begin(), touched.end(),
                                                  [](const TouchedBox& t) { return t.write; });
        forget();
        return writes;
    }

    bool written_tensor_known() const {
        for (std::size_t p = 0; p < evaluator_.tensors.size(); ++p) {
            if (evaluator_.param_written[p] && !evaluator_.tensors[p].shape.empty()) return true;
        }
        return false;
    }

    Error needs_grid(const std::string& why) const {
        return module_.error(
            function_.name_range,
            "the launch grid of `" + function_.name + "` does not follow from the kernel (" + why +
                "): give --grid X[,Y[,Z]], or mark the number of tiles with `# @sy.num_tiles`");
    }

    Status find_grid() {
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
                grid_[0] > kMostPrograms || grid_[1] > kMostPrograms / grid_[0] ||
                grid_[2] > kMostPrograms / (grid_[0] * grid_[1])) {
                return module_.error(function_.name_range, "the grid must have from 1 to " +
                                                               std::to_string(kMostPrograms) + " programs");
            }
            return first;
        }
        if (!first) return first;
        if (persistent_) {
            if (found.tile_start != 0 || found.tile_step < 1)
                return needs_grid("its tile loop does not start at the program id");
            grid_ = {std::clamp<std::int64_t>(std::min(found.tile_step, found.tile_stop), 1, kMostPrograms),
                     1, 1};
            return Done{};
        }
        if (const Directive* given = directive(DirectiveKind::num_tiles)) {
            const auto value = found.watched.find(given->statement);
            if (value != found.watched.end() && value->second > 0) {
                if (value->second > kMostPrograms) return needs_grid("too many tiles");
                grid_ = {value->second, 1, 1};
                return Done{};
            }
        }
        std::array<bool, 3> used{},
            places{};  // addresses, and those of stores, follow from the program's axis
        for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
            const TaintSource& source = evaluator_.sources[i];
            if (source.kind != TaintSource::Kind::program_id) continue;
            const auto bit = std::min<std::size_t>(i, 63);
            if (((found.read_taint | found.write_taint) >> bit & 1) != 0)
                used[static_cast<std::size_t>(source.grid_axis)] = true;
            if ((found.write_taint >> bit & 1) != 0)
                places[static_cast<std::size_t>(source.grid_axis)] = true;
        }
        if (!used[0] && !used[1] && !used[2]) return Done{};  // one program does it all
        const bool can_search = written_tensor_known();
        if (used[0] && !used[1] && !used[2]) {
            std::int64_t product = 1;
            bool any = false;
            for (const TileAxis& axis : counted_axes(found.write_taint)) {
                any = true;
                if (axis.count < 1 || axis.count > kMostPrograms)
                    return needs_grid("a tile count is out of range");
                product = std::min(product * axis.count, kMostPrograms + 1);
            }
            if (any && product <= kMostPrograms) {
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
            std::array<std::int64_t, 3> id{};
            while (true) {
                id[axis] = grid_[axis];
                const auto writes = writes_at(id);
                if (!writes) return writes.error();
                if (!*writes) break;
                if (++grid_[axis] > kMostPrograms) return needs_grid("every program writes something");
            }
        }
        return Done{};
    }

    /// Tile counts among the sources in `taint`, in source order; the same count computed twice is one axis.
    std::vector<TileAxis> counted_axes(std::uint64_t taint) {
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

    static std::int64_t product(const std::vector<TileAxis>& axes) {
        std::int64_t total = 1;
        for (const TileAxis& axis : axes) total = wrap_multiply(total, axis.count);
        return total;
    }

    /// Axes from directives, or from the tile counts that addresses follow from; and the products tile ×
    /// block whose factors are coordinates.
    void note_axes() {
        const std::int64_t tiles = persistent_ ? evaluator_.found.tile_stop : grid_[0] * grid_[1] * grid_[2];
        const Findings& found = evaluator_.found;
        axes_ = counted_axes(found.write_taint);
        if (axes_.empty() || product(axes_) != tiles)
            axes_ = counted_axes(found.write_taint | found.bound_taint);
        if (product(axes_) != tiles)
            axes_ = counted_axes(found.write_taint | found.read_taint | found.bound_taint | found.all_counts);
        for (const Directive& d : directives_) {
            if (d.kind != DirectiveKind::axis_count || d.axis.empty()) continue;
            for (std::size_t a = 0; a < axes_.size(); ++a) {
                if (d.statement->value == count_exprs_[a]) axes_[a].name = d.axis;
            }
        }
        named_ = axes_;
        if (product(axes_) != tiles || axes_.size() > kMostAxes) axes_.clear();
        if (directive(DirectiveKind::pid_map) != nullptr) return;
        for (std::size_t a = 0; a < axes_.size(); ++a) {
            if (std::count(block_texts_.begin(), block_texts_.end(), block_texts_[a]) != 1) continue;
            for (const std::int32_t f : functions_)
                mark_products(module_.functions[static_cast<std::size_t>(f)].body,
                              static_cast<std::int32_t>(a));
        }
    }

    void mark_products(const std::vector<Stmt*>& body, std::int32_t axis) {
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

    Status run_programs() {
        forget();
        for (LoopRecord& record : evaluator_.loops) record = LoopRecord{};
        for (std::int64_t z = 0; z < grid_[2]; ++z) {
            for (std::int64_t y = 0; y < grid_[1]; ++y) {
                for (std::int64_t x = 0; x < grid_[0]; ++x) {
                    if (const Status status = evaluator_.run({x, y, z}, grid_); !status) return status;
                }
            }
        }
        return Done{};
    }

    Status number_tiles(Kernel& kernel) {
        std::vector<TileRecord>& records = evaluator_.found.tiles;
        if (persistent_)
            std::sort(records.begin(), records.end(),
                      [](const TileRecord& a, const TileRecord& b) { return a.id < b.id; });
        const auto count = static_cast<std::int64_t>(records.size());
        for (std::int64_t i = 0; i < count; ++i) {
            const TileRecord& record = records[static_cast<std::size_t>(i)];
            if (record.id == i) continue;
            const bool twice = i > 0 && record.id == records[static_cast<std::size_t>(i - 1)].id;
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
        for (const TileRecord& record : records)
            kernel.tiles.push_back(make_tile(record, evaluator_.found, function_, evaluator_.tensors));
        return Done{};
    }

    Status name_axes(Kernel& kernel) {
        kernel.axes = axes_;
        if (const Directive* map = directive(DirectiveKind::pid_map)) {
            // Coordinates were recorded in the order of the mapping.
            std::vector<TileAxis> ordered;
            for (const auto& [name, variable] : map->mapping) {
                if (variable == nullptr) continue;
                const auto axis = std::find_if(named_.begin(), named_.end(),
                                               [&](const TileAxis& a) { return a.name == name; });
                if (axis == named_.end())
                    return module_.error(
                        map->where,
                        "`" + name + "` is not a tile axis of this kernel; its axes are " + axis_names());
                ordered.push_back(*axis);
            }
            kernel.axes = ordered;
            if (kernel.tiles.empty() || set_recorded_coordinates(kernel, evaluator_.found.tiles))
                return Done{};
            return module_.error(map->where,
                                 "this `@sy.pid_map` does not number the tiles: its variables do not take "
                                 "each pair of coordinates of " +
                                     axis_names() + " once");
        }
        if (set_recorded_coordinates(kernel, evaluator_.found.tiles)) return Done{};
        if (kernel.tiles.empty() || set_coordinates_by_writes(kernel, named_)) return Done{};
        kernel.axes.clear();
        return Done{};
    }

    std::string axis_names() const {
        std::string names;
        for (const TileAxis& axis : named_)
            names += (names.empty() ? "" : ", ") + axis.name + " (" + std::to_string(axis.count) + ")";
        return names.empty() ? "unknown" : names;
    }

    Status check_directives(const Kernel& kernel) {
        const Sites& sites = kernel.sites;
        const Directive* init = nullptr;
        for (const Directive& d : directives_) {
            const auto watched = evaluator_.found.watched.find(d.statement);
            const bool known = watched != evaluator_.found.watched.end();
            const std::int64_t value = known ? watched->second : 0;
            switch (d.kind) {
                case DirectiveKind::axis_count: {
                    if (d.axis.empty()) break;
                    const Expr& assigned = *d.statement->value;
                    if (d.block != nullptr && assigned.is_count &&
                        module_.text(assigned.count_by->where) != module_.text(d.block->where)) {
                        const auto number = [&](const Expr* e) -> std::optional<std::int64_t> {
                            if (e->kind == ExprKind::literal &&
                                std::holds_alternative<std::int64_t>(e->literal))
                                return std::get<std::int64_t>(e->literal);
                            const auto given = arguments_.scalars.find(e->text);
                            if (given == arguments_.scalars.end() ||
                                !std::holds_alternative<std::int64_t>(given->second))
                                return std::nullopt;
                            return std::get<std::int64_t>(given->second);
                        };
                        const auto said = number(d.block), used = number(assigned.count_by);
                        if (!said || !used || *said != *used) {
                            return module_.error(d.block->where,
                                                 "block=" + std::string(module_.text(d.block->where)) +
                                                     " contradicts " + quoted(module_, assigned.where) +
                                                     ", which counts blocks of " +
                                                     std::string(module_.text(assigned.count_by->where)));
                        }
                    }
                    const auto axis = std::find_if(kernel.axes.begin(), kernel.axes.end(),
                                                   [&](const TileAxis& a) { return a.name == d.axis; });
                    if (axis != kernel.axes.end() && known && axis->count != value) {
                        return module_.error(d.where, "axis " + d.axis + " has " +
                                                          std::to_string(axis->count) +
                                                          " tiles, the variable marked as its count is " +
                                                          std::to_string(value));
                    }
                    if (axis == kernel.axes.end() && !kernel.axes.empty()) {
                        return module_.error(
                            d.where, "no tile follows from this count: the tile axes are " + axis_names());
                    }
                    break;
                }
                case DirectiveKind::num_tiles:
                    if (known && value != static_cast<std::int64_t>(kernel.tiles.size())) {
                        return module_.error(d.where, "the variable marked as the number of tiles is " +
                                                          std::to_string(value) + ", but the launch runs " +
                                                          std::to_string(kernel.tiles.size()) + " tiles");
                    }
                    break;
                case DirectiveKind::tile_id: {
                    if (d.persistent && !sites.persistent)
                        return module_.error(d.where, "`persistent`: this kernel has no loop over tiles");
                    const std::string& variable = d.statement->target->text;
                    const bool is_id =
                        std::any_of(sites.tile_ids.begin(), sites.tile_ids.end(), [&](const TileIdSite& s) {
                            return std::find(s.variables.begin(), s.variables.end(), variable) !=
                                   s.variables.end();
                        });
                    const bool starts_loop =
                        sites.persistent && d.persistent;  // start_pid, where the loop starts
                    if (!is_id && !starts_loop)
                        return module_.error(
                            d.where, "`" + variable +
                                         "` is not a tile's linear id: no address follows from it as one");
                    if (sites.persistent && !d.persistent)
                        return module_.error(
                            d.where, "this kernel loops over its tiles; write `@sy.tile_id persistent`");
                    break;
                }
                case DirectiveKind::persistent_init:
                    if (d.begins) init = &d;
                    if (!d.begins && init != nullptr && sites.persistent &&
                        sites.tile_loop_header.begin > init->where.begin &&
                        sites.tile_loop_header.begin < d.where.begin) {
                        return module_.error(
                            d.where, "the tile loop (line " + std::to_string(sites.tile_loop_header.line) +
                                         ") lies inside the lines marked as run once per program");
                    }
                    break;
                case DirectiveKind::producer_epilogue:
                    if (sites.last_store.end > d.where.begin) {
                        return module_.error(d.where,
                                             "a tile still stores after this: its last store ends on line " +
                                                 std::to_string(last_line(sites.last_store)));
                    }
                    break;
                default: break;
            }
        }
        return Done{};
    }

    std::int32_t last_line(const SourceRange& range) const {
        const std::string_view text = module_.text(range);
        return range.line + static_cast<std::int32_t>(std::count(text.begin(), text.end(), '\n'));
    }

    Module& module_;
    std::int32_t index_;
    const Function& function_;
    const Arguments& arguments_;
    std::vector<Directive> directives_;
    std::set<std::int32_t> functions_;
    Evaluator evaluator_;
    std::array<std::int64_t, 3> grid_{1, 1, 1};
    bool persistent_ = false;
    std::vector<TileAxis> axes_;   // the tile space, when the counts make it up
    std::vector<TileAxis> named_;  // all counts
    std::vector<std::string> block_texts_;
    std::vector<const Expr*> count_exprs_;
};

}  // namespace

const Param* Kernel::find_param(const std::string& wanted) const {
    const auto found =
        std::find_if(params.begin(), params.end(), [&](const Param& p) { return p.name == wanted; });
    return found == params.end() ? nullptr : &*found;
}

Result<Kernel> analyse(std::string source, std::string file, const std::string& name,
                       const Arguments& arguments) {
    Result<std::unique_ptr<Module>> parsed = Module::parse(source, file);
    if (!parsed) return parsed.error();
    Module& module = **parsed;
    const Result<std::int32_t> index = choose_kernel(module, name);
    if (!index) return index.error();
    std::set<std::int32_t> reachable;
    if (const Status status = lower_reachable(module, *index, reachable); !status) return status.error();
    Result<std::vector<Directive>> directives = read_directives(module, *index);
    if (!directives) return directives.error();
    Analysis analysis(module, *index, arguments, std::move(*directives), std::move(reachable));
    Result<Kernel> kernel = analysis.run();
    if (!kernel) return kernel;
    kernel->source = std::move(source);
    kernel->file = std::move(file);
    return kernel;
}

Result<std::vector<std::string>> list_kernels(const std::string& source, const std::string& file) {
    Result<std::unique_ptr<Module>> module = Module::parse(source, file);
    if (!module) return module.error();
    const auto kernels = kernels_of(**module);
    if (!kernels) return kernels.error();
    std::vector<std::string> names;
    for (const std::int32_t k : *kernels)
        names.push_back((*module)->functions[static_cast<std::size_t>(k)].name);
    return names;
}

}  // namespace syncopate::kernel

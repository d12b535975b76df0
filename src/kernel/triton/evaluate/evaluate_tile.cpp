// The tiles of a program: the loop over them in a persistent kernel, where each begins and ends, and what it
// touched by then, stated footprints and coordinates included.
#include <algorithm>
#include <string>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {

Evaluator::Flow Evaluator::tile_loop(const Stmt& statement, Frame& frame, const Iterable& range) {
    if (found.tile_loop != nullptr && found.tile_loop != &statement) {
        return refuse_tiles(statement.where, "it is the second loop over tiles, after that on line " +
                                                 std::to_string(found.tile_loop->where.line));
    }
    if (range.step <= 0) return refuse_tiles(statement.value->where, "it counts downwards");
    if (statement.target->kind != ExprKind::name)
        return refuse_tiles(statement.target->where, "it has several variables");
    found.tile_loop = &statement;
    found.tile_start = range.start.constant;
    found.tile_stop = range.stop.constant;
    found.tile_step = range.step;
    const std::uint64_t bit = new_source(*statement.target, {.kind = TaintSource::Kind::tile_loop});
    found.strided = found.strided && range.start.constant == linear_program_;
    found.strided_x = found.strided_x && range.start.constant == program_[0];
    note_carried_ids(statement, frame);
    for (std::int64_t id = range.start.constant; id < range.stop.constant; id = wrap_add(id, range.step)) {
        frame.slots[statement.target->slot] = make_integer(id, true, bit, range.type);
        const Flow flow = one_tile(statement, frame, id);
        if (flow == Flow::stop_loop) break;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
        if (!step(statement.where)) return Flow::stop;
    }
    return Flow::next;
}

/// Whether a `while` loop in there may be over the program's tiles of a group.
bool Evaluator::walks_program(const std::vector<Stmt*>& body, const Frame& frame) const {
    return std::ranges::any_of(flattened(body), [&](const Stmt* s) {
        if (s->kind != StmtKind::while_loop || !has_stores(s->body)) return false;
        const Expr* const id = compared_id(*s);
        return id != nullptr && is_counted_id(frame.slots[id->slot]);
    });
}

/// for group in …: …; while tile_id < end of the group: …; tile_id += step. The program's tiles of one group.
Evaluator::Flow Evaluator::walk_of_group(const Stmt& statement, Frame& frame, const Expr& id,
                                         std::uint64_t taint) {
    if (effort_.tiles != Tiles::walks)
        return refuse_tiles(statement.where, "a loop is around it, so its rounds come in that one's order");
    if (found.tile_loop != nullptr && found.tile_loop != &statement)
        return refuse_tiles(statement.where, "it is the second loop over tiles, after that on line " +
                                                 std::to_string(found.tile_loop->where.line));
    found.tile_loop = &statement;
    found.bound_taint |= taint;
    found.strided = found.strided_x = false;  // number_tiles looks whether each is run once
    note_carried_ids(statement, frame);
    for (;;) {
        const Value condition = evaluate(*statement.value, frame);
        if (stopped()) return Flow::stop;
        const std::optional<bool> go = truth(*statement.value, condition);
        if (stopped()) return Flow::stop;
        if (!go) return refuse_tiles(statement.value->where, "how often it runs depends on data");
        if (!*go) return Flow::next;
        if (frame.slots[id.slot].kind != ValueKind::integer)
            return refuse_tiles(statement.value->where, "the id that it compares depends on data");
        const Flow flow = one_tile(statement, frame, frame.slots[id.slot].integer);
        if (flow == Flow::stop_loop) return Flow::next;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
        if (!step(statement.where)) return Flow::stop;
    }
}

Evaluator::Flow Evaluator::one_tile(const Stmt& statement, Frame& frame, std::int64_t id) {
    const std::size_t outer = tile_begin_;
    const std::int64_t stores = stores_;
    in_tile_loop_ = true;
    begin_tile(id);
    latest_load_ = {};  // a round may come to a load before others did
    taken_ = 0;
    for (std::size_t i = 0; i < sources.size(); ++i)
        if (sources[i].kind == TaintSource::Kind::tile_loop)
            taken_ |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
    carried_.clear();
    for (std::size_t i = 0; i < statement.assigned.size(); ++i) {
        Value& slot = frame.slots[statement.assigned[i]];
        const bool counts = statement.target != nullptr && statement.assigned[i] == statement.target->slot;
        if (fresh_[i] && !counts) slot = Value{};  // left over from an earlier tile
        carried_.push_back(slot);
    }
    const Flow flow = one_round(statement, frame);
    if (frame.stopped != nullptr) return refuse_tiles(statement.where, "it may end early, on data");
    if (flow != Flow::stop) end_tile(frame);
    for (std::size_t i = 0; i < statement.assigned.size(); ++i)
        if (is_counted_id(carried_[i])) found.count_taint |= frame.slots[statement.assigned[i]].taint;
    loop_stores_ += stores_ - stores;
    in_tile_loop_ = false;
    tile_begin_ = outer;
    if (const auto carried = carried_along(statement, frame); carried && flow != Flow::stop)
        return refuse_tiles(statement.where, "it carries `" + *carried + "` from one round to the next");
    return stopped() ? Flow::stop : flow;
}

/// The program is taken as one tile instead: analyse starts over.
Evaluator::Flow Evaluator::refuse_tiles(const SourceRange& where, std::string why) {
    if (!no_tiles) no_tiles = {where, std::move(why)};
    (void)fail(where, "not a loop over tiles");
    return Flow::stop;
}

/// A variable by which a round of the tile loop hands something on to the next: then rounds cannot be
/// exchanged. The ids of tiles that are counted beside the loop's own are no such thing.
std::optional<std::string> Evaluator::carried_along(const Stmt& statement, const Frame& frame) const {
    for (std::size_t i = 0; i < statement.assigned.size(); ++i) {
        const std::int32_t slot = statement.assigned[i];
        const Value &before = carried_[i], &after = frame.slots[slot];
        if (!statement.read_early[i] || fresh_[i]) continue;
        if (statement.target != nullptr && slot == statement.target->slot) continue;
        if (is_counted_id(before)) continue;
        const bool data = after.kind == ValueKind::opaque || after.kind == ValueKind::lost_pointer;
        if (data || !equal(before, after)) return frame.function->slots[static_cast<std::size_t>(slot)];
    }
    return std::nullopt;
}

/// Whether a value that a round begins with is the id of a tile, or of one a fixed number of tiles away.
bool Evaluator::is_counted_id(const Value& value) const {
    return value.kind == ValueKind::integer && (value.taint & program_bits_) != 0;
}

/// Whether a value follows from the program's id, or an item of it does.
bool Evaluator::is_programs(const Value& value) const {
    if ((value.taint & program_bits_) != 0) return true;
    return value.kind == ValueKind::tuple &&
           std::any_of(value.tuple->items, value.tuple->items + value.tuple->size,
                       [this](const Value& item) { return is_programs(item); });
}

/// Notes where the tile loop may read what its program brought and follows from that program's id: a tile
/// that another program runs would find something else there. Ids that are counted are sources instead.
void Evaluator::note_own_ids(const Stmt& statement, const Frame& frame) {
    const auto reads_own = [&](const Expr& e) {
        if (e.kind != ExprKind::name || e.slot < 0 || !is_programs(frame.slots[e.slot])) return false;
        const auto at = std::find(statement.assigned.begin(), statement.assigned.end(), e.slot);
        if (at == statement.assigned.end()) return true;
        const bool brought = statement.carried[static_cast<std::size_t>(at - statement.assigned.begin())];
        return brought && !is_counted_id(frame.slots[e.slot]);
    };
    for (const Stmt* s : flattened(statement.body)) {
        for (Expr* root : {s->value, s->target}) {
            if (root == nullptr) continue;
            for (const Expr* e : flattened(root))
                if (reads_own(*e)) own_ids_.insert(e);
        }
    }
}

/// Variables carried around the tile loop that started from the program id may be tile ids too: each place
/// that reads one, other than its own increment, becomes a source.
void Evaluator::note_carried_ids(const Stmt& statement, Frame& frame) {
    fresh_.clear();
    for (const std::int32_t slot : statement.assigned)
        fresh_.push_back(frame.slots[slot].kind == ValueKind::undefined);
    note_own_ids(statement, frame);
    for (const std::int32_t slot : statement.assigned) {
        if (statement.kind == StmtKind::for_loop && slot == statement.target->slot) continue;
        if (!is_counted_id(frame.slots[slot])) continue;
        for (const Stmt* s : flattened(statement.body)) {
            const bool is_own = (s->kind == StmtKind::assign || s->kind == StmtKind::augment) &&
                                s->target->kind == ExprKind::name && s->target->slot == slot;
            if (is_own) continue;
            for (const Expr* e : flattened(s->value)) {
                if (e->kind == ExprKind::name && e->slot == slot)
                    (void)new_source(*e, {.kind = TaintSource::Kind::carried_id});
            }
        }
    }
}

void Evaluator::begin_tile(std::int64_t id) {
    tile_id_ = id;
    tile_begin_ = found.touched.size();
    coord_.fill({});
}

/// The directives' numbers at the end of a tile, or of the tiles of a line: footprints that are stated, and
/// coordinates. False: they have no such form.
bool Evaluator::state_tile(Frame& frame, std::vector<StatedBox>& stated) {
    const auto number = [&](const Expr* e) -> std::optional<Affine> {
        mathematical_ = true;
        const Value value = evaluate(*e, frame);
        mathematical_ = false;
        if (stopped()) return std::nullopt;
        if (value.kind == ValueKind::integer) return Affine{value.integer, {}};
        if (on_line() && value.kind == ValueKind::block && value.block->rank == 0) return value.block->base;
        fail(e->where, quoted(module_, e->where) +
                           " in the directive is not a whole number at the end of the tile: write "
                           "variables that hold one");
        return std::nullopt;
    };
    for (const Directive& directive : directives_) {
        if (directive.kind == DirectiveKind::reads || directive.kind == DirectiveKind::writes) {
            const std::int32_t memory = stated_[static_cast<std::size_t>(&directive - directives_.data())];
            const auto param = static_cast<std::size_t>(memory);
            const bool write = directive.kind == DirectiveKind::writes;
            (write ? param_written : param_read)[param] = true;
            const TensorView& tensor = tensors[param];
            if (tensor.shape.empty()) continue;
            if (directive.ranges.size() != tensor.shape.size()) {
                fail(directive.where, "the footprint has " + std::to_string(directive.ranges.size()) +
                                          " axes, tensor `" + memory_names[param] + "` has " +
                                          std::to_string(tensor.shape.size()) +
                                          ": write one range for each, `:` for a whole axis");
                return false;
            }
            StatedBox& box = stated.emplace_back();
            box.param = memory;
            box.write = write;
            box.directive = &directive;
            for (std::size_t d = 0; d < directive.ranges.size(); ++d) {
                box.begin[d] = {0, {}};
                box.end[d] = {tensor.shape[d], {}};
                if (directive.ranges[d].begin != nullptr) {
                    const auto begin = number(directive.ranges[d].begin);
                    if (!begin) return false;
                    box.begin[d] = *begin;
                    if (directive.ranges[d].single) box.end[d] = *begin + 1;
                }
                if (directive.ranges[d].end != nullptr) {
                    const auto end = number(directive.ranges[d].end);
                    if (!end) return false;
                    box.end[d] = *end;
                }
            }
        } else if (directive.kind == DirectiveKind::pid_map) {
            std::size_t axis = 0;
            for (const auto& [name, variable] : directive.mapping) {
                if (axis >= kMostAxes) break;  // no kernel has as many tile axes: name_axes refuses
                const auto value = number(variable);
                if (!value) return false;
                coord_[axis++] = {value->constant, value->slope[0]};
            }
        }
    }
    return true;
}

/// Whether a loop of the tile that begins runs from and to the bounds that a directive states.
void Evaluator::hold_bounds(const Stmt& statement, const Iterable& range) {
    if (silent_ > 0) return;
    for (const Directive& directive : directives_) {
        for (const DirectiveBounds& stated : directive.bounds) {
            const auto is = [&](const Expr* e, const Affine& bound) {
                if (e->kind == ExprKind::literal) {
                    const auto* number = std::get_if<std::int64_t>(&e->literal);
                    return number != nullptr && bound == Affine{*number, {}};
                }
                const Value& value = stack_[static_cast<std::size_t>(e->slot)];  // the kernel's own variables
                if (value.kind == ValueKind::integer) return bound == Affine{value.integer, {}};
                return value.kind == ValueKind::block && value.block->rank == 0 && bound == value.block->base;
            };
            bool& holds = found.bounds.try_emplace({&stated, &statement}, true).first->second;
            holds = holds && is(stated.low, range.start) && is(stated.high, range.stop);
        }
    }
}

/// Adds a stated footprint to the tile: that of the line's i-th one.
void Evaluator::note_stated(const StatedBox& stated, std::int64_t i) {
    const std::vector<std::int64_t>& shape = tensors[static_cast<std::size_t>(stated.param)].shape;
    const auto at = [&](const Affine& a) { return wrap_add(a.constant, wrap_multiply(a.slope[0], i)); };
    Box box{};
    for (std::size_t d = 0; d < shape.size(); ++d) {
        box[d] = {std::max<std::int64_t>(0, at(stated.begin[d])), std::min(shape[d], at(stated.end[d]))};
        if (box[d].empty()) return;
    }
    found.stated.insert(stated.directive);
    found.boxes.push_back(box);
    const auto last = static_cast<std::uint32_t>(found.boxes.size());
    found.touched.push_back({stated.param, stated.write, false, false, false, false, false, false, last - 1,
                             last});  // who states it may state more
}

void Evaluator::end_tile(Frame& frame) {
    std::vector<StatedBox> stated;
    if (!state_tile(frame, stated)) return;
    for (const StatedBox& box : stated) note_stated(box, 0);
    TileRecord record{tile_id_, linear_program_, tile_begin_, found.touched.size(), {}};
    for (std::size_t a = 0; a < kMostAxes; ++a) record.coord[a] = coord_[a].at;
    found.tiles.push_back(record);
}

}  // namespace syncopate::kernel::triton

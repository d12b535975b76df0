// The tiles of a program: the loop over them in a persistent kernel, where each begins and ends, and what it
// touched by then, stated footprints and coordinates included.
#include <algorithm>
#include <string>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {

Evaluator::Flow Evaluator::tile_loop(const Stmt& statement, Frame& frame, const Iterable& range) {
    if (found.tile_loop != nullptr && found.tile_loop != &statement) {
        fail(statement.where,
             "the kernel has two loops over tiles; only one can be reordered: make one of them");
        return Flow::stop;
    }
    if (statement.target->kind != ExprKind::name) {
        fail(statement.target->where, "the loop over tiles needs one variable: write `for tile_id in …`");
        return Flow::stop;
    }
    found.tile_loop = &statement;
    found.tile_start = range.start.constant;
    found.tile_stop = range.stop.constant;
    found.tile_step = range.step;
    const std::uint64_t bit = new_source(*statement.target, {.kind = TaintSource::Kind::tile_loop});
    note_carried_ids(statement, frame);
    for (std::int64_t id = range.start.constant; id < range.stop.constant; id = wrap_add(id, range.step)) {
        frame.slots[statement.target->slot] = make_integer(id, true, bit);
        const Flow flow = one_tile(statement, frame, id);
        if (flow == Flow::stop_loop) break;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
        if (!step(statement.where)) return Flow::stop;
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::one_tile(const Stmt& statement, Frame& frame, std::int64_t id) {
    const std::size_t outer = tile_begin_;
    in_tile_loop_ = true;
    begin_tile(id);
    const Flow flow = execute(statement.body, frame);
    if (flow != Flow::stop) end_tile(frame);
    in_tile_loop_ = false;
    tile_begin_ = outer;
    return stopped() ? Flow::stop : flow;
}

/// Variables carried around the tile loop that started from the program id may be tile ids too: each place
/// that reads one, other than its own increment, becomes a source.
void Evaluator::note_carried_ids(const Stmt& statement, Frame& frame) {
    for (const std::int32_t slot : statement.assigned) {
        if (statement.kind == StmtKind::for_loop && slot == statement.target->slot) continue;
        const Value& value = frame.slots[slot];
        if (value.kind != ValueKind::integer || (value.taint & program_bits_) == 0) continue;
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
    coord_.fill(-1);
}

void Evaluator::end_tile(Frame& frame) {
    const auto number = [&](const Expr* e) -> std::optional<std::int64_t> {
        const Value value = evaluate(*e, frame);
        if (stopped()) return std::nullopt;
        if (value.kind == ValueKind::integer) return value.integer;
        fail(e->where, quoted(module_, e->where) +
                           " in the directive is not a whole number at the end of the tile: write "
                           "variables that hold one");
        return std::nullopt;
    };
    for (const Directive& directive : directives_) {
        if (directive.kind == DirectiveKind::reads || directive.kind == DirectiveKind::writes) {
            const auto param = static_cast<std::size_t>(directive.param);
            const bool write = directive.kind == DirectiveKind::writes;
            (write ? param_written : param_read)[param] = true;
            const TensorView& tensor = tensors[param];
            if (tensor.shape.empty()) continue;
            if (directive.ranges.size() != tensor.shape.size()) {
                fail(directive.where, "the footprint has " + std::to_string(directive.ranges.size()) +
                                          " axes, tensor `" + kernel_.parameters[param].name + "` has " +
                                          std::to_string(tensor.shape.size()) +
                                          ": write one range for each, `:` for a whole axis");
                return;
            }
            TouchedBox touched{directive.param, write, {}};
            bool empty = false;
            for (std::size_t d = 0; d < directive.ranges.size(); ++d) {
                plan::Interval& interval = touched.box[d];
                interval = {0, tensor.shape[d]};
                if (directive.ranges[d].begin != nullptr) {
                    const auto begin = number(directive.ranges[d].begin);
                    if (!begin) return;
                    if (directive.ranges[d].single)
                        interval.end = std::min(interval.end, wrap_add(*begin, 1));
                    interval.begin = std::max<std::int64_t>(0, *begin);
                }
                if (directive.ranges[d].end != nullptr) {
                    const auto end = number(directive.ranges[d].end);
                    if (!end) return;
                    interval.end = std::min(interval.end, *end);
                }
                empty = empty || interval.empty();
            }
            if (!empty) found.touched.push_back(touched);
        } else if (directive.kind == DirectiveKind::pid_map) {
            std::size_t axis = 0;
            for (const auto& [name, variable] : directive.mapping) {
                if (variable == nullptr || axis >= kMostAxes)
                    continue;  // lo..hi: an axis that the tile loops over
                const auto value = number(variable);
                if (!value) return;
                coord_[axis++] = *value;
            }
        }
    }
    found.tiles.push_back({tile_id_, linear_program_, tile_begin_, found.touched.size(), coord_});
}

}  // namespace syncopate::kernel

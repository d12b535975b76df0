// The tiles of a persistent kernel by lines. A round of the tile loop is a function of the tile's id and of
// what the program brought to the loop; programs mostly bring the same:
//
//      for tile in range(tl.program_id(0), tiles, PROGRAMS):      tiles 0, 1, 2, … in as many programs
//          m, n = tile // columns, tile % columns                  … of which each row is a line
//
// So programs are first run up to the loop, to see which tiles they run and what they bring; then tiles of
// programs that bring the same are run many at once, with the tile's id as an unknown. Ids that are counted
// beside the loop's own are the same number of tiles away from it in every round: a line checks that they
// stay so.
#include <algorithm>
#include <set>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::int32_t kRounds = 3;  // no axis of a grid

}  // namespace

/// Variables that the loop's body may read, or hands on.
const std::vector<std::int32_t>& Evaluator::slots_of_rounds(const Stmt& statement) {
    if (!round_slots_.empty()) return round_slots_;
    std::set<std::int32_t> slots(statement.assigned.begin(), statement.assigned.end());
    for (const Stmt* s : flattened(statement.body)) {
        for (Expr* root : {s->value, s->target}) {
            if (root == nullptr) continue;
            for (const Expr* e : flattened(root))
                if (e->kind == ExprKind::name && e->slot >= 0) slots.insert(e->slot);
        }
    }
    for (const Directive& directive : directives_) {
        const auto add = [&](const Expr* e) {
            if (e == nullptr) return;
            for (const Expr* part : flattened(const_cast<Expr*>(e)))
                if (part->kind == ExprKind::name && part->slot >= 0) slots.insert(part->slot);
        };
        for (const auto& range : directive.ranges) add(range.begin), add(range.end);
        for (const auto& entry : directive.mapping) add(entry.second);
        for (const DirectiveBounds& stated : directive.bounds) add(stated.low), add(stated.high);
    }
    round_slots_.assign(slots.begin(), slots.end());
    return round_slots_;
}

/// Whether a variable counts tiles beside the loop's own, as `tile_id_c` does.
bool Evaluator::counts_tiles(const Stmt& statement, std::size_t i, const Value& value) const {
    return statement.carried[i] && !fresh_[i] && value.kind == ValueKind::integer &&
           (value.taint & program_bits_) != 0;
}

/// The number of the programs that bring these values to the tile loop, of those that were seen last.
std::int32_t Evaluator::group_of(std::int64_t step, std::vector<Value> brings) {
    constexpr std::size_t kLooks = 16;
    const auto same = [&](const Value& a, const Value& b) {
        const bool alike = a.kind == b.kind && a.taint == b.taint && a.runtime == b.runtime &&
                           a.type == b.type && a.element == b.element && a.extents == b.extents;
        return alike && (a.kind == ValueKind::opaque ? a.why == b.why : equal(a, b));
    };
    for (std::size_t back = 0; back < std::min(kLooks, groups_.size()); ++back) {
        const Group& group = groups_[groups_.size() - 1 - back];
        if (group.control == control_ && group.step == step && std::ranges::equal(group.brings, brings, same))
            return group.number;
    }
    groups_.push_back({num_groups_++, control_, step, std::move(brings)});
    return groups_.back().number;
}

/// At the tile loop: runs the rounds that are wanted, or notes those that there are.
Evaluator::Flow Evaluator::rounds_of(const Stmt& statement, Frame& frame, const TileIds& ids) {
    const std::int32_t id_slot =
        statement.target != nullptr ? statement.target->slot : statement.value->kids[0]->slot;
    if (maybe_ != 0 || frame.stopped != nullptr || ids.step < 1 || kernel_.body.empty() ||
        kernel_.body.back() != &statement || !statement.otherwise.empty())
        return Flow::stop;
    found.tile_loop = &statement;
    fresh_.clear();
    for (const std::int32_t slot : statement.assigned)
        fresh_.push_back(frame.slots[slot].kind == ValueKind::undefined);
    reached_loop_ = true;
    if (rounds_asked_ != nullptr) return line_of_rounds(statement, frame, ids, id_slot);

    // What the program brings.
    std::vector<Value> brings;
    for (const std::int32_t slot : slots_of_rounds(statement)) {
        if (slot == id_slot) continue;
        Value value = frame.slots[slot];
        const auto at = std::find(statement.assigned.begin(), statement.assigned.end(), slot);
        if (at != statement.assigned.end() &&
            counts_tiles(statement, static_cast<std::size_t>(at - statement.assigned.begin()), value))
            value.integer = wrap_add(value.integer, wrap_multiply(ids.start, -1));
        brings.push_back(value);
    }
    const std::int32_t group = group_of(ids.step, std::move(brings));
    found.tile_start = ids.start;
    found.tile_stop = ids.stop;
    found.tile_step = ids.step;
    found.strided = found.strided && ids.start == linear_program_;
    for (std::int64_t id = ids.start; id < ids.stop; id = wrap_add(id, ids.step)) {
        if (!step(statement.where)) return Flow::stop;
        tile_rounds.push_back({id, linear_program_, group, 0, 0});
    }
    return Flow::returned;
}

/// while tile < bound: …; tile += step, with the step of the first program's, which each line checks.
Evaluator::Flow Evaluator::rounds_while(const Stmt& statement, Frame& frame, const Value& condition) {
    const Expr& compared = *statement.value;
    const std::int32_t slot = compared.kids[0]->slot;
    if (compared.op != Operator::less || compared.kids.size() != 2) return Flow::stop;
    for (const Expr* e : flattened(compared.kids[1])) {
        const bool constant = e->kind != ExprKind::name || e->slot < 0 ||
                              std::find(statement.assigned.begin(), statement.assigned.end(), e->slot) ==
                                  statement.assigned.end();
        if (!constant || e->kind == ExprKind::bind || e->kind == ExprKind::call ||
            e->kind == ExprKind::method)
            return Flow::stop;
    }
    const Value bound = evaluate(*compared.kids[1], frame);
    if (bound.kind != ValueKind::integer || (found.tile_loop != nullptr && found.tile_loop != &statement))
        return Flow::stop;
    found.bound_taint |= condition.taint;
    found.strided = found.strided && strides(found.tile_step);
    return rounds_of(statement, frame,
                     {frame.slots[slot].integer, bound.integer, found.tile_step, frame.slots[slot].type});
}

/// Runs the program up to its tile loop and notes in `tile_rounds` which tiles it runs. False: it is not of
/// the form that can be run by lines.
bool Evaluator::note_rounds(const std::array<std::int64_t, 3>& program,
                            const std::array<std::int64_t, 3>& grid) {
    Frame frame = enter(program, grid);
    const std::size_t touched = found.touched.size(), first = tile_rounds.size(), outer = outer_.size();
    const std::int64_t stores = stores_;
    by_rounds_ = true;
    reached_loop_ = false;
    const Flow flow = execute(kernel_.body, frame);
    by_rounds_ = false;
    const bool noted = reached_loop_ && flow == Flow::returned && !stopped() && stores_ == stores;
    if (noted)
        outer_.insert(outer_.end(), found.touched.begin() + static_cast<std::ptrdiff_t>(touched),
                      found.touched.end());
    found.touched.resize(touched);
    for (std::size_t i = first; i < tile_rounds.size(); ++i)
        tile_rounds[i].outer_begin = outer, tile_rounds[i].outer_end = outer_.size();
    error_.reset();
    no_tiles.reset();
    not_affine_ = false;
    return noted;
}

/// Runs tiles of programs that bring the same to the loop, ids `stride` apart: more than one at once, with
/// the id as an unknown. False, having found nothing, where they have no form in common.
bool Evaluator::run_rounds(const std::array<std::int64_t, 3>& program,
                           const std::array<std::int64_t, 3>& grid, std::span<const Round> tiles,
                           std::int64_t stride, LineHint& hint) {
    Frame frame = enter(program, grid);
    const Found before{found.touched.size(), found.tiles.size(), advances_.size()};
    rounds_asked_ = &tiles;
    rounds_stride_ = stride;
    by_rounds_ = true;
    reached_loop_ = false;
    const Flow flow = execute(kernel_.body, frame);
    by_rounds_ = false;
    rounds_asked_ = nullptr;
    const bool done = reached_loop_ && flow == Flow::returned && !stopped();
    if (done && last_in_loop_ != nullptr) found.last_store = last_in_loop_;
    end_line(done, before, static_cast<std::int64_t>(tiles.size()), hint);
    return done;
}

Evaluator::Flow Evaluator::line_of_rounds(const Stmt& statement, Frame& frame, const TileIds& ids,
                                          std::int32_t id_slot) {
    const std::span<const Round> tiles = *rounds_asked_;
    const bool alone = tiles.size() == 1;
    found.touched.resize(tile_begin_);  // what is outside of the loop has been noted
    if (!alone) begin_line(kRounds, static_cast<std::int64_t>(tiles.size()), rounds_stride_);
    const auto along = [&](std::int64_t from, std::uint64_t taint, IntegerType type) {
        Value made = alone ? make_integer(from, true, 0) : along_line(from);
        made.taint = taint;
        made.type = type;
        return made;
    };
    std::vector<Value> before;
    for (std::size_t i = 0; i < statement.assigned.size(); ++i) {
        Value& slot = frame.slots[statement.assigned[i]];
        if (counts_tiles(statement, i, slot) && statement.assigned[i] != id_slot)
            slot = along(wrap_add(tiles[0].id, wrap_add(slot.integer, wrap_multiply(ids.start, -1))),
                         slot.taint, slot.type);
    }
    Value& id = frame.slots[id_slot];
    const std::uint64_t bit = statement.target != nullptr
                                  ? new_source(*statement.target, {.kind = TaintSource::Kind::tile_loop})
                                  : id.taint;
    id = along(tiles[0].id, bit, ids.type);
    for (const std::int32_t slot : statement.assigned) before.push_back(frame.slots[slot]);
    in_tile_loop_ = true;
    begin_tile(tiles[0].id);
    const Flow flow = one_round(statement, frame);
    if (flow != Flow::next || frame.stopped != nullptr || stopped()) return Flow::stop;
    // Rounds hand nothing on but counted ids, each a step further.
    for (std::size_t i = 0; i < statement.assigned.size(); ++i) {
        const Value& after = frame.slots[statement.assigned[i]];
        if (!statement.carried[i] || fresh_[i]) continue;
        if (statement.target != nullptr && statement.assigned[i] == id_slot) continue;
        const bool counted = (before[i].taint & program_bits_) != 0 &&
                             (before[i].kind == ValueKind::integer ||
                              (before[i].kind == ValueKind::block && before[i].block->rank == 0));
        if (counted) {
            const bool same_kind = after.kind == before[i].kind && (alone || after.block->rank == 0);
            if (!same_kind) return Flow::stop;
            const bool is_next = alone ? after.integer == wrap_add(before[i].integer, ids.step)
                                       : after.block->base == before[i].block->base + ids.step;
            if (!is_next) return Flow::stop;
            found.count_taint |= after.taint;
            continue;
        }
        const bool data = after.kind == ValueKind::opaque || after.kind == ValueKind::lost_pointer;
        if (data || !equal(before[i], after)) return Flow::stop;
    }
    std::vector<StatedBox> stated;
    if (!state_tile(frame, stated)) return Flow::stop;
    std::vector<LineTile> made;
    made.reserve(tiles.size());
    for (const Round& tile : tiles) made.push_back({tile.id, tile.program, tile.outer_begin, tile.outer_end});
    return spread_line(tile_begin_, made, stated) ? Flow::returned : Flow::stop;
}

}  // namespace syncopate::kernel::triton

// Loops, which run once for all of their iterations where induction holds, else iteration by iteration; and
// which of them run over tiles.
#include <algorithm>
#include <set>
#include <utility>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {

bool Evaluator::has_stores(const std::vector<Stmt*>& body) const {
    std::vector<const std::vector<Stmt*>*> bodies{&body};
    std::set<std::int32_t> seen;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        for (const Stmt* s : flattened(*bodies[i])) {
            for (const Expr* e : flattened(s->value)) {
                if (e->kind != ExprKind::call && e->kind != ExprKind::method) continue;
                if (e->builtin == Builtin::store || e->builtin == Builtin::atomic ||
                    e->builtin == Builtin::descriptor_store || e->text == "scatter") {
                    return true;
                }
                if (e->function >= 0 && seen.insert(e->function).second) {
                    bodies.push_back(&module_.functions[static_cast<std::size_t>(e->function)].body);
                }
            }
        }
    }
    return false;
}

namespace {

std::int64_t trips_of(std::int64_t length, std::int64_t step) {
    return length <= 0 ? 0 : (length - 1) / step + 1;
}

}  // namespace

/// Whether a loop over a length that is another one for each program of a line runs as often in all of them;
/// if only in the first ones, notes how long the line may be.
bool Evaluator::same_trips(const Affine& length, std::int64_t step) {
    constexpr std::int64_t kLongest = std::int64_t{1} << 40;
    for (std::size_t s = 1; s < kSymbols; ++s)
        if (length.slope[s] != 0) return false;
    const std::int64_t last = lowest_highest(length, length.slope[0] > 0).constant;
    const auto far = [&](std::int64_t n) { return n > kLongest || n < -kLongest; };
    if (!on_line() || far(length.constant) || far(last) || step > kLongest) return false;
    const std::int64_t trips = trips_of(length.constant, step);
    if (trips_of(last, step) == trips) return true;
    fits_while_below(length, trips * step + 1);
    fits_while_below(length * -1, -(trips - 1) * step);
    return false;
}

Evaluator::Flow Evaluator::for_loop(const Stmt& statement, Frame& frame) {
    const Value over = evaluate(*statement.value, frame);
    if (stopped()) return Flow::stop;
    if (over.kind == ValueKind::tuple) {
        const Value* around = std::exchange(frame.stopped, nullptr);
        Flow left = Flow::next;
        for (std::int32_t i = 0; i < over.tuple->size; ++i) {
            assign(*statement.target, over.tuple->items[i], frame);
            left = next_round(statement, frame);
            if (left != Flow::next) break;
        }
        left = end_rounds(statement, frame, around, left);
        if (left == Flow::stop_loop) return Flow::next;
        return left == Flow::next ? execute(statement.otherwise, frame) : left;
    }
    if (over.kind == ValueKind::opaque) {
        steered_by_[statement.value] = over.why;
        return unknown_rounds(statement, frame, over);
    }
    if (over.kind != ValueKind::iterable) {
        fail(statement.value->where,
             "a kernel's loop must run over range(…), not " + quoted(module_, statement.value->where));
        return Flow::stop;
    }
    Iterable range = *over.iterable;
    range.taint = over.taint & program_bits_;
    if (!range.known) {
        steered_by_[statement.value] = range.why;
        return unknown_rounds(statement, frame, opaque(*statement.value, over.taint));
    }
    const Affine span = range.stop - range.start;
    const std::int64_t step_size = range.step > 0 ? range.step : wrap_multiply(range.step, -1);
    const Affine length = range.step > 0 ? span : span * -1;
    const std::int64_t trips = trips_of(length.constant, step_size);
    if (!span.is_constant() && !same_trips(length, step_size))
        return (void)not_affine(*statement.value), Flow::stop;
    const bool may_number_tiles =
        frame.is_kernel && !in_tile_loop_ && outside_loops() && (over.taint & program_bits_) != 0;
    const bool over_tiles = may_number_tiles && has_stores(statement.body);
    if (over_tiles && !by_program) {
        if (on_line()) return not_affine_ = true, Flow::stop;  // its rounds are tiles of their own
        if (!around_.empty())
            return refuse_tiles(statement.where,
                                "a loop is around it, so its rounds come in that one's order");
        found.bound_taint |= over.taint;
        return tile_loop(statement, frame, range);
    }
    const std::int32_t walked_around = walked_;
    if (!over_tiles) hold_bounds(statement, range);
    if (in_parts() && !over_tiles)
        reach_loop(statement, range.unrolled ? std::nullopt : std::optional(trips));
    if (trips == 0) {
        walked_ = walked_around;
        if (!range.unrolled) end_variable(statement, frame);
        return execute(statement.otherwise, frame);
    }
    constexpr std::int64_t kMostTrips = std::int64_t{1} << 40;
    if (trips > kMostTrips || span.constant > kMostTrips || span.constant < -kMostTrips ||
        step_size > kMostTrips) {
        fail(statement.value->where,
             quoted(module_, statement.value->where) +
                 " runs for longer than any launch: give --args for which it ends earlier");
        return Flow::stop;
    }
    around_.push_back(statement.loop);
    LoopRecord& record = loops[static_cast<std::size_t>(statement.loop)];
    if (silent_ == 0) {
        record.statement = &statement;
        record.in_kernel = frame.is_kernel;
        record.parts = over_tiles;
        if (record.trips >= 0 && record.trips != trips) record.same_trips = false;
        record.trips = std::max(record.trips, trips);
    }
    // Where rounds of a loop in there are tiles, each is looked at by itself.
    const bool walks = effort_.tiles == Tiles::walks && !by_program && frame.is_kernel &&
                       walks_program(statement.body, frame);
    const bool symbolic = !range.unrolled && !walks && trips_.size() + (on_line() ? 0 : 1) < kSymbols &&
                          statement.target->kind == ExprKind::name;
    const Flow flow =
        symbolic ? all_rounds(statement, frame, range, trips) : each_round(statement, frame, range, trips);
    around_.pop_back();
    walked_ = walked_around;
    if ((flow == Flow::stop_loop || flow == Flow::next) && !range.unrolled) end_variable(statement, frame);
    if (flow == Flow::stop_loop) return Flow::next;
    return flow == Flow::next ? execute(statement.otherwise, frame) : flow;
}

/// Triton leaves a loop's variable undefined after the loop, whatever it was before.
void Evaluator::end_variable(const Stmt& statement, Frame& frame) {
    const Expr& variable = *statement.target;
    if (variable.kind != ExprKind::name || variable.slot < 0) return;
    frame.slots[variable.slot] =
        opaque(variable, 0, "a loop's variable, which Triton does not keep after the loop");
}

/// Whether all loops around, if any, run over parts of the tile.
bool Evaluator::in_parts() const {
    return std::ranges::all_of(
        around_, [&](std::int32_t loop) { return loops[static_cast<std::size_t>(loop)].parts; });
}

/// A loop of the tile begins that no other loop of it is around, but for those over parts of the tile: how
/// often it runs is noted as a touch of nothing. Without `trips` that is not known.
void Evaluator::reach_loop(const Stmt& statement, std::optional<std::int64_t> trips) {
    if (silent_ > 0) return;
    const auto next = static_cast<std::int32_t>(walked.size());
    const auto [at, is_new] = walked_index_.try_emplace({path_, &statement}, next);
    if (is_new) walked.push_back({&statement, call_path_});
    WalkedLoop& loop = walked[static_cast<std::size_t>(at->second)];
    loop.whole = loop.whole || !trips || maybe_ > 0;
    if (loop.whole) return;
    walked_ = at->second;
    if (*trips == 0) return;
    Touch ran;
    ran.walk = note_walk(Walk{.loop = walked_, .trips = *trips});
    found.touched.push_back(ran);
}

/// One round of a loop's body, and the rounds that were left early on a condition that depends on data.
Evaluator::Flow Evaluator::one_round(const Stmt& statement, Frame& frame) {
    const Value* around = frame.next_round;
    frame.next_round = nullptr;
    const std::int32_t in_doubt = std::exchange(frame.rounds_in_doubt, 0);
    Flow flow = execute(statement.body, frame);
    maybe_ -= std::exchange(frame.rounds_in_doubt, in_doubt);
    if (frame.next_round != nullptr && (flow == Flow::next || flow == Flow::next_round)) {
        join(frame, frame.next_round, *statement.value);
        flow = Flow::next;
    } else if (frame.next_round != nullptr && flow != Flow::stop) {
        // Left for good one way, and for the next round the other way: which, data decides.
        if (flow == Flow::stop_loop) {
            if (frame.stopped != nullptr) join(frame, frame.stopped, *statement.value);
            frame.stopped = snapshot(frame);
        } else {
            frame.may_have_returned = true;
            ++maybe_;
        }
        std::copy_n(frame.next_round, frame.function->slots.size(), frame.slots);
        flow = Flow::next;
    }
    frame.next_round = around;
    return flow == Flow::next_round ? Flow::next : flow;
}

/// A loop of which only the kernel's data says how often it runs. What its rounds change is unknown in them
/// and after it; what they leave as it was stays known.
Evaluator::Flow Evaluator::unknown_rounds(const Stmt& statement, Frame& frame, const Value& index) {
    const Expr& why = *statement.value;
    if (statement.kind == StmtKind::for_loop && in_parts()) reach_loop(statement, std::nullopt);
    const Value* entry = snapshot(frame);
    std::vector<bool> changes(statement.assigned.size());
    const Value* around = frame.stopped;
    const std::int32_t maybe = maybe_++;
    const auto enter = [&] {
        std::copy_n(entry, frame.function->slots.size(), frame.slots);
        for (std::size_t i = 0; i < changes.size(); ++i) {
            Value& slot = frame.slots[statement.assigned[i]];
            if (changes[i]) slot = unknown(slot, why);
        }
        if (statement.target != nullptr) assign(*statement.target, unknown(index, why), frame);
        frame.stopped = nullptr;
        // What it loads or stores it does with what the rounds have changed.
        if (statement.kind == StmtKind::while_loop) (void)evaluate(why, frame);
    };
    const auto leave = [&](Flow flow) {
        frame.stopped = around;
        maybe_ = std::max(maybe, maybe_ - (flow == Flow::returned ? 0 : 1));  // a return in doubt stays so
        return stopped() ? Flow::stop : Flow::next;
    };
    for (bool again = true; again;) {
        again = false;
        ++silent_;
        enter();
        const Flow flow = stopped() ? Flow::stop : one_round(statement, frame);
        --silent_;
        if (flow == Flow::stop) return leave(flow);
        for (std::size_t i = 0; i < changes.size(); ++i) {
            const std::int32_t slot = statement.assigned[i];
            if (changes[i] || entry[slot].kind == ValueKind::undefined) continue;
            if (equal(entry[slot], frame.slots[slot])) continue;
            changes[i] = again = true;
        }
    }
    enter();
    const Flow flow = stopped() ? Flow::stop : one_round(statement, frame);
    if (flow == Flow::stop) return leave(flow);
    if (frame.stopped != nullptr) join(frame, frame.stopped, why);
    join(frame, entry, why);
    for (std::size_t i = 0; i < changes.size(); ++i) {
        Value& slot = frame.slots[statement.assigned[i]];
        if (changes[i]) slot = unknown(slot, why);
    }
    const Flow left = leave(flow);
    return left == Flow::next ? execute(statement.otherwise, frame) : left;
}

Evaluator::Flow Evaluator::each_round(const Stmt& statement, Frame& frame, const Iterable& range,
                                      std::int64_t trips) {
    const Value* around = std::exchange(frame.stopped, nullptr);
    Flow left = Flow::next;
    for (std::int64_t i = 0; i < trips; ++i) {
        const Affine at = range.start + wrap_multiply(range.step, i);
        Value index = make_integer(at.constant, true, range.taint, range.type);
        if (!at.is_constant()) {
            Block* block = arena_.make<Block>();
            block->base = at;
            index.kind = ValueKind::block;
            index.block = block;
        }
        index.runtime = !range.unrolled;
        assign(*statement.target, index, frame);
        left = next_round(statement, frame);
        if (left == Flow::next && !step(statement.where)) left = Flow::stop;
        if (left != Flow::next) break;
    }
    return end_rounds(statement, frame, around, left);
}

/// A round that is not the first one: the loop may have been left before it, on data.
Evaluator::Flow Evaluator::next_round(const Stmt& statement, Frame& frame) {
    const std::int32_t in_doubt = frame.stopped != nullptr ? 1 : 0;
    maybe_ += in_doubt;
    const Flow flow = stopped() ? Flow::stop : one_round(statement, frame);
    maybe_ -= in_doubt;
    return flow;
}

/// What follows a loop whose last round ended so, and which may have been left early on data; `around`: where the loop around was.
Evaluator::Flow Evaluator::end_rounds(const Stmt& statement, Frame& frame, const Value* around, Flow left) {
    const Value* const early = std::exchange(frame.stopped, around);
    if (early == nullptr || left == Flow::stop) return left;
    if (left != Flow::returned) return join(frame, early, *statement.value), Flow::next;
    // One way goes on behind the loop, the other one ends the function.
    frame.may_have_returned = true;
    ++maybe_;
    std::copy_n(early, frame.num_slots(), frame.slots);
    return Flow::next;
}

/// The variable of a loop whose iteration is `symbol`.
Value Evaluator::index_of(const Iterable& range, int symbol) {
    Value start = make_integer(range.start.constant, true, range.taint, range.type);
    if (!range.start.is_constant()) {
        Block* block = arena_.make<Block>();
        block->base = range.start;
        start.kind = ValueKind::block;
        start.block = block;
    }
    Guess by_step;
    by_step.kind = Guess::Kind::advance;
    by_step.delta[0] = range.step;
    return advance(start, by_step, symbol, 0);
}

/// Gives what a loop carries its guessed values of iteration `symbol`; false where a guess cannot be right.
bool Evaluator::start_guessed(const Stmt& statement, Frame& frame, const Value* entry,
                              const std::vector<Guess>& guesses, int symbol) {
    for (std::size_t i = 0; i < guesses.size(); ++i) {
        const bool differs =
            (guesses[i].kind == Guess::Kind::absent) != (entry[i].kind == ValueKind::undefined);
        if (differs && statement.assigned[i] != statement.target->slot) return false;
        Value& slot = frame.slots[statement.assigned[i]];
        slot = advance(entry[i], guesses[i], symbol, 0);
        if (guesses[i].kind == Guess::Kind::lost) slot = unknown(entry[i], *statement.value);
    }
    return true;
}

/// Whether all that a loop carries has the values that are guessed for the iteration after `symbol`.
bool Evaluator::ends_guessed(const Stmt& statement, const Frame& frame, const Value* entry,
                             const std::vector<Guess>& guesses, int symbol) {
    for (std::size_t i = 0; i < guesses.size(); ++i) {
        const Guess& g = guesses[i];
        const Value& end = frame.slots[statement.assigned[i]];
        if (g.kind == Guess::Kind::absent || g.kind == Guess::Kind::lost ||
            statement.assigned[i] == statement.target->slot)
            continue;
        if (!equal(end, advance(entry[i], g, symbol, 1))) return false;
    }
    return true;
}

/// Makes slices of the loop of its advances from `first` on; those of other loops stay.
void Evaluator::keep_slices(std::int32_t loop, std::size_t first) {
    std::size_t kept = first;
    for (std::size_t i = first; i < advances_.size(); ++i) {
        if (advances_[i].first != loop) {
            advances_[kept++] = advances_[i];
            continue;
        }
        const auto& [param, advance] = advances_[i].second;
        auto& slices = loops[static_cast<std::size_t>(loop)].slices;
        const auto [slice, is_new] = slices.try_emplace(param, advance);
        Advance& known = slice->second;
        if (advance.several || !(known == advance)) known = Advance{};
    }
    advances_.resize(kept);
}

// Runs the body once with the iteration as an unknown. What is carried around the loop is guessed to advance
// by a constant; the guess is proven when the body, started from the guess for iteration i, ends in that for
// i + 1.
Evaluator::Flow Evaluator::all_rounds(const Stmt& statement, Frame& frame, const Iterable& range,
                                      std::int64_t trips) {
    const int symbol = static_cast<int>(trips_.size());
    const std::size_t count = statement.assigned.size();
    Value* entry = arena_.make<Value>(count);
    for (std::size_t i = 0; i < count; ++i) {
        Value& slot = frame.slots[statement.assigned[i]];
        if (!statement.carried[i]) slot = Value{};  // left over from an earlier tile
        entry[i] = slot;
    }
    const std::size_t touched = found.touched.size(), advances = advances_.size();
    const std::uint64_t control = control_;
    const std::int32_t maybe = maybe_;
    trips_.push_back(trips);
    symbol_loops_.push_back(statement.loop);

    const Value index = index_of(range, symbol);

    const auto leave = [&] {
        trips_.pop_back();
        symbol_loops_.pop_back();
        control_ = control;
    };
    const auto once = [&]() -> bool {
        frame.slots[statement.target->slot] = index;
        const Value* around = frame.stopped;
        frame.stopped = nullptr;
        const Flow flow = one_round(statement, frame);
        const bool may_stop = frame.stopped != nullptr;
        frame.stopped = around;
        // A round that may have returned leaves those after it in doubt: they are not like it.
        return flow == Flow::next && !may_stop && maybe_ == maybe;
    };
    std::vector<Guess>& guesses = guesses_[static_cast<std::size_t>(statement.loop)];
    bool proven = false;
    for (int attempt = guesses.empty() ? 1 : 0; attempt < 2 && !proven; ++attempt) {
        bool possible = true;
        if (attempt == 1) {
            // Probe: one silent run from the values at entry.
            ++silent_;
            possible = once();
            --silent_;
            if (error_) return leave(), Flow::stop;
            possible = possible && !not_affine_;
            guesses.assign(count, Guess{});
            for (std::size_t i = 0; i < count && possible; ++i) {
                if (statement.assigned[i] == statement.target->slot) continue;
                const auto made = guess(entry[i], frame.slots[statement.assigned[i]]);
                possible = made.has_value();
                if (made) guesses[i] = *made;
            }
        }
        if (possible) {
            possible = start_guessed(statement, frame, entry, guesses, symbol) && once() && !not_affine_;
            if (error_) return leave(), Flow::stop;
            proven = possible && ends_guessed(statement, frame, entry, guesses, symbol);
        }
        if (!proven) {
            not_affine_ = false;
            maybe_ = maybe;
            found.touched.resize(touched);
            advances_.resize(advances);
            guesses.clear();
            for (std::size_t i = 0; i < count; ++i) frame.slots[statement.assigned[i]] = entry[i];
        }
    }
    leave();
    if (!proven) return each_round(statement, frame, range, trips);
    if (silent_ == 0) keep_slices(statement.loop, advances);
    for (std::size_t i = 0; silent_ == 0 && i < count; ++i) {
        const bool moves = guesses[i].kind == Guess::Kind::advance && statement.carried[i];
        if (moves && statement.assigned[i] != statement.target->slot)
            loops[static_cast<std::size_t>(statement.loop)].counted = statement.assigned[i];
    }
    // After the loop, everything has the value that the last iteration left.
    for (const std::int32_t slot : statement.assigned) {
        frame.slots[slot] = substitute(frame.slots[slot], symbol, trips - 1);
    }
    return Flow::next;
}

/// Whether a `while` loop that advances by `step` may be one over all programs: by their number, where known.
bool Evaluator::strides(std::int64_t step) const {
    const bool grid_known = std::ranges::all_of(grid_, [](std::int64_t extent) { return extent > 0; });
    return !grid_known || step == grid_[0] * grid_[1] * grid_[2];
}

/// The id that a `while` loop compares first: tile_id < num_tiles, or tile_id >= before and tile_id < end.
const Expr* Evaluator::compared_id(const Stmt& statement) const {
    const Expr* condition = statement.value;
    if (condition->kind == ExprKind::both && effort_.tiles == Tiles::walks) condition = condition->kids[0];
    if (condition->kind != ExprKind::compare) return nullptr;
    const Expr* const id = condition->kids[0];
    return id->kind == ExprKind::name && id->slot >= 0 ? id : nullptr;
}

/// Of a condition that data decides: of `a < b & data`, whether a < b; nothing where no such part is known.
std::optional<bool> Evaluator::known_part(const Expr& condition, Frame& frame) {
    const bool joins = condition.kind == ExprKind::both ||
                       (condition.kind == ExprKind::binary && condition.op == Operator::bit_and);
    if (!joins)
        return condition.kind == ExprKind::compare ? truth(condition, evaluate(condition, frame))
                                                   : std::nullopt;
    std::optional<bool> all;
    for (const Expr* part : condition.kids) {
        const std::optional<bool> one = known_part(*part, frame);
        if (one) all = all.value_or(true) && *one;
        if (one == false && condition.kind == ExprKind::both) break;  // the others are not run
    }
    return all;
}

/// Rounds of a `while` that data may end before any of them: as many as the known part of its condition allows.
Evaluator::Flow Evaluator::bounded_rounds(const Stmt& statement, Frame& frame) {
    // That part might hold for ever, or for a number of rounds that nobody reaches; those of loops inside loops multiply.
    constexpr int kMost = 128, kMostOfAll = 1024;
    const auto binds = [](const Expr* part) { return part->kind == ExprKind::bind; };
    if (std::ranges::any_of(flattened(statement.value), binds))  // parts are evaluated once more
        return unknown_rounds(statement, frame, Value{});
    const Value* const around = std::exchange(frame.stopped, nullptr);
    Flow left = Flow::next;
    for (int round = 0;; ++round) {
        const std::int32_t in_doubt = round > 0 ? 1 : 0;
        maybe_ += in_doubt;
        if (round > 0) (void)evaluate(*statement.value, frame);  // it may load
        ++silent_;                                               // and has done so
        const bool walks = round < kMost && ++bounded_ <= kMostOfAll;
        const std::optional<bool> goes_on = walks ? known_part(*statement.value, frame) : std::nullopt;
        --silent_;
        maybe_ -= in_doubt;
        if (stopped()) return frame.stopped = around, Flow::stop;
        if (!goes_on) {
            const Value* const early = std::exchange(frame.stopped, around);
            if (early != nullptr) join(frame, early, *statement.value);
            return unknown_rounds(statement, frame, Value{});
        }
        if (!*goes_on) break;
        const Value* const now = snapshot(frame);
        if (frame.stopped != nullptr) {
            join(frame, frame.stopped, *statement.value);
            frame.stopped = snapshot(frame);
            std::copy_n(now, frame.num_slots(), frame.slots);
        } else {
            frame.stopped = now;
        }
        left = next_round(statement, frame);
        if (left == Flow::next && !step(statement.where)) left = Flow::stop;
        if (left != Flow::next) break;
    }
    left = end_rounds(statement, frame, around, left);
    if (left == Flow::stop_loop) return Flow::next;
    return left == Flow::next ? execute(statement.otherwise, frame) : left;
}

Evaluator::Flow Evaluator::while_loop(const Stmt& statement, Frame& frame) {
    for (std::int64_t i = 0;; ++i) {
        const Value condition = evaluate(*statement.value, frame);
        if (stopped()) return Flow::stop;
        const std::optional<bool> go = truth(*statement.value, condition);
        if (stopped()) return Flow::stop;
        if (!go) {
            if (condition.kind == ValueKind::opaque) steered_by_[statement.value] = condition.why;
            return while_waiting([&] { return bounded_rounds(statement, frame); });
        }
        const bool over_tiles =
            frame.is_kernel && !by_program && outside_loops() && (condition.taint & program_bits_) != 0 &&
            (found.tile_loop == &statement || (!in_tile_loop_ && has_stores(statement.body)));
        // while tile_id < num_tiles: …; tile_id += step
        const Expr* compared = compared_id(statement);
        const bool names_id = compared != nullptr && frame.slots[compared->slot].kind == ValueKind::integer;
        if (over_tiles && on_line()) return not_affine_ = true, Flow::stop;
        if (over_tiles && names_id && !around_.empty()) {
            const Flow flow = walk_of_group(statement, frame, *compared, condition.taint);
            if (flow == Flow::stop || flow == Flow::returned) return flow;
            return execute(statement.otherwise, frame);
        }
        if (over_tiles && names_id) {
            if (i == 0) {
                if (found.tile_loop == nullptr) found.tile_loop = &statement;
                if (found.tile_loop != &statement)
                    return refuse_tiles(statement.where,
                                        "it is the second loop over tiles, after that on line " +
                                            std::to_string(found.tile_loop->where.line));
                found.bound_taint |= condition.taint;
                note_carried_ids(statement, frame);
                found.tile_start = frame.slots[compared->slot].integer;
                found.strided = found.strided && found.tile_start == linear_program_;
                found.strided_x = found.strided_x && found.tile_start == program_[0];
                const Value bound = evaluate(*statement.value->kids[1], frame);
                found.tile_stop = bound.kind == ValueKind::integer ? bound.integer : 0;
                found.tile_step = 0;
            }
            if (!*go) return execute(statement.otherwise, frame);
            const std::int64_t id = frame.slots[compared->slot].integer;
            if (i > 0 && (!strides(found.tile_step) || id != found.tile_start + i * found.tile_step))
                found.strided = found.strided_x = false;
            const Flow flow = one_tile(statement, frame, id);
            if (i == 0 && frame.slots[compared->slot].kind == ValueKind::integer)
                found.tile_step = wrap_add(frame.slots[compared->slot].integer, wrap_multiply(id, -1));
            if (flow == Flow::stop_loop) break;
            if (flow == Flow::stop || flow == Flow::returned) return flow;
            continue;
        }
        if (!*go) return execute(statement.otherwise, frame);
        const Value* around = frame.stopped;
        frame.stopped = nullptr;
        const Flow flow = one_round(statement, frame);
        if (flow == Flow::returned) return end_rounds(statement, frame, around, flow);
        const Value* const early = std::exchange(frame.stopped, around);
        if (flow == Flow::stop) return flow;
        if (early != nullptr) {
            // Left early or not, depending on data: from here on nothing is known of how often it runs.
            join(frame, early, *statement.value);
            return while_waiting([&] { return unknown_rounds(statement, frame, Value{}); });
        }
        if (flow == Flow::stop_loop) break;
    }
    return Flow::next;
}

}  // namespace syncopate::kernel::triton

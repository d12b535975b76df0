// Statements without control flow, from memory where their inputs have been seen before (memo.hpp).
#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {
namespace {

// Misses after which a statement that hardly ever hits is given up.
constexpr std::int64_t kPatience = 1024, kPatienceWithLast = 64;

std::vector<std::int32_t> slots_in(const std::vector<Expr*>& roots) {
    std::set<std::int32_t> slots;
    for (Expr* root : roots) {
        for (const Expr* e : flattened(root)) {
            if (e->kind == ExprKind::name && e->slot >= 0) slots.insert(e->slot);
        }
    }
    return {slots.begin(), slots.end()};
}

std::vector<Expr*> targets_of(const Stmt& statement) {
    std::vector<Expr*> targets = statement.also;
    targets.push_back(statement.target);
    return targets;
}

/// Whether evaluating the expression assigns to variables.
bool assigns(const Expr& e) { return e.kind == ExprKind::bind || e.kind == ExprKind::each; }

}  // namespace

Evaluator::Habit& Evaluator::habit_of(const Stmt& statement) {
    if (statement.memo >= 0) return habits_[static_cast<std::size_t>(statement.memo)];
    const_cast<Stmt&>(statement).memo = static_cast<std::int32_t>(habits_.size());
    Habit& habit = habits_.emplace_back();
    habit.reads =
        slots_in({statement.value, statement.kind == StmtKind::augment ? statement.target : nullptr});
    habit.writes = slots_in(targets_of(statement));
    if (watch_.contains(&statement)) habit.memory = Habit::Memory::none;
    // The kernel's parameters are the same in all programs, unless it assigns to them.
    const bool in_kernel =
        statement.where.begin >= kernel_.whole.begin && statement.where.end <= kernel_.whole.end;
    if (in_kernel) {
        if (assigned_.empty()) {
            assigned_.resize(kernel_.slots.size());
            for (const Stmt* s : flattened(kernel_.body)) {
                for (const std::int32_t slot : slots_in(targets_of(*s)))
                    assigned_[static_cast<std::size_t>(slot)] = true;
                for (const Expr* e : flattened(s->value)) {
                    if (e->kind == ExprKind::bind) assigned_[static_cast<std::size_t>(e->slot)] = true;
                    if (e->kind != ExprKind::each) continue;
                    for (const std::int32_t slot : slots_in({e->kids[1]}))
                        assigned_[static_cast<std::size_t>(slot)] = true;
                }
            }
        }
        std::erase_if(habit.reads, [&](std::int32_t slot) {
            return static_cast<std::size_t>(slot) < bound_.size() &&
                   !assigned_[static_cast<std::size_t>(slot)];
        });
    }
    for (const Expr* e : flattened(statement.value)) {
        if (assigns(*e)) habit.memory = Habit::Memory::none;
    }
    return habit;
}

void Evaluator::push_key(const Value& value) {
    std::uint64_t payload = 0;
    static_assert(sizeof(value.integer) == sizeof(payload));
    // A boolean fills one byte of the union; the others may be anything.
    if (value.kind == ValueKind::boolean)
        payload = value.boolean ? 1 : 0;
    else
        std::memcpy(&payload, &value.integer, sizeof payload);
    key_.push_back(static_cast<std::uint64_t>(value.kind) | (value.runtime ? 256U : 0U) |
                   static_cast<std::uint64_t>(value.type) << 16 |
                   static_cast<std::uint64_t>(value.element) << 24 |
                   static_cast<std::uint64_t>(value.extents) << 32);
    key_.push_back(value.taint);
    key_.push_back(payload);
}

/// The key of an evaluation: the statement, what is around it, and the variables that it reads.
void Evaluator::push_state(const Stmt& statement, const Habit& habit, const Frame& frame) {
    key_.push_back(reinterpret_cast<std::uintptr_t>(&statement));
    key_.push_back(control_);
    key_.push_back(static_cast<std::uint64_t>(silent_ > 0) | static_cast<std::uint64_t>(maybe_ > 0) << 1 |
                   around_.size() << 2 | trips_.size() << 32 |
                   static_cast<std::uint64_t>(line_axis_ + 1) << 40 |
                   static_cast<std::uint64_t>(path_) << 44);
    for (const std::int32_t loop : around_) key_.push_back(static_cast<std::uint64_t>(loop));
    for (std::size_t s = 0; s < trips_.size(); ++s) {
        key_.push_back(static_cast<std::uint64_t>(trips_[s]));
        key_.push_back(static_cast<std::uint64_t>(symbol_loops_[s]));
    }
    for (const std::int32_t slot : habit.reads) push_key(frame.slots[slot]);
}

/// Notes the evaluation whose key begins at `begin` of key_ as the last one.
void Evaluator::keep_last(Habit& habit, std::size_t begin, std::span<const Value> left,
                          const Coordinates& coord) {
    habit.when = memory_;
    habit.key.assign(key_.begin() + static_cast<std::ptrdiff_t>(begin), key_.end());
    habit.left.assign(left.begin(), left.end());
    habit.coord = coord;
}

bool Evaluator::is_last(const Habit& habit, std::size_t begin) const {
    return habit.when == memory_ && habit.key.size() == key_.size() - begin &&
           std::equal(habit.key.begin(), habit.key.end(), key_.begin() + static_cast<std::ptrdiff_t>(begin));
}

void Evaluator::forget_values() {
    ++memory_;
    memo_.clear();  // its values lie in the arena
    moving_.clear();
    instances_ = 0;
    arena_.release(bound_mark_);
}

Evaluator::Flow Evaluator::recall(const Stmt& statement, Frame& frame) {
    Habit& habit = habit_of(statement);
    using Memory = Habit::Memory;
    if (habit.memory == Memory::none) {
        const Flow flow = perform(statement, frame);
        if (habit.interns && flow == Flow::next) {
            for (const std::int32_t slot : habit.writes) intern(frame.slots[slot]);
        }
        return flow;
    }
    const std::size_t begin = key_.size();
    push_state(statement, habit, frame);
    constexpr std::int64_t kLook = 4;  // steps that a look into the memory takes as long as
    steps_ += kLook;
    const auto forget_key = [&] { key_.resize(begin); };
    if (habit.memory == Memory::last) {
        if (is_last(habit, begin)) {
            forget_key();
            ++habit.hits;
            for (std::size_t i = 0; i < habit.writes.size(); ++i)
                frame.slots[habit.writes[i]] = habit.left[i];
            show_coordinates(habit.coord);
            return Flow::next;
        }
    } else if (const Memo::Entry* known = memo_.find({key_.data() + begin, key_.size() - begin})) {
        forget_key();
        ++habit.hits;
        for (std::size_t i = 0; i < habit.writes.size(); ++i)
            frame.slots[habit.writes[i]] = memo_.values[known->values.begin + i];
        found.touched.insert(found.touched.end(), memo_.touched.begin() + known->touched.begin,
                             memo_.touched.begin() + known->touched.end);
        advances_.insert(advances_.end(), memo_.advances.begin() + known->advances.begin,
                         memo_.advances.begin() + known->advances.end);
        stores_ += known->stores;
        show_coordinates(known->coord);
        return Flow::next;
    }

    const std::size_t touched = found.touched.size(), advances = advances_.size(), arena = arena_.used();
    const std::int64_t stores = stores_;
    const Coordinates coord = coord_;
    const bool impure = impure_;
    coord_.fill({});
    impure_ = false;
    const Flow flow = perform(statement, frame);
    const Coordinates shown = coord_;
    coord_ = coord;
    show_coordinates(shown);
    ++habit.misses;
    const bool plain = arena_.used() == arena && found.touched.size() == touched && stores_ == stores;
    const bool pointless = habit.misses > kPatience &&
                           4 * habit.hits<habit.misses, hasty = habit.misses> kPatienceWithLast &&
                           4 * habit.hits < habit.misses;
    if (stopped() || flow != Flow::next) {
        // Nothing to remember.
    } else if (impure_ || (pointless && !plain) || (habit.memory == Memory::last && (hasty || !plain))) {
        // It depends on more than its variables, or is never asked for again.
        habit.memory = Memory::none;
        habit.interns = !plain && !impure_;
    } else {
        std::vector<Value>& left = scratch_values_;
        left.clear();
        for (const std::int32_t slot : habit.writes) {
            if (!plain) intern(frame.slots[slot]);
            left.push_back(frame.slots[slot]);
        }
        if (plain) {
            habit.memory = Memory::last;
            keep_last(habit, begin, left, shown);
        } else {
            memo_.add({key_.data() + begin, key_.size() - begin}, left,
                      std::span(found.touched).subspan(touched),
                      std::span(std::as_const(advances_)).subspan(advances), stores_ - stores, shown);
        }
    }
    impure_ = impure_ || impure;
    forget_key();
    return flow;
}

/// What a loop runs over, or the condition of a branch: taken from the last time where nothing has changed.
Value Evaluator::head(const Stmt& statement, Frame& frame) {
    if (!remembers_) return evaluate(*statement.value, frame);
    Habit& habit = habit_of(statement);
    using Memory = Habit::Memory;
    if (habit.memory == Memory::none) return evaluate(*statement.value, frame);
    const std::size_t begin = key_.size();
    push_state(statement, habit, frame);
    if (is_last(habit, begin)) {
        key_.resize(begin);
        ++habit.hits;
        show_coordinates(habit.coord);
        return habit.left[0];
    }
    const std::size_t touched = found.touched.size();
    const std::int64_t stores = stores_;
    const Coordinates coord = coord_;
    const bool impure = impure_;
    coord_.fill({});
    impure_ = false;
    const Value made = evaluate(*statement.value, frame);
    const Coordinates shown = coord_;
    coord_ = coord;
    show_coordinates(shown);
    ++habit.misses;
    const bool pure = !impure_ && found.touched.size() == touched && stores_ == stores;
    if (!stopped() && (!pure || (habit.misses > kPatienceWithLast && 4 * habit.hits < habit.misses)))
        habit.memory = Memory::none;
    else if (!stopped())
        keep_last(habit, begin, {&made, 1}, shown);
    impure_ = impure_ || impure;
    key_.resize(begin);
    return made;
}

/// Makes equal blocks one block, so that what is computed from them is found in memory.
void Evaluator::intern(Value& value) {
    if (value.kind != ValueKind::block && value.kind != ValueKind::pointer) return;
    const Block& block = *value.block;
    constexpr std::int32_t kMostPieces = 4;
    std::int32_t pieces = 0;
    for (std::int32_t j = 0; j < block.rank; ++j) pieces += block.axes[j].count;
    if (pieces > kMostPieces) return;
    const std::size_t begin = key_.size();
    const auto push = [&](std::int64_t number) { key_.push_back(static_cast<std::uint64_t>(number)); };
    const auto push_affine = [&](const Affine& a) {
        push(a.constant);
        for (const std::int64_t slope : a.slope) push(slope);
    };
    push(3);
    push(block.param);
    push(block.rank);
    push_affine(block.base);
    for (std::int32_t j = 0; j < block.rank; ++j) {
        push(block.axes[j].extent);
        push(block.axes[j].count);
        for (std::int32_t p = 0; p < block.axes[j].count; ++p) {
            const Piece& piece = block.axes[j].pieces[p];
            push(piece.begin), push(piece.end), push_affine(piece.base), push(piece.step);
        }
    }
    value.block = remembered(begin, [&] { return value; }).block;
}

void Evaluator::show_coordinates(const Coordinates& shown) {
    for (std::size_t a = 0; a < kMostAxes; ++a) {
        if (coord_[a].at < 0 && shown[a].at != -1) coord_[a] = shown[a];
    }
}

Value Evaluator::advanced(const Value& start, const Guess& guess, int symbol, std::int64_t rounds) {
    if (guess.kind != Guess::Kind::advance) return start;
    const std::size_t begin = key_.size();
    key_.push_back(1);  // no statement's address
    push_key(start);
    for (const std::int64_t delta : guess.delta) key_.push_back(static_cast<std::uint64_t>(delta));
    key_.push_back(static_cast<std::uint64_t>(symbol));
    key_.push_back(static_cast<std::uint64_t>(rounds));
    return remembered(begin, [&] { return advance(start, guess, symbol, rounds); });
}

Value Evaluator::substituted(const Value& value, int symbol, std::int64_t round) {
    const bool varies = value.kind == ValueKind::block || value.kind == ValueKind::pointer ||
                        value.kind == ValueKind::mask || value.kind == ValueKind::descriptor ||
                        value.kind == ValueKind::block_pointer || value.kind == ValueKind::tuple ||
                        value.kind == ValueKind::lazy;
    if (!varies) return value;
    const std::size_t begin = key_.size();
    key_.push_back(2);
    push_key(value);
    key_.push_back(static_cast<std::uint64_t>(symbol));
    key_.push_back(static_cast<std::uint64_t>(round));
    return remembered(begin, [&] { return substitute(value, symbol, round); });
}

}  // namespace syncopate::kernel::triton

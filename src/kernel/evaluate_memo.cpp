// Statements without control flow, from memory where their inputs have been seen before (memo.hpp).
#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kPatience = 1024;  // misses after which a statement that hardly ever hits is given up

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
    habit.refused = watch_.contains(&statement);
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
    for (const Expr* e : flattened(statement.value)) habit.refused = habit.refused || assigns(*e);
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
    key_.push_back(static_cast<std::uint64_t>(value.kind) | (value.runtime ? 256U : 0U));
    key_.push_back(value.taint);
    key_.push_back(payload);
}

Evaluator::Flow Evaluator::recall(const Stmt& statement, Frame& frame) {
    Habit& habit = habit_of(statement);
    if (habit.refused) return perform(statement, frame);
    const std::size_t begin = key_.size();
    key_.push_back(reinterpret_cast<std::uintptr_t>(&statement));
    key_.push_back(control_);
    key_.push_back(static_cast<std::uint64_t>(silent_ > 0) | static_cast<std::uint64_t>(maybe_ > 0) << 1 |
                   around_.size() << 2 | trips_.size() << 32);
    for (const std::int32_t loop : around_) key_.push_back(static_cast<std::uint64_t>(loop));
    for (std::size_t s = 0; s < trips_.size(); ++s) {
        key_.push_back(static_cast<std::uint64_t>(trips_[s]));
        key_.push_back(static_cast<std::uint64_t>(symbol_loops_[s]));
    }
    for (const std::int32_t slot : habit.reads) push_key(frame.slots[slot]);
    const auto forget_key = [&] { key_.resize(begin); };

    if (const Memo::Entry* known = memo_.find({key_.data() + begin, key_.size() - begin})) {
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
    const std::array<std::int64_t, kMostAxes> coord = coord_;
    const bool impure = impure_;
    coord_.fill(-1);
    impure_ = false;
    const Flow flow = perform(statement, frame);
    const std::array<std::int64_t, kMostAxes> shown = coord_;
    coord_ = coord;
    show_coordinates(shown);
    ++habit.misses;
    const bool plain = arena_.used() == arena && found.touched.size() == touched;
    if (stopped() || flow != Flow::next) {
        // Nothing to remember.
    } else if (impure_ || plain || (habit.misses > kPatience && 4 * habit.hits < habit.misses)) {
        // It depends on more than its variables; or evaluating it is as cheap as remembering it; or is never
        // asked for again.
        habit.refused = true;
    } else {
        std::vector<Value>& left = scratch_values_;
        left.clear();
        for (const std::int32_t slot : habit.writes) left.push_back(frame.slots[slot]);
        memo_.add({key_.data() + begin, key_.size() - begin}, left, std::span(found.touched).subspan(touched),
                  std::span(std::as_const(advances_)).subspan(advances), stores_ - stores, shown);
    }
    impure_ = impure_ || impure;
    forget_key();
    return flow;
}

void Evaluator::show_coordinates(const std::array<std::int64_t, kMostAxes>& shown) {
    for (std::size_t a = 0; a < kMostAxes; ++a) {
        if (coord_[a] < 0 && shown[a] != -1) coord_[a] = shown[a];
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

}  // namespace syncopate::kernel

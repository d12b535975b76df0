// Statements other than loops. A branch whose condition is loaded data is taken both ways.
#include <algorithm>
#include <string>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

Evaluator::Flow Evaluator::execute(const std::vector<Stmt*>& body, Frame& frame) {
    for (const Stmt* statement : body) {
        const std::int64_t stores = stores_;
        if (&body == &kernel_.body) in_body_ = statement;
        const Flow flow = execute(*statement, frame);
        if (stores_ != stores && silent_ == 0) {
            const bool in_scope = found.tile_loop != nullptr && &body == &found.tile_loop->body;
            const Stmt*& last = in_scope ? last_in_loop_ : last_in_body_;
            if ((in_scope || &body == &kernel_.body) &&
                (last == nullptr || statement->where.end > last->where.end)) {
                last = statement;
            }
        }
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::execute(const Stmt& statement, Frame& frame) {
    if (!step(statement.where)) return Flow::stop;
    switch (statement.kind) {
        case StmtKind::assign: {
            Value value = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            if (!statement.constant) value = as_variable(value);
            if (frame.is_kernel && value.kind == ValueKind::integer && !watch_.empty() &&
                watch_.contains(&statement)) {
                found.watched[&statement] = value.integer;
            }
            assign(*statement.target, value, frame);
            for (const Expr* target : statement.also) assign(*target, value, frame);
            break;
        }
        case StmtKind::augment: {
            const Value before = evaluate(*statement.target, frame);
            const Value by = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            const Value after = binary(*statement.target, statement.op, before, by);
            if (stopped()) return Flow::stop;
            if (after.kind == ValueKind::opaque && !overflows_.empty()) {
                const auto overflow = overflows_.find(statement.target);
                if (overflow != overflows_.end()) overflow->second.where = statement.where;
            }
            assign(*statement.target, as_variable(after), frame);
            break;
        }
        case StmtKind::expression:
            if (statement.value->kind == ExprKind::literal) break;  // a docstring
            (void)evaluate(*statement.value, frame);
            break;
        case StmtKind::branch: return branch(statement, frame);
        case StmtKind::for_loop: return for_loop(statement, frame);
        case StmtKind::while_loop: return while_loop(statement, frame);
        case StmtKind::give_back: return give_back(statement, frame);
        case StmtKind::pass:
        case StmtKind::assertion: break;
        case StmtKind::stop_loop: return Flow::stop_loop;
        case StmtKind::next_round: return Flow::next_round;
        case StmtKind::block: return execute(statement.body, frame);
        case StmtKind::unsupported: {
            const Value unknown = unknown_syntax(*statement.value, frame);
            for (const Expr* target : statement.also) {
                if (!stopped()) assign(*target, unknown, frame);
            }
            break;
        }
    }
    return stopped() ? Flow::stop : Flow::next;
}

void Evaluator::assign(const Expr& target, const Value& value, Frame& frame) {
    if (target.kind == ExprKind::name && target.slot >= 0) {
        frame.slots[target.slot] = value;
        return;
    }
    if (target.kind == ExprKind::tuple) {
        const auto size = static_cast<std::int32_t>(target.kids.size());
        if (value.kind == ValueKind::tuple && value.tuple->size != size) {
            fail(target.where, std::to_string(value.tuple->size) + " values for " + std::to_string(size) +
                                   " variables: write as many names as values");
            return;
        }
        for (std::int32_t i = 0; i < size; ++i) {
            Value item = value;  // of an unknown value every part is unknown
            item.element = kNoElement;
            item.extents = 0;
            if (value.kind == ValueKind::tuple) {
                item = value.tuple->items[i];
                item.taint |= value.taint;
            } else if (value.kind != ValueKind::opaque) {
                fail(target.where, "the value assigned to " + quoted(module_, target.where) +
                                       " is not a tuple: write one name");
                return;
            }
            assign(*target.kids[at(i)], item, frame);
        }
        return;
    }
    if (target.kind == ExprKind::subscript || target.kind == ExprKind::attribute) {
        fail(target.where, "assignment to " + quoted(module_, target.where) +
                               " is not supported in a kernel: assign to a variable");
        return;
    }
    fail(target.where, "cannot assign to " + quoted(module_, target.where) + ": write a variable");
}

Evaluator::Flow Evaluator::give_back(const Stmt& statement, Frame& frame) {
    Value result;
    result.kind = ValueKind::none;
    if (statement.value != nullptr) result = evaluate(*statement.value, frame);
    if (stopped()) return Flow::stop;
    // An earlier `return` may have been taken, on a condition that depends on data.
    if (frame.may_have_returned && statement.value != nullptr)
        result = joined(frame.result, result, *statement.value);
    frame.result = result;
    frame.may_have_returned = frame.may_have_returned || maybe_ > 0;
    return Flow::returned;
}

Value* Evaluator::snapshot(const Frame& frame) {
    const std::size_t count = frame.num_slots();
    Value* copy = arena_.make<Value>(count);
    std::copy_n(frame.slots, count, copy);
    return copy;
}

/// What a variable is where two ways meet.
Value Evaluator::joined(const Value& a, const Value& b, const Expr& why) {
    if (a.kind == ValueKind::undefined) return b;
    if (b.kind == ValueKind::undefined) return a;
    Value made = a;
    made.taint |= b.taint;
    const auto both = [&](Value one) {  // of data: what is known of both
        const bool same = known_shape(a) == known_shape(b);
        const Element element = element_of_value(a);
        return described(one, element == element_of_value(b) ? element : kNoElement,
                         same ? known_shape(a) : std::nullopt);
    };
    if (equal(a, b)) return a.kind == ValueKind::opaque ? both(made) : made;
    if (a.kind == ValueKind::tuple && b.kind == ValueKind::tuple && a.tuple->size == b.tuple->size) {
        Tuple* tuple = arena_.make<Tuple>();
        tuple->size = a.tuple->size;
        tuple->items = arena_.make<Value>(static_cast<std::size_t>(tuple->size));
        for (std::int32_t i = 0; i < tuple->size; ++i)
            tuple->items[i] = joined(a.tuple->items[i], b.tuple->items[i], why);
        made.tuple = tuple;
        return made;
    }
    // Of two parameters it might be either: whoever says what one of them is read for says too little.
    if (param_of(a) != param_of(b)) return opaque(why, made.taint);
    return param_of(a) < 0 ? both(opaque(why, made.taint)) : unknown(made, why);
}

/// `value`, made unknown: memory stays memory of the same parameter.
Value Evaluator::unknown(const Value& value, const Expr& why) {
    const std::int32_t param = param_of(value);
    if (param < 0) return described(opaque(why, value.taint), element_of_value(value), known_shape(value));
    LostPointer* lost = arena_.make<LostPointer>();
    lost->param = param;
    lost->why = &why;
    Value made;
    made.kind = ValueKind::lost_pointer;
    made.runtime = true;
    made.taint = value.taint;
    made.lost = lost;
    return made;
}

std::int32_t Evaluator::param_of(const Value& value) {
    switch (value.kind) {
        case ValueKind::pointer: return value.block->param;
        case ValueKind::lost_pointer: return value.lost->param;
        case ValueKind::descriptor:
        case ValueKind::block_pointer: return value.descriptor->param;
        default: return -1;
    }
}

void Evaluator::join(Frame& frame, const Value* other, const Expr& why) {
    for (std::size_t i = 0; i < frame.num_slots(); ++i)
        frame.slots[i] = joined(frame.slots[i], other[i], why);
}

/// What both ways of a branch touch is touched whichever is taken.
void Evaluator::settle(std::size_t first, std::size_t second) {
    constexpr std::size_t kMost = 64;
    const std::int32_t doubt = maybe_ + 1;  // of what either way does by itself
    const std::size_t end = found.touched.size();
    const auto is_touched_twice = [&](const Touch& a) {
        return std::any_of(found.touched.begin() + static_cast<std::ptrdiff_t>(second), found.touched.end(),
                           [&](const Touch& b) { return a.param == b.param && a.write == b.write; });
    };
    const auto begin = found.touched.begin();
    if (std::none_of(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(second),
                     is_touched_twice))
        return;
    if (std::any_of(begin + static_cast<std::ptrdiff_t>(first), found.touched.end(),
                    [](const Touch& t) { return t.moves; }))
        return (void)(not_affine_ = true);  // they are not known until the line is over
    std::size_t before = 0, after = 0;      // boxes
    for (std::size_t i = first; i < end; ++i)
        (i < second ? before : after) += found.touched[i].end - found.touched[i].begin;
    if (before > kMost || after > kMost) return;
    tell_apart(first);
    std::vector<Touch*> settled;
    for (std::size_t i = first; i < first + before; ++i) {
        for (std::size_t j = first + before; j < found.touched.size(); ++j) {
            Touch &a = found.touched[i], &b = found.touched[j];
            const bool in_doubt = a.doubt != doubt || b.doubt != doubt || !a.solid || !b.solid;
            if (in_doubt || a.param != b.param || a.write != b.write ||
                found.boxes[a.begin] != found.boxes[b.begin])
                continue;
            settled.push_back(&a);
            settled.push_back(&b);
        }
    }
    for (Touch* touch : settled) {
        touch->doubt = maybe_;
        touch->exact = maybe_ == 0;
    }
}

/// Makes what was touched from `first` on one entry a box.
void Evaluator::tell_apart(std::size_t first) {
    const std::vector<Touch> grouped(found.touched.begin() + static_cast<std::ptrdiff_t>(first),
                                     found.touched.end());
    found.touched.resize(first);
    for (Touch touch : grouped) {
        const std::uint32_t last = touch.end;
        for (; touch.begin < last; ++touch.begin) {
            touch.end = touch.begin + 1;
            found.touched.push_back(touch);
        }
    }
}

Evaluator::Flow Evaluator::branch(const Stmt& statement, Frame& frame) {
    const Value condition = evaluate(*statement.value, frame);
    if (stopped()) return Flow::stop;
    const std::optional<bool> taken = truth(*statement.value, condition);
    if (stopped()) return Flow::stop;
    const std::uint64_t control = control_;
    control_ |= condition.taint & ~count_bits_;
    Flow flow = Flow::next;
    if (taken) {
        flow = execute(*taken ? statement.body : statement.otherwise, frame);
    } else {
        // Which way depends on loaded data: both are run, and what they leave different is unknown.
        const Expr& why = *statement.value;
        const Value* before = snapshot(frame);
        ++maybe_;
        const std::int32_t maybe = maybe_;
        const std::size_t first_begin = found.touched.size();
        const Flow first = execute(statement.body, frame);
        if (first == Flow::stop) return control_ = control, Flow::stop;
        // What may have left one way early leaves the rest of it in doubt, and what follows both.
        const std::int32_t left_early = maybe_ - maybe;
        maybe_ = maybe;
        const Value* after = snapshot(frame);
        const std::size_t second_begin = found.touched.size();
        std::copy_n(before, frame.function->slots.size(), frame.slots);
        const Flow second = execute(statement.otherwise, frame);
        if (second == Flow::stop) return control_ = control, Flow::stop;
        // What is left one way only goes on the other way, in doubt from here on.
        const auto leaves = [](Flow way) { return way != Flow::next; };
        const auto leaves_round = [](Flow way) { return way == Flow::stop_loop || way == Flow::next_round; };
        const std::int32_t in_doubt =
            left_early + (maybe_ - maybe) + (first != second && (leaves(first) || leaves(second)) ? 1 : 0);
        const bool returns = first == Flow::returned || second == Flow::returned;
        if (first != second && !returns && (leaves_round(first) || leaves_round(second)))
            ++frame.rounds_in_doubt;  // until the round ends (one_round)
        maybe_ = maybe - 1;
        settle(first_begin, second_begin);
        maybe_ += in_doubt;
        const auto leave = [&](Flow way, const Value*& where) {
            if (first != way && second != way) return;
            const Value* left = first == way ? after : snapshot(frame);
            if (first == second) join(frame, after, why), left = snapshot(frame);
            if (where != nullptr) {
                const Value* now = snapshot(frame);
                std::copy_n(left, frame.function->slots.size(), frame.slots);
                join(frame, where, why);
                left = snapshot(frame);
                std::copy_n(now, frame.function->slots.size(), frame.slots);
            }
            where = left;
        };
        if (first == second) {
            join(frame, after, why);
            flow = first;
        } else {
            leave(Flow::stop_loop, frame.stopped);
            leave(Flow::next_round, frame.next_round);
            flow = Flow::next;
            if (second == Flow::next || first == Flow::next) {
                if (second != Flow::next) std::copy_n(after, frame.function->slots.size(), frame.slots);
            } else {  // both ways are left, each its own way: nothing follows
                flow = second == Flow::returned ? first : second;
                if (flow == first) std::copy_n(after, frame.function->slots.size(), frame.slots);
            }
        }
    }
    control_ = control;
    return stopped() ? Flow::stop : flow;
}

}  // namespace syncopate::kernel::triton

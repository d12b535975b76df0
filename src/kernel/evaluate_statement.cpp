// Statements other than loops. A branch whose condition is loaded data is taken both ways.
#include <algorithm>
#include <string>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {

Evaluator::Flow Evaluator::execute(const std::vector<Stmt*>& body, Frame& frame) {
    for (const Stmt* statement : body) {
        const std::int64_t stores = stores_;
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
    const bool straight = statement.kind == StmtKind::assign || statement.kind == StmtKind::augment ||
                          statement.kind == StmtKind::expression;
    return straight && remembers_ ? recall(statement, frame) : perform(statement, frame);
}

Evaluator::Flow Evaluator::perform(const Stmt& statement, Frame& frame) {
    switch (statement.kind) {
        case StmtKind::assign: {
            const Value value = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            if (frame.is_kernel && value.kind == ValueKind::integer && !watch_.empty() &&
                watch_.contains(&statement)) {
                found.watched[&statement] = value.integer;
            }
            assign(*statement.target, value, frame);
            break;
        }
        case StmtKind::augment: {
            const Value before = evaluate(*statement.target, frame);
            const Value by = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            const Value after = binary(*statement.target, statement.op, before, by);
            if (stopped()) return Flow::stop;
            assign(*statement.target, after, frame);
            break;
        }
        case StmtKind::expression:
            if (statement.value->kind == ExprKind::literal) break;  // a docstring
            (void)evaluate(*statement.value, frame);
            break;
        case StmtKind::branch: return branch(statement, frame);
        case StmtKind::for_loop: return for_loop(statement, frame);
        case StmtKind::while_loop: return while_loop(statement, frame);
        case StmtKind::give_back:
            frame.result = Value{};
            frame.result.kind = ValueKind::none;
            if (statement.value != nullptr) frame.result = evaluate(*statement.value, frame);
            return stopped() ? Flow::stop : Flow::returned;
        case StmtKind::pass:
        case StmtKind::assertion: break;
        case StmtKind::stop_loop: return Flow::stop_loop;
        case StmtKind::next_round: return Flow::next_round;
        case StmtKind::block: return execute(statement.body, frame);
        case StmtKind::unsupported:
            fail(statement.where,
                 "this statement is not supported in a kernel: " + quoted(module_, statement.where) +
                     "; write it with assignments, calls, `if`, `for` and `while`");
            break;
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
            if (value.kind == ValueKind::tuple) {
                item = value.tuple->items[i];
                item.taint |= value.taint;
            } else if (value.kind != ValueKind::opaque) {
                fail(target.where, "the value assigned to " + quoted(module_, target.where) +
                                       " is not a tuple: write one name");
                return;
            }
            assign(*target.kids[static_cast<std::size_t>(i)], item, frame);
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
        const std::size_t count = frame.function->slots.size();
        Value* before = arena_.make<Value>(count);
        std::copy_n(frame.slots, count, before);
        const Flow first = execute(statement.body, frame);
        if (first == Flow::stop) return control_ = control, Flow::stop;
        Value* after = arena_.make<Value>(count);
        std::copy_n(frame.slots, count, after);
        const Value result = frame.result;
        std::copy_n(before, count, frame.slots);
        const Flow second = execute(statement.otherwise, frame);
        if (second == Flow::stop) return control_ = control, Flow::stop;
        for (std::size_t i = 0; i < count; ++i) {
            if (!equal(after[i], frame.slots[i]))
                frame.slots[i] = opaque(*statement.value, after[i].taint | frame.slots[i].taint);
        }
        if (first == Flow::returned && second == Flow::returned) {
            if (!equal(result, frame.result)) frame.result = opaque(*statement.value, 0);
            flow = Flow::returned;
        }
    }
    control_ = control;
    return stopped() ? Flow::stop : flow;
}

}  // namespace syncopate::kernel

// Statements, and what the iterations of a loop hand on to one another.
#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"

namespace syncopate::kernel::triton {

std::vector<Stmt*> FunctionParser::block(TSNode node) {
    std::vector<Stmt*> result;
    if (!present(node)) return result;
    for (const TSNode child : children(node)) result.push_back(statement(child));
    return result;
}

/// A statement's range ends with its last statement, not with comments that follow it inside its block.
void FunctionParser::finish(Stmt* made) {
    const std::vector<Stmt*>& last = made->otherwise.empty() ? made->body : made->otherwise;
    if (!last.empty()) made->where.end = last.back()->where.end;
}

Stmt* FunctionParser::assignment(TSNode node, TSNode whole) {
    const TSNode right = field(node, "right");
    if (!present(right)) return make_stmt(StmtKind::pass, whole);  // a bare annotation
    Stmt* made = make_stmt(StmtKind::assign, whole);
    TSNode value = right;
    std::vector<TSNode> targets;
    while (type(value) == "assignment") {  // a = b = value
        targets.push_back(field(value, "left"));
        value = field(value, "right");
        if (!present(value)) break;
    }
    made->value = present(value) ? expression(value) : make(ExprKind::unsupported, node);
    made->target = expression(field(node, "left"));
    const TSNode annotation = field(node, "type");
    made->constant = present(annotation) && text(annotation).find("constexpr") != std::string_view::npos;
    for (const TSNode target : targets) made->also.push_back(expression(target));
    return made;
}

Stmt* FunctionParser::branch(TSNode node) {
    Stmt* first = make_stmt(StmtKind::branch, node);
    first->value = expression(field(node, "condition"));
    note_condition(first->value);
    first->body = block(field(node, "consequence"));
    std::vector<Stmt*> chain{first};
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        if (type(child) == "elif_clause") {
            Stmt* next = make_stmt(StmtKind::branch, child);
            next->value = expression(field(child, "condition"));
            note_condition(next->value);
            next->body = block(field(child, "consequence"));
            chain.back()->otherwise.push_back(next);
            chain.push_back(next);
            if (chain.size() > static_cast<std::size_t>(kDeepest)) {
                fail(child,
                     "more than " + std::to_string(kDeepest) + " branches: call helpers for some of them");
                break;
            }
        } else if (type(child) == "else_clause") {
            chain.back()->otherwise = block(field(child, "body"));
        }
    }
    for (std::size_t i = chain.size(); i-- > 0;) finish(chain[i]);
    return first;
}

void FunctionParser::note_assigned(Expr* target) {
    for (const Expr* e : flattened(target)) {
        if (e->kind != ExprKind::name || e->slot < 0) continue;
        for (auto* outer : assigned_) outer->push_back(e->slot);
    }
}

/// What the iterations of a loop hand on: variables read before the body sets them, or not surely set by it.
void FunctionParser::note_carried(Stmt* loop) {
    std::set<std::int32_t> early;  // read while not surely set
    const auto reads = [&](Expr* root, const std::set<std::int32_t>& set) {
        for (const Expr* e : flattened(root)) {
            if (e->kind == ExprKind::name && e->slot >= 0 && !set.contains(e->slot)) early.insert(e->slot);
        }
    };
    const auto sets = [](Expr* root, std::set<std::int32_t>& set) {
        for (const Expr* e : flattened(root)) {
            if (e->kind == ExprKind::name && e->slot >= 0) set.insert(e->slot);
        }
    };
    const std::function<void(const std::vector<Stmt*>&, std::set<std::int32_t>&)> visit =
        [&](const std::vector<Stmt*>& body, std::set<std::int32_t>& set) {
            for (const Stmt* s : body) {
                reads(s->value, set);
                if (s->kind == StmtKind::augment) reads(s->target, set);
                if (s->kind == StmtKind::assign || s->kind == StmtKind::augment) sets(s->target, set);
                for (Expr* target : s->also) sets(target, set);
                if (s->kind == StmtKind::block) visit(s->body, set);
                if (s->kind == StmtKind::for_loop || s->kind == StmtKind::while_loop) {
                    std::set<std::int32_t> inside = set;
                    if (s->target != nullptr) sets(s->target, inside);
                    visit(s->body, inside);
                    visit(s->otherwise, inside);
                }
                if (s->kind == StmtKind::branch) {
                    std::set<std::int32_t> yes = set, no = set;
                    visit(s->body, yes);
                    visit(s->otherwise, no);
                    set.clear();
                    std::set_intersection(yes.begin(), yes.end(), no.begin(), no.end(),
                                          std::inserter(set, set.end()));
                }
            }
        };
    std::set<std::int32_t> set;
    if (loop->target != nullptr)
        sets(loop->target, set);
    else
        reads(loop->value, set);
    visit(loop->body, set);
    for (const std::int32_t slot : loop->assigned) {
        loop->carried.push_back(early.contains(slot) || !set.contains(slot));
        loop->read_early.push_back(early.contains(slot));
    }
}

Stmt* FunctionParser::loop(TSNode node, bool is_for) {
    Stmt* made = make_stmt(is_for ? StmtKind::for_loop : StmtKind::while_loop, node);
    made->loop = module_.num_loops++;
    assigned_.push_back(&made->assigned);
    if (is_for) {
        made->value = expression(field(node, "right"));
        made->target = expression(field(node, "left"));
        note_assigned(made->target);
    } else {
        made->value = expression(field(node, "condition"));
        note_condition(made->value);
    }
    made->value->steers_loop = true;
    const TSNode body = field(node, "body");
    made->header = made->where;
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        if (type(child) == ":") made->header.end = place(child).end;
        if (ts_node_eq(child, body)) break;
    }
    made->body = block(body);
    assigned_.pop_back();
    // What follows the last iteration belongs to the statement, but not to what iterations hand on.
    if (const TSNode other = field(node, "alternative"); present(other))
        made->otherwise = block(field(other, "body"));
    std::vector<std::int32_t>& slots = made->assigned;
    const std::set<std::int32_t> unique(slots.begin(), slots.end());
    slots.assign(unique.begin(), unique.end());
    note_carried(made);
    finish(made);
    return made;
}

Stmt* FunctionParser::statement(TSNode node) {
    struct Depth {
        int& depth;
        explicit Depth(int& d) : depth(d) { ++depth; }
        ~Depth() { --depth; }
    } const guard(depth_);
    if (depth_ > kDeepest) {
        fail(node, "the statement is nested more than " + std::to_string(kDeepest) +
                       " levels deep: call helpers for the inner ones");
        return make_stmt(StmtKind::unsupported, node);
    }
    const std::string_view kind = type(node);
    if (kind == "expression_statement") {
        const std::vector<TSNode> parts = children(node);
        if (parts.empty()) return make_stmt(StmtKind::pass, node);
        if (parts.size() == 1 && type(parts[0]) == "assignment") {
            Stmt* made = assignment(parts[0], node);
            note_assigned(made->target);
            for (Expr* target : made->also) note_assigned(target);
            return made;
        }
        if (parts.size() == 1 && type(parts[0]) == "augmented_assignment") {
            Stmt* made = make_stmt(StmtKind::augment, node);
            std::string op(text(field(parts[0], "operator")));
            if (!op.empty()) op.pop_back();
            const auto known = binary_operator(op);
            if (!known) fail(node, "unsupported assignment `" + op + "=`: write `x = x " + op + " y`");
            made->op = known.value_or(Operator::add);
            made->value = expression(field(parts[0], "right"));
            made->target = expression(field(parts[0], "left"));
            note_assigned(made->target);
            return made;
        }
        Stmt* made = make_stmt(StmtKind::expression, node);
        made->value = parts.size() == 1 ? expression(parts[0]) : tuple(node);
        return made;
    }
    if (kind == "if_statement") return branch(node);
    if (kind == "for_statement") return loop(node, true);
    if (kind == "while_statement") return loop(node, false);
    if (kind == "return_statement") {
        Stmt* made = make_stmt(StmtKind::give_back, node);
        const std::vector<TSNode> parts = children(node);
        if (!parts.empty()) made->value = parts.size() == 1 ? expression(parts[0]) : tuple(node);
        return made;
    }
    if (kind == "with_statement") {
        Stmt* made = make_stmt(StmtKind::block, node);
        made->body = block(field(node, "body"));
        finish(made);
        return made;
    }
    if (kind == "break_statement") return make_stmt(StmtKind::stop_loop, node);
    if (kind == "continue_statement") return make_stmt(StmtKind::next_round, node);
    if (kind == "assert_statement") return make_stmt(StmtKind::assertion, node);
    if (kind == "pass_statement" || kind == "import_statement" || kind == "import_from_statement" ||
        kind == "print_statement" || kind == "delete_statement" || kind == "global_statement") {
        return make_stmt(StmtKind::pass, node);
    }
    return unknown_statement(node);
}

/// A statement that is not understood: it may assign anything to its variables, and must not touch memory.
Stmt* FunctionParser::unknown_statement(TSNode node) {
    Stmt* made = make_stmt(StmtKind::unsupported, node);
    made->value = unknown_expression(node);
    std::set<std::int32_t> seen;
    collect_targets(node, [&](TSNode identifier) {
        Expr* target = name(identifier);
        if (target->slot < 0 || !seen.insert(target->slot).second) return;
        made->also.push_back(target);
        note_assigned(target);
    });
    return made;
}

}  // namespace syncopate::kernel::triton

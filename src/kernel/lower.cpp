#include "kernel/lower.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <unordered_map>

namespace syncopate::kernel {
namespace {

std::string_view type(TSNode node) { return ts_node_type(node); }

TSNode field(TSNode node, std::string_view name) {
    return ts_node_child_by_field_name(node, name.data(), static_cast<std::uint32_t>(name.size()));
}

bool present(TSNode node) { return !ts_node_is_null(node); }

/// The named children that are not comments.
std::vector<TSNode> children(TSNode node) {
    std::vector<TSNode> result;
    const std::uint32_t count = ts_node_named_child_count(node);
    result.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_named_child(node, i);
        if (type(child) != "comment" && type(child) != "line_continuation") result.push_back(child);
    }
    return result;
}

std::optional<Operator> binary_operator(std::string_view text) {
    static const std::unordered_map<std::string_view, Operator> table{{"+", Operator::add},
                                                                      {"-", Operator::subtract},
                                                                      {"*", Operator::multiply},
                                                                      {"/", Operator::divide},
                                                                      {"//", Operator::floor_divide},
                                                                      {"%", Operator::modulo},
                                                                      {"**", Operator::power},
                                                                      {"<<", Operator::shift_left},
                                                                      {">>", Operator::shift_right},
                                                                      {"&", Operator::bit_and},
                                                                      {"|", Operator::bit_or},
                                                                      {"^", Operator::bit_xor},
                                                                      {"@", Operator::matmul},
                                                                      {"<", Operator::less},
                                                                      {"<=", Operator::less_equal},
                                                                      {">", Operator::greater},
                                                                      {">=", Operator::greater_equal},
                                                                      {"==", Operator::equal},
                                                                      {"!=", Operator::not_equal},
                                                                      {"is", Operator::is},
                                                                      {"is not", Operator::is_not},
                                                                      {"in", Operator::in},
                                                                      {"not in", Operator::not_in}};
    const auto found = table.find(text);
    if (found == table.end()) return std::nullopt;
    return found->second;
}

bool is_store(const Expr& call) {
    return call.builtin == Builtin::store || call.builtin == Builtin::atomic ||
           call.builtin == Builtin::descriptor_store;
}

}  // namespace

Builtin Lowering::builtin_named(std::string_view name) {
    static const std::unordered_map<std::string_view, Builtin> table{
        {"program_id", Builtin::program_id},
        {"num_programs", Builtin::num_programs},
        {"load", Builtin::load},
        {"store", Builtin::store},
        {"atomic_add", Builtin::atomic},
        {"atomic_max", Builtin::atomic},
        {"atomic_min", Builtin::atomic},
        {"atomic_and", Builtin::atomic},
        {"atomic_or", Builtin::atomic},
        {"atomic_xor", Builtin::atomic},
        {"atomic_xchg", Builtin::atomic},
        {"atomic_cas", Builtin::atomic},
        {"make_tensor_descriptor", Builtin::make_descriptor},
        {"_experimental_make_tensor_descriptor", Builtin::make_descriptor},
        {"load_tensor_descriptor", Builtin::descriptor_load},
        {"_experimental_descriptor_load", Builtin::descriptor_load},
        {"store_tensor_descriptor", Builtin::descriptor_store},
        {"_experimental_descriptor_store", Builtin::descriptor_store},
        {"make_block_ptr", Builtin::make_block_ptr},
        {"advance", Builtin::advance},
        {"arange", Builtin::arange},
        {"zeros", Builtin::zeros},
        {"full", Builtin::full},
        {"zeros_like", Builtin::zeros_like},
        {"cdiv", Builtin::cdiv},
        {"min", Builtin::minimum},
        {"minimum", Builtin::minimum},
        {"max", Builtin::maximum},
        {"maximum", Builtin::maximum},
        {"where", Builtin::where},
        {"multiple_of", Builtin::same},
        {"max_contiguous", Builtin::same},
        {"max_constancy", Builtin::same},
        {"constexpr", Builtin::same},
        {"assume", Builtin::ignore},
        {"static_assert", Builtin::static_assertion},
        {"device_assert", Builtin::ignore},
        {"static_print", Builtin::ignore},
        {"device_print", Builtin::ignore},
        {"print", Builtin::ignore},
        {"debug_barrier", Builtin::ignore},
        {"cast", Builtin::cast},
        {"to", Builtin::cast},
        {"trans", Builtin::transpose},
        {"permute", Builtin::transpose},
        {"expand_dims", Builtin::expand_dims},
        {"broadcast_to", Builtin::broadcast_to},
        {"swizzle2d", Builtin::swizzle2d},
        {"range", Builtin::range},
        {"static_range", Builtin::static_range},
        {"abs", Builtin::absolute},
        {"len", Builtin::length},
        {"int", Builtin::to_int},
        {"float", Builtin::to_float}};
    const auto found = table.find(name);
    return found == table.end() ? Builtin::other : found->second;
}

SourceRange Lowering::range_of(TSNode node) {
    const TSPoint start = ts_node_start_point(node);
    return {ts_node_start_byte(node), ts_node_end_byte(node), static_cast<std::int32_t>(start.row) + 1,
            static_cast<std::int32_t>(start.column) + 1};
}

std::string_view Lowering::text(TSNode node) const {
    const SourceRange range = range_of(node);
    return (in_fragment_ ? fragment_ : module_.source).substr(range.begin, range.end - range.begin);
}

SourceRange Lowering::place(TSNode node) const {
    SourceRange range = range_of(node);
    if (!in_fragment_) return range;
    range.begin += fragment_place_.begin;
    range.end += fragment_place_.begin;
    range.column += fragment_place_.column - 1;  // a fragment is one line
    range.line = fragment_place_.line;
    return range;
}

void Lowering::fail(TSNode node, std::string message) {
    if (!error_) error_ = module_.error(place(node), std::move(message));
}

Expr* Lowering::make(ExprKind kind, TSNode node) {
    Expr& made = module_.exprs_.emplace_back();
    made.kind = kind;
    made.where = place(node);
    return &made;
}

Expr* Lowering::literal(TSNode node, Scalar value) {
    Expr* made = make(ExprKind::literal, node);
    made->literal = std::move(value);
    return made;
}

Stmt* Lowering::make_stmt(StmtKind kind, TSNode node) {
    Stmt& made = module_.stmts_.emplace_back();
    made.kind = kind;
    made.where = place(node);
    return &made;
}

std::int32_t Lowering::slot_of(std::string_view wanted, bool create) {
    const std::int32_t found = function().slot(wanted);
    if (found >= 0 || !create) return found;
    function().slots.emplace_back(wanted);
    return static_cast<std::int32_t>(function().slots.size()) - 1;
}

// Python decides by the whole function which names are local: find them before lowering any expression.
void Lowering::collect_names(TSNode body) {
    std::vector<TSNode> pending{body};
    const auto bind = [&](TSNode target) {
        std::vector<TSNode> targets{target};
        while (!targets.empty()) {
            const TSNode next = targets.back();
            targets.pop_back();
            if (type(next) == "identifier") {
                slot_of(text(next), true);
            } else if (type(next) == "pattern_list" || type(next) == "tuple_pattern" ||
                       type(next) == "list_pattern") {
                for (const TSNode child : children(next)) targets.push_back(child);
            }
        }
    };
    while (!pending.empty()) {
        const TSNode node = pending.back();
        pending.pop_back();
        const std::string_view kind = type(node);
        if (kind == "function_definition" || kind == "class_definition" || kind == "lambda") continue;
        if (kind == "assignment" || kind == "augmented_assignment" || kind == "for_statement")
            bind(field(node, "left"));
        if (kind == "named_expression") bind(field(node, "name"));
        const std::uint32_t count = ts_node_named_child_count(node);
        for (std::uint32_t i = count; i-- > 0;) pending.push_back(ts_node_named_child(node, i));
    }
}

Expr* Lowering::number(TSNode node) {
    std::string digits;
    for (const char c : text(node)) {
        if (c != '_') digits += c;
    }
    if (type(node) == "integer") {
        int base = 10;
        std::size_t skip = 0;
        if (digits.size() > 2 && digits[0] == '0') {
            const char marker = static_cast<char>(digits[1] | 0x20);
            base = marker == 'x' ? 16 : marker == 'b' ? 2 : marker == 'o' ? 8 : 10;
            skip = base == 10 ? 0 : 2;
        }
        std::int64_t value = 0;
        const char* end = digits.data() + digits.size();
        const auto [stop, code] = std::from_chars(digits.data() + skip, end, value, base);
        if (code == std::errc() && stop == end) return literal(node, value);
        fail(node, "`" + std::string(text(node)) + "` is not a 64-bit integer");
        return literal(node, std::int64_t{0});
    }
    return literal(node, std::strtod(digits.c_str(), nullptr));
}

Expr* Lowering::name(TSNode node) {
    const std::string_view identifier = text(node);
    Expr* made = make(ExprKind::name, node);
    made->text = identifier;
    made->slot = slot_of(identifier, false);
    if (made->slot < 0) {
        const auto constant = module_.constants.find(identifier);
        if (constant != module_.constants.end()) {
            made->kind = ExprKind::literal;
            made->literal = constant->second;
        }
    }
    return made;
}

/// a.b.c whose root is no variable: a path into an imported module.
bool Lowering::is_module_path(TSNode node) const {
    while (type(node) == "attribute") node = field(node, "object");
    if (type(node) != "identifier") return false;
    const std::string_view root = text(node);
    return const_cast<Lowering*>(this)->slot_of(root, false) < 0 &&
           module_.constants.find(root) == module_.constants.end();
}

Expr* Lowering::attribute(TSNode node) {
    const std::string_view member = text(field(node, "attribute"));
    if (is_module_path(field(node, "object"))) return literal(node, dtype_name(member));  // tl.float32
    Expr* made = make(ExprKind::attribute, node);
    made->text = member;
    made->kids.push_back(expression(field(node, "object")));
    return made;
}

Expr* Lowering::call(TSNode node) {
    const TSNode callee = field(node, "function");
    const TSNode arguments = field(node, "arguments");
    Expr* made = make(ExprKind::call, node);
    if (type(callee) == "attribute") {
        made->text = text(field(callee, "attribute"));
        made->builtin = builtin_named(made->text);
        if (!is_module_path(field(callee, "object"))) {
            made->kind = ExprKind::method;
            made->kids.push_back(expression(field(callee, "object")));
            const Expr* receiver = made->kids[0];
            const std::string& m = made->text;
            const bool transfers = m == "load" || m == "store" || m == "gather" || m == "scatter" ||
                                   made->builtin == Builtin::atomic;
            if (transfers && m != "load" && m != "gather") function().has_stores = true;
            if (transfers && receiver->kind == ExprKind::name && receiver->slot >= 0 &&
                static_cast<std::size_t>(receiver->slot) < function().parameters.size()) {
                function().parameters[static_cast<std::size_t>(receiver->slot)].descriptor = true;
            }
        }
    } else if (type(callee) == "identifier") {
        made->text = text(callee);
        if (slot_of(made->text, false) < 0) {
            made->function = module_.find(made->text);
            made->builtin = made->function >= 0 ? Builtin::helper : builtin_named(made->text);
            if (made->function >= 0) function().calls.insert(made->text);
        }
    } else {
        made->text = text(callee);
    }
    if (made->kind == ExprKind::call && is_store(*made)) function().has_stores = true;
    if (type(arguments) != "argument_list") {
        made->kind = ExprKind::unsupported;
        return made;
    }
    for (const TSNode argument : children(arguments)) {
        if (type(argument) == "keyword_argument") {
            made->keywords.emplace_back(text(field(argument, "name")), expression(field(argument, "value")));
        } else {
            made->kids.push_back(expression(argument));
        }
    }
    if ((made->builtin == Builtin::descriptor_load || made->builtin == Builtin::descriptor_store) &&
        !made->kids.empty() && made->kids[0]->kind == ExprKind::name && made->kids[0]->slot >= 0 &&
        static_cast<std::size_t>(made->kids[0]->slot) < function().parameters.size()) {
        function().parameters[static_cast<std::size_t>(made->kids[0]->slot)].descriptor = true;
    }
    if (made->builtin == Builtin::cdiv && made->kids.size() == 2) {
        made->is_count = true;
        made->count_of = made->kids[0];
        made->count_by = made->kids[1];
    }
    return made;
}

/// (x + b - 1) // b and (x + (b - 1)) // b count tiles just as tl.cdiv does.
void Lowering::note_count(Expr* node) {
    if (node->op != Operator::floor_divide) return;
    const std::string_view by = module_.text(node->kids[1]->where);
    const auto is_one = [](const Expr* e) {
        return e->kind == ExprKind::literal && std::holds_alternative<std::int64_t>(e->literal) &&
               std::get<std::int64_t>(e->literal) == 1;
    };
    const auto is_op = [](const Expr* e, Operator op) { return e->kind == ExprKind::binary && e->op == op; };
    Expr* top = node->kids[0];
    Expr* of = nullptr;
    if (is_op(top, Operator::subtract) && is_one(top->kids[1]) && is_op(top->kids[0], Operator::add) &&
        module_.text(top->kids[0]->kids[1]->where) == by) {
        of = top->kids[0]->kids[0];
    } else if (is_op(top, Operator::add) && is_op(top->kids[1], Operator::subtract) &&
               is_one(top->kids[1]->kids[1]) && module_.text(top->kids[1]->kids[0]->where) == by) {
        of = top->kids[0];
    }
    if (of == nullptr || in_fragment_) return;
    node->is_count = true;
    node->count_of = of;
    node->count_by = node->kids[1];
}

Expr* Lowering::binary(TSNode node) {
    Expr* made = make(ExprKind::binary, node);
    const auto op = binary_operator(text(field(node, "operator")));
    made->kids = {expression(field(node, "left")), expression(field(node, "right"))};
    if (!op) {
        made->kind = ExprKind::unsupported;
        return made;
    }
    made->op = *op;
    note_count(made);
    return made;
}

Expr* Lowering::comparison(TSNode node) {
    std::vector<TSNode> operands;
    std::vector<Operator> operators;
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        const char* role = ts_node_field_name_for_child(node, i);
        if (role != nullptr && std::string_view(role) == "operators") {
            const auto op = binary_operator(type(child));
            operators.push_back(op.value_or(Operator::equal));
            if (!op) fail(child, "unsupported comparison `" + std::string(text(child)) + "`");
        } else if (ts_node_is_named(child) && type(child) != "comment") {
            operands.push_back(child);
        }
    }
    Expr* result = nullptr;
    for (std::size_t i = 0; i + 1 < operands.size() && i < operators.size(); ++i) {
        Expr* one = make(ExprKind::compare, node);
        one->op = operators[i];
        one->kids = {expression(operands[i]), expression(operands[i + 1])};
        if (result == nullptr) {
            result = one;
        } else {
            Expr* joined = make(ExprKind::both, node);
            joined->kids = {result, one};
            result = joined;
        }
    }
    return result != nullptr ? result : make(ExprKind::unsupported, node);
}

Expr* Lowering::tuple(TSNode node) {
    Expr* made = make(ExprKind::tuple, node);
    for (const TSNode child : children(node)) made->kids.push_back(expression(child));
    return made;
}

Expr* Lowering::expression(TSNode node) {
    if (!present(node)) return nullptr;
    struct Depth {
        int& depth;
        explicit Depth(int& d) : depth(d) { ++depth; }
        ~Depth() { --depth; }
    } const guard(depth_);
    if (depth_ > kDeepest) {
        fail(node, "the expression is nested more than " + std::to_string(kDeepest) + " levels deep");
        return make(ExprKind::unsupported, node);
    }
    const std::string_view kind = type(node);
    if (kind == "identifier") return name(node);
    if (kind == "integer" || kind == "float") return number(node);
    if (kind == "true") return literal(node, true);
    if (kind == "false") return literal(node, false);
    if (kind == "none") return literal(node, NoneValue{});
    if (kind == "string") {
        std::string content;
        for (const TSNode child : children(node)) {
            if (type(child) == "string_content") content += text(child);
        }
        return literal(node, content);
    }
    if (kind == "binary_operator") return binary(node);
    if (kind == "comparison_operator") return comparison(node);
    if (kind == "call") return call(node);
    if (kind == "attribute") return attribute(node);
    if (kind == "parenthesized_expression") {
        const std::vector<TSNode> inner = children(node);
        if (inner.size() == 1) return expression(inner[0]);
    }
    if (kind == "tuple" || kind == "list" || kind == "expression_list" || kind == "pattern_list" ||
        kind == "tuple_pattern" || kind == "list_pattern") {
        return tuple(node);
    }
    if (kind == "unary_operator") {
        Expr* made = make(ExprKind::unary, node);
        const std::string_view op = text(field(node, "operator"));
        made->op = op == "-" ? Operator::negative : op == "+" ? Operator::positive : Operator::complement;
        made->kids.push_back(expression(field(node, "argument")));
        return made;
    }
    if (kind == "not_operator") {
        Expr* made = make(ExprKind::invert, node);
        made->kids.push_back(expression(field(node, "argument")));
        return made;
    }
    if (kind == "boolean_operator") {
        Expr* made = make(text(field(node, "operator")) == "and" ? ExprKind::both : ExprKind::either, node);
        made->kids = {expression(field(node, "left")), expression(field(node, "right"))};
        return made;
    }
    if (kind == "conditional_expression") {
        const std::vector<TSNode> parts = children(node);
        if (parts.size() == 3) {
            Expr* made = make(ExprKind::conditional, node);
            made->kids = {expression(parts[0]), expression(parts[1]), expression(parts[2])};
            return made;
        }
    }
    if (kind == "subscript") {
        Expr* made = make(ExprKind::subscript, node);
        made->kids.push_back(expression(field(node, "value")));
        const std::uint32_t count = ts_node_child_count(node);
        for (std::uint32_t i = 0; i < count; ++i) {
            const char* role = ts_node_field_name_for_child(node, i);
            const TSNode child = ts_node_child(node, i);
            if (role == nullptr || std::string_view(role) != "subscript" || type(child) == "comment")
                continue;
            Expr* index = expression(child);
            if (index->kind == ExprKind::tuple) {
                made->kids.insert(made->kids.end(), index->kids.begin(), index->kids.end());
            } else {
                made->kids.push_back(index);
            }
        }
        return made;
    }
    if (kind == "slice") {
        Expr* made = make(ExprKind::slice, node);
        made->kids = {nullptr, nullptr, nullptr};
        std::size_t part = 0;
        const std::uint32_t count = ts_node_child_count(node);
        for (std::uint32_t i = 0; i < count; ++i) {
            const TSNode child = ts_node_child(node, i);
            if (type(child) == ":") {
                ++part;
            } else if (ts_node_is_named(child) && type(child) != "comment" && part < 3) {
                made->kids[part] = expression(child);
            }
        }
        return made;
    }
    if (kind == "named_expression") {
        Expr* made = make(ExprKind::bind, node);
        made->slot = slot_of(text(field(node, "name")), true);
        for (auto* outer : assigned_) outer->push_back(made->slot);
        made->kids.push_back(expression(field(node, "value")));
        return made;
    }
    return make(ExprKind::unsupported, node);
}

std::vector<Stmt*> Lowering::block(TSNode node) {
    std::vector<Stmt*> result;
    if (!present(node)) return result;
    for (const TSNode child : children(node)) result.push_back(statement(child));
    return result;
}

/// A statement's range ends with its last statement, not with comments that follow it inside its block.
void Lowering::finish(Stmt* made) {
    const std::vector<Stmt*>& last = made->otherwise.empty() ? made->body : made->otherwise;
    if (!last.empty()) made->where.end = last.back()->where.end;
}

Stmt* Lowering::assignment(TSNode node, TSNode whole) {
    const TSNode right = field(node, "right");
    if (!present(right)) return make_stmt(StmtKind::pass, whole);  // a bare annotation
    Stmt* made = make_stmt(StmtKind::assign, whole);
    if (type(right) == "assignment") {  // a = b = value
        fail(node, "chained assignment is not supported in a kernel; write one assignment a line");
        return made;
    }
    made->value = expression(right);
    made->target = expression(field(node, "left"));
    return made;
}

Stmt* Lowering::branch(TSNode node) {
    Stmt* first = make_stmt(StmtKind::branch, node);
    first->value = expression(field(node, "condition"));
    first->body = block(field(node, "consequence"));
    std::vector<Stmt*> chain{first};
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        if (type(child) == "elif_clause") {
            Stmt* next = make_stmt(StmtKind::branch, child);
            next->value = expression(field(child, "condition"));
            next->body = block(field(child, "consequence"));
            chain.back()->otherwise.push_back(next);
            chain.push_back(next);
        } else if (type(child) == "else_clause") {
            chain.back()->otherwise = block(field(child, "body"));
        }
    }
    for (std::size_t i = chain.size(); i-- > 0;) finish(chain[i]);
    return first;
}

void Lowering::note_assigned(Expr* target) {
    for (const Expr* e : flattened(target)) {
        if (e->kind != ExprKind::name || e->slot < 0) continue;
        for (auto* outer : assigned_) outer->push_back(e->slot);
    }
}

/// What the iterations of a loop hand on: variables read before the body sets them, or not surely set by it.
void Lowering::note_carried(Stmt* loop) {
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
                if (s->kind == StmtKind::block) visit(s->body, set);
                if (s->kind == StmtKind::for_loop || s->kind == StmtKind::while_loop) {
                    std::set<std::int32_t> inside = set;
                    if (s->target != nullptr) sets(s->target, inside);
                    visit(s->body, inside);
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
    for (const std::int32_t slot : loop->assigned)
        loop->carried.push_back(early.contains(slot) || !set.contains(slot));
}

Stmt* Lowering::loop(TSNode node, bool is_for) {
    Stmt* made = make_stmt(is_for ? StmtKind::for_loop : StmtKind::while_loop, node);
    made->loop = module_.num_loops++;
    assigned_.push_back(&made->assigned);
    if (is_for) {
        made->value = expression(field(node, "right"));
        made->target = expression(field(node, "left"));
        note_assigned(made->target);
    } else {
        made->value = expression(field(node, "condition"));
    }
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
    if (present(field(node, "alternative")))
        fail(field(node, "alternative"), "`else` on a loop is not supported in a kernel");
    std::vector<std::int32_t>& slots = made->assigned;
    const std::set<std::int32_t> unique(slots.begin(), slots.end());
    slots.assign(unique.begin(), unique.end());
    note_carried(made);
    finish(made);
    return made;
}

Stmt* Lowering::statement(TSNode node) {
    struct Depth {
        int& depth;
        explicit Depth(int& d) : depth(d) { ++depth; }
        ~Depth() { --depth; }
    } const guard(depth_);
    if (depth_ > kDeepest) {
        fail(node, "the statement is nested more than " + std::to_string(kDeepest) + " levels deep");
        return make_stmt(StmtKind::unsupported, node);
    }
    const std::string_view kind = type(node);
    if (kind == "expression_statement") {
        const std::vector<TSNode> parts = children(node);
        if (parts.empty()) return make_stmt(StmtKind::pass, node);
        if (parts.size() == 1 && type(parts[0]) == "assignment") {
            Stmt* made = assignment(parts[0], node);
            note_assigned(made->target);
            return made;
        }
        if (parts.size() == 1 && type(parts[0]) == "augmented_assignment") {
            Stmt* made = make_stmt(StmtKind::augment, node);
            std::string op(text(field(parts[0], "operator")));
            if (!op.empty()) op.pop_back();
            const auto known = binary_operator(op);
            if (!known) fail(node, "unsupported assignment `" + op + "=`");
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
    return make_stmt(StmtKind::unsupported, node);
}

Status Lowering::lower_function(TSNode definition) {
    Function& self = function();
    const TSNode parameters = field(definition, "parameters");
    for (const TSNode node : children(parameters)) {
        const std::string_view kind = type(node);
        Parameter made;
        made.where = place(node);
        TSNode identifier = node;
        TSNode annotation{};
        TSNode fallback{};
        if (kind == "typed_parameter") {
            const std::vector<TSNode> parts = children(node);
            if (parts.empty()) continue;
            identifier = parts[0];
            annotation = field(node, "type");
        } else if (kind == "default_parameter" || kind == "typed_default_parameter") {
            identifier = field(node, "name");
            fallback = field(node, "value");
            if (kind == "typed_default_parameter") annotation = field(node, "type");
        }
        if (type(identifier) != "identifier") {
            if (kind == "keyword_separator" || kind == "positional_separator") continue;
            fail(node, "Triton kernels take plain parameters, not `" + std::string(text(node)) + "`");
            break;
        }
        made.name = text(identifier);
        made.constant = present(annotation) && text(annotation).find("constexpr") != std::string_view::npos;
        if (slot_of(made.name, false) >= 0) fail(node, "parameter `" + made.name + "` is declared twice");
        slot_of(made.name, true);
        if (present(fallback)) made.fallback = expression(fallback);
        self.parameters.push_back(std::move(made));
    }
    const TSNode body = field(definition, "body");
    if (!error_) {
        collect_names(body);
        self.body = block(body);
    }
    if (!self.body.empty()) {
        self.body_range = self.body.front()->where;
        self.body_range.end = self.body.back()->where.end;
        self.whole.end = self.body_range.end;
        self.body_indent = self.body.front()->where.column - 1;
    }
    self.lowered = true;
    if (error_) return *error_;
    return Done{};
}

Result<Expr*> Lowering::lower_fragment(TSNode node, std::string_view whole, SourceRange where) {
    in_fragment_ = true;
    fragment_ = whole;
    fragment_place_ = where;
    Expr* made = expression(node);
    if (error_) return *error_;
    return made;
}

}  // namespace syncopate::kernel

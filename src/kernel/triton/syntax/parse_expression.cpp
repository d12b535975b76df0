// Expressions other than calls.
#include <charconv>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/at.hpp"
#include "syncopate/excerpt.hpp"

namespace syncopate::kernel::triton {

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

Expr* FunctionParser::number(TSNode node) {
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
        fail(node, "`" + printable(text(node)) + "` is not a 64-bit integer: write one below 2^63");
        return literal(node, std::int64_t{0});
    }
    return literal(node, std::strtod(digits.c_str(), nullptr));
}

std::vector<std::string_view> FunctionParser::global_path(TSNode node) {
    std::vector<std::string_view> names;
    while (type(node) == "attribute") {
        if (names.size() >= static_cast<std::size_t>(kDeepest)) return {};
        names.insert(names.begin(), text(field(node, "attribute")));
        node = field(node, "object");
    }
    if (type(node) != "identifier" || slot_of(text(node), false) >= 0) return {};
    names.insert(names.begin(), text(node));
    return names;
}

/// What a global name or path stands for; `none` for a variable of the function and for what is built in.
Resolved FunctionParser::resolved(TSNode node) {
    const std::vector<std::string_view> names = global_path(node);
    return names.empty() ? Resolved{} : module_.resolve(viewer(), names);
}

/// A global that is met in an expression: its literal, a reference to what it is assigned, or to a function.
Expr* FunctionParser::reference(TSNode node, const Resolved& found,
                                const std::vector<std::string_view>& path) {
    Expr* made = make(ExprKind::name, node);
    made->text = path.front();
    made->unbound = found.kind == Resolved::Kind::none && path.size() == 1;
    if (found.kind == Resolved::Kind::function) {
        made->function = found.function;
        function().calls.insert(found.function);
    } else if (found.kind == Resolved::Kind::value) {
        made->global = found.value;
        made->undecided = found.value == nullptr && !found.is_type;
        if (found.value != nullptr && found.value->kind == ExprKind::literal) {
            made->kind = ExprKind::literal;
            made->literal = found.value->literal;
        }
        // What the expression names must be parsed too when it is evaluated.
        if (found.scratch < 0) return made;
        const std::set<std::int32_t>& named = module_.functions[at(found.scratch)].calls;
        function().calls.insert(named.begin(), named.end());
    }
    return made;
}

Expr* FunctionParser::name(TSNode node) {
    const std::string_view identifier = text(node);
    const std::int32_t slot = slot_of(identifier, false);
    if (slot >= 0) {
        Expr* made = make(ExprKind::name, node);
        made->text = identifier;
        made->slot = slot;
        return made;
    }
    const Resolved found = resolved(node);
    if (found.kind == Resolved::Kind::external &&
        is_dtype(found.last))  // from triton.language import float16
        return literal(node, dtype_name(found.last));
    return reference(node, found, {identifier});
}

Expr* FunctionParser::attribute(TSNode node) {
    const std::string_view member = text(field(node, "attribute"));
    const std::vector<std::string_view> path = global_path(node);
    if (!path.empty()) {
        const Resolved found = module_.resolve(viewer(), path);
        if (found.kind == Resolved::Kind::function ||
            (found.kind == Resolved::Kind::value && found.consumed == path.size()))
            return reference(node, found, path);
        if (found.kind != Resolved::Kind::value && is_dtype(member))
            return literal(node, dtype_name(member));  // tl.float32
        if (found.kind != Resolved::Kind::value) return reference(node, found, path);
    }
    Expr* made = make(ExprKind::attribute, node);
    made->text = member;
    made->kids.push_back(expression(field(node, "object")));
    return made;
}

/// Of a condition only the truth matters, and so of what `and`, `or` and `not` in it join.
void FunctionParser::note_condition(Expr* root) {
    std::vector<Expr*> pending{root};
    while (!pending.empty()) {
        Expr* e = pending.back();
        pending.pop_back();
        const bool joins = e->kind == ExprKind::both || e->kind == ExprKind::either;
        if (!joins && e->kind != ExprKind::invert) continue;
        e->is_condition = joins;
        pending.insert(pending.end(), e->kids.begin(), e->kids.end());
    }
}

/// (x + b - 1) // b and (x + (b - 1)) // b count tiles just as tl.cdiv does.
void FunctionParser::note_count(Expr* node) {
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

Expr* FunctionParser::binary(TSNode node) {
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

Expr* FunctionParser::comparison(TSNode node) {
    std::vector<TSNode> operands;
    std::vector<Operator> operators;
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        const char* role = ts_node_field_name_for_child(node, i);
        if (role != nullptr && std::string_view(role) == "operators") {
            const auto op = binary_operator(type(child));
            operators.push_back(op.value_or(Operator::equal));
            if (!op)
                fail(child, "unsupported comparison `" + printable(text(child)) +
                                "`: write one of < <= > >= == != is in");
        } else if (ts_node_is_named(child) && type(child) != "comment") {
            operands.push_back(child);
        }
    }
    if (operands.size() > static_cast<std::size_t>(kDeepest)) {
        fail(node, "more than " + std::to_string(kDeepest) +
                       " comparisons in one: assign parts of it to variables");
        return make(ExprKind::unsupported, node);
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

Expr* FunctionParser::tuple(TSNode node) {
    Expr* made = make(ExprKind::tuple, node);
    for (const TSNode child : children(node)) made->kids.push_back(expression(child));
    return made;
}

/// Null: it is not understood.
FunctionParser::Rule FunctionParser::rule_of(std::string_view kind) {
    using P = FunctionParser;
    static const std::unordered_map<std::string_view, Rule> table{
        {"identifier", &P::name},
        {"integer", &P::number},
        {"float", &P::number},
        {"true", &P::constant},
        {"false", &P::constant},
        {"none", &P::constant},
        {"string", &P::string},
        {"concatenated_string", &P::string},
        {"list_splat", &P::splat},
        {"list_comprehension", &P::each},
        {"generator_expression", &P::each},
        {"binary_operator", &P::binary},
        {"comparison_operator", &P::comparison},
        {"call", &P::call},
        {"attribute", &P::attribute},
        {"parenthesized_expression", &P::parenthesized},
        {"tuple", &P::tuple},
        {"list", &P::tuple},
        {"expression_list", &P::tuple},
        {"pattern_list", &P::tuple},
        {"tuple_pattern", &P::tuple},
        {"list_pattern", &P::tuple},
        {"unary_operator", &P::unary},
        {"not_operator", &P::invert},
        {"boolean_operator", &P::logical},
        {"conditional_expression", &P::conditional},
        {"subscript", &P::subscript},
        {"slice", &P::slice},
        {"named_expression", &P::bind}};
    const auto found = table.find(kind);
    return found == table.end() ? nullptr : found->second;
}

Expr* FunctionParser::expression(TSNode node) {
    if (!present(node)) return nullptr;
    struct Depth {
        int& depth;
        explicit Depth(int& d) : depth(d) { ++depth; }
        ~Depth() { --depth; }
    } const guard(depth_);
    if (depth_ > kDeepest) {
        fail(node, "the expression is nested more than " + std::to_string(kDeepest) +
                       " levels deep: assign parts of it to variables");
        return make(ExprKind::unsupported, node);
    }
    const Rule rule = rule_of(type(node));
    return rule != nullptr ? (this->*rule)(node) : unknown_expression(node);
}

/// True, False, None.
Expr* FunctionParser::constant(TSNode node) {
    if (type(node) == "none") return literal(node, NoneValue{});
    return literal(node, type(node) == "true");
}

/// Also of several that stand beside each other.
Expr* FunctionParser::string(TSNode node) {
    std::string content;
    for (const TSNode part : children(node)) {
        if (type(node) == "string") {
            if (type(part) == "string_content") content += text(part);
            continue;
        }
        const Expr* one = expression(part);
        if (const auto* piece = std::get_if<std::string>(&one->literal)) content += *piece;
    }
    return literal(node, content);
}

Expr* FunctionParser::splat(TSNode node) {
    Expr* made = make(ExprKind::splat, node);
    const std::vector<TSNode> inner = children(node);
    if (inner.size() != 1) return unknown_expression(node);
    made->kids.push_back(expression(inner[0]));
    return made;
}

Expr* FunctionParser::parenthesized(TSNode node) {
    const std::vector<TSNode> inner = children(node);
    return inner.size() == 1 ? expression(inner[0]) : unknown_expression(node);
}

Expr* FunctionParser::unary(TSNode node) {
    Expr* made = make(ExprKind::unary, node);
    const std::string_view op = text(field(node, "operator"));
    made->op = op == "-" ? Operator::negative : op == "+" ? Operator::positive : Operator::complement;
    made->kids.push_back(expression(field(node, "argument")));
    return made;
}

Expr* FunctionParser::invert(TSNode node) {
    Expr* made = make(ExprKind::invert, node);
    made->kids.push_back(expression(field(node, "argument")));
    note_condition(made);
    return made;
}

/// `and` and `or`.
Expr* FunctionParser::logical(TSNode node) {
    Expr* made = make(text(field(node, "operator")) == "and" ? ExprKind::both : ExprKind::either, node);
    made->kids = {expression(field(node, "left")), expression(field(node, "right"))};
    return made;
}

Expr* FunctionParser::conditional(TSNode node) {
    const std::vector<TSNode> parts = children(node);
    if (parts.size() != 3) return unknown_expression(node);
    Expr* made = make(ExprKind::conditional, node);
    made->kids = {expression(parts[0]), expression(parts[1]), expression(parts[2])};
    note_condition(made->kids[1]);
    return made;
}

Expr* FunctionParser::subscript(TSNode node) {
    Expr* made = make(ExprKind::subscript, node);
    made->kids.push_back(expression(field(node, "value")));
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const char* role = ts_node_field_name_for_child(node, i);
        const TSNode child = ts_node_child(node, i);
        if (role == nullptr || std::string_view(role) != "subscript" || type(child) == "comment") continue;
        Expr* index = expression(child);
        if (index->kind == ExprKind::tuple) {
            made->kids.insert(made->kids.end(), index->kids.begin(), index->kids.end());
        } else {
            made->kids.push_back(index);
        }
    }
    return made;
}

Expr* FunctionParser::slice(TSNode node) {
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

/// `name := value`.
Expr* FunctionParser::bind(TSNode node) {
    Expr* made = make(ExprKind::bind, node);
    made->slot = slot_of(text(field(node, "name")), true);
    for (auto* outer : assigned_) outer->push_back(made->slot);
    made->kids.push_back(expression(field(node, "value")));
    return made;
}

/// [item for target in items]; with conditions or several loops it is not understood.
Expr* FunctionParser::each(TSNode node) {
    const std::vector<TSNode> parts = children(node);
    if (parts.size() != 2 || type(parts[1]) != "for_in_clause") return unknown_expression(node);
    Expr* made = make(ExprKind::each, node);
    made->kids = {expression(parts[0]), expression(field(parts[1], "left")),
                  expression(field(parts[1], "right"))};
    note_assigned(made->kids[1]);
    return made;
}

/// Syntax that is not understood is kept, with the calls and names inside it: whether it matters shows when
/// an address depends on it, or when it is handed memory.
Expr* FunctionParser::unknown_expression(TSNode node) {
    Expr* made = make(ExprKind::unsupported, node);
    std::vector<TSNode> pending = children(node);
    while (!pending.empty()) {
        const TSNode next = pending.back();
        pending.pop_back();
        if (type(next) == "call" || type(next) == "identifier") {
            if (type(next) == "identifier" && slot_of(text(next), false) < 0) continue;
            made->kids.push_back(expression(next));
            continue;
        }
        for (const TSNode child : children(next)) pending.push_back(child);
    }
    return made;
}

}  // namespace syncopate::kernel::triton

// One function or fragment: where its nodes are in the file, its local names, its parameters and its body.
#include "kernel/triton/syntax/function_parser.hpp"

#include <string>
#include <utility>
#include <vector>

#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/excerpt.hpp"

namespace syncopate::kernel::triton {

SourceRange FunctionParser::range_of(TSNode node) {
    const TSPoint start = ts_node_start_point(node);
    return {ts_node_start_byte(node), ts_node_end_byte(node), static_cast<std::int32_t>(start.row) + 1,
            static_cast<std::int32_t>(start.column) + 1};
}

std::string_view FunctionParser::text(TSNode node) const {
    const SourceRange range = range_of(node);
    return (in_fragment_ ? fragment_ : file_text_).substr(range.begin, range.end - range.begin);
}

SourceRange FunctionParser::place(TSNode node) const {
    SourceRange range = range_of(node);
    if (!in_fragment_) {
        range.begin += file_begin_;
        range.end += file_begin_;
        return range;
    }
    range.begin += fragment_place_.begin;
    range.end += fragment_place_.begin;
    range.column += fragment_place_.column - 1;  // a fragment is one line
    range.line = fragment_place_.line;
    return range;
}

void FunctionParser::fail(TSNode node, std::string message) {
    if (!error_) error_ = module_.error(place(node), std::move(message));
}

Expr* FunctionParser::make(ExprKind kind, TSNode node) {
    Expr& made = module_.exprs_.emplace_back();
    made.kind = kind;
    made.where = place(node);
    return &made;
}

Expr* FunctionParser::literal(TSNode node, Scalar value) {
    Expr* made = make(ExprKind::literal, node);
    made->literal = std::move(value);
    return made;
}

Stmt* FunctionParser::make_stmt(StmtKind kind, TSNode node) {
    Stmt& made = module_.stmts_.emplace_back();
    made.kind = kind;
    made.where = place(node);
    return &made;
}

std::int32_t FunctionParser::slot_of(std::string_view wanted, bool create) {
    if (outside_) return -1;
    const std::int32_t found = function().slot(wanted);
    if (found >= 0 || !create) return found;
    function().slots.emplace_back(wanted);
    return static_cast<std::int32_t>(function().slots.size()) - 1;
}

// Python decides by the whole function which names are local: find them before any expression.
void FunctionParser::collect_names(TSNode body) {
    collect_targets(body, [&](TSNode identifier) { slot_of(text(identifier), true); });
}

/// Every identifier that something in `body` assigns.
void FunctionParser::collect_targets(TSNode body, const std::function<void(TSNode)>& found) const {
    std::vector<TSNode> pending{body};
    const auto bind = [&](TSNode target) {
        std::vector<TSNode> targets{target};
        while (!targets.empty()) {
            const TSNode next = targets.back();
            targets.pop_back();
            if (ts_node_is_null(next)) continue;
            if (type(next) == "identifier") {
                found(next);
            } else if (type(next) == "pattern_list" || type(next) == "tuple_pattern" ||
                       type(next) == "list_pattern" || type(next) == "list_splat_pattern") {
                for (const TSNode child : children(next)) targets.push_back(child);
            }
        }
    };
    while (!pending.empty()) {
        const TSNode node = pending.back();
        pending.pop_back();
        const std::string_view kind = type(node);
        if (kind == "function_definition" || kind == "class_definition") bind(field(node, "name"));
        if (kind == "function_definition" || kind == "class_definition" || kind == "lambda") continue;
        if (kind == "assignment" || kind == "augmented_assignment" || kind == "for_statement" ||
            kind == "for_in_clause")
            bind(field(node, "left"));
        if (kind == "named_expression") bind(field(node, "name"));
        const std::uint32_t count = ts_node_named_child_count(node);
        for (std::uint32_t i = count; i-- > 0;) pending.push_back(ts_node_named_child(node, i));
    }
}

namespace {

/// The type in an annotation as in `tl.int64` or `"i64"`.
std::string_view annotated(std::string_view annotation) {
    const auto quote = [](char c) { return c == '"' || c == '\''; };
    if (annotation.size() > 2 && quote(annotation.front()))
        annotation = annotation.substr(1, annotation.size() - 2);
    if (annotation.starts_with("tl.")) annotation.remove_prefix(3);
    return annotation;
}

/// Whether an annotation names a type of real numbers of less than 32 bits.
bool is_narrow(std::string_view annotation) {
    const std::string name = dtype_name(annotated(annotation));
    return name == "fp16" || name == "bf16" || name.starts_with("fp8");
}

/// The integer type that an annotation names, as in `tl.int64`, `"i64"` or `int`; empty: none.
std::string annotated_integer(std::string_view text) {
    const std::string_view annotation = annotated(text);
    if (annotation == "int") return "int32";
    for (const std::string bits : {"8", "16", "32", "64"}) {
        for (const std::string kind : {"int", "uint"}) {
            if (annotation == kind + bits || annotation == kind.substr(0, 1) + bits) return kind + bits;
        }
    }
    return {};
}

}  // namespace

Status FunctionParser::parse_function(TSNode definition) {
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
        if (type(identifier) == "list_splat_pattern" && !children(identifier).empty()) {
            identifier = children(identifier)[0];
            made.rest = true;
        }
        if (type(identifier) != "identifier") {
            if (kind == "keyword_separator" || kind == "positional_separator") continue;
            fail(node,
                 "Triton kernels take plain parameters, not `" + printable(text(node)) + "`: name each one");
            break;
        }
        made.name = text(identifier);
        made.constant = present(annotation) && text(annotation).find("constexpr") != std::string_view::npos;
        if (present(annotation)) {
            made.type = annotated_integer(text(annotation));
            made.narrow = is_narrow(text(annotation));
        }
        if (slot_of(made.name, false) >= 0)
            fail(node, "parameter `" + made.name + "` is declared twice: rename one");
        slot_of(made.name, true);
        if (present(fallback)) {  // Python evaluates it where the function is defined, once
            outside_ = true;
            made.fallback = expression(fallback);
            outside_ = false;
        }
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
    self.parsed = true;
    if (error_) return *error_;
    return Done{};
}

Result<Expr*> FunctionParser::parse_value(TSNode node) {
    Expr* made = expression(node);
    if (error_) return *error_;
    return made;
}

Result<Expr*> FunctionParser::parse_fragment(TSNode node, std::string_view whole, SourceRange where) {
    in_fragment_ = true;
    fragment_ = whole;
    fragment_place_ = where;
    Expr* made = expression(node);
    if (error_) return *error_;
    return made;
}

}  // namespace syncopate::kernel::triton

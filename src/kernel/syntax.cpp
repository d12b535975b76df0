#include "kernel/syntax.hpp"

#include <tree_sitter/api.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <unordered_map>

#include "kernel/brackets.hpp"
#include "kernel/lower.hpp"
#include "syncopate/excerpt.hpp"

extern "C" const TSLanguage* tree_sitter_python(void);

namespace syncopate::kernel {

struct Module::Tree {
    struct Delete {
        void operator()(TSTree* tree) const { ts_tree_delete(tree); }
        void operator()(TSParser* parser) const { ts_parser_delete(parser); }
    };
    std::unique_ptr<TSTree, Delete> tree;
    std::vector<TSNode> definitions;  // of the functions, by index

    static std::unique_ptr<TSTree, Delete> parse(std::string_view text) {
        const std::unique_ptr<TSParser, Delete> parser(ts_parser_new());
        if (!ts_parser_set_language(parser.get(), tree_sitter_python())) return nullptr;
        return std::unique_ptr<TSTree, Delete>(ts_parser_parse_string(
            parser.get(), nullptr, text.data(), static_cast<std::uint32_t>(text.size())));
    }
};

Module::~Module() = default;

std::string dtype_name(std::string_view name) {
    static const std::unordered_map<std::string_view, std::string_view> names{
        {"float16", "fp16"}, {"bfloat16", "bf16"},      {"float32", "fp32"},
        {"float64", "fp64"}, {"float8e4nv", "fp8e4m3"}, {"float8e5", "fp8e5m2"}};
    const auto found = names.find(name);
    return std::string(found == names.end() ? name : found->second);
}

std::vector<Stmt*> flattened(const std::vector<Stmt*>& body) {
    std::vector<Stmt*> all = body;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Stmt* s = all[i];
        for (Stmt* inner : s->body) all.push_back(inner);
        for (Stmt* inner : s->otherwise) all.push_back(inner);
    }
    return all;
}

std::vector<Expr*> flattened(Expr* root) {
    std::vector<Expr*> all;
    if (root != nullptr) all.push_back(root);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Expr* e = all[i];
        for (Expr* kid : e->kids) {
            if (kid != nullptr) all.push_back(kid);
        }
        for (const auto& [name, value] : e->keywords) all.push_back(value);
    }
    return all;
}

std::int32_t Function::slot(std::string_view wanted) const {
    const auto found = std::find(slots.begin(), slots.end(), wanted);
    return found == slots.end() ? -1 : static_cast<std::int32_t>(found - slots.begin());
}

std::int32_t Module::find(std::string_view name) const {
    // Later definitions replace earlier ones, as in Python.
    for (std::size_t i = functions.size(); i-- > 0;) {
        if (functions[i].name == name) return static_cast<std::int32_t>(i);
    }
    return -1;
}

std::string_view Module::text(const SourceRange& range) const {
    return source.substr(range.begin, range.end - range.begin);
}

Error Module::error(const SourceRange& range, std::string message) const {
    return error_at(source, file, range, std::move(message));
}

namespace {

std::string_view type(TSNode node) { return ts_node_type(node); }

/// Visits every node of the tree in document order without recursion; `visit` says whether to go inside.
void walk(TSNode root, const std::function<bool(TSNode)>& visit) {
    TSTreeCursor cursor = ts_tree_cursor_new(root);
    while (true) {
        if (visit(ts_tree_cursor_current_node(&cursor)) && ts_tree_cursor_goto_first_child(&cursor)) continue;
        while (!ts_tree_cursor_goto_next_sibling(&cursor)) {
            if (!ts_tree_cursor_goto_parent(&cursor)) {
                ts_tree_cursor_delete(&cursor);
                return;
            }
        }
    }
}

struct SyntaxError {
    SourceRange where;
    std::string message;
};

/// Whether a line begins as a compound statement does, and has no colon.
bool lacks_colon(std::string_view line) {
    static constexpr std::array<std::string_view, 9> kWords{"if",  "elif",  "else", "for",   "while",
                                                            "def", "class", "with", "except"};
    const std::string_view first = line.substr(0, line.find_first_of(" \t(:"));
    return line.find(':') == std::string_view::npos &&
           std::find(kWords.begin(), kWords.end(), first) != kWords.end();
}

std::optional<SyntaxError> first_syntax_error(TSNode root, std::string_view source) {
    if (!ts_node_has_error(root)) return std::nullopt;
    // The parser gets over an open bracket by giving up something else, maybe far away.
    if (auto bracket = mismatched_bracket(source)) {
        return SyntaxError{bracket->where, "syntax error: " + bracket->message};
    }
    std::optional<SyntaxError> found;
    walk(root, [&](TSNode node) {
        if (found || !ts_node_has_error(node)) return false;
        const SourceRange where = Lowering::range_of(node);
        if (ts_node_is_missing(node)) {
            found = SyntaxError{where, "syntax error: missing `" + std::string(type(node)) + "`"};
            return false;
        }
        if (!ts_node_is_error(node)) return true;
        const std::string_view text = source.substr(where.begin, where.end - where.begin);
        const std::string_view line = text.substr(0, text.find_first_of("#\n"));
        if (lacks_colon(line)) {
            const auto end = static_cast<std::uint32_t>(line.find_last_not_of(" \t\r") + 1);
            found = SyntaxError{{where.begin + end, where.begin + end, where.line, where.column},
                                "syntax error: missing `:` after `" + printable(line, 40) + "`"};
            return false;
        }
        const std::string shown = printable(line, 40);
        found = SyntaxError{
            where, shown.empty()
                       ? "syntax error: unexpected end of line; is something missing before it?"
                       : "syntax error: unexpected `" + shown + "`; is something missing before it?"};
        return false;
    });
    if (!found) found = SyntaxError{Lowering::range_of(root), "syntax error"};
    return found;
}

TSNode field(TSNode node, std::string_view name) {
    return ts_node_child_by_field_name(node, name.data(), static_cast<std::uint32_t>(name.size()));
}

/// @triton.jit, @jit, @triton.jit(...), @triton.experimental.…jit: the decorator's last name is `jit`.
bool is_jit(TSNode decorator, std::string_view source) {
    TSNode node = ts_node_named_child(decorator, 0);
    if (!ts_node_is_null(node) && type(node) == "call") node = field(node, "function");
    if (!ts_node_is_null(node) && type(node) == "attribute") node = field(node, "attribute");
    if (ts_node_is_null(node) || type(node) != "identifier") return false;
    const SourceRange where = Lowering::range_of(node);
    return source.substr(where.begin, where.end - where.begin) == "jit";
}

}  // namespace

Result<std::unique_ptr<Module>> Module::parse(const std::string& source, const std::string& file) {
    std::unique_ptr<Module> module(new Module());
    module->source = source;
    module->file = file;
    constexpr std::size_t kLargest = std::size_t{64} << 20;
    if (source.size() > kLargest) return Error{"a kernel source of more than 64 MiB", {.file = file}};
    module->tree_ = std::make_unique<Tree>();
    module->tree_->tree = Tree::parse(module->source);
    if (!module->tree_->tree) return Error{"tree-sitter cannot parse the file", {.file = file}};
    const TSNode root = ts_tree_root_node(module->tree_->tree.get());
    if (const auto wrong = first_syntax_error(root, module->source))
        return module->error(wrong->where, wrong->message);

    const auto text = [&](TSNode node) { return module->text(Lowering::range_of(node)); };
    walk(root, [&](TSNode node) {
        if (type(node) == "comment") module->comments.push_back({Lowering::range_of(node)});
        return true;
    });
    const auto line_after = [&](std::uint32_t byte) {
        const std::size_t end = source.find('\n', byte);
        return static_cast<std::uint32_t>(end == std::string::npos ? source.size() : end + 1);
    };
    const auto note_import = [&](TSNode statement) {
        walk(statement, [&](TSNode node) {
            if (type(node) == "identifier") module->imports.emplace(text(node));
            return true;
        });
    };
    const auto note_function = [&](TSNode definition, TSNode outer, bool jit) {
        Function made;
        made.name = text(field(definition, "name"));
        made.jit = jit;
        made.whole = Lowering::range_of(outer);
        made.name_range = Lowering::range_of(field(definition, "name"));
        made.parameters_range = Lowering::range_of(field(definition, "parameters"));
        made.parameters_range.begin += 1;
        made.parameters_range.column += 1;
        made.parameters_range.end -= 1;
        module->functions.push_back(std::move(made));
        module->tree_->definitions.push_back(definition);
    };
    std::vector<std::pair<std::string, TSNode>> assignments;
    const std::uint32_t count = ts_node_named_child_count(root);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode node = ts_node_named_child(root, i);
        const std::string_view kind = type(node);
        if (kind == "import_statement" || kind == "import_from_statement" ||
            kind == "future_import_statement") {
            module->imports_end = line_after(ts_node_end_byte(node));
            note_import(node);
        } else if (kind == "function_definition") {
            note_function(node, node, false);
        } else if (kind == "decorated_definition") {
            const TSNode definition = field(node, "definition");
            if (ts_node_is_null(definition) || type(definition) != "function_definition") continue;
            bool jit = false;
            const std::uint32_t parts = ts_node_named_child_count(node);
            for (std::uint32_t j = 0; j < parts; ++j) {
                const TSNode part = ts_node_named_child(node, j);
                if (type(part) == "decorator") jit = jit || is_jit(part, module->source);
            }
            note_function(definition, node, jit);
        } else if (kind == "expression_statement" && ts_node_named_child_count(node) == 1) {
            const TSNode inner = ts_node_named_child(node, 0);
            if (type(inner) != "assignment") continue;
            const TSNode left = field(inner, "left");
            const TSNode right = field(inner, "right");
            if (!ts_node_is_null(right) && type(left) == "identifier")
                assignments.emplace_back(text(left), right);
        }
    }
    // Module-level constants: a literal, or tl.constexpr(literal), or the negative of one.
    Function scratch;
    module->functions.push_back(scratch);
    const std::int32_t last = static_cast<std::int32_t>(module->functions.size()) - 1;
    for (const auto& [name, value] : assignments) {
        Lowering lowering(*module, last);
        const Result<Expr*> lowered = lowering.lower_fragment(value, module->source, SourceRange{0, 0, 1, 1});
        if (!lowered || *lowered == nullptr) continue;
        const Expr* e = *lowered;
        if (e->kind == ExprKind::call && e->text == "constexpr" && e->kids.size() == 1) e = e->kids[0];
        if (e->kind == ExprKind::literal)
            module->constants[name] = e->literal;
        else if (e->kind == ExprKind::unary && e->op == Operator::negative &&
                 e->kids[0]->kind == ExprKind::literal) {
            if (const auto* number = std::get_if<std::int64_t>(&e->kids[0]->literal))
                module->constants[name] = -*number;
            if (const auto* number = std::get_if<double>(&e->kids[0]->literal))
                module->constants[name] = -*number;
        } else {
            module->constants.erase(name);
        }
    }
    module->functions.pop_back();
    return module;
}

Status Module::lower(std::int32_t function) {
    const auto index = static_cast<std::size_t>(function);
    if (functions[index].lowered) return Done{};
    return Lowering(*this, function).lower_function(tree_->definitions[index]);
}

Result<Expr*> Module::lower_fragment(std::string_view fragment, std::int32_t function, SourceRange place) {
    const auto tree = Tree::parse(fragment);
    if (!tree) return error(place, "cannot parse the directive");
    TSNode node = ts_tree_root_node(tree.get());
    if (const auto wrong = first_syntax_error(node, fragment)) {
        SourceRange where = place;  // a fragment is one line
        where.begin += wrong->where.begin;
        where.end = place.begin + std::max(wrong->where.end, wrong->where.begin + 1);
        return error(where, wrong->message + " in the directive");
    }
    while (!ts_node_is_null(node) && (type(node) == "module" || type(node) == "expression_statement")) {
        if (ts_node_named_child_count(node) != 1)
            return error(place,
                         "the directive needs one expression here: write it, or leave the directive out");
        node = ts_node_named_child(node, 0);
    }
    if (ts_node_is_null(node))
        return error(place, "the directive needs an expression here: write it, or leave the directive out");
    return Lowering(*this, function).lower_fragment(node, fragment, place);
}

}  // namespace syncopate::kernel

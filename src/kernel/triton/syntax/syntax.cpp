#include "kernel/triton/syntax/syntax.hpp"

#include <fmt/format.h>

#include <tree_sitter/api.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <unordered_map>

#include "kernel/triton/syntax/brackets.hpp"
#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/repair.hpp"
#include "syncopate/at.hpp"
#include "syncopate/excerpt.hpp"
#include "syncopate/try.hpp"

extern "C" const TSLanguage* tree_sitter_python(void);

namespace syncopate::kernel::triton {

std::unique_ptr<TSTree, Module::Tree::Delete> Module::Tree::parse(std::string_view text) {
    const std::unique_ptr<TSParser, Delete> parser(ts_parser_new());
    if (!ts_parser_set_language(parser.get(), tree_sitter_python())) return nullptr;
    return std::unique_ptr<TSTree, Delete>(
        ts_parser_parse_string(parser.get(), nullptr, text.data(), static_cast<std::uint32_t>(text.size())));
}

Module::~Module() = default;

std::string dtype_name(std::string_view name) {
    static const std::unordered_map<std::string_view, std::string_view> names{
        {"float16", "fp16"},
        {"bfloat16", "bf16"},
        {"float32", "fp32"},
        {"float64", "fp64"},
        {"float8e4nv", "fp8e4m3"},
        {"float8e5", "fp8e5m2"},
        {"float8e4b8", "fp8e4m3fnuz"},
        {"float8e5b16", "fp8e5m2fnuz"},
        {"float8e4b15", "fp8e4b15"},
        {"bool", "int1"},
        {"float8_e4m3fn", "fp8e4m3"},
        {"float8_e5m2", "fp8e5m2"},
        {"float8_e4m3fnuz", "fp8e4m3fnuz"},
        {"float8_e5m2fnuz", "fp8e5m2fnuz"}};
    const auto found = names.find(name);
    return std::string(found == names.end() ? name : found->second);
}

bool is_dtype(std::string_view name) {
    static constexpr std::array<std::string_view, 8> kPrefixes{"float", "bfloat", "int",  "uint",
                                                               "fp",    "bf",     "void", "pi32_t"};
    return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view prefix) {
        return name.starts_with(prefix) && (name == "void" || name.find_first_of("0123456789") != name.npos);
    });
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

std::int32_t Module::bound(std::string_view name) const {
    const auto& names = files.front().scopes.front().names;
    const auto found = names.find(name);
    return found != names.end() && found->second.kind == Binding::Kind::function ? found->second.function
                                                                                 : -1;
}

const SourceFile& Module::file_of(const SourceRange& range) const {
    std::size_t index = files.size() - 1;
    while (index > 0 && range.begin < files[index].begin) --index;
    return files[index];
}

std::string_view Module::text(const SourceRange& range) const {
    const SourceFile& here = file_of(range);
    return std::string_view(here.text).substr(range.begin - here.begin, range.end - range.begin);
}

Error Module::error(const SourceRange& range, std::string message) const {
    const SourceFile& here = file_of(range);
    SourceRange local = range;
    local.begin -= here.begin;
    local.end -= here.begin;
    return error_at(here.text, here.path, local, std::move(message));
}

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

namespace {

std::string_view type(TSNode node) { return ts_node_type(node); }

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
        const SourceRange where = FunctionParser::range_of(node);
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
    if (!found) found = SyntaxError{FunctionParser::range_of(root), "syntax error"};
    return found;
}

}  // namespace

Result<std::unique_ptr<Module>> Module::parse(const std::string& source, const std::string& file) {
    std::unique_ptr<Module> module(new Module());
    module->file = file;
    SYNCOPATE_TRY(module->add_file(file, source));
    module->source = module->files.front().text;
    const TSNode root = ts_tree_root_node(module->trees_.front()->tree.get());
    walk(root, [&](TSNode node) {
        if (type(node) == "comment") module->comments.push_back({FunctionParser::range_of(node)});
        return true;
    });
    const std::uint32_t count = ts_node_named_child_count(root);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode node = ts_node_named_child(root, i);
        if (type(node) != "import_statement" && type(node) != "import_from_statement" &&
            type(node) != "future_import_statement")
            continue;
        const std::size_t end = source.find('\n', ts_node_end_byte(node));
        module->imports_end = static_cast<std::uint32_t>(end == std::string::npos ? source.size() : end + 1);
    }
    return module;
}

Result<std::int32_t> Module::add_file(std::string path, std::string text) {
    // A byte takes some 200 of memory, and a MiB some seconds.
    constexpr std::size_t kLargest = std::size_t{1} << 20;
    std::size_t all = text.size();
    for (const auto& read : files) all += read.text.size();
    if (text.size() > kLargest || all > 8 * kLargest)
        return Error{
            fmt::format(
                "has {} bytes, with what was read before {}; a kernel's file may have 2^20 bytes, all that "
                "it imports 2^23: put the kernel into a file of its own",
                text.size(), all),
            {.file = path}};
    auto tree = std::make_unique<Tree>();
    tree->tree = Tree::parse(text);
    if (!tree->tree) return Error{"tree-sitter cannot parse the file", {.file = path}};
    // Only where a kernel needs it does it matter that Python does not parse, or that the grammar does not know it.
    const auto wrong = first_syntax_error(ts_tree_root_node(tree->tree.get()), text);
    Repaired repair;
    if (wrong) {
        repair = repaired(text, [](std::string_view part) {
            const auto alone = Tree::parse(part);
            return alone && !ts_node_has_error(ts_tree_root_node(alone.get()));
        });
        tree->tree = Tree::parse(repair.text);
        const auto holds_kernel = [&](const SourceRange& where) {
            return text.find("jit", where.begin) < where.end;
        };
        if (!tree->tree || ts_node_has_error(ts_tree_root_node(tree->tree.get())) ||
            std::ranges::any_of(repair.whole, holds_kernel))
            return error_at(text, path, wrong->where, wrong->message);
    }
    const TSNode root = ts_tree_root_node(tree->tree.get());
    const auto index = static_cast<std::int32_t>(files.size());
    SourceFile made;
    made.path = std::move(path);
    made.text = std::move(text);
    if (!files.empty())
        made.begin = files.back().begin + static_cast<std::uint32_t>(files.back().text.size()) + 1;
    if (std::uint64_t{made.begin} + made.text.size() > UINT32_MAX)
        return Error{"the files that the kernel imports hold more than 4 GiB", {.file = made.path}};
    files.push_back(std::move(made));
    const std::size_t first = functions.size();
    Scope(functions, files.back(), index, tree->definitions, tree->values).collect(root);
    for (const SourceRange& where : repair.left_out) note_error(where, *wrong, first);
    trees_.push_back(std::move(tree));
    return index;
}

/// Notes for the innermost function around it that a statement of the last file has been left out.
void Module::note_error(const SourceRange& where, const SyntaxError& wrong, std::size_t first) {
    const std::uint32_t file_begin = files.back().begin;
    Function* around = nullptr;
    for (std::size_t i = first; i < functions.size(); ++i) {
        const SourceRange& whole = functions[i].whole;
        const bool holds = whole.begin <= file_begin + where.begin && file_begin + where.begin < whole.end;
        if (holds && (around == nullptr || around->whole.begin <= whole.begin)) around = &functions[i];
    }
    if (around == nullptr || around->error) return;
    const std::string_view line = std::string_view(files.back().text).substr(where.begin);
    const bool told = wrong.where.begin >= where.begin && wrong.where.begin < where.end;
    const std::string shown = printable(line.substr(0, line.find_first_of("#\n")), 40);
    around->error = error_at(files.back().text, files.back().path, told ? wrong.where : where,
                             told ? wrong.message : "syntax error: `" + shown + "` is not understood");
}

Status Module::parse_function(std::int32_t function) {
    const auto index = static_cast<std::size_t>(function);
    if (functions[index].error) return *functions[index].error;
    if (functions[index].parsed) return Done{};
    for (const auto& [known, definition] : trees_[at(functions[index].file)]->definitions) {
        if (known == function) return FunctionParser(*this, function).parse_function(definition);
    }
    return error(functions[index].whole, "this function cannot be followed");
}

Result<Expr*> Module::parse_fragment(std::string_view fragment, std::int32_t function, SourceRange place) {
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
    return FunctionParser(*this, function).parse_fragment(node, fragment, place);
}

}  // namespace syncopate::kernel::triton

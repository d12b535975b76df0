// What the statements of a file bind at its top level.
#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr int kDeepest = 64;  // statements inside statements; names bound deeper are not seen

}  // namespace

std::string_view Scope::text(TSNode node) const {
    const SourceRange range = FunctionParser::range_of(node);
    return std::string_view(file_.text).substr(range.begin, range.end - range.begin);
}

SourceRange Scope::place(TSNode node) const {
    SourceRange range = FunctionParser::range_of(node);
    range.begin += file_.begin;
    range.end += file_.begin;
    return range;
}

/// @triton.jit, @jit, @triton.jit(...), @triton.experimental.…jit: the decorator's last name is `jit`.
bool Scope::is_jit(TSNode decorator) const {
    TSNode node = ts_node_named_child(decorator, 0);
    if (present(node) && type(node) == "call") node = field(node, "function");
    if (present(node) && type(node) == "attribute") node = field(node, "attribute");
    if (!present(node) || type(node) != "identifier") return false;
    const auto alias = file_.names.find(text(node));  // from triton import jit as kernel
    return text(node) == "jit" ||
           (alias != file_.names.end() && alias->second.kind == Binding::Kind::member &&
            alias->second.member == "jit");
}

/// Notes for the function that has just been added which of its decorators choose values of parameters:
/// `"BM": 64` and `dict(BM=64)` in @triton.autotune, `"EVEN_K": lambda args: …` in @triton.heuristics.
void Scope::choosers(TSNode decorated) {
    std::deque<Function>& all = functions_;
    std::size_t last = all.size();
    while (last > 0 && all[last - 1].whole.begin != place(decorated).begin) --last;
    if (last == 0) return;
    for (const TSNode part : children(decorated)) {
        const TSNode call = type(part) == "decorator" ? ts_node_named_child(part, 0) : TSNode{};
        if (!present(call) || type(call) != "call") continue;
        const TSNode callee = field(call, "function");
        const std::string name(text(callee));
        const std::string_view end = std::string_view(name).substr(name.rfind('.') + 1);
        if (end != "autotune" && end != "heuristics") continue;
        Chooser made{name, place(part).line, {}};
        if (!present(field(call, "arguments"))) continue;
        walk(field(call, "arguments"), [&](TSNode node) {
            const bool pair = type(node) == "pair", keyword = type(node) == "keyword_argument";
            if (!pair && !keyword) return true;
            std::string_view key = text(field(node, pair ? "key" : "name"));
            const bool quotes = key.size() > 2 && (key.front() == '"' || key.front() == '\'');
            if (pair && !quotes) return true;
            if (pair) key = key.substr(1, key.size() - 2);
            const TSNode value = field(node, "value");
            const bool number = present(value) && (type(value) == "integer" || type(value) == "true" ||
                                                   type(value) == "false" || type(value) == "string");
            made.values.emplace_back(key, number ? text(value) : std::string_view());
            return true;
        });
        all[last - 1].choosers.push_back(std::move(made));
    }
}

void Scope::bind(std::string_view name, Binding binding, bool nested) {
    const auto [known, is_new] = file_.names.try_emplace(std::string(name), binding);
    if (is_new) return;
    if (!nested) {
        known->second = std::move(binding);
    } else if (known->second.kind == Binding::Kind::value && binding.kind == Binding::Kind::value) {
        known->second = Binding{};  // which of them it is depends on what the file does when it is imported
    }
}

void Scope::function(TSNode definition, TSNode outer, bool jit, bool nested) {
    Function made;
    made.name = text(field(definition, "name"));
    made.file = index_;
    made.jit = jit;
    made.whole = place(outer);
    made.name_range = place(field(definition, "name"));
    made.parameters_range = place(field(definition, "parameters"));
    made.parameters_range.begin += 1;
    made.parameters_range.column += 1;
    made.parameters_range.end -= 1;
    Binding binding;
    binding.kind = Binding::Kind::function;
    binding.function = static_cast<std::int32_t>(functions_.size());
    definitions_.emplace_back(binding.function, definition);
    bind(made.name, binding, nested);
    functions_.push_back(std::move(made));
    // Kernels made by a function, for its arguments: its variables are names that they see. Those of any
    // other function are its own affair.
    const TSNode body = field(definition, "body");
    bool makes_functions = false;
    if (!present(body)) return;
    walk(body, [&](TSNode node) {
        makes_functions = makes_functions || type(node) == "function_definition";
        return !makes_functions;
    });
    if (makes_functions) statements(body, true);
}

void Scope::import(TSNode node, bool nested) {
    const bool from = type(node) == "import_from_statement";
    const std::string path = from ? std::string(text(field(node, "module_name"))) : std::string();
    const std::uint32_t count = ts_node_child_count(node);
    for (std::uint32_t i = 0; i < count; ++i) {
        const TSNode child = ts_node_child(node, i);
        if (type(child) == "wildcard_import") file_.stars.push_back(path);
        const char* role = ts_node_field_name_for_child(node, i);
        if (role == nullptr || std::string_view(role) != "name") continue;
        const bool renamed = type(child) == "aliased_import";
        const std::string_view name = text(renamed ? field(child, "name") : child);
        const std::string_view alias = renamed ? text(field(child, "alias")) : name.substr(0, name.find('.'));
        Binding binding;
        binding.kind = from ? Binding::Kind::member : Binding::Kind::module;
        binding.path = from ? path : std::string(renamed ? name : alias);
        if (from) binding.member = name;
        // `except ImportError: helper = None` comes second, and is not what a kernel is meant to see.
        bind(alias, binding, nested);
    }
}

void Scope::statements(TSNode block, bool nested) {
    if (!present(block) || depth_ >= kDeepest) return;
    ++depth_;
    for (const TSNode node : children(block)) statement(node, nested);
    --depth_;
}

void Scope::statement(TSNode node, bool nested) {
    const std::string_view kind = type(node);
    if (kind == "import_statement" || kind == "import_from_statement") {
        import(node, nested);
    } else if (kind == "function_definition") {
        function(node, node, false, nested);
    } else if (kind == "decorated_definition") {
        const TSNode definition = field(node, "definition");
        if (!present(definition)) return;
        if (type(definition) != "function_definition") return statement(definition, nested);
        bool jit = false;
        for (const TSNode part : children(node)) {
            if (type(part) == "decorator") jit = jit || is_jit(part);
        }
        function(definition, node, jit, nested);
        choosers(node);
    } else if (kind == "expression_statement" && ts_node_named_child_count(node) == 1) {
        TSNode inner = ts_node_named_child(node, 0);
        std::vector<TSNode> targets;
        while (type(inner) == "assignment") {  // a = b = value
            targets.push_back(field(inner, "left"));
            inner = field(inner, "right");
            if (!present(inner)) return;
        }
        if (type(inner) == "augmented_assignment") targets.push_back(field(inner, "left"));
        for (const TSNode target : targets) {
            if (type(target) != "identifier") continue;
            Binding binding;
            if (type(inner) != "augmented_assignment") {
                binding.kind = Binding::Kind::value;
                binding.node = values_.size();
                values_.push_back(inner);
            }
            bind(text(target), binding, nested);
        }
    } else if (kind == "if_statement" || kind == "try_statement" || kind == "with_statement" ||
               kind == "elif_clause" || kind == "else_clause" || kind == "except_clause" ||
               kind == "class_definition" || kind == "block") {
        if (depth_ >= kDeepest) return;
        ++depth_;
        for (const TSNode child : children(node)) statement(child, true);
        --depth_;
    }
}

void Scope::collect(TSNode root) { statements(root, false); }

}  // namespace syncopate::kernel::triton

// What the statements of a file bind, at its top level and in the functions and classes that have others
// inside.
#include <algorithm>

#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr int kDeepest = 64;  // statements inside statements; names bound deeper are not seen

bool is_import(const Binding& binding) {
    return binding.kind == Binding::Kind::module || binding.kind == Binding::Kind::member;
}

bool imports_triton(const Binding& binding) { return is_import(binding) && is_of_triton(binding.path); }

/// The name of a parameter, as a node; null for `*` and `/`.
TSNode name_of(TSNode parameter) {
    TSNode node = parameter;
    while (present(node) && type(node) != "identifier") {
        const TSNode name = field(node, "name");
        node = present(name) ? name : ts_node_named_child(node, 0);
    }
    return node;
}

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

/// Notes for the function that has just been added which of its decorators choose values of parameters:
/// `"BM": 64` and `dict(BM=64)` in @triton.autotune, `"EVEN_K": lambda args: …` in @triton.heuristics.
void Scope::choosers(TSNode decorated) {
    std::deque<Function>& all = functions_;
    std::size_t last = all.size();
    while (last > 0 && all[last - 1].whole.begin != place(decorated).begin) --last;
    if (last == 0) return;
    for (const TSNode part : children(decorated)) {
        const TSNode call = type(part) == "decorator" ? ts_node_named_child(part, 0) : TSNode{};
        if (present(call) && type(call) == "call" && chooses(call)) add_chooser(call, all[last - 1]);
    }
}

/// Notes what values of parameters a call of triton.autotune or triton.heuristics chooses for a kernel.
void Scope::add_chooser(TSNode call, Function& kernel) {
    Chooser made{std::string(text(field(call, "function"))), place(call).line, {}};
    const auto is_known = [&](const Chooser& other) {
        return other.name == made.name && other.line == made.line;
    };
    if (std::ranges::any_of(kernel.choosers, is_known)) return;
    if (!present(field(call, "arguments"))) return;
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
    kernel.choosers.push_back(std::move(made));
}

/// None, or what a class makes: what a name stands for where there is no Triton.
bool Scope::stands_in(const Binding& binding) const {
    if (binding.kind != Binding::Kind::value) return false;
    const std::string_view kind = type(values_[binding.node]);
    return kind == "none" || kind == "call";
}

void Scope::bind(std::string_view name, Binding binding, Reached reached) {
    auto& names = file_.scopes[at(scope_)].names;
    binding.stars = file_.stars.size();
    const auto [known, is_new] = names.try_emplace(std::string(name), binding);
    if (is_new) return;
    Binding& before = known->second;
    before.stars = std::max(before.stars, binding.stars);
    if (is_import(before) && before.kind == binding.kind && before.path == binding.path &&
        before.member == binding.member)
        return;
    const bool is_function = binding.kind == Binding::Kind::function && before.kind == binding.kind;
    if (is_function && before.function == binding.function) return;
    if (reached != Reached::always) {
        // `except ImportError: helper = None` comes second, and is not what a kernel is meant to see; and
        // none could run without Triton.
        if (reached == Reached::instead && is_import(before)) return;
        if (imports_triton(before) && (stands_in(binding) || imports_triton(binding))) return;
        if (stands_in(before) && imports_triton(binding)) {
            before = std::move(binding);
            return;
        }
        // Which of them it is depends on what the file does when it is imported.
        binding = Binding{.stars = binding.stars};
    }
    before = std::move(binding);
    before.again = true;
}

/// Notes that something other than a plain assignment binds the names of `target`.
void Scope::forget(TSNode target) {
    if (!present(target)) return;
    const std::string_view kind = type(target);
    if (kind == "identifier") {
        bind(text(target), Binding{}, Reached::maybe);
    } else if (kind == "subscript") {  // an item of what the name stands for
        if (type(field(target, "value")) == "identifier") forget(field(target, "value"));
    } else if (kind != "attribute" && depth_ < kDeepest) {
        ++depth_;
        for (const TSNode part : children(target)) forget(part);
        --depth_;
    }
}

/// Loop variables, `:=`, `as`, `del` and patterns of `match` in a block.
void Scope::forget_other_targets(TSNode block) {
    walk(block, [&](TSNode node) {
        const std::string_view kind = type(node);
        if (kind == "function_definition" || kind == "class_definition" || kind == "lambda") return false;
        if (kind == "for_statement") forget(field(node, "left"));
        if (kind == "named_expression") forget(field(node, "name"));
        if (kind == "as_pattern_target" || kind == "delete_statement" || kind == "case_pattern") forget(node);
        return true;
    });
}

/// Names of scopes around it that a function says it assigns, whenever it is called.
void Scope::note_outer_names(TSNode body) {
    walk(body, [&](TSNode node) {
        const std::string_view kind = type(node);
        if (kind == "function_definition") return false;
        if (kind != "global_statement" && kind != "nonlocal_statement") return true;
        for (const TSNode name : children(node))
            outer_names_.push_back({kind == "global_statement" ? 0 : seen_, std::string(text(name))});
        return false;
    });
}

std::int32_t Scope::new_scope(std::int32_t parent) {
    const auto index = static_cast<std::int32_t>(file_.scopes.size());
    NameScope& made = file_.scopes.emplace_back();
    made.parent = parent;
    made.scratch = static_cast<std::int32_t>(functions_.size());
    Function& scratch = functions_.emplace_back();
    scratch.file = index_;
    scratch.scope = index;
    return index;
}

/// Collects the statements of `block`, which bind names of `scope`; functions among them see `seen`.
void Scope::inside(TSNode block, std::int32_t scope, std::int32_t seen) {
    const std::int32_t scope_around = scope_, seen_around = seen_;
    scope_ = scope;
    seen_ = seen;
    statements(block, Reached::always);
    note_jitted(block);
    forget_other_targets(block);
    scope_ = scope_around;
    seen_ = seen_around;
}

/// Whether a function has others inside, which see its names.
bool Scope::has_scope(TSNode definition) {
    const TSNode body = field(definition, "body");
    bool found = false;
    if (!present(body)) return false;
    walk(body, [&](TSNode node) {
        found = found || type(node) == "function_definition";
        return !found;
    });
    return found;
}

void Scope::function(TSNode definition, TSNode outer, bool jit, Reached reached) {
    Function made;
    made.name = text(field(definition, "name"));
    made.file = index_;
    made.scope = seen_;
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
    bind(made.name, binding, reached);
    functions_.push_back(std::move(made));
    const TSNode body = field(definition, "body");
    if (!present(body)) return;
    note_outer_names(body);
    if (!has_scope(definition)) return;
    // Kernels made by a function, for its arguments: its variables are names that they see.
    const std::int32_t scope = new_scope(seen_);
    for (const TSNode parameter : children(field(definition, "parameters"))) {
        const TSNode name = name_of(parameter);
        if (present(name)) file_.scopes.back().names.try_emplace(std::string(text(name)));
    }
    inside(body, scope, scope);
}

void Scope::import(TSNode node, Reached reached) {
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
        bind(alias, binding, reached);
    }
}

/// target = value
void Scope::assign(TSNode target, TSNode value, Reached reached) {
    const std::string_view kind = type(target);
    if (kind == "identifier") {
        Binding binding;
        binding.function = jitted(value, 0);
        if (binding.function >= 0) {  // k = triton.jit(k): the kernel goes by this name
            functions_[at(binding.function)].jit = true;
            binding.kind = Binding::Kind::function;
            return bind(text(target), binding, reached);
        }
        binding.kind = Binding::Kind::value;
        binding.node = values_.size();
        values_.push_back(value);
        return bind(text(target), binding, reached);
    }
    const bool listed = type(value) == "expression_list" || type(value) == "tuple";
    const std::vector<TSNode> targets = children(target), values = children(value);
    const auto stands_alone = [](TSNode node) {
        return type(node) != "list_splat" && type(node) != "list_splat_pattern";
    };
    if ((kind == "pattern_list" || kind == "tuple_pattern") && listed && targets.size() == values.size() &&
        std::ranges::all_of(targets, stands_alone) && std::ranges::all_of(values, stands_alone)) {
        if (depth_ >= kDeepest) return;
        ++depth_;
        for (std::size_t i = 0; i < targets.size(); ++i) assign(targets[i], values[i], reached);
        --depth_;
    } else {
        forget(target);
    }
}

void Scope::statements(TSNode block, Reached reached) {
    if (!present(block) || depth_ >= kDeepest) return;
    ++depth_;
    for (const TSNode node : children(block)) statement(node, reached);
    --depth_;
}

void Scope::statement(TSNode node, Reached reached) {
    const std::string_view kind = type(node);
    if (kind == "import_statement" || kind == "import_from_statement") {
        import(node, reached);
    } else if (kind == "function_definition") {
        function(node, node, false, reached);
    } else if (kind == "decorated_definition") {
        const TSNode definition = field(node, "definition");
        if (!present(definition)) return;
        if (type(definition) != "function_definition") return statement(definition, reached);
        bool jit = false;
        for (const TSNode part : children(node)) {
            if (type(part) == "decorator") jit = jit || is_jit(ts_node_named_child(part, 0), 0);
        }
        function(definition, node, jit, reached);
        choosers(node);
    } else if (kind == "class_definition") {
        Binding binding;
        binding.kind = Binding::Kind::type;
        bind(text(field(node, "name")), std::move(binding), reached);
        // Methods do not see the names of their class.
        if (depth_ >= kDeepest) return;
        ++depth_;
        inside(field(node, "body"), new_scope(seen_), seen_);
        --depth_;
    } else if (kind == "expression_statement" && ts_node_named_child_count(node) == 1) {
        TSNode inner = ts_node_named_child(node, 0);
        std::vector<TSNode> targets;
        while (type(inner) == "assignment") {  // a = b = value
            targets.push_back(field(inner, "left"));
            inner = field(inner, "right");
            if (!present(inner)) return;
        }
        if (type(inner) == "augmented_assignment") return forget(field(inner, "left"));
        for (const TSNode target : targets) assign(target, inner, reached);
    } else if (kind.ends_with("_statement") || kind.ends_with("_clause") || kind == "block") {
        statements(
            node, kind == "except_clause" || reached == Reached::instead ? Reached::instead : Reached::maybe);
    }
}

void Scope::collect(TSNode root) {
    const std::int32_t scope = new_scope(-1);
    inside(root, scope, scope);
    for (const auto& [first, name] : outer_names_) {
        for (std::int32_t s = first; s >= 0; s = s == 0 ? -1 : file_.scopes[at(s)].parent) {
            const auto known = file_.scopes[at(s)].names.find(name);
            if (known != file_.scopes[at(s)].names.end()) known->second = Binding{};
        }
    }
}

}  // namespace syncopate::kernel::triton

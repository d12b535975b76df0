// Which functions of a file are kernels: those under @triton.jit or a decorator that stands for it, and those that
// a call makes into one, as in `k = triton.jit(k)` or `triton.autotune(…)(triton.jit(k))`.
#include <algorithm>
#include <string_view>
#include <vector>

#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr int kDeepest = 16;  // decorators that stand for decorators, calls of calls

std::vector<TSNode> arguments_of(TSNode call) {
    const TSNode list = field(call, "arguments");
    return present(list) && type(list) == "argument_list" ? children(list) : std::vector<TSNode>{};
}

TSNode without_parentheses(TSNode node) {
    while (present(node) && type(node) == "parenthesized_expression" && !children(node).empty())
        node = children(node)[0];
    return node;
}

}  // namespace

/// What a name stands for where `scope` looks it up; null: nothing in the file.
const Binding* Scope::binding_of(std::string_view name, std::int32_t scope) const {
    for (std::int32_t s = scope; s >= 0; s = file_.scopes[at(s)].parent) {
        const auto& names = file_.scopes[at(s)].names;
        if (const auto found = names.find(name); found != names.end()) return &found->second;
    }
    return nullptr;
}

/// Whether an expression is triton.jit, or gives what makes a kernel of a function as it does: triton.jit(…) with
/// options, functools.partial(triton.jit, …), a function of the file that returns triton.jit(f).
bool Scope::is_jit(TSNode node, int depth) const {
    node = without_parentheses(node);
    if (!present(node) || depth > kDeepest) return false;
    const std::string_view kind = type(node);
    if (kind == "attribute") {
        const std::string_view last = text(field(node, "attribute"));
        return last == "jit" || last == "JITFunction";
    }
    if (kind == "conditional_expression") {
        const std::vector<TSNode> parts = children(node);  // value, condition, alternative
        return parts.size() == 3 && (is_jit(parts[0], depth + 1) || is_jit(parts[2], depth + 1));
    }
    if (kind == "lambda") return gives_jit(field(node, "body"), depth + 1);
    if (kind == "call") {
        const TSNode callee = field(node, "function");
        const std::vector<TSNode> arguments = arguments_of(node);
        const std::string_view name = text(callee);
        const bool is_partial = name == "partial" || name.ends_with(".partial");
        if (is_partial) return !arguments.empty() && is_jit(arguments[0], depth + 1);
        const auto is_option = [](TSNode a) {
            return type(a) == "keyword_argument" || type(a) == "dictionary_splat";
        };
        if (is_jit(callee, depth + 1)) return std::ranges::all_of(arguments, is_option);
        return makes_jit(callee, depth + 1);
    }
    if (kind != "identifier") return false;
    if (text(node) == "jit") return true;
    const Binding* binding = binding_of(text(node), scope_);
    if (binding == nullptr) return false;
    if (binding->kind == Binding::Kind::member)  // from triton import jit as kernel
        return binding->member == "jit" || binding->member == "JITFunction";
    if (binding->kind == Binding::Kind::value) return is_jit(values_[binding->node], depth + 1);
    if (binding->kind != Binding::Kind::function) return false;
    return std::ranges::any_of(returned_by(*binding),
                               [&](TSNode value) { return gives_jit(value, depth + 1); });
}

/// Whether a function of the file returns a decorator that is_jit(), or a function that is one.
bool Scope::makes_jit(TSNode callee, int depth) const {
    if (!present(callee) || type(callee) != "identifier" || depth > kDeepest) return false;
    const Binding* binding = binding_of(text(callee), scope_);
    if (binding == nullptr || binding->kind != Binding::Kind::function) return false;
    return std::ranges::any_of(returned_by(*binding), [&](TSNode value) {
        if (type(value) != "identifier") return is_jit(value, depth + 1);
        // def wrap(f): return triton.jit(f) inside it
        bool found = false;
        walk(definition_of(*binding), [&](TSNode inner) {
            if (type(inner) != "function_definition") return !found;
            const bool is_named = text(field(inner, "name")) == text(value);
            if (is_named)
                for (const TSNode given : returns_in(field(inner, "body")))
                    found = found || gives_jit(given, depth + 1);
            return !found;
        });
        return found;
    });
}

/// Whether an expression is a call that makes a kernel, of whatever it is given.
bool Scope::gives_jit(TSNode node, int depth) const {
    node = without_parentheses(node);
    if (!present(node) || type(node) != "call" || depth > kDeepest) return false;
    const std::vector<TSNode> arguments = arguments_of(node);
    if (arguments.empty()) return false;
    if (is_jit(field(node, "function"), depth + 1)) return true;
    return type(arguments[0]) == "call" && gives_jit(arguments[0], depth + 1);
}

/// The function that a call makes a kernel of, or that what is around such a call is given; -1: it is none.
std::int32_t Scope::jitted(TSNode node, int depth) const {
    node = without_parentheses(node);
    if (!present(node) || type(node) != "call" || depth > kDeepest) return -1;
    const std::vector<TSNode> arguments = arguments_of(node);
    TSNode given{};
    for (const TSNode argument : arguments) {
        const bool named = type(argument) == "keyword_argument";
        if (named && text(field(argument, "name")) == "fn") given = field(argument, "value");
        if (!named && !present(given)) given = argument;
    }
    given = without_parentheses(given);
    if (!present(given)) return -1;
    if (type(given) == "call") return jitted(given, depth + 1);
    if (type(given) != "identifier") return -1;
    const Binding* binding = binding_of(text(given), scope_);
    if (binding == nullptr || binding->kind != Binding::Kind::function) return -1;
    if (is_parameter(node, text(given))) return -1;
    const TSNode callee = field(node, "function");
    const bool is_kernel = functions_[at(binding->function)].jit;
    // triton.autotune(…)(k), of a kernel; another call of one may be anything.
    const bool decorates = type(callee) == "call" && chooses(callee);
    return is_jit(callee, depth + 1) || (is_kernel && decorates) ? binding->function : -1;
}

/// Whether a call is of triton.autotune or triton.heuristics.
bool Scope::chooses(TSNode call) const {
    const std::string_view name = text(field(call, "function"));
    const std::string_view last = name.substr(name.rfind('.') + 1);
    return last == "autotune" || last == "heuristics";
}

/// Whether a name is a parameter of a function, or a lambda, that a node stands in.
bool Scope::is_parameter(TSNode node, std::string_view name) const {
    for (TSNode around = ts_node_parent(node); present(around); around = ts_node_parent(around)) {
        if (type(around) != "function_definition" && type(around) != "lambda") continue;
        const TSNode parameters = field(around, "parameters");
        bool found = false;
        if (present(parameters))
            walk(parameters, [&](TSNode part) {
                found = found || (type(part) == "identifier" && text(part) == name);
                return !found;
            });
        if (found) return true;
    }
    return false;
}

/// Makes kernels of the functions that calls inside `block` make kernels of, wherever they stand.
void Scope::note_jitted(TSNode block) {
    walk(block, [&](TSNode node) {
        if (type(node) == "function_definition" && has_scope(node)) return false;  // whose names are its own
        if (type(node) != "call") return true;
        const std::int32_t function = jitted(node, 0);
        if (function < 0) return true;
        Function& kernel = functions_[at(function)];
        kernel.jit = true;
        for (TSNode around = node; present(around) && type(around) == "call";) {
            const TSNode callee = field(around, "function");
            if (type(callee) == "call" && chooses(callee)) add_chooser(callee, kernel);
            const std::vector<TSNode> arguments = arguments_of(around);
            around = arguments.empty() ? TSNode{} : arguments[0];
        }
        return false;
    });
}

TSNode Scope::definition_of(const Binding& binding) const {
    for (const auto& [index, definition] : definitions_)
        if (index == binding.function) return definition;
    return {};
}

/// The values that a function of the file returns.
std::vector<TSNode> Scope::returned_by(const Binding& binding) const {
    const TSNode definition = definition_of(binding);
    return present(definition) ? returns_in(field(definition, "body")) : std::vector<TSNode>{};
}

/// … those of functions inside it left aside.
std::vector<TSNode> Scope::returns_in(TSNode body) {
    std::vector<TSNode> found;
    if (!present(body)) return found;
    walk(body, [&](TSNode node) {
        if (type(node) == "function_definition" || type(node) == "lambda") return false;
        if (type(node) == "return_statement" && !children(node).empty()) found.push_back(children(node)[0]);
        return true;
    });
    return found;
}

}  // namespace syncopate::kernel::triton

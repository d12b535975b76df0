// What a Module keeps of tree-sitter: the tree of each file, and the nodes in it that are parsed later.
// Internal to the files that build and follow modules.
#pragma once

#include <tree_sitter/api.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernel/triton/syntax/syntax.hpp"

namespace syncopate::kernel::triton {

struct Module::Tree {
    struct Delete {
        void operator()(TSTree* owned) const { ts_tree_delete(owned); }
        void operator()(TSParser* owned) const { ts_parser_delete(owned); }
    };
    std::unique_ptr<TSTree, Delete> tree;
    std::vector<std::pair<std::int32_t, TSNode>> definitions;  // (function's index, its definition)
    std::vector<TSNode> values;                                // what module-level names are assigned

    static std::unique_ptr<TSTree, Delete> parse(std::string_view text);
};

/// Visits every node of the tree in document order without recursion; `visit` says whether to go inside.
void walk(TSNode root, const std::function<bool(TSNode)>& visit);

/// Finds what the statements of a file bind: functions, imports and assigned values, each in the scope that
/// it belongs to. Of names that are bound inside `if`, `try`, `for` and so on only one binding is followed.
class Scope {
public:
    Scope(std::deque<Function>& functions, SourceFile& file, std::int32_t index,
          std::vector<std::pair<std::int32_t, TSNode>>& definitions, std::vector<TSNode>& values)
        : functions_(functions), file_(file), index_(index), definitions_(definitions), values_(values) {}

    void collect(TSNode root);

private:
    /// How a statement is reached: always, in one branch of several, or in place of an import that failed.
    enum class Reached : std::uint8_t { always, maybe, instead };

    void inside(TSNode block, std::int32_t scope, std::int32_t seen);
    [[nodiscard]] std::int32_t new_scope(std::int32_t parent);
    void statements(TSNode block, Reached reached);
    void statement(TSNode node, Reached reached);
    void import(TSNode node, Reached reached);
    void function(TSNode definition, TSNode outer, bool jit, Reached reached);
    void assign(TSNode target, TSNode value, Reached reached);
    bool stands_in(const Binding& binding) const;
    void bind(std::string_view name, Binding binding, Reached reached);
    void forget(TSNode target);
    void forget_other_targets(TSNode block);
    void note_outer_names(TSNode body);
    [[nodiscard]] std::string_view text(TSNode node) const;
    void choosers(TSNode decorated);
    void add_chooser(TSNode call, Function& kernel);
    [[nodiscard]] SourceRange place(TSNode node) const;

    // scope_jit.cpp
    [[nodiscard]] const Binding* binding_of(std::string_view name, std::int32_t scope) const;
    [[nodiscard]] bool is_jit(TSNode node, int depth) const;
    [[nodiscard]] bool makes_jit(TSNode callee, int depth) const;
    [[nodiscard]] bool gives_jit(TSNode node, int depth) const;
    [[nodiscard]] std::int32_t jitted(TSNode node, int depth) const;
    [[nodiscard]] bool chooses(TSNode call) const;
    [[nodiscard]] bool is_parameter(TSNode node, std::string_view name) const;
    [[nodiscard]] static bool has_scope(TSNode definition);
    void note_jitted(TSNode block);
    [[nodiscard]] TSNode definition_of(const Binding& binding) const;
    [[nodiscard]] std::vector<TSNode> returned_by(const Binding& binding) const;
    [[nodiscard]] static std::vector<TSNode> returns_in(TSNode body);

    std::deque<Function>& functions_;
    SourceFile& file_;
    std::int32_t index_;
    std::vector<std::pair<std::int32_t, TSNode>>& definitions_;
    std::vector<TSNode>& values_;
    std::int32_t scope_ = 0;  // that binds what is met
    std::int32_t seen_ = 0;   // that functions see which are met: inside a class, what is around it
    std::vector<std::pair<std::int32_t, std::string>> outer_names_;  // the innermost scope that may have it
    int depth_ = 0;
};

}  // namespace syncopate::kernel::triton

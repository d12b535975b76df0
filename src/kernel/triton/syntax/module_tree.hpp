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

/// Finds what the statements of a file bind at its top level: functions, imports, assigned values; also
/// inside `if`, `try`, classes and other functions, where an outer binding of the same name goes first.
class Scope {
public:
    Scope(std::deque<Function>& functions, SourceFile& file, std::int32_t index,
          std::vector<std::pair<std::int32_t, TSNode>>& definitions, std::vector<TSNode>& values)
        : functions_(functions), file_(file), index_(index), definitions_(definitions), values_(values) {}

    void collect(TSNode root);

private:
    void statements(TSNode block, bool nested);
    void statement(TSNode node, bool nested);
    void import(TSNode node, bool nested);
    void function(TSNode definition, TSNode outer, bool jit, bool nested);
    void bind(std::string_view name, Binding binding, bool nested);
    [[nodiscard]] std::string_view text(TSNode node) const;
    [[nodiscard]] bool is_jit(TSNode decorator) const;
    void choosers(TSNode decorated);
    [[nodiscard]] SourceRange place(TSNode node) const;

    std::deque<Function>& functions_;
    SourceFile& file_;
    std::int32_t index_;
    std::vector<std::pair<std::int32_t, TSNode>>& definitions_;
    std::vector<TSNode>& values_;
    int depth_ = 0;
};

}  // namespace syncopate::kernel::triton

// From tree-sitter's tree to the compact form: one FunctionParser per function. Internal to syntax.cpp and
// parse_*.cpp.
#pragma once

#include <tree_sitter/api.h>

#include <functional>
#include <optional>

#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

class FunctionParser {
public:
    FunctionParser(Module& module, std::int32_t function)
        : module_(module), index_(function), file_text_(file().text), file_begin_(file().begin) {}

    /// Parses the parameters and the body of `definition` (a function_definition node).
    Status parse_function(TSNode definition);
    /// Parses the expression of a fragment's own tree; `place` is where the fragment starts in the file.
    Result<Expr*> parse_fragment(TSNode expression, std::string_view text, SourceRange place);

    /// Parses an expression at the top level of the file.
    Result<Expr*> parse_value(TSNode expression);

    static SourceRange range_of(TSNode node);
    static Builtin builtin_named(std::string_view name);

private:
    static constexpr int kDeepest = 200;

    // parse_function.cpp
    const SourceFile& file() { return module_.files[at(function().file)]; }
    Function& function() { return module_.functions[at(index_)]; }
    /// What its expressions see: those of a file, or of defaults, are evaluated while the file is imported.
    Viewer viewer() { return {function().file, function().scope, outside_ || function().name.empty()}; }
    std::string_view text(TSNode node) const;
    SourceRange place(TSNode node) const;
    Expr* make(ExprKind kind, TSNode node);
    Expr* literal(TSNode node, Scalar value);
    Stmt* make_stmt(StmtKind kind, TSNode node);
    std::int32_t slot_of(std::string_view name, bool create);
    bool outside_ = false;  // of the function: its names are those of the file
    void collect_names(TSNode body);
    void collect_targets(TSNode body, const std::function<void(TSNode)>& found) const;
    void fail(TSNode node, std::string message);

    // parse_expression.cpp
    using Rule = Expr* (FunctionParser::*)(TSNode);
    static Rule rule_of(std::string_view kind);
    Expr* expression(TSNode node);
    Expr* constant(TSNode node);
    Expr* string(TSNode node);
    Expr* splat(TSNode node);
    Expr* parenthesized(TSNode node);
    Expr* unary(TSNode node);
    Expr* invert(TSNode node);
    Expr* logical(TSNode node);
    Expr* conditional(TSNode node);
    Expr* subscript(TSNode node);
    Expr* slice(TSNode node);
    Expr* bind(TSNode node);
    Expr* number(TSNode node);
    Expr* name(TSNode node);
    Expr* binary(TSNode node);
    Expr* comparison(TSNode node);
    Expr* attribute(TSNode node);
    Expr* tuple(TSNode node);
    Expr* each(TSNode node);
    Expr* unknown_expression(TSNode node);
    void note_count(Expr* node);
    static void note_condition(Expr* root);
    /// The names of a.b.c when `a` is no variable of the function; empty otherwise.
    std::vector<std::string_view> global_path(TSNode node);
    Resolved resolved(TSNode node);
    Expr* reference(TSNode node, const Resolved& found, const std::vector<std::string_view>& path);

    // parse_call.cpp
    Expr* call(TSNode node);
    bool is_known(const Resolved& found, const std::vector<std::string_view>& path);
    void method(Expr* made, TSNode callee);

    // parse_statement.cpp
    std::vector<Stmt*> block(TSNode node);
    Stmt* statement(TSNode node);
    Stmt* assignment(TSNode node, TSNode whole);
    Stmt* branch(TSNode node);
    Stmt* unknown_statement(TSNode node);
    Stmt* loop(TSNode node, bool is_for);
    void finish(Stmt* statement);
    void note_assigned(Expr* target);
    static void note_carried(Stmt* loop);

    Module& module_;
    std::int32_t index_;
    std::string_view file_text_;
    std::uint32_t file_begin_ = 0;
    int depth_ = 0;
    std::optional<Error> error_;
    std::string_view fragment_;  // of a fragment: its text, and where it starts
    SourceRange fragment_place_;
    bool in_fragment_ = false;
    std::vector<std::vector<std::int32_t>*> assigned_;  // of the enclosing loops
};

}  // namespace syncopate::kernel::triton

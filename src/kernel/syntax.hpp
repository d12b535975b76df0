// The compact form of the Python that kernels are written in. tree-sitter parses the file once; the functions
// that matter are lowered, each once, to trees whose variables are slots and whose callees are resolved, so
// that evaluating them for thousands of tiles is cheap. Every node keeps its exact place in the source.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/kernel/kernel.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

enum class ExprKind : std::uint8_t {
    name,         ///< slot, or a module-level name when slot < 0
    literal,      ///< `literal`
    tuple,        ///< kids
    attribute,    ///< kids[0].text
    call,         ///< builtin or helper; kids are the positional arguments
    method,       ///< kids[0].text(kids[1:])
    subscript,    ///< kids[0][kids[1:]]
    slice,        ///< kids: begin, end, step; null where absent
    unary,        ///< op
    binary,       ///< op
    compare,      ///< op
    both,         ///< `and`
    either,       ///< `or`
    invert,       ///< `not`
    conditional,  ///< kids: value, condition, alternative
    bind,         ///< `slot := kids[0]`
    unsupported,
};

enum class Operator : std::uint8_t {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    shift_left,
    shift_right,
    bit_and,
    bit_or,
    bit_xor,
    matmul,
    less,
    less_equal,
    greater,
    greater_equal,
    equal,
    not_equal,
    is,
    is_not,
    in,
    not_in,
    negative,
    positive,
    complement,
};

/// What the evaluator knows by name; `other` is any call on values whose result cannot be an address.
enum class Builtin : std::uint8_t {
    other,
    helper,
    program_id,
    num_programs,
    load,
    store,
    atomic,
    make_descriptor,
    descriptor_load,
    descriptor_store,
    make_block_ptr,
    advance,
    arange,
    zeros,
    full,
    zeros_like,
    cdiv,
    minimum,
    maximum,
    where,
    same,
    ignore,
    static_assertion,
    cast,
    transpose,
    expand_dims,
    broadcast_to,
    swizzle2d,
    range,
    static_range,
    absolute,
    length,
    to_int,
    to_float,
};

struct Function;

struct Expr {
    ExprKind kind = ExprKind::unsupported;
    Operator op = Operator::add;
    Builtin builtin = Builtin::other;
    std::int32_t slot = -1;
    std::int32_t function = -1;  ///< Builtin::helper: index in Module::functions
    std::string text;            ///< identifier, attribute or callee
    Scalar literal;
    std::vector<Expr*> kids;
    std::vector<std::pair<std::string, Expr*>> keywords;
    SourceRange where;
    bool is_count = false;  ///< the idiom (kids[0] + b - 1) // b; then count_of and count_by are its parts
    Expr* count_of = nullptr;
    Expr* count_by = nullptr;
    // Notes of one evaluation, set by the evaluator.
    std::int32_t source = -1;    ///< index of the taint source that this node is
    std::int32_t axis = -1;      ///< multiplication of a tile coordinate by this axis's block size
    std::int32_t axis_side = 0;  ///< which kid is the coordinate
};

enum class StmtKind : std::uint8_t {
    assign,
    augment,
    expression,
    branch,
    for_loop,
    while_loop,
    give_back,
    pass,
    stop_loop,
    next_round,
    assertion,
    block,
    unsupported,
};

struct Stmt {
    StmtKind kind = StmtKind::pass;
    Operator op = Operator::add;
    Expr* target = nullptr;  ///< assign, augment, for_loop
    Expr* value = nullptr;   ///< assigned value, condition, iterable, returned value
    std::vector<Stmt*> body;
    std::vector<Stmt*> otherwise;
    SourceRange where;                   ///< to the end of the last statement inside it
    SourceRange header;                  ///< loops: up to and including the colon
    std::int32_t loop = -1;              ///< loops: a number, unique in the module
    std::int32_t memo = -1;              ///< note of an evaluation: what it knows of this statement
    std::vector<std::int32_t> assigned;  ///< loops: slots that the body assigns, the loop variable included
    std::vector<bool>
        carried;  ///< loops, one per entry of `assigned`: an iteration may see the value of the one before
};

struct Parameter {
    std::string name;
    SourceRange where;
    bool constant = false;     ///< annotated tl.constexpr
    bool descriptor = false;   ///< .load or .store is called on it
    Expr* fallback = nullptr;  ///< default value
};

struct Function {
    std::string name;
    bool jit = false;
    bool lowered = false;
    bool has_stores = false;  ///< in its own body
    SourceRange whole;        ///< first decorator to the end of the body
    SourceRange name_range;
    SourceRange parameters_range;
    SourceRange body_range;
    std::int32_t body_indent = 4;
    std::vector<Parameter> parameters;
    std::vector<std::string> slots;  ///< names of the local variables, parameters first
    std::vector<Stmt*> body;
    std::set<std::string> calls;  ///< names that it calls

    [[nodiscard]] std::int32_t slot(std::string_view name) const;  ///< -1 when it is not a local
};

struct Comment {
    SourceRange where;
};

class Lowering;

/// A parsed file. `function(i)` is lowered on demand by `lower`.
class Module {
public:
    /// Fails at the first syntax error of the file.
    [[nodiscard]] static Result<std::unique_ptr<Module>> parse(const std::string& source,
                                                               const std::string& file);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    [[nodiscard]] Status lower(std::int32_t function);
    /// Parses an expression inside a comment of `function`; `place` is where its first byte is.
    [[nodiscard]] Result<Expr*> lower_fragment(std::string_view text, std::int32_t function,
                                               SourceRange place);
    [[nodiscard]] std::int32_t find(std::string_view name) const;  ///< a function's index, or -1
    [[nodiscard]] std::string_view text(const SourceRange& range) const;
    [[nodiscard]] Error error(const SourceRange& range, std::string message) const;

    std::string_view source;
    std::string file;
    std::vector<Function> functions;
    std::map<std::string, Scalar, std::less<>>
        constants;                               ///< module-level ints, floats, strings and tl.constexpr
    std::set<std::string, std::less<>> imports;  ///< names that imports bind
    std::vector<Comment> comments;
    std::uint32_t imports_end = 0;
    std::int32_t num_loops = 0;

private:
    friend class Lowering;
    Module() = default;
    struct Tree;
    std::unique_ptr<Tree> tree_;
    std::deque<Expr> exprs_;
    std::deque<Stmt> stmts_;
};

/// The statements of `body` and all inside them, outer before inner.
[[nodiscard]] std::vector<Stmt*> flattened(const std::vector<Stmt*>& body);
/// `root` and every expression inside it; nothing for null.
[[nodiscard]] std::vector<Expr*> flattened(Expr* root);

/// "fp16" for "float16" and the like; other names unchanged.
[[nodiscard]] std::string dtype_name(std::string_view name);

}  // namespace syncopate::kernel

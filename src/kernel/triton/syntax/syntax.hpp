// The compact form of the Python that kernels are written in. tree-sitter parses the file once; the functions
// that matter are parsed, each once, to trees whose variables are slots and whose callees are resolved, so
// that evaluating them for thousands of tiles is cheap. Every node keeps its exact place in the source.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/kernel/model/arguments.hpp"
#include "syncopate/kernel/triton/syntax/source_range.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

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
    splat,        ///< `*kids[0]` among arguments or items
    each,         ///< [kids[0] for kids[1] in kids[2]]
    unsupported,  ///< kids: the calls and names inside it
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
    next_power,
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
    pointer_type,
    to_int,
    to_float,
};

/// What a call is of that is not a function of the file.
enum class Callee : std::uint8_t {
    known,      ///< Triton's or Python's, or a method
    given,      ///< a variable: what it stands for is known when it is called
    foreign,    ///< a function that is not followed
    type,       ///< a class: it makes an aggregate
    undecided,  ///< which function it is, only running the file tells
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
    Expr* global = nullptr;  ///< name without a slot: what the file assigns to it
    bool unbound = false;    ///< name: nothing in the file binds it
    bool undecided = false;  ///< name: what it stands for, only running the file tells
    Callee callee = Callee::known;
    SourceRange where;
    bool is_condition = false;  ///< both, either: only whether it holds is looked at
    bool steers_loop = false;   ///< the iterable of a `for`, the condition of a `while`
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
    Expr* target = nullptr;   ///< assign, augment, for_loop
    std::vector<Expr*> also;  ///< assign: further targets (a = b = value); unsupported: what it assigns
    Expr* value = nullptr;    ///< assigned value, condition, iterable, returned value
    bool constant = false;    ///< assign: annotated tl.constexpr
    std::vector<Stmt*> body;
    std::vector<Stmt*> otherwise;        ///< branch, loops: `else`
    SourceRange where;                   ///< to the end of the last statement inside it
    SourceRange header;                  ///< loops: up to and including the colon
    std::int32_t loop = -1;              ///< loops: a number, unique in the module
    std::vector<std::int32_t> assigned;  ///< loops: slots that the body assigns, the loop variable included
    /// loops, one per entry of `assigned`: an iteration may see the value of the one before.
    std::vector<bool> carried;
    std::vector<bool> read_early;  ///< … and which of these the body may read before it sets them
};

struct Parameter {
    std::string name;
    SourceRange where;
    bool constant = false;     ///< annotated tl.constexpr
    std::string type;          ///< the integer type that it is annotated with, as in "int64"; empty: none
    bool narrow = false;       ///< annotated with a type of real numbers that is narrower than fp32
    bool descriptor = false;   ///< .load or .store is called on it
    bool rest = false;         ///< *args: a tuple of the arguments that are left
    Expr* fallback = nullptr;  ///< default value
};

/// A decorator that gives parameters their values at a launch: @triton.autotune, @triton.heuristics.
struct Chooser {
    std::string name;  ///< as written, with its dots
    std::int32_t line = 0;
    /// Parameters that it names, and what it may give.
    std::vector<std::pair<std::string, std::string>> values;
};

struct Function {
    std::string name;
    std::int32_t file = 0;   ///< index in Module::files
    std::int32_t scope = 0;  ///< whose names it sees outside of itself: index in SourceFile::scopes
    bool jit = false;
    bool parsed = false;
    bool has_stores = false;     ///< in its own body
    std::optional<Error> error;  ///< some of it does not parse: what is wrong
    SourceRange whole;           ///< first decorator to the end of the body
    SourceRange name_range;
    SourceRange parameters_range;
    SourceRange body_range;
    std::int32_t body_indent = 4;
    std::vector<Chooser> choosers;
    std::vector<Parameter> parameters;
    std::vector<std::string> slots;  ///< names of the local variables, parameters first
    std::vector<Stmt*> body;
    std::set<std::int32_t> calls;  ///< indices of the functions that it names

    [[nodiscard]] std::int32_t slot(std::string_view name) const;  ///< -1 when it is not a local
};

struct Comment {
    SourceRange where;
};

/// What a name of a file, or of a function around others, stands for.
struct Binding {
    /// unknown: what the file does when it is imported decides, or who calls the function.
    enum class Kind : std::uint8_t { function, value, module, member, type, unknown };
    Kind kind = Kind::unknown;
    bool again = false;          ///< it was bound before: what is evaluated in between sees something else
    std::int32_t function = -1;  ///< function: its index
    std::size_t node = 0;        ///< value: which of the file's assigned expressions
    Expr* value = nullptr;       ///< value: parsed when it is first asked for
    bool busy = false;           ///< value: being parsed or followed; it stands for itself
    std::string path;            ///< module, member: the dotted path of the import, leading dots included
    std::string member;          ///< member: the name in that module
    std::size_t stars = 0;       ///< of the file's `from … import *`, so many stand before it
};

/// The names that a file binds, or a class, or a function that has others inside, which see them.
struct NameScope {
    std::int32_t parent = -1;  ///< index in SourceFile::scopes of the one around it; -1: it is the file's
    std::map<std::string, Binding, std::less<>> names;
    std::int32_t scratch = -1;  ///< a function without variables, for the expressions that it assigns
};

/// One file: the kernel's own (index 0), or one that is imported and belongs to the same project.
struct SourceFile {
    std::string path;
    std::string text;
    std::uint32_t begin = 0;         ///< where its bytes start in the numbering of SourceRange
    std::deque<NameScope> scopes;    ///< the first one is the file's
    std::vector<std::string> stars;  ///< paths of `from … import *`
};

/// What a dotted path means in a file.
struct Resolved {
    enum class Kind : std::uint8_t { none, function, value, external };
    Kind kind = Kind::none;
    std::int32_t function = -1;
    Expr* value = nullptr;      ///< value: of the first `consumed` names; null: it is not known
    std::int32_t scratch = -1;  ///< value: the function that its expression is parsed in
    std::size_t consumed = 0;   ///< value: names that are used up; the others are attributes of it
    std::string last;           ///< external, or a name for what is: the last one, as its module calls it
    bool is_type = false;       ///< value: a class
    bool of_triton = false;     ///< external, or a name for what is: it is Triton's
};

/// From where a name is looked up.
struct Viewer {
    std::int32_t file = 0;
    std::int32_t scope = 0;
    bool early = false;  ///< while the file is imported, when a name may not be bound to its last value yet
};

class FunctionParser;

struct SyntaxError {
    SourceRange where;
    std::string message;
};

/// A parsed file, and those that it imports from its own project: they are read when a name of theirs is
/// first met. Functions are parsed on demand by `parse_function`.
class Module {
public:
    /// Fails at the first syntax error around which functions cannot be told apart; others are those of the functions
    /// that they are in.
    [[nodiscard]] static Result<std::unique_ptr<Module>> parse(const std::string& source,
                                                               const std::string& file);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    [[nodiscard]] Status parse_function(std::int32_t function);
    /// Parses an expression inside a comment of `function`; `place` is where its first byte is.
    [[nodiscard]] Result<Expr*> parse_fragment(std::string_view text, std::int32_t function,
                                               SourceRange place);
    /// The function that a name of the kernel's file stands for at its top level, or -1.
    [[nodiscard]] std::int32_t bound(std::string_view name) const;
    /// What `names` joined by dots stand for. Follows imports.
    [[nodiscard]] Resolved resolve(const Viewer& viewer, const std::vector<std::string_view>& names);
    /// Whether a name that nothing in the file binds can only be one of Triton's, by a `*`.
    [[nodiscard]] bool may_be_of_triton(std::int32_t file);
    /// The files in the kernel's folder, and below, that it imports, directly or through one another; see
    /// imported_files().
    [[nodiscard]] Result<std::vector<std::int32_t>> imports();
    [[nodiscard]] std::string_view text(const SourceRange& range) const;
    [[nodiscard]] Error error(const SourceRange& range, std::string message) const;

    std::string_view source;  ///< of the kernel's file
    std::string file;
    std::deque<SourceFile> files;
    std::deque<Function> functions;
    std::vector<Comment> comments;  ///< of the kernel's file
    std::uint32_t imports_end = 0;
    std::int32_t num_loops = 0;

private:
    friend class FunctionParser;
    Module() = default;
    struct Tree;
    void note_error(const SourceRange& where, const SyntaxError& wrong, std::size_t first);
    const SourceFile& file_of(const SourceRange& range) const;
    /// Adds a file; its index, or -1 where it cannot be read or parsed (the first file: the error).
    Result<std::int32_t> add_file(std::string path, std::string text);
    std::int32_t imported(std::int32_t from, const std::string& path);
    /// A name's binding, and whose it is. `binding` is null where nothing binds the name.
    struct Bound {
        Binding* binding = nullptr;
        Viewer owner;
    };
    Bound lookup(const Viewer& viewer, std::string_view name, int depth);
    Expr* global(const Viewer& owner, Binding& binding);
    std::optional<std::vector<std::string>> alias_of(std::int32_t file, const Binding& binding) const;
    Resolved resolve(const Viewer& viewer, const std::vector<std::string_view>& names, int depth);

    std::vector<std::unique_ptr<Tree>> trees_;   ///< by file
    std::map<std::string, std::int32_t> paths_;  ///< files that were looked for, by path; -1: not there
    std::deque<Expr> exprs_;
    std::deque<Stmt> stmts_;
};

/// The statements of `body` and all inside them, outer before inner.
[[nodiscard]] std::vector<Stmt*> flattened(const std::vector<Stmt*>& body);
/// `root` and every expression inside it; nothing for null.
[[nodiscard]] std::vector<Expr*> flattened(Expr* root);

/// Whether it names an element type: "float16", "int32", ….
[[nodiscard]] bool is_dtype(std::string_view name);

/// "fp16" for "float16" and the like; other names unchanged.
[[nodiscard]] std::string dtype_name(std::string_view name);

}  // namespace syncopate::kernel::triton

// The evaluator: runs one program of the launch on abstract values and notes which boxes of which tensors
// each tile touches. A loop inside a tile is run once for all of its iterations where what it carries
// advances by a constant (checked by induction: value at entry, and entry → next), and iteration by iteration
// where it does not.
//
// Every value carries a taint, one bit per source (program id, tile loop, tile count, carried tile id), from
// which analyse reads where the tile id enters addresses. Errors are sticky: the first is kept and everything
// unwinds.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/triton/evaluate/effort.hpp"
#include "kernel/triton/evaluate/touch.hpp"
#include "kernel/triton/evaluate/value.hpp"
#include "kernel/triton/footprints/footprint.hpp"
#include "kernel/triton/syntax/directive.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel::triton {

struct TaintSource {
    enum class Kind : std::uint8_t { program_id, tile_loop, carried_id, count };
    Kind kind = Kind::program_id;
    const Expr* expr = nullptr;  ///< the call, the loop variable, the occurrence or the count
    std::int32_t grid_axis = 0;  ///< program_id
    std::int64_t count = 0;      ///< count: its value and its block size
    std::int64_t block = 0;
    bool in_kernel = true;   ///< not in a helper
    bool is_tile_id = true;  ///< carried_id: has always been equal to the tile's id
};

/// What one evaluation of a loop inside a tile found.
struct LoopRecord {
    const Stmt* statement = nullptr;
    bool in_kernel = false;
    bool parts = false;  ///< in a program that is one tile: it runs over parts of the tile
    bool reads = false;
    bool same_trips = true;
    std::int64_t trips = -1;
    std::int32_t counted = -1;  ///< slot of a variable that moves on from iteration to iteration; -1: none
    std::map<std::int32_t, Advance> slices;  ///< by parameter; dim < 0: no common slice
};

/// A loop of a tile as it is reached: by which calls of helpers from the kernel on.
struct WalkedLoop {
    const Stmt* statement = nullptr;
    std::vector<const Expr*> calls;  ///< from the kernel's own on
    bool whole = false;  ///< it cannot be run range by range: how often it runs is not known in each tile
};

/// What an access does with the tile's loop around it: iteration i touches `extent` elements from
/// `base + i * step` along `dim`; dim < 0: each may touch all of its boxes. Without an access: how often the
/// loop runs.
struct Walk {
    std::int32_t loop = -1;  ///< index in Evaluator::walked
    std::int64_t trips = 0;
    std::int32_t dim = -1;
    std::int64_t base = 0;
    std::int64_t step = 0;
    std::int64_t extent = 0;
    auto operator<=>(const Walk&) const = default;
};

inline constexpr std::int32_t kDeepestCalls = 32;
inline constexpr std::int64_t kLargestBlock = std::int64_t{1} << 24;  ///< elements of one block

struct TileRecord {
    std::int64_t id = 0;
    std::int64_t program = 0;
    std::size_t begin = 0;  ///< range of `touched`
    std::size_t end = 0;
    std::array<std::int64_t, kMostAxes> coord{-1, -1, -1, -1};
};

/// What one call does through one parameter, in all that was run of it.
struct AccessForm {
    bool loads = false;
    bool stores = false;
    ParamAccess::By by = ParamAccess::By::pointers;
    const Expr* made = nullptr;    ///< the call that makes its descriptor
    std::int64_t rows = 0;         ///< of the descriptor's block
    const Stmt* within = nullptr;  ///< the statement of the kernel's own block that first comes to it
    bool outside = false;          ///< loads, once at least outside of the loop over tiles
    std::uint64_t taken = ~std::uint64_t{0};  ///< loads, always behind these sources of the tile's id
    bool awaited = false;                     ///< loads, in a `while` that data ends
};

/// Everything that the evaluation of some programs found.
struct Findings {
    std::vector<Box> boxes;   ///< that `touched` and the memory of evaluations speak of
    std::vector<Walk> walks;  ///< likewise
    std::map<Walk, std::int32_t> walk_index;
    std::vector<Touch> touched;
    std::vector<TileRecord> tiles;
    std::uint64_t read_taint = 0;     ///< of the addresses of loads: all of param_read_taint
    std::uint64_t write_taint = 0;    ///< of the addresses of stores
    std::uint64_t bound_taint = 0;    ///< of the tile loop's bound
    std::uint64_t count_taint = 0;    ///< of the ids counted beside the tile loop's own, after a round
    bool waits_in_assembler = false;  ///< inline assembler that may branch, or in a `while` that data ends
    const Expr* own_id = nullptr;  ///< reads in the tile loop what is the program's, whichever tile it runs
    std::uint64_t all_counts = 0;  ///< every tile count that was computed
    const Stmt* tile_loop = nullptr;
    std::int64_t tile_start = 0, tile_stop = 0, tile_step = 0;  ///< of the last program's tile loop
    bool strided = true;    ///< every program's tile loop started at its own linear id
    bool strided_x = true;  ///< … at its id along x
    const Stmt* last_store = nullptr;
    std::map<std::pair<const Expr*, std::int32_t>, AccessForm> accesses;  ///< by call and parameter
    std::map<const Stmt*, std::int64_t> watched;  ///< values assigned by the statements that directives name
    std::set<const Directive*> stated;            ///< reads, writes: those that state an element in some tile
    /// Whether each run of a tile's loop has the bounds that a directive states.
    std::map<std::pair<const DirectiveBounds*, const Stmt*>, bool> bounds;
};

/// Every `stride`-th program along an axis of the grid.
struct Line {
    std::array<std::int64_t, 3> first{};
    std::int32_t axis = 0;
    std::int64_t count = 0;
    std::int64_t stride = 1;
};

/// What a line that came to nothing says of those that might.
struct LineHint {
    std::int64_t fewer = 0;  ///< the first so many of its programs; 0: nothing is known
    std::int64_t every = 1;  ///< of its programs, every n-th one
};

/// Why a real number is not known. It stands in messages after an expression.
inline constexpr std::string_view kRounded =
    "which depends on how the GPU rounds: pass a whole number instead";

class BuiltinCall;

class Evaluator {
public:
    Evaluator(Module& module, std::int32_t kernel, const Arguments& arguments,
              const std::vector<Directive>& directives, const Effort& effort);

    /// Gives the parameters their values. Fails on arguments that do not fit.
    [[nodiscard]] Status bind();
    /// Forgets what was evaluated before.
    void restart();
    /// Runs the program at (x, y, z) of `grid`; an axis of extent 0 is not known yet.
    [[nodiscard]] Status run(const std::array<std::int64_t, 3>& program,
                             const std::array<std::int64_t, 3>& grid);

    /// Runs the programs of a line at once, with the id as an unknown, as a loop is run for all of its
    /// iterations. False, having found nothing, where they have no such form in common; `hint` says then
    /// which might.
    [[nodiscard]] bool run_line(const Line& line, const std::array<std::int64_t, 3>& grid, LineHint& hint);

    Findings found;
    std::vector<TaintSource> sources;
    std::vector<LoopRecord> loops;
    std::vector<WalkedLoop> walked;  ///< in the order in which they were first reached
    /// What memory is called, by the number by which values, touches and the lists below refer to it: the
    /// parameters in their order, then the tensors in parameters that are tuples.
    std::vector<std::string> memory_names;
    /// What such parameters hold, in order. `memory` is -1 for what is no tensor.
    struct Item {
        std::string name;
        std::int32_t parameter = 0;
        std::int32_t memory = -1;
    };
    std::vector<Item> tuple_items;
    std::vector<bool> read_outside;  ///< outside of every loop of a tile
    std::vector<bool> param_read, param_written, param_descriptor, param_pointer;
    std::vector<std::uint64_t> param_read_taint;  ///< of the addresses of its loads
    /// Of the addresses, masks and values of its stores that are no atomics.
    std::vector<std::uint64_t> param_store_taint;
    std::vector<TensorView> tensors;  ///< without axes when not given
    /// No loop of the kernel is one over tiles: what a program does is one tile.
    bool by_program = false;
    /// Why the loop that looks like one over tiles is none; run() has failed then.
    struct NoTiles {
        SourceRange where;
        std::string why;
    };
    std::optional<NoTiles> no_tiles;
    /// The last failure was that an access needs what leaves its type: the kernel is wrong, or the id is
    /// outside the tile space.
    bool overflow_error = false;
    /// The last failure was a division by zero, or a look beyond a tensor's elements: an id outside the tile
    /// space.
    bool arithmetic_error = false;
    bool grid_asked = false;  ///< tl.num_programs was called
    /// By memory: how far apart rows lie of a block that is stored through pointers, where that is no stride of
    /// the tensor.
    std::map<std::int32_t, std::int64_t> odd_steps;
    /// By memory: how far apart rows are that are loaded or stored, where that is no whole number of a stride of its tensor.
    std::map<std::int32_t, std::int64_t> odd_rows;
    [[nodiscard]] bool may_have_values(std::int32_t memory) const;

    [[nodiscard]] std::string hint_of_reals() const;
    [[nodiscard]] std::int64_t steps() const { return steps_; }  ///< expressions and statements so far
    /// Runs from here on fail behind so many more steps; 0: only behind those of the effort.
    void allow_steps(std::int64_t more) {
        last_step_ = more == 0 ? 0 : steps_ + more;
        next_look_ = 0;
    }

private:
    friend class BuiltinCall;  // builtins/
    enum class Flow : std::uint8_t { next, stop, returned, stop_loop, next_round };
    struct Frame {
        const Function* function = nullptr;
        Value* slots = nullptr;
        Value result;
        bool is_kernel = false;
        // Ways that were left on conditions that depend on data, joined where they meet again.
        bool may_have_returned = false;     // with `result`
        std::int32_t rounds_in_doubt = 0;   // of maybe_, as a loop's round may have been left on data
        const Value* stopped = nullptr;     // the variables where the loop around was left
        const Value* next_round = nullptr;  // the variables where its body was left

        /// 0 of no function: an expression of the file has no variables.
        [[nodiscard]] std::size_t num_slots() const {
            return function == nullptr ? 0 : function->slots.size();
        }
    };
    struct Guess {
        enum class Kind : std::uint8_t { absent, same, advance, lost };
        Kind kind = Kind::absent;
        std::array<std::int64_t, kRank> delta{};
    };

    // evaluate.cpp
    [[nodiscard]] Frame enter(const std::array<std::int64_t, 3>& program,
                              const std::array<std::int64_t, 3>& grid);
    void forget_values();

    /// A footprint that a directive states, for each tile of a line.
    struct StatedBox {
        const Directive* directive = nullptr;
        std::int32_t param = -1;
        bool write = false;
        std::array<Affine, kRank> begin{}, end{};
    };

    // evaluate_line.cpp
    struct MovingAccess {  ///< that is another one in each program of a line
        std::int32_t param = -1;
        bool direct = false;
        bool solid = true;      ///< its mask lets through what it says
        bool complete = false;  ///< all instances are made
        Block block;
        std::span<const Mask> masks;  ///< what one or the other lets through; none: everything
        std::vector<std::int64_t> trips;
        std::int32_t loop = -1;    ///< the tile's, as in Walk
        std::int32_t symbol = -1;  ///< … of it
        struct Instance {
            std::uint32_t begin = 0, end = 0;
            bool made = false, exact = true, leaves = false;
            std::int32_t along = -1;  ///< as in Touch
            std::int64_t by = 0;
            std::int32_t walk = -1;  ///< as in Touch
        };
        std::vector<Instance> instances;  ///< by program of the line
        // Or, instead of block and masks, the addresses of the first program.
        bool by_elements = false;
        std::vector<std::int64_t> offsets;
        std::int64_t shift = 0;  ///< from one program to the next
    };
    [[nodiscard]] bool on_line() const { return line_axis_ >= 0; }
    [[nodiscard]] bool outside_loops() const { return trips_.size() == (on_line() ? 1U : 0U); }
    struct Found {  ///< how much was found before a line
        std::size_t touched = 0, tiles = 0, advances = 0;
    };
    [[nodiscard]] std::vector<Touch> together(std::vector<Touch> all);
    [[nodiscard]] bool spread_line(std::size_t first, const Line& line, std::int64_t apart,
                                   std::span<const StatedBox> stated);
    void begin_line(std::int32_t axis, std::int64_t count, std::int64_t stride);
    void end_line(bool done, const Found& before, std::int64_t count, LineHint& hint);
    void divides_when_every(const Affine& value, std::int64_t by);
    void fits_while_below(const Affine& value, std::int64_t limit);
    void fits_while_same_sign(const Affine& value);
    Value along_line(std::int64_t id);

    // evaluate_moving.cpp
    [[nodiscard]] static bool moves(const Mask& mask);
    [[nodiscard]] static bool moves(const Block& block, std::span<const Mask> masks);
    Advance touch_moving(const Block& block, std::span<const Mask> masks, bool direct, bool read, bool write);
    MovingAccess& note_moving(std::int32_t param, bool read, bool write, bool solid);
    void touch_moving_elements(std::int32_t param, std::vector<std::int64_t> offsets, std::int64_t shift,
                               bool read, bool write);
    void keep_instance(MovingAccess::Instance& made, bool exact, bool leaves);
    Advance work_out(MovingAccess& access, std::int64_t i);
    [[nodiscard]] std::optional<std::int64_t> shift_between(const MovingAccess& access, std::int64_t lo,
                                                            std::int64_t hi, std::int32_t& axis) const;
    void work_out_between(MovingAccess& access, std::int64_t lo, std::int64_t hi);
    void work_out_all(MovingAccess& access);

    // evaluate_bind.cpp
    [[nodiscard]] Error unknown_parameter(const std::string& name) const;
    [[nodiscard]] Status check_values(const std::string& name, const TensorArgument& tensor,
                                      const SourceRange& where) const;
    [[nodiscard]] Status check_tensor(const std::string& name, const TensorArgument& tensor,
                                      const SourceRange& where) const;
    [[nodiscard]] bool is_replaced(std::int32_t parameter) const;
    [[nodiscard]] Result<Value> given(const std::string& name, std::int32_t parameter);
    [[nodiscard]] Result<Value> given_tensor(const std::string& name, const TensorArgument& tensor,
                                             std::int32_t parameter, std::int32_t memory);
    [[nodiscard]] Result<Value> given_items(const std::string& name, std::int32_t parameter);
    [[nodiscard]] const std::string& name_of(std::int32_t memory) const { return memory_names[at(memory)]; }

    // evaluate_statement.cpp
    Flow execute(const std::vector<Stmt*>& body, Frame& frame);
    Flow execute(const Stmt& statement, Frame& frame);
    Flow branch(const Stmt& statement, Frame& frame);
    Flow give_back(const Stmt& statement, Frame& frame);
    [[nodiscard]] Value* snapshot(const Frame& frame);
    [[nodiscard]] Value unknown(const Value& value, const Expr& why);
    [[nodiscard]] static std::int32_t param_of(const Value& value);  // -1: no memory
    [[nodiscard]] Value joined(const Value& a, const Value& b, const Expr& why);
    void join(Frame& frame, const Value* other, const Expr& why);
    void settle(std::size_t first, std::size_t second);
    void assign(const Expr& target, const Value& value, Frame& frame);

    // evaluate_loop.cpp
    [[nodiscard]] bool same_trips(const Affine& length, std::int64_t step);
    void end_variable(const Stmt& statement, Frame& frame);
    [[nodiscard]] bool strides(std::int64_t step) const;
    Flow for_loop(const Stmt& statement, Frame& frame);
    Flow while_loop(const Stmt& statement, Frame& frame);
    Flow each_round(const Stmt& statement, Frame& frame, const Iterable& range, std::int64_t trips);
    void reach_loop(const Stmt& statement, std::optional<std::int64_t> trips);
    [[nodiscard]] bool in_parts() const;
    Flow all_rounds(const Stmt& statement, Frame& frame, const Iterable& range, std::int64_t trips);
    Value index_of(const Iterable& range, int symbol);
    bool start_guessed(const Stmt& statement, Frame& frame, const Value* entry,
                       const std::vector<Guess>& guesses, int symbol);
    bool ends_guessed(const Stmt& statement, const Frame& frame, const Value* entry,
                      const std::vector<Guess>& guesses, int symbol);
    void keep_slices(std::int32_t loop, std::size_t first);
    std::optional<bool> known_part(const Expr& condition, Frame& frame);
    Flow bounded_rounds(const Stmt& statement, Frame& frame);
    /// `rounds` of a `while` of which data decides how often it runs.
    template <typename Rounds>
    Flow while_waiting(const Rounds& rounds) {
        if (waiting_++ == 0) bounded_ = 0;
        const Flow flow = rounds();
        --waiting_;
        return flow;
    }
    Flow unknown_rounds(const Stmt& statement, Frame& frame, const Value& index);
    Flow one_round(const Stmt& statement, Frame& frame);
    Flow next_round(const Stmt& statement, Frame& frame);
    Flow end_rounds(const Stmt& statement, Frame& frame, const Value* around, Flow left);
    bool has_stores(const std::vector<Stmt*>& body) const;

    // evaluate_tile.cpp
    Flow tile_loop(const Stmt& statement, Frame& frame, const Iterable& range);
    [[nodiscard]] const Expr* compared_id(const Stmt& statement) const;
    [[nodiscard]] bool walks_program(const std::vector<Stmt*>& body, const Frame& frame) const;
    Flow walk_of_group(const Stmt& statement, Frame& frame, const Expr& id, std::uint64_t taint);
    Flow one_tile(const Stmt& statement, Frame& frame, std::int64_t id);
    Flow refuse_tiles(const SourceRange& where, std::string why);
    [[nodiscard]] std::optional<std::string> carried_along(const Stmt& statement, const Frame& frame) const;
    [[nodiscard]] bool is_counted_id(const Value& value) const;
    [[nodiscard]] bool is_programs(const Value& value) const;
    void note_own_ids(const Stmt& statement, const Frame& frame);
    void note_carried_ids(const Stmt& statement, Frame& frame);
    void begin_tile(std::int64_t id);
    void end_tile(Frame& frame);
    [[nodiscard]] bool state_tile(Frame& frame, std::vector<StatedBox>& stated);
    void note_stated(const StatedBox& stated, std::int64_t i);
    void hold_bounds(const Stmt& statement, const Iterable& range);

    // induction.cpp
    [[nodiscard]] std::optional<Guess> guess(const Value& before, const Value& after) const;
    [[nodiscard]] Value advance(const Value& start, const Guess& guess, int symbol, std::int64_t rounds);
    [[nodiscard]] Value substitute(const Value& value, int symbol, std::int64_t round);
    [[nodiscard]] Lazy* substitute(const Lazy& lazy, int symbol, std::int64_t round);
    [[nodiscard]] bool equal(const Value& a, const Value& b) const;
    [[nodiscard]] bool equal(const Lazy& a, const Lazy& b, int depth) const;

    // evaluate_expression.cpp
    Value evaluate(const Expr& e, Frame& frame);
    Value evaluate_at_depth(const Expr& e, Frame& frame);
    static Value literal(const Expr& e);
    Value operation(const Expr& e, Frame& frame);
    void note_coordinate(const Expr& e, const Value& side);
    Value logical(const Expr& e, Frame& frame);
    Value inverted(const Expr& e, Frame& frame);
    Value conditional(const Expr& e, Frame& frame);
    Value name(const Expr& e, Frame& frame);
    [[nodiscard]] const Chooser* is_chosen(const std::string& parameter) const;
    [[nodiscard]] std::string who_chooses(const std::string& parameter) const;
    Value attribute(const Expr& e, Frame& frame);
    Value subscript(const Expr& e, Frame& frame);
    Value tuple_slice(const Expr& e, const Value& object, Frame& frame);
    Value tuple(const Expr& e, Frame& frame);
    Value each(const Expr& e, Frame& frame);
    Value unknown_syntax(const Expr& e, Frame& frame);
    Value make_tuple(std::span<const Value> items);
    [[nodiscard]] std::optional<bool> truth(const Expr& e, const Value& value);

    // dense.cpp: what is worked out element by element
    struct Shape {
        std::int32_t rank = 0;
        std::array<std::int64_t, kRank> extents{};
        bool operator==(const Shape&) const = default;
        [[nodiscard]] std::int64_t size() const {
            std::int64_t product = 1;
            for (std::int32_t j = 0; j < rank; ++j)
                product = product > kLargestBlock ? product : product * extents[at(j)];
            return product;
        }
    };
    // moves: with the iteration; overflow: what `overflowed_` computes
    enum class Known : std::uint8_t { yes, data, moves, too_large, overflow };
    static constexpr int kDeepestDense = 100;
    [[nodiscard]] static Shape shape_of(const Value& value);
    [[nodiscard]] static std::optional<Shape> broadcast(const Shape& a, const Shape& b);
    [[nodiscard]] static bool is_known(const Value& value);
    [[nodiscard]] static std::optional<std::int64_t> calculated(Operator op, std::int64_t a, std::int64_t b);
    Lazy* new_lazy(const Expr& e, Lazy::What what, std::span<const Value> from, const Shape& shape);
    [[nodiscard]] IntegerType type_of_elements(const Lazy& lazy) const;
    Value from_lazy(Lazy* lazy);
    Value lazily(const Expr& e, Lazy::What what, Operator op, std::initializer_list<Value> from);
    Known fill(const Value& value, const Shape& shape, std::vector<std::int64_t>& out);
    Known fill(Lazy& lazy, std::vector<std::int64_t>& out);
    Known work_out(const Lazy& lazy, std::vector<std::int64_t>& out);
    bool touch_elements(const Expr& e, const Value& pointer, const Value* mask, std::int32_t param, bool read,
                        bool write);
    void forget_dense();

    // evaluate_runs.cpp: conditions of one axis each
    enum class Split : std::uint8_t { done, no, moves };  // moves: with the iteration
    struct ByAxis {
        Shape shape;  ///< of the access
        bool never = false;
        Value box;                                           ///< a mask: the conditions that are boxes
        std::array<std::vector<std::int64_t>, kRank> holds;  ///< of the others; empty: an axis has none
    };
    Split split(const Expr& e, const Value& condition, std::span<const std::int32_t> axes, ByAxis& made);
    bool touch_runs(const Expr& e, const Block& block, const Value& condition, bool read, bool write);
    void touch_parts(const Block& block, std::span<const Mask> parts, bool read, bool write);

    // builtin_shape.cpp: axes, order and number of elements
    Value permuted(const Expr& e, const Value& value, std::span<const std::int32_t> axes);
    Value reshaped(const Expr& e, const Value& value, const Shape& shape);

    // look_up.cpp: elements that the launch gives
    [[nodiscard]] const std::vector<std::int64_t>* table_of(std::int32_t memory) const;
    [[nodiscard]] std::string values_hint(const Expr* why) const;
    void note_odd_step(const Block& block, bool write);
    [[nodiscard]] std::string called_from(const Expr* call) const;
    [[nodiscard]] IntegerType type_of_tensor(std::int32_t memory) const;
    std::optional<Value> looked_up(const Expr& e, const Value& pointer, const Value& mask,
                                   const Value& other);
    Value number_looked_up(const Expr& e, std::int32_t memory, const Affine& at);
    [[nodiscard]] std::optional<std::int64_t> element(std::int32_t memory, std::int64_t offset) const;
    Value no_element(const Expr& e, std::int32_t memory, std::int64_t offset);
    bool look_up_all(const Lazy& lazy, std::span<const std::int64_t> offsets,
                     std::span<const std::int64_t> holds, std::span<const std::int64_t> otherwise,
                     std::vector<std::int64_t>& out);

    // operators_typed.cpp: in the types that the device computes in
    struct Overflow {  ///< of an operation in the type of its result
        SourceRange where;
        IntegerType type = IntegerType::python;
        std::int64_t value = 0;
        std::string program;
    };
    [[nodiscard]] IntegerType type_of_both(const Value& a, const Value& b) const;
    [[nodiscard]] Value as_variable(const Value& value);
    Value unary(const Expr& e, const Value& a);
    Value binary(const Expr& e, Operator op, const Value& a, const Value& b);
    Value typed_binary(const Expr& e, Operator op, const Value& a, const Value& b);
    Value of_type(const Expr& e, const Value& made, IntegerType type);
    Value in_type(const Expr& e, const Value& value, IntegerType type);
    Value wrapped(const Expr& e, const Value& value, IntegerType type);
    Value left_type(const Expr& e, const Value& made, IntegerType type);
    [[nodiscard]] bool is_lost_on_line(const Value& value) const;
    void note_overflow(const Expr& e, IntegerType type, std::int64_t value);
    [[nodiscard]] std::string overflow_text(const Overflow& overflow) const;
    [[nodiscard]] bool fits_type(const Block& block, IntegerType type) const;
    [[nodiscard]] bool is_product_small(const Value& a, const Value& b) const;
    [[nodiscard]] bool keep_in_type(const Lazy& lazy, std::vector<std::int64_t>& elements);

    // types.cpp: what a kernel asks values for
    void note_whole(const Expr& e, const Value& other);
    void note_counts(const Expr& e);
    void note_count(const std::string& name);
    [[nodiscard]] static Element element_of_value(const Value& value);
    [[nodiscard]] Element element_of_tensor(std::int32_t memory) const;
    [[nodiscard]] Element element_of_both(const Value& a, const Value& b, bool divides) const;
    [[nodiscard]] std::optional<Shape> known_shape(const Value& value) const;
    [[nodiscard]] std::int32_t known_rank(const Value& value) const;  ///< 0 where it is not known
    [[nodiscard]] std::optional<Shape> shape_of_both(const Value& a, const Value& b) const;
    [[nodiscard]] Value described(Value made, Element element, const std::optional<Shape>& shape);
    [[nodiscard]] Value of_operator(const Value& made, Operator op, const Value& a, const Value& b);
    Value type_text(std::string text);
    Value tuple_of(std::span<const std::int64_t> items, IntegerType type);
    std::optional<Value> type_of_value(const Value& value, bool whole);
    std::optional<Value> attribute_of_type(const Expr& e, const std::string& type);
    std::optional<Value> asked_of_type(const Expr& e, const std::string& type);
    std::optional<Value> type_attribute(const Expr& e, const Value& object);

    // operators.cpp: numbers, and which rule applies
    Value unbounded(const Expr& e, const Value& a);
    Value unbounded(const Expr& e, Operator op, const Value& a, const Value& b);
    Value integer_binary(const Expr& e, Operator op, std::int64_t a, std::int64_t b, bool runtime);
    Value lost_pointer(std::int32_t memory, const Expr* why);
    Value unknown_binary(Operator op, const Value& a, const Value& b);
    std::optional<Value> mask_binary(const Expr& e, Operator op, const Value& a, const Value& b);
    Value real_binary(const Expr& e, Operator op, const Value& a, const Value& b);
    Value block_binary(const Expr& e, Operator op, const Value& a, const Value& b);

    // operators_mask.cpp
    Value compare(const Expr& e, Operator op, const Value& a, const Value& b);
    std::optional<Value> compare_scalars(const Expr& e, Operator op, const Value& a, const Value& b);
    std::optional<Value> compare_with_constant(const Expr& e, Operator op, const Value& a, const Value& b);
    Value compare_number(const Expr& e, Operator op, const Block& difference, Value made);
    bool set_mask(const Expr& e, Operator op, const Block& difference, Mask& mask);
    [[nodiscard]] std::optional<bool> decided_by_range(Operator op, const Block& difference);
    Value constant_mask(const Shape& shape, bool holds);
    Value masks_joined(const Expr& e, const Value& a, const Value& b, bool both);
    Value mask_inverted(const Expr& e, const Value& mask);
    Value mask_box(const Expr& e, const Value& a, const Value& b, bool both);
    [[nodiscard]] bool lets_all_through(const Mask& mask);
    Value where(const Expr& e, const Value& condition, const Value& a, const Value& b);
    Value extreme(const Expr& e, bool most, const Value& a, const Value& b);

    // operators_block.cpp
    const Block* as_block(const Value& value);
    bool fits_a_block(const Expr& e, const Block& block);
    Value from_block(const Block* block);
    [[nodiscard]] Affine lowest_highest(const Affine& a, bool highest) const;
    [[nodiscard]] bool fits_a_number(const Affine& a, const Affine& b, std::int64_t factor);
    Value add(const Expr& e, const Value& a, const Value& b, std::int64_t factor);
    Value scaled(const Expr& e, const Block& block, std::int64_t factor);
    static std::optional<Affine> whole_steps(const Block& block, std::int64_t by);
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> range_of(const Block& block) const;
    std::optional<Value> divided(const Expr& e, Operator op, const Block& first, const Value& right,
                                 std::int64_t by);
    Value elementwise(const Expr& e, Operator op, const Value& a, const Value& b);
    Value expanded(const Expr& e, const Value& value, std::span<const bool> is_new);
    Value transposed(const Expr& e, const Value& value);

    // calls.cpp: arguments, helpers and methods
    Value call(const Expr& e, Frame& frame);
    Value is_instance(const Expr& e, Frame& frame);
    Value method(const Expr& e, Frame& frame);
    Value helper(const Expr& e, const Function& callee, std::span<const Value> arguments);
    Value count(const Expr& e, const Value& of, const Value& by, const Value& result, Frame& frame);
    [[nodiscard]] static std::uint64_t taint_of(const Value& value);  ///< of a tuple, that of its items too
    const Expr* keyword(const Expr& e, std::string_view name) const;
    Value argument(const Expr& e, std::span<const Value> arguments, std::size_t index, std::string_view name,
                   Frame& frame);
    [[nodiscard]] bool numbers(const Value& value, std::array<Affine, kRank>& out, std::int32_t& count) const;

    // calls_memory.cpp: where footprints arise
    [[nodiscard]] const Expr* unknown_part(std::initializer_list<Value> values, const Expr& e) const;
    Value make_descriptor(const Expr& e, std::span<const Value> arguments, Frame& frame, bool block_pointer);
    Value descriptor_access(const Expr& e, const Value& descriptor, const Value* offsets, bool read,
                            bool write, const Value* check = nullptr);
    void note_call(const Expr& e, std::int32_t param, bool read, bool write);
    void note_assembler(const Expr& e);
    void note_descriptor(const Expr& e, const Value& descriptor);
    [[nodiscard]] std::string given_number(const Expr& access) const;
    void touch(const Expr& e, const Value& pointer, const Value* mask, bool read, bool write);
    void touch_block(const Expr& e, const Block& block, const Mask* mask, bool direct, std::uint64_t taint,
                     bool read, bool write);
    void note_taint(std::int32_t param, std::uint64_t taint, bool read, bool write);
    bool note_access(const Expr& e, std::int32_t param, bool direct, std::uint64_t taint, bool read,
                     bool write);
    void note_boxes(std::int32_t param, bool read, bool write, bool solid, bool leaves,
                    std::int32_t walk);  // boxes_
    [[nodiscard]] std::int32_t walk_symbol() const;
    [[nodiscard]] std::int32_t note_walk(const Walk& walk);
    [[nodiscard]] std::int32_t note_walk(std::int32_t loop, std::int32_t symbol, const Advance& advance);
    void tell_apart(std::size_t first);
    [[nodiscard]] std::string why_lost(const Expr* why) const;
    [[nodiscard]] std::string how_often(const Expr& steering) const;
    bool miss(const SourceRange& where, const Expr* why, std::string message, std::int32_t memory, bool read,
              bool write);
    [[nodiscard]] Error missing_directives() const;

    // evaluate.cpp: failing, sources and limits
    Value fail(const SourceRange& where, std::string message);
    [[nodiscard]] std::string program_text() const;
    Value division_by_zero(const Expr& e);
    Value not_affine(const Expr& e);
    /// `reason`, where the expression alone does not tell why it is unknown, follows it in messages.
    Value opaque(const Expr& why, std::uint64_t taint, std::string_view reason = {});
    [[nodiscard]] bool stopped() const { return error_.has_value() || not_affine_; }
    std::uint64_t new_source(const Expr& e, TaintSource source);
    bool step(const SourceRange& where, std::int64_t work = 1) {
        return (steps_ += work) < next_look_ || look_at_limits(where);
    }
    bool look_at_limits(const SourceRange& where);
    bool fits_a_tuple(const Expr& e, std::span<const Value> items);

    Module& module_;
    const Function& kernel_;
    std::int32_t kernel_index_;
    const Arguments& arguments_;
    const std::vector<Directive>& directives_;
    const Effort effort_;
    Arena arena_;
    Arena::Mark bound_mark_;
    std::vector<Value> bound_;  // parameter values
    std::vector<Value> stack_;  // frames
    std::size_t stack_used_ = 0;
    std::optional<Error> error_;
    /// Accesses that no directive states and that cannot be followed: told all at once, at the end.
    struct Missing {
        std::int32_t memory = -1;
        bool write = false;
        std::int32_t line = 0;
    };
    std::vector<Missing> missing_;
    SourceRange missing_where_;  // of the first one
    std::string missing_why_;
    std::string missing_values_;                     // what values_hint says of it
    const Expr* missing_call_ = nullptr;             // the kernel's call of the helper around it
    std::map<const Expr*, const Expr*> steered_by_;  // what a loop of unknown length runs over → data
    bool not_affine_ = false;
    std::map<const Expr*, Overflow> overflows_;        // the last one of each operation
    std::map<const Expr*, std::string_view> reasons_;  // why expressions are unknown that are not data
    const Expr* overflowed_ = nullptr;                 // where elements could not be worked out for it
    bool mathematical_ = false;                        // what is evaluated is no code of the device
    std::int64_t steps_ = 0;
    std::int64_t last_step_ = 0;        // > 0: a run fails behind it
    std::int64_t next_look_ = 0;        // at the limits, when so many steps are done
    std::int32_t depth_ = 0;            // of the expressions being evaluated, helpers and all
    std::int32_t calls_ = 0;            // nesting of helpers
    std::int32_t silent_ = 0;           // > 0: nothing is noted
    std::int32_t maybe_ = 0;            // > 0: whether this is run depends on data
    std::int32_t waiting_ = 0;          // `while` loops around of which data decides how often they run
    std::int32_t bounded_ = 0;          // rounds of the outermost of these, and of those in it
    std::vector<std::int64_t> trips_;   // of the symbolic loops around
    std::vector<std::int32_t> around_;  // numbers of the loops around, inside the tile
    std::int32_t walked_ = -1;          // the tile's loop around, as in Walk; -1: none
    std::vector<const Expr*> call_path_;
    std::int32_t path_ = 0;  // number of call_path_
    std::map<std::pair<std::int32_t, const Expr*>, std::int32_t> paths_;
    std::map<std::pair<std::int32_t, const Stmt*>, std::int32_t> walked_index_;
    std::vector<std::int32_t> symbol_loops_;
    std::vector<std::vector<Guess>> guesses_;                        // by loop
    std::vector<std::pair<std::int32_t, PendingAdvance>> advances_;  // (loop, …), until the loop is proven
    std::uint64_t control_ = 0;                                      // taint of the conditions around
    std::uint64_t stored_taint_ = 0;  // of the arguments of the store that is being noted
    std::uint64_t program_bits_ = 0, count_bits_ = 0;
    std::array<std::int64_t, 3> program_{}, grid_{};
    std::int32_t line_axis_ = -1;  // of the grid, along which programs are evaluated at once; symbol 0
    std::int64_t line_stride_ = 1;
    std::int64_t line_fits_ = 0;   // programs for which what has just failed would not
    std::int64_t line_every_ = 1;  // … or every so many of them
    std::deque<MovingAccess> moving_;
    std::int64_t instances_ = 0;  // of all of them
    std::int64_t linear_program_ = 0;
    bool in_tile_loop_ = false;
    std::size_t tile_begin_ = 0;
    std::int64_t tile_id_ = 0;
    std::uint64_t taken_ = 0;        // sources that have given the tile's id in this round of the tile loop
    std::vector<Value> carried_;     // of the tile loop, at the begin of a round; `assigned` has their slots
    std::vector<bool> fresh_;        // of the tile loop: without a value when it is entered
    std::set<const Expr*> own_ids_;  // of the tile loop: read what follows from the program's id
    std::int64_t loop_stores_ = 0;   // executed inside the tile loop, of this program
    Coordinates coord_;
    std::int64_t stores_ = 0;  // executed so far
    std::pair<const Expr*, std::int32_t> latest_store_, latest_load_;
    std::tuple<const Expr*, std::int32_t, const Expr*, std::int64_t> latest_form_;
    const Stmt* in_body_ = nullptr;  ///< of the kernel's own block, the statement that is being executed
    const Stmt* last_in_body_ = nullptr;
    const Stmt* last_in_loop_ = nullptr;
    // By memory: its elements, where the launch gives them.
    std::vector<const std::vector<std::int64_t>*> tables_;
    std::vector<bool> override_read_, override_write_;
    std::vector<std::int32_t> stated_;  // by directive: the memory whose footprint it states
    std::vector<Box> boxes_;
    std::vector<std::vector<std::int64_t>> dense_;  // elements of Lazys, of this round
    std::size_t dense_kept_ = 0;
    std::int32_t dense_round_ = 0;
    std::int32_t dense_depth_ = 0;
    std::int64_t dense_work_ = 0;
    std::vector<std::int64_t> scratch_a_, scratch_b_;
    std::deque<Shape> shapes_;          // of data: what Value::extents counts
    std::set<std::string> type_texts_;  // that values of the kind text point to
    std::set<std::string>
        counted_;  // parameters given as what counts nothing, as 24.0 and None, where whole numbers are computed
    std::map<const Stmt*, bool> watch_;
};

/// The expression's text on one line, for messages.
[[nodiscard]] std::string quoted(const Module& module, const SourceRange& where);

}  // namespace syncopate::kernel::triton

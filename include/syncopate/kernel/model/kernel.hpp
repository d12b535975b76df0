// What the front end knows of a Triton kernel: its parameters, its tile space, which region of which tensor
// each tile touches, and the exact places in the source where emit adds lines (DESIGN.md §4).
// All of it is data; nothing here runs the user's code.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "syncopate/kernel/model/by_parameter.hpp"
#include "syncopate/kernel/model/shared_boxes.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

/// A half-open byte range of the source, with the 1-based line and column, in bytes, of its first byte.
struct SourceRange {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::int32_t line = 0;
    std::int32_t column = 0;
};

enum class ParamKind : std::uint8_t { scalar, constant, pointer, descriptor };  ///< constant: tl.constexpr

struct Param {
    std::string name;
    ParamKind kind = ParamKind::scalar;
    bool read = false;     ///< pointer, descriptor: some tile loads from it
    bool written = false;  ///< pointer, descriptor: some tile stores to it
    SourceRange where;     ///< the whole parameter in the signature, annotation and default included
};

/// Scalar argument values: Triton scalars and constexprs are int, float, bool, string (a dtype name) or None.
struct NoneValue {
    bool operator==(const NoneValue&) const = default;
};
using Scalar = std::variant<NoneValue, bool, std::int64_t, double, std::string>;

/// The tensor behind a pointer or descriptor parameter. Shape and strides in elements, axis 0 first.
struct TensorArgument {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  ///< empty: row-major contiguous
    plan::DType dtype = plan::DType::bf16;
    std::vector<std::int64_t> block;  ///< host-made descriptors: the block shape; otherwise empty
};

/// Everything that a launch fixes. A kernel is analysed for one set of arguments.
struct Arguments {
    std::map<std::string, Scalar> scalars;  ///< by parameter name; defaults in the signature fill the rest
    std::map<std::string, TensorArgument> tensors;  ///< by parameter name
    std::optional<std::array<std::int64_t, 3>>
        grid;                    ///< programs per axis; derived for one-tile-per-program kernels when absent
    std::int32_t num_sms = 132;  ///< what a grid that asks for the number of SMs gets
};

/// One named axis of the tile space: `count` tiles of `block` elements.
struct TileAxis {
    std::string name;
    std::int64_t count = 0;
    std::int64_t block = 0;
};

/// What one tile touches: bounding boxes by parameter name, clipped by masks and tensor bounds.
struct Tile {
    std::vector<std::int64_t> coord;  ///< one entry per TileAxis
    std::int64_t id = 0;              ///< linear tile id, as the kernel's own traversal numbers it
    std::int64_t program = 0;         ///< linear program id (x fastest) that runs it in the unmodified kernel
    ByParameter<plan::Region> reads;
    ByParameter<plan::Region> writes;
    /// The same as unions of disjoint boxes: exactly what is touched, where `reads` may span a gap (rows that
    /// wrap around, a reduction split over programs). Depend on these.
    ByParameter<SharedBoxes> read_boxes;
    ByParameter<SharedBoxes> write_boxes;
    /// Parameters of which the boxes may hold more than is touched: what is touched depends on data, or would
    /// take too many boxes. For all others the boxes are exact.
    std::set<std::string> inexact_reads, inexact_writes;
};

/// The reduction loop of a tile (K in a GEMM): iteration i reads `extent` elements from `base + i * step`
/// along dimension `dim` of parameter `param`, for every tile alike.
struct LoopSlice {
    std::string param;
    std::int32_t dim = 0;
    std::int64_t base = 0;
    std::int64_t step = 0;
    std::int64_t extent = 0;
};
struct ReductionLoop {
    SourceRange statement;  ///< the whole `for` statement, from the `f` of `for` to the end of its body
    SourceRange header;     ///< from `for` up to and including the colon
    SourceRange iterable;   ///< the iterable expression, e.g. `range(k_tiles)`
    std::string variable;   ///< the loop variable
    std::string
        bound;  ///< source text of the trip count when the loop is range(bound) from 0 by 1; else empty
    std::int32_t indent = 0;  ///< columns of white space before `for`
    std::int64_t trips = 0;   ///< iterations for the given arguments
    std::vector<LoopSlice> slices;
};

/// A call of tl.program_id in the kernel.
struct ProgramId {
    SourceRange call;
    std::int32_t axis = 0;
};

/// A place where the kernel turns its linear id into a tile. emit makes the table speak there.
struct TileIdSite {
    enum class Kind : std::uint8_t {
        rebind,       ///< after `anchor`, add a line that gives `variables[0]` its tile
        rebind_grid,  ///< after `anchor`, rebind one variable per grid axis (axis order x, y, z) in
                      ///< `variables`
        use,          ///< wrap the occurrence `anchor` of the identifier `variables[0]` in a look-up
        entry,        ///< before `anchor`, take the tile once, with as many axes as `variables`, and replace
                      ///< each of `program_ids`
    };
    Kind kind = Kind::rebind;
    std::vector<std::string> variables;
    SourceRange
        anchor;  ///< rebind: the statement or loop header line after which to add; use: the identifier
    std::int32_t indent = 0;             ///< columns for the added line
    bool guards_reads = true;            ///< addresses of loads follow from it: waits belong here
    bool guards_writes = false;          ///< addresses of stores follow from it
    std::vector<std::string> reads{};    ///< not entry: the parameters whose loads these are
    std::vector<ProgramId> program_ids;  ///< entry: all that the kernel evaluates
};

/// A call that loads or stores through a parameter: `p.store(…)` of a descriptor, `tl.load(…)` of pointers.
struct AccessSite {
    enum class Form : std::uint8_t {
        pointers,
        descriptor,  ///< of the whole tensor, axis by axis
        other,       ///< a block pointer, a descriptor of a part, or not the same in every tile
    };
    std::string param;
    SourceRange call;
    Form form = Form::pointers;
    SourceRange made{};     ///< of a descriptor: the call that makes it; empty: it is the parameter
    std::int64_t rows = 0;  ///< of a descriptor: the extent of its block along axis 0
};

/// The exact places in the source that emit touches.
struct Sites {
    SourceRange function;    ///< from the first decorator to the end of the body
    SourceRange name;        ///< the identifier after `def`
    SourceRange parameters;  ///< between the parentheses of the signature, both excluded
    SourceRange body;  ///< first byte of the first statement (docstring included) to the end of the last
    std::int32_t body_indent = 4;
    std::uint32_t imports_end = 0;  ///< byte offset of the line after the last top-level import
    std::vector<TileIdSite> tile_ids;
    bool persistent = false;       ///< a loop over tiles inside a program
    bool early_return = false;     ///< the kernel returns before the end of its body on some path
    SourceRange tile_loop_header;  ///< persistent: `for … :`
    SourceRange foreign_id;  ///< tl.program_id in a helper (not persistent): emit cannot give that its tile
    SourceRange last_store;  ///< the last statement that stores a tile's output
    /// The statement of the tile loop's body (of the kernel's, without one) that holds the last store: where
    /// it ends, a tile's stores are all issued, and a post goes. Empty without a store there.
    SourceRange stored;
    /// Every call that stores, in source order; one that stores through several parameters is there for each.
    /// Some may lie in helpers, outside of `body`.
    std::vector<AccessSite> stores;
    std::vector<AccessSite> loads;  ///< the same of calls that load
    std::optional<ReductionLoop> reduction;
};

/// One kernel of a file, analysed for one set of arguments.
struct Kernel {
    std::string file;    ///< as given
    std::string source;  ///< every byte of the file
    std::string name;
    std::vector<Param> params;
    std::vector<TileAxis> axes;
    std::vector<Tile> tiles;                    ///< tiles[i].id == i
    std::array<std::int64_t, 3> grid{1, 1, 1};  ///< programs per axis
    Sites sites;
    Arguments arguments;

    [[nodiscard]] std::int64_t num_programs() const { return grid[0] * grid[1] * grid[2]; }
    [[nodiscard]] const Param* find_param(const std::string& param) const;
};

/// An error about a range of a kernel's source: its line, its column in characters, and an excerpt.
[[nodiscard]] Error error_at(std::string_view source, const std::string& file, const SourceRange& range,
                             std::string message);

/// Reads the kernel `name` of `source` (the only @triton.jit kernel with stores when `name` is empty; helpers
/// are not kernels) and analyses it for `arguments`. Fails with file:line:col for a syntax error, a directive
/// that contradicts what is inferred or names an unknown variable, a missing argument, and an address that
/// cannot be inferred — naming the expression and the directive that would settle it.
[[nodiscard]] Result<Kernel> analyse(std::string source, std::string file, const std::string& name,
                                     const Arguments& arguments);

/// The kernels of a file (functions under @triton.jit that no other one of the file calls), in source order.
[[nodiscard]] Result<std::vector<std::string>> list_kernels(const std::string& source,
                                                            const std::string& file);

/// Parses "M=512,ACT=None,x=1.5,flag=True" / "a_ptr=512x256:bf16[:256,1][@128x64]" / "3,2,2".
[[nodiscard]] Result<std::map<std::string, Scalar>> parse_scalars(const std::string& text);
[[nodiscard]] Result<std::pair<std::string, TensorArgument>> parse_tensor(const std::string& text);
[[nodiscard]] Result<std::array<std::int64_t, 3>> parse_grid(const std::string& text);

}  // namespace syncopate::kernel

// What the emitter of Triton kernels has to know of one beyond the neutral Kernel: its text, and the exact
// places in it where lines are added or changed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/triton/syntax/source_range.hpp"

namespace syncopate::kernel::triton {

/// A loop of Kernel::loops in the text.
struct LoopSite {
    SourceRange statement;    ///< the whole `for` statement, from the `f` of `for` to the end of its body
    SourceRange header;       ///< from `for` up to and including the colon
    SourceRange iterable;     ///< the iterable expression, e.g. `range(k_tiles)`
    std::string bound;        ///< source text of where the range ends, if it can be cut; else empty
    std::string begin{};      ///< … of where it begins; empty: at 0
    std::string step{};       ///< … of its step; empty: 1
    std::int32_t indent = 0;  ///< columns of white space before `for`
    /// Of a loop in a helper, which gets the schedule as parameters: the kernel's call, what lies between the
    /// parentheses there, and how many loops of that call come before this one.
    SourceRange call{};
    SourceRange call_arguments{};
    SourceRange helper_parameters{};
    std::int32_t in_call = 0;

    [[nodiscard]] bool in_helper() const { return call.end > 0; }
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
    std::uint64_t bit = 0;               ///< in a loop over tiles: by which AccessSite::taken knows it
    std::vector<ProgramId> program_ids;  ///< entry: all that the kernel evaluates
};

/// A call that loads or stores through a parameter: `p.store(…)` of a descriptor, `tl.load(…)` of pointers.
struct AccessSite {
    std::string param;
    SourceRange call;
    ParamAccess::By by = ParamAccess::By::pointers;
    SourceRange made{};     ///< of a descriptor: the call that makes it; empty: it is the parameter
    std::int64_t rows = 0;  ///< of a descriptor: the extent of its block along axis 0
    /// Of loads in a loop over tiles: at which sites a tile's id has been taken, whenever it comes to this one.
    std::uint64_t taken = ~std::uint64_t{0};
};

/// The exact places in the source that emit touches.
struct Sites {
    SourceRange function;    ///< from the first decorator to the end of the body
    SourceRange name;        ///< the identifier after `def`
    SourceRange parameters;  ///< between the parentheses of the signature, both excluded
    /// By parameter of the kernel: all of it in the signature, annotation and default included. Those that a
    /// tuple holds are there together.
    std::vector<SourceRange> parameter;
    SourceRange body;  ///< first byte of the first statement (docstring included) to the end of the last
    std::int32_t body_indent = 4;
    std::uint32_t imports_end = 0;  ///< byte offset of the line after the last top-level import
    std::vector<TileIdSite> tile_ids;
    bool early_return = false;     ///< the kernel returns before the end of its body on some path
    SourceRange tile_loop_header;  ///< of a persistent kernel: `for … :`
    SourceRange foreign_id;  ///< tl.program_id in a helper (not persistent): emit cannot give that its tile
    SourceRange last_store;  ///< the last statement that stores a tile's output
    /// The statement of the tile loop's body (of the kernel's, without one) that holds the last store: where
    /// it ends, a tile's stores are all issued, and a post goes. Empty without a store there.
    SourceRange stored;
    /// Every call that stores, in source order; one that stores through several parameters is there for each.
    /// Some may lie in helpers, outside of `body`.
    std::vector<AccessSite> stores;
    std::vector<AccessSite> loads;        ///< the same of calls that load
    std::vector<AccessSite> early_loads;  ///< those that a persistent program does before its loop over tiles
    std::vector<LoopSite> loops;          ///< as Kernel::loops
};

inline constexpr std::string_view kLanguage = "triton";

struct Text final : Origin {
    std::string source;  ///< every byte of the file
    Sites sites;
    /// A parameter to which two tiles store the same element, the line of Kernel::warnings that says so, and where its
    /// store is, "FILE:LINE".
    struct StoredTwice {
        std::string param;
        std::string warning;
        std::string at;
    };
    std::vector<StoredTwice> stored_twice;
    /// The same of accesses outside of a tensor: tiles of Kernel::tiles that make them, and what is said behind a tile's name.
    struct Leaving {
        std::vector<std::size_t> tiles;
        std::string said;
        std::string warning;
        std::string at;
    };
    std::vector<Leaving> leaving;

    [[nodiscard]] std::string_view language() const override { return kLanguage; }
};

/// Of a kernel whose origin is this language.
[[nodiscard]] const Text& text_of(const Kernel& kernel);

/// Kernel::warnings where each rank runs those of the tiles: what a tile does matters where some rank runs it, two that store
/// the same element where one rank runs both.
[[nodiscard]] std::vector<std::string> warnings_of(const Kernel& kernel,
                                                   const std::vector<std::set<std::int64_t>>& tiles);

}  // namespace syncopate::kernel::triton

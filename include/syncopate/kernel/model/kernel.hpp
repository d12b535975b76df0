// What a kernel is to all that comes after: its parameters, its tile space, which region of which tensor each
// tile touches, the loops inside a tile, and how it reaches its tensors. Nothing here speaks of a language: a
// front end (kernel/<language>/) reads a kernel or takes its statement and makes this of it, and keeps what
// the emitter of that language (emit/<language>/) needs in `origin`.
//
//      kernel/triton/  ─┐                              ┌─  emit/triton/   looks into origin
//      another one     ─┴─►  Kernel  ─►  fuse  ─►  emit ─┴─  another one
//
// All of it is data; nothing runs the user's code.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/kernel/model/arguments.hpp"
#include "syncopate/kernel/model/by_parameter.hpp"
#include "syncopate/kernel/model/shared_boxes.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/plan/model/short_list.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

enum class ParamKind : std::uint8_t { scalar, constant, pointer, descriptor };  ///< constant: tl.constexpr

struct Param {
    std::string name;
    ParamKind kind = ParamKind::scalar;
    bool read = false;      ///< pointer, descriptor: some tile loads from it
    bool written = false;   ///< pointer, descriptor: some tile stores to it
    bool sent = false;      ///< the kernel stores it by itself at the ranks that the plan sends it to
    Location where{};       ///< in the user's file, as far as it is known
    std::string excerpt{};  ///< of that line, as in Error
};

/// One named axis of the tile space: `count` tiles of `block` elements.
struct TileAxis {
    std::string name;
    std::int64_t count = 0;
    std::int64_t block = 0;
};

/// What a tile reads through one parameter in one of its loops: iteration i reads of `boxes` what lies in
/// `extent` elements from `base + i * step` along `dim`; dim < 0: each iteration may read all of them.
struct LoopRead {
    std::int32_t loop = -1;  ///< index in Kernel::loops; -1: outside of all of them
    std::int32_t dim = -1;
    std::int64_t base = 0;
    std::int64_t step = 0;
    std::int64_t extent = 0;
    std::vector<plan::Region> boxes;  ///< disjoint
    bool operator==(const LoopRead&) const = default;
};

/// Of a tile, along each axis.
using TileCoord = plan::ShortList<std::int64_t, 4>;

/// Of a tile: by parameter that it reads, or writes. As many lie in the tile as a product has: its tiles are the most.
template <typename T>
using ByRead = ByParameter<T, 2>;
template <typename T>
using ByWritten = ByParameter<T, 1>;

/// What one tile touches: bounding boxes by parameter name, clipped by masks and tensor bounds.
struct Tile {
    TileCoord coord;           ///< one entry per TileAxis
    std::int64_t id = 0;       ///< linear tile id, as the kernel's own traversal numbers it
    std::int64_t program = 0;  ///< linear program id (x fastest) that runs it in the unmodified kernel
    ByRead<plan::Region> reads;
    ByWritten<plan::Region> writes;
    /// The same as unions of disjoint boxes: exactly what is touched, where `reads` may span a gap (rows that
    /// wrap around, a reduction split over programs). Depend on these.
    ByRead<SharedBoxes> read_boxes;
    ByWritten<SharedBoxes> write_boxes;
    /// Parameters of which the boxes may hold more than is touched: what is touched depends on data, or would
    /// take too many boxes. For all others the boxes are exact.
    std::set<std::string> inexact_reads, inexact_writes;
    /// Of a kernel whose loops are not the same in all tiles (Kernel::tiles_differ): `read_boxes` by loop,
    /// and by loop how often it runs; null: none of them runs.
    ByParameter<std::shared_ptr<const std::vector<LoopRead>>, 0> loop_reads;
    std::shared_ptr<const std::vector<std::int64_t>> trips;
};

/// What an iteration of a loop reads: iteration i reads `extent` elements from `base + i * step` along
/// dimension `dim` of parameter `param`, for every tile alike.
struct LoopSlice {
    std::string param;
    std::int32_t dim = 0;
    std::int64_t base = 0;
    std::int64_t step = 0;
    std::int64_t extent = 0;
};

/// A loop inside a tile that reads (K in a GEMM; the blocks below the diagonal, and those on it, of causal
/// attention). Loops follow each other in the order in which a tile runs them; one in a helper is as many as
/// there are calls of it.
struct Loop {
    std::string variable;
    std::int64_t trips = 0;  ///< iterations for the given arguments; at most, where tiles differ
    /// It runs through all of its iterations, so that it can be run range by range, each once its data is
    /// there.
    bool divisible = false;
    std::vector<LoopSlice> slices;  ///< where they are the same in all tiles
    bool any_order = false;         ///< … and in whatever order (`# @sy.any_order`)
};

/// How the kernel loads or stores through a parameter, at one place of it.
struct ParamAccess {
    enum class By : std::uint8_t {
        pointers,
        descriptor,  ///< of the whole tensor, axis by axis
        other,       ///< a block pointer, a descriptor of a part, or not the same in every tile
    };
    std::string param;
    bool stores = false;  ///< else it loads
    By by = By::pointers;
    bool given = false;  ///< the descriptor is the parameter itself, so that another one can take its place
    std::int64_t rows = 0;  ///< of a descriptor: the extent of its block along axis 0
    std::int32_t line = 0;
    /// Why emit cannot send this elsewhere, or fetch it from there; empty: it can.
    std::string fixed{};
    /// Why it cannot load the rank's own part where the user has it, by sy_own; empty: see `given`.
    std::string not_own{};
};

/// What only the kernel's own language knows of it: kernel/<language>/ makes it, emit/<language>/ looks into
/// it, and all else passes it on.
struct Origin {
    virtual ~Origin() = default;
    [[nodiscard]] virtual std::string_view language() const = 0;
};

/// One kernel, for one set of arguments.
struct Kernel {
    std::string file;       ///< the user's, as given
    std::int32_t line = 0;  ///< of its name there
    std::string name;
    bool by_line = false;  ///< it was asked for by name and line, as the file has several of that name
    std::vector<Param> params;
    std::vector<TileAxis> axes;
    std::vector<Tile> tiles;                    ///< tiles[i].id == i
    std::array<std::int64_t, 3> grid{1, 1, 1};  ///< programs per axis
    bool persistent = false;                    ///< a program runs several tiles, one after another
    /// Programs that share a tile, each a part of it; one of them ends the call for all.
    std::int64_t programs_per_tile = 1;
    /// Tiles may wait for others, which the unmodified kernel runs before them: they keep their order.
    bool in_order = false;
    std::vector<std::int64_t> traversal;  ///< ids in the order in which tiles run by themselves; empty: by id
    std::vector<Loop> loops;
    bool tiles_differ = false;  ///< in how often their loops run, or in what those read: Tile::loop_reads
    std::vector<ParamAccess> accesses;  ///< loads, then stores, in the order of the file
    bool sums = false;  ///< its programs can add up contributions when they have made their tiles
    bool head_start =
        false;  ///< its first programs can run more tiles than the others (fuse/passes/head_start.hpp)
    double operations = 0;  ///< of a tile, about; 0: those of a product of what it reads
    /// Not 0: each of `tiles` stands for as many as a call makes of it, with the same waits and posts; all
    /// together at most so many. Where each is a call says, too.
    std::int64_t most_slots = 0;
    /// Of such a kernel: it lets the next one start when all its programs run. Whatever else that one reads, and no
    /// chunk says, was made before this one started, and it writes nothing that this one reads.
    bool starts_next = false;
    /// "FILE:LINE: …": what its tiles surely do and is hardly meant, one line each. It is done all the same.
    std::vector<std::string> warnings;
    Arguments arguments;
    std::shared_ptr<const Origin> origin;

    /// Those that share tiles count as one.
    [[nodiscard]] std::int64_t num_programs() const {
        return grid[0] * grid[1] * grid[2] / programs_per_tile;
    }
    /// The tile that runs as the `position`-th.
    [[nodiscard]] std::int64_t tile_at(std::size_t position) const {
        return traversal.empty() ? static_cast<std::int64_t>(position) : traversal[position];
    }
    [[nodiscard]] const Param* find_param(const std::string& param) const;
    /// How often `tile` runs loop `loop`.
    [[nodiscard]] std::int64_t trips_of(const Tile& tile, std::size_t loop) const;
};

/// An error about a parameter, where it stands in the user's file.
[[nodiscard]] Error error_at(const Param& param, std::string message);

}  // namespace syncopate::kernel

// What was evaluated before. A statement without control flow is a function of the variables that it reads
// and of the loops around it; most of a kernel's statements see few different inputs, whatever the number of
// tiles:
//
//      offs_m = pid_m * BM + tl.arange(0, BM)      one input for each row of tiles, not for each tile
//      a_ptrs = a_ptr + offs_m[:, None] * K + …    the same, since `offs_m` is then the same block
//      tl.load(a_ptrs, …)                          so the footprint is found once for each row
//
// The inputs are compared as they stand: a number by value, a block by its address, which is the same when it
// comes from memory too. So addresses must stay valid as long as the memory does (Evaluator::run).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/value.hpp"
#include "kernel/triton/footprints/footprint.hpp"

namespace syncopate::kernel::triton {

inline constexpr std::size_t kMostAxes = 4;

/// Of a tile along one axis of the tile space; on a line of programs, `step` more for each.
struct Coordinate {
    std::int64_t at = -1;  ///< negative: not known
    std::int64_t step = 0;
};
using Coordinates = std::array<Coordinate, kMostAxes>;

/// What one access touches: boxes of one parameter, a range of Findings::boxes, never empty; or, while a line
/// of programs is evaluated, one that is not the same in all of them.
struct Touch {
    std::int32_t param = -1;
    bool write = false;
    bool exact = true;    ///< every element of the boxes is surely touched
    bool solid = true;    ///< … if what the kernel does there is done at all
    bool shadow = false;  ///< touched, but a stated footprint stands for it
    bool moves = false;   ///< of a line's programs each has its own: `begin` is the number of a MovingAccess
    bool adds = false;    ///< by an atomic, which reads and writes
    bool leaves = false;  ///< surely also elements outside of the tensor, which no box holds
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::int32_t along = -1;  ///< the axis of the tensor along which the boxes are moved; -1: they stand
    std::int64_t by = 0;      ///< … by so many elements
    std::int32_t walk = -1;   ///< index in Findings::walks; -1: it belongs to no one round of a tile's loop
};

struct PendingAdvance {
    std::int32_t param = -1;
    Advance advance;
};

/// From keys to what an evaluation did. A key is a list of words; equal keys must mean equal evaluations.
class Memo {
public:
    using Key = std::span<const std::uint64_t>;
    using Advances = std::vector<std::pair<std::int32_t, PendingAdvance>>;

    /// One evaluation: ranges of the pools below.
    struct Entry {
        struct Range {
            std::uint32_t begin = 0;
            std::uint32_t end = 0;
        };
        std::uint64_t hash = 0;
        Range key;
        Range values;    ///< what it left in the variables that it assigns, or gave back
        Range touched;   ///< what it touched
        Range advances;  ///< and how they advance with the loops around
        std::int64_t stores = 0;
        Coordinates coord;  ///< the tile's coordinates that it shows
    };

    /// Null when there is none. Valid until the next `add` or `clear`.
    [[nodiscard]] const Entry* find(Key key) const;
    /// `key` is not yet known. Does nothing when the memory is full.
    void add(Key key, std::span<const Value> values, std::span<const Touch> touched,
             std::span<const std::pair<std::int32_t, PendingAdvance>> advances, std::int64_t stores,
             const Coordinates& coord);
    void clear();
    [[nodiscard]] std::size_t bytes() const;

    std::vector<Value> values;
    std::vector<Touch> touched;
    Advances advances;

private:
    static constexpr std::size_t kMost = std::size_t{64} << 20;  // bytes
    [[nodiscard]] static std::uint64_t hash_of(Key key);
    void grow();

    std::vector<Entry> entries_;
    std::vector<std::uint64_t> keys_;
    std::vector<std::uint32_t> places_;  // open addressing: index of the entry + 1, 0 where free
};

}  // namespace syncopate::kernel::triton

// From what the evaluation touched to the tile space: disjoint boxes and bounding boxes for each tile, and
// the named axes with each tile's coordinates.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel::triton {

/// Box `b` of a touch, where it is: moved, where those of a line are.
[[nodiscard]] Box moved_box(const Findings& found, const Touch& touch, std::uint32_t b);

/// Makes tiles of what the evaluation found, each with its footprints by parameter. What several tiles touch
/// is put together once and shared by them.
class TileMaker {
public:
    /// Refers to its arguments. `loops`: by loop that was walked, its index in Kernel::loops, or -1; empty:
    /// what tiles read is not told apart by loop.
    TileMaker(const Findings& found, const std::vector<std::string>& names,
              const std::vector<TensorView>& tensors, std::vector<std::int32_t> loops);
    [[nodiscard]] Tile make(const TileRecord& record);
    /// What some tile surely touches of a parameter, and no stated footprint holds.
    struct Beyond {
        std::int32_t memory = -1;
        bool write = false;
        plan::Region region;
        std::int64_t tile = 0;
    };
    [[nodiscard]] const std::optional<Beyond>& beyond() const { return beyond_; }
    /// By loop: a tile runs it several times, and not always as often.
    [[nodiscard]] const std::vector<bool>& uneven() const { return uneven_; }

private:
    struct Union {
        SharedBoxes::List boxes;
        plan::Region around;
        bool exact = true;
        std::vector<LoopRead> reads;         ///< empty where none is in a loop
        std::optional<plan::Region> beyond;  ///< surely touched, but in no stated box
    };
    /// What tiles of a line touch of a parameter: the same, moved along one axis.
    struct Moved {
        std::size_t first = 0;            ///< the union of the first one
        std::int64_t by = 0;              ///< how far that one's first touch is moved
        std::int64_t unit = 0;            ///< how far the second one is moved from it
        std::vector<std::uint32_t> made;  ///< the unions, from 1, of those moved by 0, unit, 2 unit, …
    };
    const Union& united(std::span<const std::uint32_t> touches);
    void add_reads(Union& made, std::span<const std::uint32_t> touches) const;
    void note_trips(Tile& tile, const TileRecord& record);
    const Union& moved(std::span<const std::uint32_t> touches);
    void unite_all(Union& made, std::span<const std::uint32_t> touches) const;
    void find_beyond(Union& made, std::span<const std::uint32_t> touches) const;
    void push_key(std::span<const std::uint32_t> touches, std::int64_t back);
    [[nodiscard]] Box box_of(const Touch& touch, std::uint32_t b) const {
        return moved_box(found_, touch, b);
    }
    [[nodiscard]] std::optional<Box> one_box(std::span<const std::uint32_t> touches, std::size_t rank) const;

    const Findings& found_;
    const std::vector<std::string>& names_;  // of memory
    const std::vector<TensorView>& tensors_;
    using Key = std::vector<std::uint64_t>;
    struct Hash {
        std::size_t operator()(const Key& key) const {
            std::uint64_t hash = key.size();
            for (const std::uint64_t word : key) {
                hash = (hash ^ word) * 0x9e37'79b9'7f4a'7c15U;
                hash ^= hash >> 29;
            }
            return static_cast<std::size_t>(hash);
        }
    };
    std::unordered_map<Key, std::size_t, Hash> known_;  // by touches: the place in `unions_`
    std::unordered_map<Key, std::size_t, Hash>
        known_moved_;  // by touches, as if the first one stood: in `moved_`
    std::deque<Moved> moved_;
    Key key_;
    std::shared_ptr<std::deque<Union>> unions_ = std::make_shared<std::deque<Union>>();  // the tiles keep it
    std::vector<std::uint32_t> order_;
    std::vector<std::int32_t> loops_;
    std::size_t num_loops_ = 0;
    std::optional<Beyond> beyond_;  // of the first tile that has some
    std::vector<bool> uneven_;
    std::map<std::vector<std::int64_t>, std::shared_ptr<const std::vector<std::int64_t>>> trips_;
};

/// Sets the coordinates that the evaluation recorded (in the order of `kernel.axes`), if they number the tile
/// space one to one. False, changing nothing, when they do not.
[[nodiscard]] bool set_recorded_coordinates(Kernel& kernel, const std::vector<TileRecord>& records);

/// Sets axes and coordinates from where the tiles write, if their boxes form a grid over one tensor. Names
/// and blocks are taken from `named` where counts agree.
[[nodiscard]] bool set_coordinates_by_writes(Kernel& kernel, const std::vector<TileAxis>& named);

/// Puts the axes in the order of the axes of the tensor that the tiles write, where each runs along one.
void order_axes_by_writes(Kernel& kernel);

}  // namespace syncopate::kernel::triton

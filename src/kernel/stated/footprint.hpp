// What the tiles of a stated kernel touch through one access.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "syncopate/affine.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/stated/statement.hpp"

namespace syncopate::kernel::stated {

/// The coordinates of a statement: the tile's, then the loops' iterations.
struct Coordinates {
    std::vector<std::string> names;
    std::size_t tiles = 0;  ///< so many are of tiles
    affine::Names numbers;  ///< the arguments
    affine::Lists lists;    ///< known elements of integer tensors

    [[nodiscard]] std::size_t loops() const { return names.size() - tiles; }
    /// Everything that has a value, all coordinates as such.
    [[nodiscard]] affine::Names forms() const;
    /// The same with the tile's as numbers.
    [[nodiscard]] affine::Names forms_at(std::span<const std::int64_t> tile) const;
};

/// A number that may follow from the tile's coordinates, affinely or not.
class Number {
public:
    [[nodiscard]] static Result<Number> make(const affine::Expression& expression,
                                             const Coordinates& coordinates);

    [[nodiscard]] bool is_constant() const { return form_ && form_->is_number(); }
    [[nodiscard]] Result<std::int64_t> at(const Coordinates& coordinates,
                                          std::span<const std::int64_t> tile) const;
    /// The same, of many tiles one after another. `names`: those of Coordinates::forms_at, of any tile.
    [[nodiscard]] Result<std::int64_t> at(const Coordinates& coordinates, std::span<const std::int64_t> tile,
                                          affine::Names& names) const;

private:
    explicit Number(affine::Expression expression) : expression_(std::move(expression)) {}

    affine::Expression expression_;
    std::optional<affine::Form> form_;  ///< of the tile's coordinates
};

/// The boxes of one access in one tile.
struct Touched {
    plan::Region around;
    SharedBoxes boxes;
    bool exact = true;
};

/// One access of the statement, bound to the arguments.
class Footprint {
public:
    /// `kind`: "reads" or "writes", for messages.
    [[nodiscard]] static Result<Footprint> make(const Access& access, const std::string& kind,
                                                const Coordinates& coordinates, const TensorArgument& tensor);

    [[nodiscard]] const std::string& param() const { return param_; }
    /// What the tile touches, with so many iterations of each loop; no boxes: nothing. Tiles that touch the
    /// same share it. `work` counts what was looked at.
    [[nodiscard]] Result<const Touched*> at(const Coordinates& coordinates,
                                            std::span<const std::int64_t> tile,
                                            std::span<const std::int64_t> trips, std::int64_t& work);
    /// How loop `loop` walks the tensor, if it does so along one axis and alike in all tiles.
    [[nodiscard]] std::optional<LoopSlice> slice(const Coordinates& coordinates, std::size_t loop) const;
    /// How the tile's loops walk what `at` found there; an access that two loops walk may need all of it in
    /// each iteration of the last of them.
    [[nodiscard]] Result<LoopRead> loop_read(const Coordinates& coordinates,
                                             std::span<const std::int64_t> tile,
                                             const Touched& touched) const;
    /// By how much the footprint moves along some axis from one tile to the next along tile axis `axis`; 0:
    /// not.
    [[nodiscard]] std::int64_t step(std::size_t axis) const;

private:
    /// [begin, end) along one axis, of the tile's coordinates and the iterations.
    struct Axis {
        affine::Range range;
        std::optional<affine::BoundRange> bound;  ///< where both are affine
        std::ptrdiff_t loop = -1;                 ///< that walks it; of those of single_loops_
    };
    /// The same in one tile: by iteration of each loop.
    struct Line {
        std::int64_t begin = 0, end = 0;
        std::vector<std::int64_t> begin_step, end_step;
        bool operator<(const Line& other) const;
    };

    [[nodiscard]] Result<std::vector<Line>> lines_at(const Coordinates& coordinates,
                                                     std::span<const std::int64_t> tile) const;
    [[nodiscard]] Touched touch(const std::vector<Line>& lines, std::span<const std::int64_t> trips,
                                std::int64_t& work) const;
    [[nodiscard]] bool walk(const std::vector<Line>& lines, std::span<const std::int64_t> trips,
                            const std::vector<std::size_t>& loops, std::vector<plan::Region>& boxes,
                            std::int64_t& work) const;
    [[nodiscard]] plan::Region around(const std::vector<Line>& lines,
                                      std::span<const std::int64_t> trips) const;
    [[nodiscard]] std::vector<plan::Interval> intervals(const Line& line, std::size_t axis,
                                                        std::span<const std::int64_t> trips,
                                                        std::int64_t& work) const;
    [[nodiscard]] plan::Interval clipped(std::int64_t begin, std::int64_t end, std::size_t axis) const;
    /// Whether it follows from few coordinates of the tile, affinely: then what is known is found by these alone.
    void note_coordinates(const Coordinates& coordinates);
    [[nodiscard]] Result<Touched> touched_at(const Coordinates& coordinates,
                                             std::span<const std::int64_t> tile,
                                             std::span<const std::int64_t> trips, std::int64_t& work);
    /// A list of its own, of the many that are kept together.
    [[nodiscard]] SharedBoxes kept(const plan::Region& box);
    /// The one box that is touched, where loops leave no gaps; nullopt where that is not seen at once.
    [[nodiscard]] std::optional<plan::Region> one_box(std::span<const std::int64_t> tile,
                                                      std::span<const std::int64_t> trips,
                                                      std::vector<std::int64_t>& origin) const;

    std::string param_;
    std::vector<std::int64_t> shape_;
    std::vector<Axis> axes_;
    std::map<std::pair<std::vector<Line>, std::vector<std::int64_t>>, Touched> known_;
    std::optional<std::vector<std::size_t>>
        depends_on_;             ///< coordinates of the tile; nullopt: on something else
    bool single_loops_ = false;  ///< each axis is walked by one loop at most, and each loop walks one at most
    std::unordered_map<std::uint64_t, Touched> by_coordinates_;
    std::vector<std::int64_t> trips_;  ///< of those
    Touched last_;                     ///< where each tile has its own; of this one, with those trips
    std::vector<std::int64_t> last_tile_;
    bool has_last_ = false;
    std::vector<std::int64_t> origin_;                         ///< of the tile in hand
    std::shared_ptr<std::vector<SharedBoxes::List>> lists_{};  ///< those that tiles have last
};

}  // namespace syncopate::kernel::stated

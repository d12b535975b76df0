#include "kernel/stated/footprint.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace syncopate::kernel::stated {
namespace {

using affine::Form;
using plan::Interval;
using plan::Region;

constexpr std::size_t kMostBoxes = 4096;        ///< of one access in a tile, as where footprints are inferred
constexpr std::int64_t kMostIterations = 4096;  ///< that are looked at one by one
constexpr std::size_t kMostOblique = 256;       ///< boxes of a loop that walks several axes at once

/// Sorted and disjoint, neighbours put together.
std::vector<Interval> merged(std::vector<Interval> intervals) {
    std::erase_if(intervals, [](const Interval& one) { return one.empty(); });
    std::ranges::sort(intervals, {}, &Interval::begin);
    std::vector<Interval> made;
    for (const Interval& one : intervals) {
        if (!made.empty() && one.begin <= made.back().end)
            made.back().end = std::max(made.back().end, one.end);
        else
            made.push_back(one);
    }
    return made;
}

/// Every combination of one interval for each axis.
std::vector<Region> product(const std::vector<std::vector<Interval>>& by_axis) {
    std::vector<Region> boxes{Region{}};
    for (const std::vector<Interval>& intervals : by_axis) {
        std::vector<Region> longer;
        for (const Region& box : boxes) {
            for (const Interval& one : intervals) {
                Region next = box;
                next.push_back(one);
                longer.push_back(std::move(next));
            }
        }
        boxes = std::move(longer);
    }
    return boxes;
}

void unite(std::vector<Region>& boxes, const Region& box) {
    if (is_empty(box)) return;
    std::vector<Region> parts{box};
    for (const Region& known : boxes) plan::take(parts, known);
    for (Region& part : parts) boxes.push_back(std::move(part));
}

/// The next combination of iterations, the last loop's fastest; false after the last one.
bool advance(std::vector<std::int64_t>& at, std::span<const std::int64_t> trips,
             const std::vector<std::size_t>& loops) {
    for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
        if (++at[*loop] < trips[*loop]) return true;
        at[*loop] = 0;
    }
    return false;
}

std::int64_t moved(std::int64_t start, const std::vector<std::int64_t>& steps,
                   const std::vector<std::int64_t>& at) {
    return Form{start, steps}.at(at);
}

}  // namespace

affine::Names Coordinates::forms() const {
    affine::Names names_of = numbers;
    for (std::size_t i = 0; i < names.size(); ++i) names_of[names[i]] = Form::coordinate(i);
    return names_of;
}

affine::Names Coordinates::forms_at(std::span<const std::int64_t> tile) const {
    affine::Names names_of = forms();
    for (std::size_t i = 0; i < tiles; ++i) names_of[names[i]] = Form::number(tile[i]);
    return names_of;
}

Result<Number> Number::make(const affine::Expression& expression, const Coordinates& coordinates) {
    Number number(expression);
    if (Result<Form> form = expression.bind(coordinates.forms(), coordinates.lists)) {
        number.form_ = *std::move(form);
        return number;
    }
    const std::vector<std::int64_t> first(coordinates.tiles, 0);
    SYNCOPATE_TRY(expression.number(coordinates.forms_at(first), coordinates.lists));
    return number;
}

Result<std::int64_t> Number::at(const Coordinates& coordinates, std::span<const std::int64_t> tile) const {
    if (form_) return form_->at(tile);
    return expression_.number(coordinates.forms_at(tile), coordinates.lists);
}

Result<std::int64_t> Number::at(const Coordinates& coordinates, std::span<const std::int64_t> tile,
                                affine::Names& names) const {
    if (form_) return form_->at(tile);
    for (std::size_t i = 0; i < coordinates.tiles; ++i) names[coordinates.names[i]] = Form::number(tile[i]);
    return expression_.number(names, coordinates.lists);
}

bool Footprint::Line::operator<(const Line& other) const {
    return std::tie(begin, end, begin_step, end_step) <
           std::tie(other.begin, other.end, other.begin_step, other.end_step);
}

Result<Footprint> Footprint::make(const Access& access, const std::string& kind,
                                  const Coordinates& coordinates, const TensorArgument& tensor) {
    Footprint made;
    made.param_ = access.param;
    made.shape_ = tensor.shape;
    if (access.ranges.size() != tensor.shape.size()) {
        return Error{kind + " of " + access.param + ": " + std::to_string(access.ranges.size()) +
                     " ranges are stated, and the tensor has " + std::to_string(tensor.shape.size()) +
                     " axes"};
    }
    const affine::Names forms = coordinates.forms();
    const affine::Names first = coordinates.forms_at(std::vector<std::int64_t>(coordinates.tiles, 0));
    for (std::size_t axis = 0; axis < access.ranges.size(); ++axis) {
        const std::string subject = kind + " of " + access.param + ", axis " + std::to_string(axis);
        SYNCOPATE_TAKE(affine::Range range, affine::Range::parse(access.ranges[axis], subject));
        Axis& added = made.axes_.emplace_back();
        added.range = std::move(range);
        const std::int64_t extent = tensor.shape[axis];
        if (auto bound = added.range.bind(forms, extent, coordinates.lists)) {
            added.bound = *std::move(bound);
        } else if (const auto in_tile = added.range.bind(first, extent, coordinates.lists); !in_tile) {
            return in_tile.error();
        }
    }
    made.note_coordinates(coordinates);
    return made;
}

void Footprint::note_coordinates(const Coordinates& coordinates) {
    constexpr std::size_t kMostPacked = 2;
    std::vector<std::size_t> places;
    std::vector<bool> walks(coordinates.loops(), false);
    bool single = true;
    for (Axis& axis : axes_) {
        if (!axis.bound) return;
        for (std::size_t place = 0; place < coordinates.names.size(); ++place) {
            const bool moves =
                axis.bound->begin.coefficient(place) != 0 || axis.bound->end.coefficient(place) != 0;
            if (!moves) continue;
            if (place >= coordinates.tiles) {
                const std::size_t loop = place - coordinates.tiles;
                single = single && !walks[loop] && axis.loop < 0;
                walks[loop] = true;
                axis.loop = static_cast<std::ptrdiff_t>(loop);
            } else if (std::ranges::find(places, place) == places.end()) {
                places.push_back(place);
            }
        }
    }
    single_loops_ = single;
    if (places.size() <= kMostPacked) depends_on_ = std::move(places);
}

std::optional<LoopSlice> Footprint::slice(const Coordinates& coordinates, std::size_t loop) const {
    const std::size_t place = coordinates.tiles + loop;
    std::optional<LoopSlice> found;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
        if (!axes_[axis].bound) return std::nullopt;  // it may follow from the loop in some tiles
        const auto& [begin, end] = *axes_[axis].bound;
        const std::int64_t step = begin.coefficient(place);
        if (step == 0 && end.coefficient(place) == 0) continue;
        const bool alone =
            std::ranges::count_if(begin.coefficients, [](std::int64_t c) { return c != 0; }) == 1 &&
            begin.coefficients == end.coefficients;
        if (found || !alone) return std::nullopt;
        found = LoopSlice{param_, static_cast<std::int32_t>(axis), begin.constant, step,
                          end.constant - begin.constant};
    }
    return found;
}

Result<LoopRead> Footprint::loop_read(const Coordinates& coordinates, std::span<const std::int64_t> tile,
                                      const Touched& touched) const {
    SYNCOPATE_TAKE(std::vector<Line> lines, lines_at(coordinates, tile));
    LoopRead read;
    read.boxes.assign(touched.boxes.begin(), touched.boxes.end());
    std::size_t walked = 0;  // pairs of an axis and a loop that walks it
    for (std::size_t axis = 0; axis < lines.size(); ++axis) {
        const Line& line = lines[axis];
        for (std::size_t loop = 0; loop < coordinates.loops(); ++loop) {
            const std::int64_t step = line.begin_step[loop];
            if (step == 0 && line.end_step[loop] == 0) continue;
            ++walked;
            read.loop = std::max(read.loop, static_cast<std::int32_t>(loop));
            if (step != line.end_step[loop] || step <= 0) continue;
            read.dim = static_cast<std::int32_t>(axis);
            read.base = line.begin;
            read.step = step;
            read.extent = line.end - line.begin;
        }
    }
    if (walked != 1 || read.dim < 0) {
        read.dim = -1;
        read.base = read.step = read.extent = 0;
    }
    return read;
}

std::int64_t Footprint::step(std::size_t axis) const {
    for (const Axis& one : axes_) {
        if (one.bound && one.bound->begin.coefficient(axis) != 0) return one.bound->begin.coefficient(axis);
    }
    return 0;
}

Result<std::vector<Footprint::Line>> Footprint::lines_at(const Coordinates& coordinates,
                                                         std::span<const std::int64_t> tile) const {
    std::vector<std::int64_t> origin(tile.begin(), tile.end());
    origin.resize(coordinates.names.size(), 0);
    std::optional<affine::Names> names;
    std::vector<Line> lines;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
        std::optional<affine::BoundRange> bound = axes_[axis].bound;
        if (!bound) {
            if (!names) names = coordinates.forms_at(tile);
            SYNCOPATE_TAKE(affine::BoundRange in_tile,
                           axes_[axis].range.bind(*names, shape_[axis], coordinates.lists));
            bound = std::move(in_tile);
        }
        Line& line = lines.emplace_back(Line{bound->begin.at(origin), bound->end.at(origin), {}, {}});
        for (std::size_t loop = 0; loop < coordinates.loops(); ++loop) {
            line.begin_step.push_back(bound->begin.coefficient(coordinates.tiles + loop));
            line.end_step.push_back(bound->end.coefficient(coordinates.tiles + loop));
        }
    }
    return lines;
}

Interval Footprint::clipped(std::int64_t begin, std::int64_t end, std::size_t axis) const {
    return {std::clamp<std::int64_t>(begin, 0, shape_[axis]), std::clamp<std::int64_t>(end, 0, shape_[axis])};
}

/// Along one axis, over all iterations; an axis that several loops walk, or one with too many gaps, has no
/// intervals of its own: more than kMostBoxes come back.
std::vector<Interval> Footprint::intervals(const Line& line, std::size_t axis,
                                           std::span<const std::int64_t> trips, std::int64_t& work) const {
    std::vector<std::size_t> loops;
    for (std::size_t loop = 0; loop < trips.size(); ++loop) {
        if (line.begin_step[loop] != 0 || line.end_step[loop] != 0) loops.push_back(loop);
    }
    if (std::ranges::any_of(loops, [&](std::size_t loop) { return trips[loop] <= 0; })) return {};
    if (loops.empty()) return merged({clipped(line.begin, line.end, axis)});
    const std::size_t only = loops.front();
    const std::int64_t step = line.begin_step[only];
    const std::int64_t extent = line.end - line.begin;
    if (loops.size() == 1 && step == line.end_step[only] && extent >= std::abs(step)) {
        std::vector<std::int64_t> last(trips.size(), 0);
        last[only] = trips[only] - 1;
        const std::int64_t begin = moved(line.begin, line.begin_step, last);
        const std::int64_t end = moved(line.end, line.end_step, last);
        return merged({clipped(std::min(line.begin, begin), std::max(line.end, end), axis)});
    }
    std::int64_t iterations = 1;
    for (const std::size_t loop : loops) {
        iterations *= std::min(trips[loop], kMostIterations + 1);
        if (iterations > kMostIterations) return std::vector<Interval>(kMostBoxes + 1);
    }
    std::vector<Interval> all;
    std::vector<std::int64_t> at(trips.size(), 0);
    work += iterations;
    do {
        all.push_back(
            clipped(moved(line.begin, line.begin_step, at), moved(line.end, line.end_step, at), axis));
    } while (advance(at, trips, loops));
    return merged(std::move(all));
}

/// Adds what each combination of iterations touches, one by one; false where that is too much.
bool Footprint::walk(const std::vector<Line>& lines, std::span<const std::int64_t> trips,
                     const std::vector<std::size_t>& loops, std::vector<Region>& boxes,
                     std::int64_t& work) const {
    std::int64_t iterations = 1;
    for (const std::size_t loop : loops) {
        iterations *= std::min(trips[loop], kMostIterations + 1);
        if (iterations > kMostIterations) return false;
    }
    std::vector<std::int64_t> at(trips.size(), 0);
    do {
        Region box;
        for (std::size_t axis = 0; axis < lines.size(); ++axis) {
            const Line& line = lines[axis];
            box.push_back(
                clipped(moved(line.begin, line.begin_step, at), moved(line.end, line.end_step, at), axis));
        }
        work += 1 + static_cast<std::int64_t>(boxes.size());
        unite(boxes, box);
    } while (boxes.size() <= kMostOblique && advance(at, trips, loops));
    return boxes.size() <= kMostOblique;
}

/// The box around all iterations. What is affine is furthest out in a loop's first or last one.
Region Footprint::around(const std::vector<Line>& lines, std::span<const std::int64_t> trips) const {
    Region box;
    for (std::size_t axis = 0; axis < lines.size(); ++axis) {
        const Line& line = lines[axis];
        std::vector<std::int64_t> lowest(trips.size(), 0), highest(trips.size(), 0);
        for (std::size_t loop = 0; loop < trips.size(); ++loop) {
            const std::int64_t last = std::max<std::int64_t>(0, trips[loop] - 1);
            if (line.begin_step[loop] < 0) lowest[loop] = last;
            if (line.end_step[loop] > 0) highest[loop] = last;
        }
        box.push_back(clipped(moved(line.begin, line.begin_step, lowest),
                              moved(line.end, line.end_step, highest), axis));
    }
    return box;
}

Touched Footprint::touch(const std::vector<Line>& lines, std::span<const std::int64_t> trips,
                         std::int64_t& work) const {
    Touched touched;
    std::vector<std::size_t> loops;  // that walk some axis
    bool oblique = false;            // one of them walks two
    for (std::size_t loop = 0; loop < trips.size(); ++loop) {
        const auto walks = std::ranges::count_if(
            lines, [&](const Line& line) { return line.begin_step[loop] != 0 || line.end_step[loop] != 0; });
        if (walks > 0) loops.push_back(loop);
        oblique = oblique || walks > 1;
    }
    if (std::ranges::any_of(loops, [&](std::size_t loop) { return trips[loop] <= 0; })) return touched;

    std::vector<std::vector<Interval>> by_axis;
    std::size_t count = 1;
    for (std::size_t axis = 0; axis < lines.size(); ++axis) {
        by_axis.push_back(intervals(lines[axis], axis, trips, work));
        count = std::min(count * by_axis.back().size(), kMostBoxes + 1);
    }
    if (count == 0) return touched;
    std::vector<Region> boxes;
    if (oblique) {
        touched.exact = walk(lines, trips, loops, boxes, work);
        if (touched.exact && boxes.empty()) return touched;
    } else if (touched.exact = count <= kMostBoxes; touched.exact) {
        work += static_cast<std::int64_t>(count);
        boxes = product(by_axis);
    }
    if (!touched.exact) boxes.assign(1, around(lines, trips));
    touched.around = boxes.front();
    for (const Region& box : boxes) touched.around = plan::bounding_box(touched.around, box);
    touched.boxes = SharedBoxes(std::move(boxes));
    return touched;
}

std::optional<Region> Footprint::one_box(std::span<const std::int64_t> tile,
                                         std::span<const std::int64_t> trips,
                                         std::vector<std::int64_t>& origin) const {
    std::ranges::copy(tile, origin.begin());
    Region box;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
        const auto& [first, last] = *axes_[axis].bound;
        std::int64_t begin = first.at(origin), end = last.at(origin);
        if (axes_[axis].loop >= 0) {
            const auto loop = static_cast<std::size_t>(axes_[axis].loop);
            std::int64_t& at = origin[tile.size() + loop];
            const std::int64_t step = first.coefficient(tile.size() + loop);
            const bool gapless =
                step == last.coefficient(tile.size() + loop) && end - begin >= std::abs(step);
            if (trips[loop] <= 0 || !gapless) return std::nullopt;
            at = trips[loop] - 1;
            begin = std::min(begin, first.at(origin));
            end = std::max(end, last.at(origin));
            at = 0;
        }
        box.push_back(clipped(begin, end, axis));
    }
    return box;
}

SharedBoxes Footprint::kept(const Region& box) {
    constexpr std::size_t kTogether = 64;
    if (lists_ == nullptr || lists_->size() == lists_->capacity()) {
        lists_ = std::make_shared<std::vector<SharedBoxes::List>>();
        lists_->reserve(kTogether);  // so that none moves
    }
    lists_->emplace_back(1, box);
    return SharedBoxes(std::shared_ptr<const SharedBoxes::List>(lists_, &lists_->back()));
}

Result<Touched> Footprint::touched_at(const Coordinates& coordinates, std::span<const std::int64_t> tile,
                                      std::span<const std::int64_t> trips, std::int64_t& work) {
    origin_.assign(coordinates.names.size(), 0);
    if (std::optional<Region> box = single_loops_ ? one_box(tile, trips, origin_) : std::nullopt) {
        Touched touched;
        ++work;
        touched.around = *std::move(box);
        if (!plan::is_empty(touched.around)) touched.boxes = kept(touched.around);
        return touched;
    }
    SYNCOPATE_TAKE(const std::vector<Line> lines, lines_at(coordinates, tile));
    return touch(lines, trips, work);
}

Result<const Touched*> Footprint::at(const Coordinates& coordinates, std::span<const std::int64_t> tile,
                                     std::span<const std::int64_t> trips, std::int64_t& work) {
    work += 1 + static_cast<std::int64_t>(axes_.size());
    if (depends_on_ && depends_on_->size() == coordinates.tiles) {  // no other tile touches the same
        if (has_last_ && std::ranges::equal(tile, last_tile_) && std::ranges::equal(trips, trips_))
            return &last_;
        SYNCOPATE_TAKE(Touched touched, touched_at(coordinates, tile, trips, work));
        last_ = std::move(touched);
        last_tile_.assign(tile.begin(), tile.end());
        trips_.assign(trips.begin(), trips.end());
        has_last_ = true;
        return &last_;
    }
    if (depends_on_) {
        if (!std::ranges::equal(trips, trips_)) {
            by_coordinates_.clear();
            trips_.assign(trips.begin(), trips.end());
        }
        std::uint64_t key = 0;  // a tile's coordinates are below 2^32 (kMostTiles)
        for (const std::size_t place : *depends_on_)
            key = (key << 32) | static_cast<std::uint64_t>(tile[place]);
        const auto found = by_coordinates_.find(key);
        if (found != by_coordinates_.end()) return &found->second;
        SYNCOPATE_TAKE(Touched touched, touched_at(coordinates, tile, trips, work));
        return &by_coordinates_.emplace(key, std::move(touched)).first->second;
    }
    SYNCOPATE_TAKE(std::vector<Line> lines, lines_at(coordinates, tile));
    std::pair key(std::move(lines), std::vector<std::int64_t>(trips.begin(), trips.end()));
    auto found = known_.find(key);
    if (found == known_.end()) {
        Touched touched = touch(key.first, trips, work);
        found = known_.emplace(std::move(key), std::move(touched)).first;
    }
    return &found->second;
}

}  // namespace syncopate::kernel::stated

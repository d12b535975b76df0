#include "kernel/triton/footprints/footprint_boxes.hpp"
#include "syncopate/at.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 44;  // elements from the start of a tensor

class Boxes {
public:
    Boxes(const TensorView& tensor, bool direct, std::span<const std::int64_t> trips, std::vector<Box>& boxes,
          bool& leaves)
        : tensor_(tensor),
          direct_(direct),
          trips_(trips),
          boxes_(boxes),
          leaves_(leaves),
          rank_(static_cast<std::int32_t>(tensor.shape.size())) {}

    bool run(const Ranges& ranges) {
        resolve(ranges, 1);
        return exact_;
    }
    void offsets(std::vector<std::int64_t>& all) { elements(all); }

private:
    // Extremes over all iterations.
    std::int64_t least(const Affine& value) const { return extreme(value, false); }
    std::int64_t most(const Affine& value) const { return extreme(value, true); }
    std::int64_t extreme(const Affine& value, bool most) const {
        std::int64_t result = value.constant;
        for (std::size_t s = 0; s < trips_.size(); ++s) {
            if ((value.slope[s] > 0) == most)
                result = wrap_add(result, wrap_multiply(value.slope[s], trips_[s] - 1));
        }
        return result;
    }
    std::int64_t stride(std::int32_t d) const { return tensor_.strides[at(d)]; }
    std::int64_t extent(std::int32_t d) const { return tensor_.shape[at(d)]; }

    static bool still(const Affine& value, std::size_t s) { return value.slope[s] == 0; }
    static bool still(const Term& term, std::size_t s) {
        for (std::int32_t b = 0; b < term.lower_count; ++b)
            if (!still(term.lower[b], s)) return false;
        for (std::int32_t b = 0; b < term.upper_count; ++b)
            if (!still(term.upper[b], s)) return false;
        return true;
    }
    static bool still(const Range& range, std::size_t s) {
        for (std::int32_t t = 0; t < range.count; ++t)
            if (!still(range.terms[t], s)) return false;
        return still(range.start, s);
    }

    /// The indices of a term that some iteration reaches, as [low, high); exact when its bounds do not move.
    std::pair<std::int64_t, std::int64_t> indices(const Term& term) const {
        std::int64_t low = least(term.lower[0]), high = most(term.upper[0]);
        for (std::int32_t b = 1; b < term.lower_count; ++b) low = std::max(low, least(term.lower[b]));
        for (std::int32_t b = 1; b < term.upper_count; ++b) high = std::min(high, most(term.upper[b]));
        return {low, high};
    }
    /// Whether every iteration has some index.
    bool never_empty(const Term& term) const {
        std::int64_t low = most(term.lower[0]), high = least(term.upper[0]);
        for (std::int32_t b = 1; b < term.lower_count; ++b) low = std::max(low, most(term.lower[b]));
        for (std::int32_t b = 1; b < term.upper_count; ++b) high = std::min(high, least(term.upper[b]));
        return low < high;
    }

    /// The term that leaves gaps between the coordinates of one iteration; nullopt: there are no gaps.
    std::optional<std::int32_t> gap(const Range& range) const {
        std::array<std::int32_t, kRank> order{};
        for (std::int32_t t = 0; t < range.count; ++t) order[at(t)] = t;
        std::sort(order.begin(), order.begin() + range.count,
                  [&](std::int32_t a, std::int32_t b) { return range.terms[a].step < range.terms[b].step; });
        std::int64_t width = 1;
        for (std::int32_t i = 0; i < range.count; ++i) {
            const std::int32_t t = order[at(i)];
            const auto [low, high] = indices(range.terms[t]);
            if (high - low > 1 && range.terms[t].step > width) return t;
            width = wrap_add(width,
                             wrap_multiply(range.terms[t].step, std::max<std::int64_t>(0, high - low - 1)));
        }
        return std::nullopt;
    }

    /// Whether the coordinates of all iterations together are those between the lowest and the highest, the
    /// fixed bounds included: one term by 1, whose window slides by no more than its width.
    bool slides(const Range& range) const {
        if (range.count != 1 || range.terms[0].step != 1) {
            if (range.count > 1 || (range.count == 1 && range.terms[0].step > 1)) {
                for (std::int32_t t = 0; t < range.count; ++t) {
                    for (std::size_t s = 0; s < trips_.size(); ++s)
                        if (!still(range.terms[t], s)) return false;
                }
                if (gap(range)) return false;
            }
        }
        std::int64_t width = 1;
        if (range.count == 1) {
            const Term& term = range.terms[0];
            std::int64_t low = INT64_MIN, high = INT64_MAX;
            const auto sort_out = [&](const Affine& bound, bool lower) {
                bool moves = true, fixed = true;
                for (std::size_t s = 0; s < trips_.size(); ++s) {
                    moves = moves && bound.slope[s] == 0;
                    fixed = fixed && bound.slope[s] == wrap_multiply(range.start.slope[s], -1);
                }
                if (moves && lower) low = std::max(low, bound.constant);
                if (moves && !lower) high = std::min(high, bound.constant);
                return moves || fixed;
            };
            for (std::int32_t b = 0; b < term.lower_count; ++b)
                if (!sort_out(term.lower[b], true)) return false;
            for (std::int32_t b = 0; b < term.upper_count; ++b)
                if (!sort_out(term.upper[b], false)) return false;
            if (low == INT64_MIN || high == INT64_MAX) return false;
            width = wrap_add(wrap_multiply(term.step, wrap_add(high, wrap_add(-low, -1))), 1);
            if (width <= 0) return true;
        } else if (range.count > 1) {
            for (std::int32_t t = 0; t < range.count; ++t) {
                const auto [low, high] = indices(range.terms[t]);
                width = wrap_add(width, wrap_multiply(range.terms[t].step, high - low - 1));
            }
        }
        std::array<std::size_t, kSymbols> order{};
        for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
        const auto size = [&](std::size_t s) {
            return s < trips_.size() ? std::llabs(range.start.slope[s]) : 0;
        };
        std::sort(order.begin(), order.end(),
                  [&](std::size_t a, std::size_t b) { return size(a) < size(b); });
        for (const std::size_t s : order) {
            if (size(s) == 0 || trips_[s] < 2) continue;
            if (size(s) > width) return false;
            width = wrap_add(width, wrap_multiply(size(s), trips_[s] - 1));
        }
        return true;
    }

    /// The loop whose iterations have to be told apart; nullopt: none.
    std::optional<std::size_t> to_split(const Ranges& ranges) const {
        for (std::size_t s = trips_.size(); s-- > 0;) {
            std::int32_t moving = 0;
            for (std::int32_t d = 0; d < rank_; ++d) moving += still(ranges.axes[d], s) ? 0 : 1;
            for (std::int32_t t = 0; t < ranges.idle_count; ++t) {
                if (!still(ranges.idle[t], s) && !never_empty(ranges.idle[t])) return s;
            }
            if (moving > 1) return s;
        }
        for (std::int32_t d = 0; d < rank_; ++d) {
            if (slides(ranges.axes[d])) continue;
            for (std::size_t s = trips_.size(); s-- > 0;) {  // the innermost last: it moves least
                if (!still(ranges.axes[d], s)) return largest(ranges.axes[d]);
            }
        }
        return std::nullopt;
    }
    std::size_t largest(const Range& range) const {
        std::size_t found = 0;
        std::int64_t size = -1;
        for (std::size_t s = 0; s < trips_.size(); ++s) {
            if (still(range, s) || std::llabs(range.start.slope[s]) <= size) continue;
            found = s;
            size = std::llabs(range.start.slope[s]);
        }
        return found;
    }

    void resolve(const Ranges& ranges, std::int64_t parts) {
        for (std::int32_t d = 0; d < rank_; ++d) {
            for (std::int32_t t = 0; t < ranges.axes[d].count; ++t) {
                const auto [low, high] = indices(ranges.axes[d].terms[t]);
                if (high <= low) return;
            }
        }
        for (std::int32_t t = 0; t < ranges.idle_count; ++t) {
            const auto [low, high] = indices(ranges.idle[t]);
            if (high <= low) return;
        }
        if (const auto s = to_split(ranges)) {
            if (parts > kMostBoxes / trips_[*s]) return around(ranges);
            for (std::int64_t i = 0; i < trips_[*s]; ++i) resolve(fixed(ranges, *s, i), parts * trips_[*s]);
            return;
        }
        for (std::int32_t d = 0; d < rank_; ++d) {
            const auto t = gap(ranges.axes[d]);
            if (!t) continue;
            const auto [low, high] = indices(ranges.axes[d].terms[*t]);
            if (high - low > kMostBoxes / parts) return around(ranges);
            for (std::int64_t i = low; i < high; ++i) {
                Ranges one = ranges;
                Range& range = one.axes[d];
                range.start = range.start + wrap_multiply(range.terms[*t].step, i);
                range.terms[*t] = range.terms[--range.count];
                resolve(one, parts * (high - low));
            }
            return;
        }
        emit(ranges);
    }

    static Ranges fixed(const Ranges& moving, std::size_t s, std::int64_t i) {
        Ranges ranges = moving;
        const auto fix = [&](Affine& a) {
            a.constant = wrap_add(a.constant, wrap_multiply(a.slope[s], i));
            a.slope[s] = 0;
        };
        const auto fix_term = [&](Term& term) {
            for (std::int32_t b = 0; b < term.lower_count; ++b) fix(term.lower[b]);
            for (std::int32_t b = 0; b < term.upper_count; ++b) fix(term.upper[b]);
        };
        for (Range& range : ranges.axes) {
            fix(range.start);
            for (std::int32_t t = 0; t < range.count; ++t) fix_term(range.terms[t]);
        }
        for (std::int32_t t = 0; t < ranges.idle_count; ++t) fix_term(ranges.idle[t]);
        return ranges;
    }

    /// Gives up: the smallest box around everything.
    void around(const Ranges& ranges) {
        exact_ = false;
        emit(ranges);
    }

    void emit(const Ranges& ranges) {
        Box box{};
        for (std::int32_t d = 0; d < rank_; ++d) {
            const Range& r = ranges.axes[d];
            std::int64_t low = 0, high = 0;
            if (r.count == 1) {
                const Term& term = r.terms[0];
                const auto at = [&](const Affine& index) { return r.start + index * term.step; };
                low = least(at(term.lower[0]));
                high = most(at(term.upper[0] + -1));
                for (std::int32_t b = 1; b < term.lower_count; ++b)
                    low = std::max(low, least(at(term.lower[b])));
                for (std::int32_t b = 1; b < term.upper_count; ++b)
                    high = std::min(high, most(at(term.upper[b] + -1)));
                high = wrap_add(high, 1);
            } else {
                low = least(r.start);
                high = wrap_add(most(r.start), 1);
                for (std::int32_t t = 0; t < r.count; ++t) {
                    const auto [first, last] = indices(r.terms[t]);
                    low = wrap_add(low, wrap_multiply(r.terms[t].step, first));
                    high = wrap_add(high, wrap_multiply(r.terms[t].step, last - 1));
                }
            }
            if (high <= low) return;
            box[d] = {low, high};
        }
        if (!direct_ && spills(box)) return linear(box);
        push(box);
    }

    void push(Box box) const {
        for (std::int32_t d = 0; d < rank_; ++d)
            leaves_ = leaves_ || (!direct_ && (box[d].begin < 0 || box[d].end > extent(d)));
        for (std::int32_t d = 0; d < rank_; ++d) {
            box[d].begin = std::max<std::int64_t>(box[d].begin, 0);
            box[d].end = std::min(box[d].end, extent(d));
            if (box[d].empty()) return;
        }
        boxes_.push_back(box);
    }

    /// Coordinates beyond the end of an inner axis are elements of the next row.
    bool spills(const Box& box) const {
        for (std::int32_t i = 1; i < rank_; ++i) {
            const std::int32_t d = tensor_.by_stride[at(i)];
            if (stride(d) > 0 && (box[d].begin < 0 || box[d].end > extent(d))) return true;
        }
        return false;
    }

    /// The innermost axis from which on the coordinates of a box spill into the next row, as an entry of by_stride;
    /// the last one where the axes around it do not lie a whole number of its steps apart.
    std::size_t spilling_axis(const Box& box) const {
        const std::size_t innermost = tensor_.by_stride.size() - 1;
        std::size_t last = innermost;
        const auto is_within = [&](std::int32_t d) { return box[d].begin >= 0 && box[d].end <= extent(d); };
        while (last > 0 && is_within(tensor_.by_stride[last])) --last;
        const std::int64_t unit = stride(tensor_.by_stride[last]);
        for (std::size_t i = 0; i < last; ++i)
            if (unit <= 0 || stride(tensor_.by_stride[i]) % unit != 0) return innermost;
        return last;
    }

    /// The outermost axis that what spills into rows reaches, as an entry of by_stride: with the axes within it a box
    /// stays between two steps of the one around it.
    std::size_t reached_axis(const Box& box, std::size_t last) const {
        std::array<Wide, kRank> low{}, high{};
        Wide least = 0, most = 0;
        for (std::size_t i = tensor_.by_stride.size(); i-- > 0;) {
            const std::int32_t d = tensor_.by_stride[i];
            low[i] = least += static_cast<Wide>(box[d].begin) * stride(d);
            high[i] = most += static_cast<Wide>(box[d].end - 1) * stride(d);
        }
        std::size_t reached = 0;
        while (reached < last && low[reached + 1] >= 0 &&
               high[reached + 1] < stride(tensor_.by_stride[reached]))
            ++reached;
        return reached;
    }

    /// The box as ranges of linear offsets, each mapped back: first row, whole rows, last row. Axes within the one
    /// that spills stay as they are, and those around the ones that it reaches.
    void linear(const Box& box) {
        if (rank_ < 2) return push(box);
        const std::size_t last = spilling_axis(box), innermost = tensor_.by_stride.size() - 1;
        const std::size_t reached = reached_axis(box, last);
        const std::int32_t inner = tensor_.by_stride[last];
        std::int64_t rows = 1, all = 1;
        bool near = true;
        for (std::size_t i = 0; i <= innermost; ++i) {
            const std::int32_t d = tensor_.by_stride[i];
            near = near && box[d].begin > -kFarthest && box[d].end < kFarthest;
            if (i >= reached && i < last && near)
                rows = std::min(rows * std::min(box[d].size(), kMostBoxes + 1), kMostBoxes + 1);
            if (near) all = std::min(all * std::min(box[d].size(), kMostElements + 1), kMostElements + 1);
        }
        if ((stride(inner) == 1 || last < innermost) && rows <= kMostBoxes && near) {
            plan::Interval run;  // rows that follow each other are one range
            const std::int64_t size = wrap_multiply(box[inner].size(), stride(inner));
            each_row(box, reached, last, rows, [&](std::int64_t offset) {
                if (offset != run.end) {
                    linear_range(run.begin, run.end, reached, last, box);
                    run.begin = offset;
                }
                run.end = wrap_add(offset, size);
            });
            linear_range(run.begin, run.end, reached, last, box);
            return;
        }
        if (near && all <= kMostElements) {
            const std::int32_t lowest = tensor_.by_stride[innermost];
            std::vector<std::int64_t> list;
            each_row(box, 0, innermost, all / box[lowest].size(), [&](std::int64_t offset) {
                for (std::int64_t i = 0; i < box[lowest].size(); ++i)
                    list.push_back(wrap_add(offset, wrap_multiply(i, stride(lowest))));
            });
            return elements(list);
        }
        exact_ = false;
        Box whole{};
        for (std::int32_t d = 0; d < rank_; ++d) whole[d] = {0, extent(d)};
        boxes_.push_back(whole);
    }

    /// Calls `row` with the offset of the first element of each run along the axis by_stride[last], the axes around it
    /// from by_stride[first] on in the order of memory.
    template <typename Row>
    void each_row(const Box& box, std::size_t first, std::size_t last, std::int64_t rows,
                  const Row& row) const {
        const std::int32_t inner = tensor_.by_stride[last];
        for (std::int64_t r = 0; r < rows; ++r) {
            std::int64_t rest = r, offset = wrap_multiply(box[inner].begin, stride(inner));
            for (std::size_t i = last; i-- > first;) {
                const std::int32_t d = tensor_.by_stride[i];
                const std::int64_t at = box[d].begin + rest % box[d].size();
                rest /= box[d].size();
                offset = wrap_add(offset, wrap_multiply(at, stride(d)));
            }
            row(offset);
        }
    }

    /// Elements [begin, end) counted from the start of the sub-tensor of axes by_stride[level:lowest + 1]; of the axes within
    /// these, what `box` says.
    void linear_range(std::int64_t begin, std::int64_t end, std::size_t level, std::size_t lowest,
                      Box box) const {
        if (end <= begin) return;
        const std::int32_t d = tensor_.by_stride[level];
        if (level == lowest) {
            const std::int64_t unit = lowest + 1 == tensor_.by_stride.size() ? 1 : stride(d);
            box[d] = {begin / unit, end / unit};
            return push(box);
        }
        const std::int64_t size = stride(d);
        if (size <= 0) {
            box[d] = {0, extent(d)};
            return linear_range(begin, end, level + 1, lowest, box);
        }
        const std::int64_t first = floor_div(begin, size), last = floor_div(wrap_add(end, -1), size);
        const bool cut_first = begin != first * size, cut_last = end != (last + 1) * size;
        const auto part = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
            box[d] = {row, row + 1};
            linear_range(from, to, level + 1, lowest, box);
        };
        if (first == last) return part(first, begin - first * size, end - first * size);
        if (cut_first) part(first, begin - first * size, size);
        const std::int64_t from = first + (cut_first ? 1 : 0), to = last + (cut_last ? 0 : 1);
        if (from < to) {
            box[d] = {from, to};
            linear_range(0, size, level + 1, lowest, box);
        }
        if (cut_last) part(last, 0, end - last * size);
    }

    void elements(std::vector<std::int64_t>& all) {
        if (!std::is_sorted(all.begin(), all.end())) std::sort(all.begin(), all.end());
        const std::int64_t unit = tensor_.by_stride.empty() ? 1 : stride(tensor_.by_stride.back());
        for (std::size_t i = 0; i < all.size();) {
            std::size_t end = i + 1;
            while (end < all.size() && all[end] - all[end - 1] <= (unit == 1 ? 1 : 0)) ++end;
            if (unit == 1) {
                linear_range(all[i], all[end - 1] + 1, 0, tensor_.by_stride.size() - 1, Box{});
            } else {
                Box box{};
                std::int64_t rest = all[i];
                for (const std::int32_t d : tensor_.by_stride) {
                    const std::int64_t at = stride(d) > 0 ? floor_div(rest, stride(d)) : 0;
                    rest -= at * stride(d);
                    box[d] = {at, at + 1};
                }
                if (rest == 0)
                    push(box);
                else
                    leaves_ = true;
            }
            i = end;
        }
    }

    static constexpr std::int64_t kMostElements = std::int64_t{1} << 18;
    const TensorView& tensor_;
    bool direct_;
    std::span<const std::int64_t> trips_;
    std::vector<Box>& boxes_;
    bool& leaves_;
    std::int32_t rank_;
    bool exact_ = true;
};

}  // namespace

bool boxes_of(const TensorView& tensor, bool direct, std::span<const std::int64_t> trips,
              const Ranges& ranges, std::vector<Box>& boxes, bool& leaves) {
    return Boxes(tensor, direct, trips, boxes, leaves).run(ranges);
}

bool boxes_of_offsets(const TensorView& tensor, std::vector<std::int64_t>& offsets, std::vector<Box>& boxes) {
    bool leaves = false;
    Boxes(tensor, false, {}, boxes, leaves).offsets(offsets);
    return leaves;
}

}  // namespace syncopate::kernel::triton

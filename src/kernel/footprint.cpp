#include "kernel/footprint.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 44;  // elements from the start of a tensor
constexpr std::int64_t kMostBoxes = 1024;                  // of one access; beyond that, one box around them

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

class Footprint {
public:
    explicit Footprint(const Access& access) : access_(access), tensor_(*access.tensor) {
        rank_ = static_cast<std::int32_t>(tensor_.shape.size());
    }

    Advance run(std::vector<Box>& boxes) {
        if (access_.mask != nullptr && access_.mask->never) return advance_;
        const Block& block = *access_.pointer;
        for (std::int32_t j = 0; j < block.rank; ++j) dims_[j] = dim_of(j);
        // One choice of a piece per axis at a time: wrapped rows are boxes of their own.
        std::array<std::int32_t, kRank> choice{};
        while (true) {
            one_choice(choice, boxes);
            std::int32_t j = 0;
            while (j < block.rank && ++choice[j] >= std::max(1, block.axes[j].count)) choice[j++] = 0;
            if (j == block.rank) break;
        }
        return advance_;
    }

private:
    /// Coordinates along one axis of the tensor: from the largest lower to the smallest upper bound.
    struct Range {
        static constexpr int kBounds = MaskAxis::kBounds + 1;
        Affine start;
        std::int32_t lower_count = 0, upper_count = 0;
        std::array<Affine, kBounds> lower, upper;  // relative to start
        std::int64_t dense = 1;                    // extent of one iteration's block, unclipped
        bool used = false;
    };

    std::int64_t least(const Affine& value) const { return extreme(value, false); }
    std::int64_t most(const Affine& value) const { return extreme(value, true); }
    std::int64_t extreme(const Affine& value, bool most) const {
        std::int64_t result = value.constant;
        for (std::size_t s = 0; s < access_.trips.size(); ++s) {
            if ((value.slope[s] > 0) == most)
                result = wrap_add(result, wrap_multiply(value.slope[s], access_.trips[s] - 1));
        }
        return result;
    }

    std::int64_t step_of(const BlockAxis& axis) const {
        for (std::int32_t p = 0; p < axis.count; ++p) {
            if (axis.pieces[p].step != 0) return axis.pieces[p].step;
        }
        return 0;
    }

    /// The axis of the tensor along which axis j of the block runs: that of the largest stride dividing its
    /// step.
    std::int32_t dim_of(std::int32_t j) const {
        if (access_.direct) return j;
        const std::int64_t step = std::llabs(step_of(access_.pointer->axes[j]));
        if (step == 0) return -1;
        std::int32_t found = -1;
        for (const std::int32_t d : tensor_.by_stride) {
            const std::int64_t stride = tensor_.strides[static_cast<std::size_t>(d)];
            if (stride <= 0 || stride > step || step % stride != 0) continue;
            // Axes of extent 1 share their stride with a neighbour; prefer the one that has room.
            if (found < 0 || (stride == tensor_.strides[static_cast<std::size_t>(found)] &&
                              tensor_.shape[static_cast<std::size_t>(found)] == 1)) {
                found = d;
            }
        }
        return found;
    }

    std::int64_t stride(std::int32_t dim) const { return tensor_.strides[static_cast<std::size_t>(dim)]; }

    /// Spreads an offset in elements over the axes of the tensor, largest stride first.
    void spread(std::int64_t offset, std::int32_t symbol, std::array<Range, kRank>& ranges) const {
        if (offset == 0) return;
        if (symbol >= 0) {
            // A loop that advances a block by its own extent along an axis stays on that axis.
            for (std::int32_t d = 0; d < rank_; ++d) {
                if (ranges[d].used && stride(d) > 0 &&
                    std::llabs(offset) == wrap_multiply(stride(d), ranges[d].dense)) {
                    ranges[d].start.slope[symbol] += offset / stride(d);
                    return;
                }
            }
        }
        for (const std::int32_t d : tensor_.by_stride) {
            if (stride(d) <= 0) continue;
            const std::int64_t count = symbol >= 0 ? offset / stride(d) : floor_div(offset, stride(d));
            offset -= count * stride(d);
            (symbol >= 0 ? ranges[d].start.slope[symbol] : ranges[d].start.constant) += count;
        }
    }

    void one_choice(const std::array<std::int32_t, kRank>& choice, std::vector<Box>& boxes) {
        const Block& block = *access_.pointer;
        std::array<Range, kRank> ranges{};
        Affine rest = block.base;
        bool lost = false;  // an axis that no stride of the tensor explains
        for (std::int32_t j = 0; j < block.rank; ++j) {
            const BlockAxis& axis = block.axes[j];
            Piece piece{0, axis.extent, {}, 0};
            if (axis.count > 0) piece = axis.pieces[choice[j]];
            Range indices;
            indices.lower[indices.lower_count++] = {piece.begin, {}};
            indices.upper[indices.upper_count++] = {piece.end, {}};
            if (access_.mask != nullptr && j < access_.mask->rank) {
                const MaskAxis& bounds = access_.mask->axes[j];
                for (std::int32_t b = 0; b < bounds.lower_count; ++b)
                    indices.lower[indices.lower_count++] = bounds.lower[b];
                for (std::int32_t b = 0; b < bounds.upper_count; ++b)
                    indices.upper[indices.upper_count++] = bounds.upper[b];
            }
            if (is_empty(indices)) return;
            const std::int32_t d = dims_[j];
            if (d < 0) {
                if (piece.step != 0) lost = true;
                rest = rest + piece.base;
                continue;
            }
            const std::int64_t unit = access_.direct ? 1 : stride(d);
            const std::int64_t step = piece.step / unit;
            if (divides(unit, piece.base)) {
                ranges[d].start = ranges[d].start + quotient(piece.base, unit);
            } else {
                rest = rest + piece.base;
            }
            narrow(ranges[d], indices, step, piece.end - piece.begin);
        }
        if (!access_.direct) {
            spread(rest.constant, -1, ranges);
            for (int s = 0; s < kSymbols; ++s) spread(rest.slope[s], s, ranges);
        }
        for (std::int32_t d = 0; d < rank_; ++d) {
            if (!ranges[d].used) {
                ranges[d].lower[ranges[d].lower_count++] = {};
                ranges[d].upper[ranges[d].upper_count++] = {1, {}};
            }
        }
        if (lost) {  // sound, and hopeless to do better
            Box box{};
            for (std::int32_t d = 0; d < rank_; ++d) box[d] = {0, tensor_.shape[static_cast<std::size_t>(d)]};
            boxes.push_back(box);
            return;
        }
        note_advance(ranges);
        emit(ranges, boxes);
    }

    static bool divides(std::int64_t unit, const Affine& value) {
        if (unit == 1) return true;
        return value.constant % unit == 0 && std::all_of(value.slope.begin(), value.slope.end(),
                                                         [&](std::int64_t s) { return s % unit == 0; });
    }
    static Affine quotient(Affine value, std::int64_t unit) {
        value.constant /= unit;
        for (std::int64_t& s : value.slope) s /= unit;
        return value;
    }

    bool is_empty(const Range& range) const {
        std::int64_t low = most_lower(range), high = least_upper(range);
        return high <= low;
    }
    std::int64_t most_lower(const Range& range) const {
        std::int64_t low = least(range.lower[0]);
        for (std::int32_t b = 1; b < range.lower_count; ++b) low = std::max(low, least(range.lower[b]));
        return low;
    }
    std::int64_t least_upper(const Range& range) const {
        std::int64_t high = most(range.upper[0]);
        for (std::int32_t b = 1; b < range.upper_count; ++b) high = std::min(high, most(range.upper[b]));
        return high;
    }

    /// Adds step * index, index within `indices`, to a range of coordinates.
    void narrow(Range& range, const Range& indices, std::int64_t step, std::int64_t extent) const {
        Range scaled;
        const auto lower = [&](Affine a) { scaled.lower[scaled.lower_count++] = a; };
        const auto upper = [&](Affine a) { scaled.upper[scaled.upper_count++] = a; };
        if (step > 0) {
            for (std::int32_t b = 0; b < indices.lower_count; ++b) lower(indices.lower[b] * step);
            for (std::int32_t b = 0; b < indices.upper_count; ++b) upper((indices.upper[b] + -1) * step + 1);
        } else if (step < 0) {
            for (std::int32_t b = 0; b < indices.upper_count; ++b) lower((indices.upper[b] + -1) * step);
            for (std::int32_t b = 0; b < indices.lower_count; ++b) upper(indices.lower[b] * step + 1);
        } else {
            lower({});
            upper({1, {}});
        }
        scaled.dense = wrap_add(wrap_multiply(std::llabs(step), std::max<std::int64_t>(0, extent - 1)), 1);
        if (!range.used) {
            scaled.start = range.start;
            scaled.used = true;
            range = scaled;
            return;
        }
        // Two axes of the block along one of the tensor: the sum of the ranges, by their extremes.
        const std::int64_t low = wrap_add(most_lower(range), most_lower(scaled));
        const std::int64_t high = wrap_add(wrap_add(least_upper(range), least_upper(scaled)), -1);
        range.lower_count = range.upper_count = 1;
        range.lower[0] = {low, {}};
        range.upper[0] = {high, {}};
        range.dense = wrap_add(range.dense, scaled.dense - 1);
    }

    void note_advance(const std::array<Range, kRank>& ranges) {
        if (access_.innermost < 0) return;
        Advance made;
        for (std::int32_t d = 0; d < rank_; ++d) {
            const std::int64_t slope = ranges[d].start.slope[access_.innermost];
            if (slope == 0) continue;
            made.several = made.dim >= 0;
            // The unclipped block of iteration 0, whose lowest coordinate is the first lower bound's.
            made.dim = d;
            made.base = wrap_add(ranges[d].start.constant, ranges[d].lower[0].constant);
            made.step = slope;
            made.extent = ranges[d].dense;
        }
        const bool first = !advanced_;
        advanced_ = true;
        if (first)
            advance_ = made;
        else if (!(made == advance_))
            advance_.several = true;
    }

    void emit(const std::array<Range, kRank>& ranges, std::vector<Box>& boxes) {
        // Iterations whose blocks leave gaps between them are boxes of their own.
        for (std::size_t s = 0; s < access_.trips.size(); ++s) {
            bool gaps = false;
            for (std::int32_t d = 0; d < rank_; ++d)
                gaps = gaps || std::llabs(ranges[d].start.slope[s]) > ranges[d].dense;
            if (!gaps || access_.trips[s] > kMostBoxes || access_.trips[s] < 2) continue;
            for (std::int64_t i = 0; i < access_.trips[s]; ++i) {
                std::array<Range, kRank> fixed = ranges;
                const auto fix = [&](Affine& a) {
                    a.constant = wrap_add(a.constant, wrap_multiply(a.slope[s], i));
                    a.slope[s] = 0;
                };
                for (std::int32_t d = 0; d < rank_; ++d) {
                    fix(fixed[d].start);
                    for (Affine& a : fixed[d].lower) fix(a);
                    for (Affine& a : fixed[d].upper) fix(a);
                }
                emit(fixed, boxes);
            }
            return;
        }
        Box box{};
        for (std::int32_t d = 0; d < rank_; ++d) {
            const Range& r = ranges[d];
            std::int64_t low = least(r.start + r.lower[0]);
            for (std::int32_t b = 1; b < r.lower_count; ++b) low = std::max(low, least(r.start + r.lower[b]));
            std::int64_t high = most(r.start + r.upper[0]);
            for (std::int32_t b = 1; b < r.upper_count; ++b)
                high = std::min(high, most(r.start + r.upper[b]));
            if (high <= low) return;
            box[d] = {low, high};
        }
        if (!access_.direct && spills(box)) return linear(box, boxes);
        push(box, boxes);
    }

    void push(Box box, std::vector<Box>& boxes) const {
        for (std::int32_t d = 0; d < rank_; ++d) {
            box[d].begin = std::max<std::int64_t>(box[d].begin, 0);
            box[d].end = std::min(box[d].end, tensor_.shape[static_cast<std::size_t>(d)]);
            if (box[d].empty()) return;
        }
        boxes.push_back(box);
    }

    /// Coordinates beyond the end of an inner axis are elements of the next row.
    bool spills(const Box& box) const {
        for (std::int32_t i = 1; i < rank_; ++i) {
            const std::int32_t d = tensor_.by_stride[static_cast<std::size_t>(i)];
            if (stride(d) > 0 &&
                (box[d].begin < 0 || box[d].end > tensor_.shape[static_cast<std::size_t>(d)]))
                return true;
        }
        return false;
    }

    /// The box as ranges of linear offsets, each mapped back: first row, whole rows, last row.
    void linear(const Box& box, std::vector<Box>& boxes) const {
        if (rank_ < 2) return push(box, boxes);
        const std::int32_t inner = tensor_.by_stride.back();
        std::int64_t rows = 1;
        bool near = true;
        for (std::int32_t d = 0; d < rank_; ++d) {
            near = near && box[d].begin > -kFarthest && box[d].end < kFarthest;
            if (d != inner && near)
                rows = std::min(rows * std::min(box[d].size(), kMostBoxes + 1), kMostBoxes + 1);
        }
        if (stride(inner) != 1 || rows > kMostBoxes || !near) {
            Box whole{};
            for (std::int32_t d = 0; d < rank_; ++d)
                whole[d] = {0, tensor_.shape[static_cast<std::size_t>(d)]};
            boxes.push_back(whole);
            return;
        }
        std::array<std::int64_t, kRank> row{};
        for (std::int64_t r = 0; r < rows; ++r) {
            std::int64_t rest = r, offset = 0;
            for (std::int32_t d = 0; d < rank_; ++d) {
                row[d] = box[d].begin;
                if (d == inner) continue;
                row[d] += rest % box[d].size();
                rest /= box[d].size();
            }
            for (std::int32_t d = 0; d < rank_; ++d)
                offset = wrap_add(offset, wrap_multiply(row[d], stride(d)));
            linear_range(offset, wrap_add(offset, box[inner].size()), 0, Box{}, boxes);
        }
    }

    /// Elements [begin, end) counted from the start of the sub-tensor of axes by_stride[level:].
    void linear_range(std::int64_t begin, std::int64_t end, std::size_t level, Box box,
                      std::vector<Box>& boxes) const {
        if (end <= begin) return;
        const std::int32_t d = tensor_.by_stride[level];
        if (level + 1 == tensor_.by_stride.size()) {
            box[d] = {begin, end};
            return push(box, boxes);
        }
        const std::int64_t size = stride(d);
        if (size <= 0) {
            box[d] = {0, tensor_.shape[static_cast<std::size_t>(d)]};
            return linear_range(begin, end, level + 1, box, boxes);
        }
        const std::int64_t first = floor_div(begin, size), last = floor_div(wrap_add(end, -1), size);
        const bool cut_first = begin != first * size, cut_last = end != (last + 1) * size;
        const auto part = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
            box[d] = {row, row + 1};
            linear_range(from, to, level + 1, box, boxes);
        };
        if (first == last) return part(first, begin - first * size, end - first * size);
        if (cut_first) part(first, begin - first * size, size);
        const std::int64_t from = first + (cut_first ? 1 : 0), to = last + (cut_last ? 0 : 1);
        if (from < to) {
            box[d] = {from, to};
            linear_range(0, size, level + 1, box, boxes);
        }
        if (cut_last) part(last, 0, end - last * size);
    }

    const Access& access_;
    const TensorView& tensor_;
    std::int32_t rank_ = 0;
    std::array<std::int32_t, kRank> dims_{};
    Advance advance_;
    bool advanced_ = false;
};

}  // namespace

bool fits(const Block& block, const Mask* mask, std::span<const std::int64_t> trips) {
    constexpr Wide limit = kFarthest;
    const auto near = [&](const Affine& a) {
        Wide low = a.constant, high = a.constant;
        for (std::size_t s = 0; s < trips.size(); ++s) {
            const Wide reach = static_cast<Wide>(a.slope[s]) * (trips[s] - 1);
            (reach < 0 ? low : high) += reach;
        }
        return low > -limit && high < limit;
    };
    if (!near(block.base)) return false;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        for (std::int32_t p = 0; p < block.axes[j].count; ++p) {
            const Piece& piece = block.axes[j].pieces[p];
            const Wide reach = static_cast<Wide>(piece.step) * piece.end;
            if (!near(piece.base) || reach <= -limit || reach >= limit) return false;
        }
        for (std::int32_t b = 0; mask != nullptr && j < mask->rank && b < mask->axes[j].lower_count; ++b) {
            if (!near(mask->axes[j].lower[b])) return false;
        }
        for (std::int32_t b = 0; mask != nullptr && j < mask->rank && b < mask->axes[j].upper_count; ++b) {
            if (!near(mask->axes[j].upper[b])) return false;
        }
    }
    return true;
}

TensorView::TensorView(const TensorArgument& tensor) : shape(tensor.shape), strides(tensor.strides) {
    if (strides.empty()) {
        strides.resize(shape.size());
        std::int64_t size = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            strides[d] = size;
            size = wrap_multiply(size, std::max<std::int64_t>(shape[d], 1));
        }
    }
    by_stride.resize(shape.size());
    std::iota(by_stride.begin(), by_stride.end(), 0);
    std::stable_sort(by_stride.begin(), by_stride.end(), [&](std::int32_t a, std::int32_t b) {
        return strides[static_cast<std::size_t>(a)] > strides[static_cast<std::size_t>(b)];
    });
}

Advance footprint(const Access& access, std::vector<Box>& boxes) { return Footprint(access).run(boxes); }

}  // namespace syncopate::kernel

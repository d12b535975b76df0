#include "kernel/triton/footprints/footprint.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "kernel/triton/footprints/footprint_boxes.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 44;        // elements from the start of a tensor
constexpr std::int64_t kMostEnumerated = std::int64_t{1} << 20;  // addresses of one access, one by one

class Footprint {
public:
    Footprint(const Access& access, bool& exact, bool& leaves)
        : access_(access), tensor_(*access.tensor), exact_(exact), leaves_(leaves) {
        rank_ = static_cast<std::int32_t>(tensor_.shape.size());
    }

    Advance run(std::vector<Box>& boxes, Advance& walk) {
        if (access_.mask != nullptr && access_.mask->never) return advance_;
        const std::size_t before = boxes.size();
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
        begin_in_row();
        if (!walk_.several && (stays_in_row() || agree(std::span(boxes).subspan(before)))) walk = walk_;
        return advance_;
    }

private:
    /// A coordinate behind the end of an axis is one of another row: the walk as it is there.
    void begin_in_row() {
        if (walk_.dim < 0 || access_.direct) return;
        const std::int64_t extent = tensor_.shape[at(walk_.dim)];
        const std::int64_t reach = wrap_multiply(walk_.step, access_.trips[access_.walked] - 1);
        const std::int64_t lowest = wrap_add(walk_.base, std::min<std::int64_t>(reach, 0));
        if (extent > 0) walk_.base -= floor_div(lowest, extent) * extent;
    }

    /// Whether no iteration's block leaves the axis that it walks along, onto another row.
    bool stays_in_row() const {
        if (walk_.dim < 0 || access_.direct) return true;
        const std::int64_t reach = wrap_multiply(walk_.step, access_.trips[access_.walked] - 1);
        return wrap_add(walk_.base, std::min<std::int64_t>(reach, 0)) >= 0 &&
               wrap_add(wrap_add(walk_.base, std::max<std::int64_t>(reach, 0)), walk_.extent) <=
                   tensor_.shape[at(walk_.dim)];
    }

    /// Whether the boxes differ along that axis only: what left it was masked.
    bool agree(std::span<const Box> boxes) const {
        return std::ranges::all_of(boxes, [&](const Box& box) {
            for (std::int32_t d = 0; d < rank_; ++d)
                if (d != walk_.dim && box[d] != boxes.front()[d]) return false;
            return true;
        });
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
            const std::int64_t stride = tensor_.strides[at(d)];
            if (stride <= 0 || stride > step || step % stride != 0) continue;
            // Axes of extent 1 share their stride with a neighbour; prefer the one that has room.
            if (found < 0 || (stride == tensor_.strides[at(found)] && tensor_.shape[at(found)] == 1)) {
                found = d;
            }
        }
        return found;
    }

    std::int64_t stride(std::int32_t dim) const { return tensor_.strides[at(dim)]; }

    /// Spreads an offset in elements over the axes of the tensor, largest stride first. What is left lies between elements.
    std::int64_t spread(std::int64_t offset, std::int32_t symbol, std::array<Range, kRank>& ranges) const {
        if (offset == 0) return 0;
        if (symbol >= 0) {
            // A loop that advances a block by its own extent along an axis stays on that axis.
            for (std::int32_t d = 0; d < rank_; ++d) {
                if (ranges[d].count > 0 && stride(d) > 0 &&
                    std::llabs(offset) == wrap_multiply(stride(d), ranges[d].dense)) {
                    ranges[d].start.slope[symbol] += offset / stride(d);
                    return 0;
                }
            }
        }
        for (const std::int32_t d : tensor_.by_stride) {
            if (stride(d) <= 0) continue;
            const std::int64_t count = symbol >= 0 ? offset / stride(d) : floor_div(offset, stride(d));
            offset -= count * stride(d);
            (symbol >= 0 ? ranges[d].start.slope[symbol] : ranges[d].start.constant) += count;
        }
        return rank_ == 0 ? 0 : offset;
    }

    /// The indices that a piece and the mask let through along axis j of the block.
    Term indices(std::int32_t j, const Piece& piece) const {
        Term term;
        term.lower[term.lower_count++] = {piece.begin, {}};
        term.upper[term.upper_count++] = {piece.end, {}};
        if (access_.mask == nullptr || j >= access_.mask->rank) return term;
        const MaskAxis& bounds = access_.mask->axes[j];
        for (std::int32_t b = 0; b < bounds.lower_count; ++b)
            term.lower[term.lower_count++] = bounds.lower[b];
        for (std::int32_t b = 0; b < bounds.upper_count; ++b)
            term.upper[term.upper_count++] = bounds.upper[b];
        return term;
    }

    void one_choice(const std::array<std::int32_t, kRank>& choice, std::vector<Box>& boxes) {
        const Block& block = *access_.pointer;
        Ranges ranges;
        Affine rest = block.base;
        bool lost = false;  // an axis that no stride of the tensor explains
        for (std::int32_t j = 0; j < block.rank; ++j) {
            const BlockAxis& axis = block.axes[j];
            Piece piece{0, axis.extent, {}, 0};
            if (axis.count > 0) piece = axis.pieces[choice[j]];
            const Term term = indices(j, piece);
            const std::int32_t d = dims_[j];
            if (d < 0) {
                if (piece.step != 0) lost = true;
                rest = rest + piece.base;
                ranges.idle[ranges.idle_count++] = term;
                continue;
            }
            const std::int64_t unit = access_.direct ? 1 : stride(d);
            if (divides(unit, piece.base)) {
                const std::int64_t around = access_.direct ? 0 : steps_around(piece, term, d);
                ranges.axes[d].start = ranges.axes[d].start + quotient(piece.base + -around, unit);
                rest = rest + around;
            } else {
                rest = rest + piece.base;
            }
            if (!access_.direct && piece.step % unit != 0) lost = true;
            widen(ranges, d, term, piece.step / unit, piece.end - piece.begin);
        }
        if (!access_.direct) {
            lost |= spread(rest.constant, -1, ranges.axes) != 0;
            for (int s = 0; s < kSymbols; ++s) lost |= spread(rest.slope[s], s, ranges.axes) != 0;
        }
        if (lost) {
            if (!enumerate(choice, boxes)) {  // sound, and hopeless to do better
                Box box{};
                for (std::int32_t d = 0; d < rank_; ++d) box[d] = {0, tensor_.shape[at(d)]};
                boxes.push_back(box);
                exact_ = false;
            }
            advanced_ = walked_ = true;
            advance_.several = walk_.several = true;
            return;
        }
        note_advance(ranges.axes);
        note_walk(ranges.axes);
        if (!boxes_of(tensor_, access_.direct, access_.trips, ranges, boxes, leaves_)) exact_ = false;
    }

    /// How far from the start a piece along axis d begins in whole steps of the axis around it: the third row's pixels
    /// are those of row 2 from column 0 on, not of row 0 from column 2 W on.
    std::int64_t steps_around(const Piece& piece, const Term& term, std::int32_t d) const {
        const auto at = std::ranges::find(tensor_.by_stride, d);
        if (at == tensor_.by_stride.begin()) return 0;
        const std::int64_t size = stride(*(at - 1));
        if (size <= stride(d) || size % stride(d) != 0) return 0;
        std::int64_t first = piece.begin;
        for (std::int32_t b = 0; b < term.lower_count; ++b)
            if (term.lower[b].is_constant()) first = std::max(first, term.lower[b].constant);
        return floor_div(wrap_add(piece.base.constant, wrap_multiply(piece.step, first)), size) * size;
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

    /// Adds step × index to the coordinates along axis d.
    static void widen(Ranges& ranges, std::int32_t d, Term term, std::int64_t step, std::int64_t extent) {
        Range& range = ranges.axes[d];
        if (step == 0) {
            ranges.idle[ranges.idle_count++] = term;
            return;
        }
        const std::int64_t begin = term.lower[0].constant, end = term.upper[0].constant;
        range.first = wrap_add(range.first, wrap_multiply(step, step > 0 ? begin : end - 1));
        range.dense = wrap_add(range.dense, wrap_multiply(std::llabs(step), extent - 1));
        if (step < 0) {  // by the index counted from above
            Term turned;
            for (std::int32_t b = 0; b < term.upper_count; ++b)
                turned.lower[turned.lower_count++] = term.upper[b] * -1 + 1;
            for (std::int32_t b = 0; b < term.lower_count; ++b)
                turned.upper[turned.upper_count++] = term.lower[b] * -1 + 1;
            term = turned;
            step = -step;
        }
        term.step = step;
        range.terms[range.count++] = term;
    }

    /// One address after another: for blocks that run along no axis of the tensor.
    bool enumerate(const std::array<std::int32_t, kRank>& choice, std::vector<Box>& boxes) {
        const Block& block = *access_.pointer;
        std::int64_t count = 1;
        for (const std::int64_t trips : access_.trips) count = trips > kMostEnumerated ? 0 : count * trips;
        for (std::int32_t j = 0; j < block.rank && count > 0 && count <= kMostEnumerated; ++j)
            count *= block.axes[j].extent;
        if (count < 1 || count > kMostEnumerated) return false;
        std::vector<std::int64_t> offsets;
        std::array<std::int64_t, kSymbols> round{};
        const auto at = [&](const Affine& a) {
            std::int64_t value = a.constant;
            for (std::size_t s = 0; s < access_.trips.size(); ++s)
                value = wrap_add(value, wrap_multiply(a.slope[s], round[s]));
            return value;
        };
        const auto add = [&](const auto& self, std::int32_t j, std::int64_t offset) -> void {
            if (j == block.rank) return offsets.push_back(offset);
            Piece piece{0, block.axes[j].extent, {}, 0};
            if (block.axes[j].count > 0) piece = block.axes[j].pieces[choice[j]];
            const Term term = indices(j, piece);
            std::int64_t low = at(term.lower[0]), high = at(term.upper[0]);
            for (std::int32_t b = 1; b < term.lower_count; ++b) low = std::max(low, at(term.lower[b]));
            for (std::int32_t b = 1; b < term.upper_count; ++b) high = std::min(high, at(term.upper[b]));
            for (std::int64_t i = low; i < high; ++i)
                self(self, j + 1, wrap_add(offset, wrap_add(at(piece.base), wrap_multiply(piece.step, i))));
        };
        while (true) {
            add(add, 0, at(block.base));
            std::size_t s = 0;
            while (s < access_.trips.size() && ++round[s] >= access_.trips[s]) round[s++] = 0;
            if (s == access_.trips.size()) break;
        }
        if (boxes_of_offsets(tensor_, offsets, boxes)) leaves_ = true;
        return true;
    }

    void note_advance(const std::array<Range, kRank>& ranges) {
        if (access_.innermost < 0) return;
        Advance made;
        for (std::int32_t d = 0; d < rank_; ++d) {
            const std::int64_t slope = ranges[d].start.slope[access_.innermost];
            if (slope == 0) continue;
            // Where a loop further out moves along the same axis, rounds of this one are at several places.
            bool outer = false;
            for (std::int32_t s = 0; s < access_.innermost; ++s)
                outer = outer || ranges[d].start.slope[s] != 0;
            made.several = made.dim >= 0 || outer;
            // The unclipped block of iteration 0.
            made.dim = d;
            made.base = wrap_add(ranges[d].start.constant, ranges[d].first);
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

    void note_walk(const std::array<Range, kRank>& ranges) {
        if (access_.walked < 0) return;
        Advance made;
        for (std::int32_t d = 0; d < rank_; ++d) {
            const Affine& start = ranges[d].start;
            if (start.slope[access_.walked] == 0) continue;
            made.several = made.dim >= 0;
            made.dim = d;
            made.base = wrap_add(start.constant, ranges[d].first);
            made.step = start.slope[access_.walked];
            made.extent = ranges[d].dense;
            for (std::size_t s = 0; s < access_.trips.size(); ++s) {
                if (static_cast<std::int32_t>(s) == access_.walked) continue;
                const std::int64_t reach = wrap_multiply(start.slope[s], access_.trips[s] - 1);
                if (reach < 0) made.base = wrap_add(made.base, reach);
                made.extent = wrap_add(made.extent, std::llabs(reach));
            }
        }
        const bool first = !walked_;
        walked_ = true;
        if (first)
            walk_ = made;
        else if (!(made == walk_))
            walk_.several = true;
    }

    const Access& access_;
    const TensorView& tensor_;
    bool& exact_;
    bool& leaves_;
    std::int32_t rank_ = 0;
    std::array<std::int32_t, kRank> dims_{};
    Advance advance_, walk_;
    bool advanced_ = false, walked_ = false;
};

/// The access of a descriptor made on the host, as most are: a box that loops move along axes of their own,
/// each by no more than its extent, clipped by the tensor. Then what it touches is one box, axis by axis; all
/// that Footprint looks for cannot be. Nullopt where it has another form.
std::optional<Advance> box_of_descriptor(const Access& access, std::vector<Box>& boxes, Advance& walk) {
    const Block& block = *access.pointer;
    const Mask* mask = access.mask;
    if (!access.direct || mask == nullptr || mask->never || mask->rank != block.rank) return std::nullopt;
    const auto symbols = access.trips.size();
    std::array<bool, kSymbols> used{};
    Advance advance, walked;
    Box box{};
    bool empty = false;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        const MaskAxis& bounds = mask->axes[j];
        if (block.axes[j].count != 1 || bounds.lower_count != 1 || bounds.upper_count != 1)
            return std::nullopt;
        const Piece& piece = block.axes[j].pieces[0];
        const std::int64_t shape = access.tensor->shape[at(j)];
        const Affine start = piece.base;
        const bool clips = bounds.lower[0] == start * -1 && bounds.upper[0] == start * -1 + shape;
        if (piece.begin != 0 || piece.step != 1 || !clips) return std::nullopt;
        Wide low = start.constant, high = low + piece.end;
        bool moved = false;
        for (std::size_t s = 0; s < symbols; ++s) {
            const std::int64_t slope = start.slope[s];
            if (slope == 0) continue;
            if (moved || used[s] || slope > piece.end || slope < -piece.end) return std::nullopt;
            moved = used[s] = true;
            const Wide reach = static_cast<Wide>(slope) * (access.trips[s] - 1);
            (reach < 0 ? low : high) += reach;
            if (static_cast<std::int32_t>(s) == access.innermost)
                advance = {.dim = j, .base = start.constant, .step = slope, .extent = piece.end};
            if (static_cast<std::int32_t>(s) == access.walked)
                walked = {.dim = j, .base = start.constant, .step = slope, .extent = piece.end};
        }
        box[at(j)] = {static_cast<std::int64_t>(std::max<Wide>(low, 0)),
                      static_cast<std::int64_t>(std::min<Wide>(high, shape))};
        empty = empty || box[at(j)].empty();
    }
    if (block.base != Affine{}) return std::nullopt;
    for (const std::int64_t trips : access.trips) empty = empty || trips < 1;
    if (!empty) boxes.push_back(box);
    walk = walked;
    return advance;
}

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

namespace {

/// An axis of extent 1 may have any stride, as transposed and unsqueezed tensors have. Where it would be taken for one around
/// another axis whose elements its stride falls among, it gets that of one around all.
void widen_single_axes(const std::vector<std::int64_t>& shape, std::vector<std::int64_t>& strides) {
    std::int64_t whole = 1;
    for (std::size_t d = 0; d < shape.size(); ++d)
        if (shape[d] > 1) whole = std::max(whole, wrap_multiply(shape[d], strides[d]));
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] != 1 || strides[d] >= whole) continue;
        for (std::size_t other = 0; other < shape.size(); ++other) {
            const bool is_around = strides[d] > strides[other] || (strides[d] == strides[other] && d < other);
            if (shape[other] > 1 && is_around && strides[d] < wrap_multiply(shape[other], strides[other])) {
                strides[d] = whole;
                break;
            }
        }
    }
}

}  // namespace

TensorView::TensorView(const TensorArgument& tensor) : shape(tensor.shape), strides(tensor.strides) {
    if (strides.empty()) {
        strides.resize(shape.size());
        std::int64_t size = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            strides[d] = size;
            size = wrap_multiply(size, std::max<std::int64_t>(shape[d], 1));
        }
    }
    given_strides = strides;
    widen_single_axes(shape, strides);
    by_stride.resize(shape.size());
    std::iota(by_stride.begin(), by_stride.end(), 0);
    std::stable_sort(by_stride.begin(), by_stride.end(),
                     [&](std::int32_t a, std::int32_t b) { return strides[at(a)] > strides[at(b)]; });
}

bool TensorView::has_strides(std::span<const std::int64_t> others) const {
    for (std::size_t d = 0; d < shape.size(); ++d)
        if (shape[d] != 1 && strides[d] != others[d]) return false;
    return true;
}

Advance footprint(const Access& access, std::vector<Box>& boxes, bool& exact, bool& leaves, Advance& walk) {
    walk = {};
    leaves = false;
    if (const std::optional<Advance> advance = box_of_descriptor(access, boxes, walk)) return *advance;
    return Footprint(access, exact, leaves).run(boxes, walk);
}

void add_part(const Access& access, bool first, std::vector<Box>& boxes, bool& exact, bool& leaves,
              Advance& advance, Advance& walk) {
    Advance own_walk;
    bool own_leaves = false;
    const Advance own = footprint(access, boxes, exact, own_leaves, own_walk);
    leaves = leaves || own_leaves;
    advance = first || own == advance ? own : Advance{};
    walk = first || own_walk == walk ? own_walk : Advance{};
}

}  // namespace syncopate::kernel::triton

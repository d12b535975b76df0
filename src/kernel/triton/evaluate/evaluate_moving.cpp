// What the programs of a line touch, each in its own place. An access that moves as a whole, by so many
// elements from one program to the next, needs not be worked out for each of them:
//
//      program     lo              …              hi
//      boxes       x[0:16, 8:24]   x[0:16, 24:40] x[0:16, 40:56]      by 16 along axis 1
//
// Where the boxes of two programs are the same but for such a shift, those of the programs between them are,
// too: each element moves along one axis and lies within the tensor at both ends, so it does in between; and
// one that lies outside at both ends cannot have been inside, for it would have moved by more than the axis'
// extent. Otherwise the stretch is halved.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/footprints/footprint_boxes.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr int kLine = 0;  // the symbol

Affine at(Affine value, std::int64_t i) {
    value.constant = wrap_add(value.constant, wrap_multiply(value.slope[kLine], i));
    value.slope[kLine] = 0;
    return value;
}

Mask at(Mask mask, std::int64_t i) {
    for (std::int32_t j = 0; j < mask.rank; ++j) {
        MaskAxis& axis = mask.axes[j];
        for (std::int32_t b = 0; b < axis.lower_count; ++b) axis.lower[b] = at(axis.lower[b], i);
        for (std::int32_t b = 0; b < axis.upper_count; ++b) axis.upper[b] = at(axis.upper[b], i);
    }
    return mask;
}

bool moving(const Affine& a) { return a.slope[kLine] != 0; }

/// How far an axis moves from one program to the next; nullopt: not all of it alike.
std::optional<std::int64_t> slope_of(const BlockAxis& axis) {
    if (axis.count == 0) return 0;
    const std::int64_t slope = axis.pieces[0].base.slope[kLine];
    for (std::int32_t p = 1; p < axis.count; ++p)
        if (axis.pieces[p].base.slope[kLine] != slope) return std::nullopt;
    return slope;
}

/// Whether each address is of at most one element, and rows lie one behind another.
bool is_nested(const TensorView& tensor) {
    std::int64_t inside = 0;  // the farthest element of what is nested
    for (std::size_t i = tensor.by_stride.size(); i-- > 0;) {
        const auto d = static_cast<std::size_t>(tensor.by_stride[i]);
        if (tensor.shape[d] <= 1) continue;
        if (tensor.strides[d] <= inside) return false;
        inside = wrap_add(inside, wrap_multiply(tensor.strides[d], tensor.shape[d] - 1));
    }
    return true;
}

}  // namespace

bool Evaluator::moves(const Mask& mask) {
    for (std::int32_t j = 0; j < mask.rank; ++j) {
        const MaskAxis& axis = mask.axes[j];
        for (std::int32_t b = 0; b < axis.lower_count; ++b)
            if (moving(axis.lower[b])) return true;
        for (std::int32_t b = 0; b < axis.upper_count; ++b)
            if (moving(axis.upper[b])) return true;
    }
    return false;
}

bool Evaluator::moves(const Block& block, std::span<const Mask> masks) {
    if (moving(block.base)) return true;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        for (std::int32_t p = 0; p < block.axes[j].count; ++p)
            if (moving(block.axes[j].pieces[p].base)) return true;
    }
    return std::ranges::any_of(masks, [](const Mask& mask) { return moves(mask); });
}

/// Works out what the access touches in program i of the line: the boxes of the same access without the
/// unknown, and how it advances with the innermost loop.
Advance Evaluator::work_out(MovingAccess& access, std::int64_t i) {
    MovingAccess::Instance& made = access.instances[static_cast<std::size_t>(i)];
    if (access.by_elements) {
        std::vector<std::int64_t> offsets = access.offsets;
        for (std::int64_t& offset : offsets) offset = wrap_add(offset, wrap_multiply(access.shift, i));
        boxes_.clear();
        const bool leaves =
            boxes_of_offsets(tensors[static_cast<std::size_t>(access.param)], offsets, boxes_);
        keep_instance(made, true, leaves);
        return {};
    }
    const Arena::Mark mark = arena_.mark();
    Block block = access.block;
    block.base = at(block.base, i);
    for (std::int32_t j = 0; j < block.rank; ++j) {
        BlockAxis& axis = block.axes[j];
        const Piece* pieces = axis.pieces;
        const bool still =
            std::none_of(pieces, pieces + axis.count, [](const Piece& piece) { return moving(piece.base); });
        if (still) continue;
        Piece* own = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
        for (std::int32_t p = 0; p < axis.count; ++p) {
            own[p] = pieces[p];
            own[p].base = at(own[p].base, i);
        }
        axis.pieces = own;
    }
    boxes_.clear();
    Access one{.tensor = &tensors[static_cast<std::size_t>(access.param)],
               .pointer = &block,
               .direct = access.direct,
               .trips = access.trips,
               .innermost = access.trips.size() > 1 ? static_cast<std::int32_t>(access.trips.size()) - 1 : -1,
               .walked = access.symbol};
    bool exact = true, leaves = false;
    Advance walk, advance;
    if (access.masks.empty()) advance = footprint(one, boxes_, exact, leaves, walk);
    for (const Mask& part : access.masks) {
        const Mask mask = at(part, i);
        one.mask = &mask;
        add_part(one, &part == access.masks.data(), boxes_, exact, leaves, advance, walk);
    }
    arena_.release(mark);
    const bool is_new = !made.made;
    keep_instance(made, exact, leaves);
    if (is_new && access.symbol >= 0) {
        Walk of_loop{.loop = access.loop, .trips = access.trips[static_cast<std::size_t>(access.symbol)]};
        if (!walk.several && walk.dim >= 0) {
            of_loop.dim = walk.dim;
            of_loop.base = walk.base;
            of_loop.step = walk.step;
            of_loop.extent = walk.extent;
        }
        made.walk = note_walk(of_loop);
    }
    return advance;
}

void Evaluator::keep_instance(MovingAccess::Instance& made, bool exact, bool leaves) {  // boxes_
    if (made.made) return;
    made = {static_cast<std::uint32_t>(found.boxes.size()), 0, true, exact, leaves};
    found.boxes.insert(found.boxes.end(), boxes_.begin(), boxes_.end());
    made.end = static_cast<std::uint32_t>(found.boxes.size());
}

/// How many elements of memory the access moves on from one program to the next (of a descriptor made on the
/// host: of the only axis that moves, which `axis` is then), if it is the same set of indices in all programs
/// from lo to hi.
std::optional<std::int64_t> Evaluator::shift_between(const MovingAccess& access, std::int64_t lo,
                                                     std::int64_t hi, std::int32_t& axis) const {
    axis = -1;
    if (access.by_elements) return access.shift;
    const Block& block = access.block;
    std::int64_t shift = block.base.slope[kLine];
    for (std::int32_t j = 0; j < block.rank; ++j) {
        const std::optional<std::int64_t> slope = slope_of(block.axes[j]);
        if (!slope) return std::nullopt;
        if (*slope == 0) continue;
        if (access.direct && (axis >= 0 || shift != 0)) return std::nullopt;
        if (access.direct) axis = j;
        shift = wrap_add(shift, *slope);
    }
    const auto extreme = [&](const Affine& bound, bool most) {  // over all these programs and all rounds
        std::int64_t result = bound.constant;
        for (std::size_t s = 0; s < kSymbols; ++s) {
            const std::int64_t first = s == kLine ? lo : 0;
            const std::int64_t last = s == kLine ? hi : s < access.trips.size() ? access.trips[s] - 1 : 0;
            result =
                wrap_add(result, wrap_multiply(bound.slope[s], (bound.slope[s] > 0) == most ? last : first));
        }
        return result;
    };
    const auto may_bound = [&](const MaskAxis& bounds) {
        for (std::int32_t b = 0; b < bounds.lower_count; ++b)
            if (moving(bounds.lower[b]) && extreme(bounds.lower[b], true) > 0) return true;
        for (std::int32_t b = 0; b < bounds.upper_count; ++b)
            if (moving(bounds.upper[b]) && extreme(bounds.upper[b], false) < bounds.extent) return true;
        return false;
    };
    for (const Mask& mask : access.masks)
        if (std::any_of(mask.axes.begin(), mask.axes.begin() + mask.rank, may_bound)) return std::nullopt;
    return shift;
}

/// What the access touches in the programs between lo and hi, which have been worked out.
void Evaluator::work_out_between(MovingAccess& access, std::int64_t lo, std::int64_t hi) {
    if (hi - lo < 2) return;
    const auto instance = [&](std::int64_t i) -> MovingAccess::Instance& {
        return access.instances[static_cast<std::size_t>(i)];
    };
    const MovingAccess::Instance first = instance(lo), last = instance(hi);
    const TensorView& tensor = tensors[static_cast<std::size_t>(access.param)];
    const std::size_t rank = tensor.shape.size(), count = first.end - first.begin;
    const auto along = [&]() -> std::optional<std::pair<std::size_t, std::int64_t>> {
        std::int32_t axis = -1;
        if (!first.exact || !last.exact || count == 0 || last.end - last.begin != count) return std::nullopt;
        const std::optional<std::int64_t> shift = shift_between(access, lo, hi, axis);
        if (!shift) return std::nullopt;
        const Box &before = found.boxes[first.begin], &after = found.boxes[last.begin];
        std::size_t d = 0;
        while (d < rank && before[d] == after[d]) ++d;
        const std::int64_t by = d < rank ? (after[d].begin - before[d].begin) / (hi - lo) : 0;
        if (d == rank && *shift != 0) return std::nullopt;
        if (d < rank && access.direct && (static_cast<std::int32_t>(d) != axis || by != *shift))
            return std::nullopt;
        if (d < rank && !access.direct && wrap_multiply(by, tensor.strides[d]) != *shift) return std::nullopt;
        if (!access.direct && !is_nested(tensor)) return std::nullopt;
        for (std::size_t b = 0; b < count; ++b) {
            Box moved = found.boxes[first.begin + b];
            if (d < rank) moved[d].begin += by * (hi - lo), moved[d].end += by * (hi - lo);
            for (std::size_t e = 0; e < rank; ++e)
                if (moved[e] != found.boxes[last.begin + b][e]) return std::nullopt;
        }
        return std::pair(d, by);
    }();
    if (!along) {
        const std::int64_t middle = lo + (hi - lo) / 2;
        if (!instance(middle).made) (void)work_out(access, middle);
        work_out_between(access, lo, middle);
        work_out_between(access, middle, hi);
        return;
    }
    const auto [d, by] = *along;
    for (std::int64_t i = lo + 1; i < hi; ++i) {
        MovingAccess::Instance& made = instance(i);
        if (made.made) continue;
        made = first;
        if (d < rank) made.along = static_cast<std::int32_t>(d), made.by = by * (i - lo);
    }
}

/// Notes an access that each program of the line makes in its own place.
Evaluator::MovingAccess& Evaluator::note_moving(std::int32_t param, bool read, bool write, bool solid) {
    MovingAccess& access = moving_.emplace_back();
    access.param = param;
    access.solid = solid;
    access.trips = trips_;
    access.trips[kLine] = 1;
    access.loop = walked_;
    access.symbol = walk_symbol();
    access.instances.resize(static_cast<std::size_t>(trips_[kLine]));
    instances_ += trips_[kLine];
    const auto p = static_cast<std::size_t>(param);
    const auto number = static_cast<std::uint32_t>(moving_.size() - 1);
    const bool sure = maybe_ == 0;
    const bool adds = read && write;
    if (read)
        found.touched.push_back({param, false, sure, true, override_read_[p], true, adds, false, number, 0});
    if (write)
        found.touched.push_back({param, true, sure, true, override_write_[p], true, adds, false, number, 0});
    return access;
}

/// … and how it advances with the innermost loop around: if in all programs alike, then in the first and the
/// last.
Advance Evaluator::touch_moving(const Block& block, std::span<const Mask> masks, bool direct, bool read,
                                bool write) {
    const bool solid = std::ranges::all_of(masks, &Mask::exact);
    MovingAccess& access = note_moving(block.param, read, write, solid);
    access.direct = direct;
    access.block = block;
    Mask* kept = arena_.make<Mask>(masks.size());
    std::ranges::copy(masks, kept);
    access.masks = {kept, masks.size()};
    Advance first;
    if (!read || trips_.size() < 2) return first;
    first = work_out(access, 0);
    const Advance last = work_out(access, trips_[kLine] - 1);
    if (!(first == last)) first.several = true;
    return first;
}

/// … by addresses that had to be worked out one by one, those of the first program.
void Evaluator::touch_moving_elements(std::int32_t param, std::vector<std::int64_t> offsets,
                                      std::int64_t shift, bool read, bool write) {
    std::sort(offsets.begin(), offsets.end());
    MovingAccess& access = note_moving(param, read, write, maybe_ == 0);
    access.by_elements = true;
    access.offsets = std::move(offsets);
    access.shift = shift;
}

/// … in all programs of the line.
void Evaluator::work_out_all(MovingAccess& access) {
    if (access.complete) return;
    access.complete = true;
    const auto last = static_cast<std::int64_t>(access.instances.size()) - 1;
    for (const std::int64_t i : {std::int64_t{0}, last})
        if (!access.instances[static_cast<std::size_t>(i)].made) (void)work_out(access, i);
    work_out_between(access, 0, last);
}

}  // namespace syncopate::kernel::triton

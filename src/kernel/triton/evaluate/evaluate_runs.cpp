// Accesses whose address is affine along each axis, under a condition that is no box but one of each axis alone, as
// where a convolution looks at its neighbours' rows:
//
//      inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)      of pixels, whose columns wrap around
//      tl.load(x + pixel[:, None] * C + channel[None, :], mask=inside[:, None])
//
// What it lets through along an axis are a few runs of indices. Each of them is a box that the loops around may move,
// so that neither elements nor iterations need to be looked at one by one.
#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "kernel/triton/footprints/footprint.hpp"

namespace syncopate::kernel::triton {
namespace {

using What = Lazy::What;
using Run = std::pair<std::int64_t, std::int64_t>;

constexpr std::int64_t kMostRuns = 64;      // boxes of one access
constexpr std::int64_t kElementsARun = 16;  // that take as long to look at as one box

std::vector<Run> runs_of(const std::vector<std::int64_t>& holds) {
    std::vector<Run> runs;
    for (std::size_t i = 0; i < holds.size(); ++i) {
        if (holds[i] == 0) continue;
        const auto at = static_cast<std::int64_t>(i);
        if (runs.empty() || runs.back().second != at) runs.emplace_back(at, at);
        runs.back().second = at + 1;
    }
    return runs;
}

/// Bounds an axis of a mask by a run; false where it has no room for another bound.
bool bound(MaskAxis& axis, const Run& run) {
    const auto add = [](std::array<Affine, MaskAxis::kBounds>& bounds, std::int32_t& count, std::int64_t at,
                        bool lower) {
        for (std::int32_t b = 0; b < count; ++b) {
            Affine& known = bounds[static_cast<std::size_t>(b)];
            if (!known.is_constant()) continue;
            known.constant = lower ? std::max(known.constant, at) : std::min(known.constant, at);
            return true;
        }
        if (count == MaskAxis::kBounds) return false;
        bounds[static_cast<std::size_t>(count++)] = {at, {}};
        return true;
    };
    return add(axis.lower, axis.lower_count, run.first, true) &&
           add(axis.upper, axis.upper_count, run.second, false);
}

}  // namespace

/// Splits a condition into those of one axis each. `axes`: for each axis of the condition, which of the access it is.
Evaluator::Split Evaluator::split(const Expr& e, const Value& condition, std::span<const std::int32_t> axes,
                                  ByAxis& made) {
    if (is_number(condition)) {
        made.never = made.never || number_of(condition) == 0;
        return Split::done;
    }
    if (condition.kind != ValueKind::mask) return Split::no;
    const Mask& mask = *condition.mask;
    if (mask.never) return made.never = true, Split::done;
    if (mask.exact) {
        Mask* moved = arena_.make<Mask>();
        *moved = *constant_mask(made.shape, true).mask;
        for (std::int32_t j = 0; j < mask.rank; ++j) {
            const MaskAxis& axis = mask.axes[static_cast<std::size_t>(j)];
            if (axis.lower_count + axis.upper_count == 0) continue;
            const auto to = static_cast<std::size_t>(axes[static_cast<std::size_t>(j)]);
            if (axis.extent != made.shape.extents[to]) return Split::no;
            moved->axes[to] = axis;
        }
        Value bounds = condition;
        bounds.mask = moved;
        made.box = mask_box(e, made.box, bounds, true);
        return made.box.kind == ValueKind::mask && made.box.mask->exact ? Split::done : Split::no;
    }
    if (mask.form == nullptr) return Split::no;
    Lazy& form = *mask.form;
    if (form.what == What::both) {
        for (std::int32_t i = 0; i < form.count; ++i) {
            const auto rank = static_cast<std::size_t>(rank_of(form.from[i]));
            const Split part = split(e, form.from[i], axes.subspan(axes.size() - rank), made);
            if (part != Split::done) return part;
        }
        return Split::done;
    }
    if (form.what == What::permute) {
        std::array<std::int32_t, kRank> inner{};
        for (std::int32_t j = 0; j < form.rank; ++j) {
            const std::int32_t from = form.axes[static_cast<std::size_t>(j)];
            if (from >= 0) inner[static_cast<std::size_t>(from)] = axes[static_cast<std::size_t>(j)];
        }
        const auto rank = static_cast<std::size_t>(rank_of(form.from[0]));
        return split(e, form.from[0], {inner.data(), rank}, made);
    }
    std::int32_t varying = -1;
    for (std::int32_t j = 0; j < form.rank; ++j) {
        if (form.extents[static_cast<std::size_t>(j)] == 1) continue;
        if (varying >= 0) return Split::no;
        varying = j;
    }
    std::vector<std::int64_t> holds;
    const Known known = fill(form, holds);
    if (known == Known::moves) return Split::moves;
    if (known != Known::yes) return Split::no;
    if (varying < 0) {
        made.never = made.never || holds[0] == 0;
        return Split::done;
    }
    const auto to = static_cast<std::size_t>(axes[static_cast<std::size_t>(varying)]);
    if (form.extents[static_cast<std::size_t>(varying)] != made.shape.extents[to]) return Split::no;
    std::vector<std::int64_t>& along = made.holds[to];
    if (along.empty()) along = holds;
    for (std::size_t i = 0; i < along.size(); ++i) along[i] = along[i] != 0 && holds[i] != 0 ? 1 : 0;
    return Split::done;
}

/// An access of affine addresses under a condition that has a form. False: it is to be worked out element by element.
bool Evaluator::touch_runs(const Expr& e, const Block& block, const Value& condition, bool read, bool write) {
    ByAxis made;
    made.shape.rank = block.rank;
    for (std::int32_t j = 0; j < block.rank; ++j) made.shape.extents[j] = block.axes[j].extent;
    const auto rank = static_cast<std::size_t>(condition.mask->rank);
    if (block.rank < 2 && trips_.empty())
        return false;  // few elements, and no loop that would be run one by one
    if (condition.mask->rank > block.rank) return false;
    made.box = constant_mask(made.shape, true);
    std::array<std::int32_t, kRank> axes{};
    for (std::size_t j = 0; j < rank; ++j)
        axes[j] = static_cast<std::int32_t>(j) + block.rank - condition.mask->rank;
    switch (split(e, condition, {axes.data(), rank}, made)) {
        case Split::no: return stopped();
        case Split::moves: return not_affine_ = true;
        case Split::done: break;
    }
    std::vector<Mask> parts(made.never || made.box.mask->never ? 0 : 1, *made.box.mask);
    for (std::int32_t j = 0; j < block.rank; ++j) {
        const std::vector<std::int64_t>& holds = made.holds[static_cast<std::size_t>(j)];
        if (holds.empty()) continue;
        const std::vector<Run> runs = runs_of(holds);
        if (static_cast<std::int64_t>(parts.size() * runs.size()) > kMostRuns) return false;
        std::vector<Mask> next;
        for (const Mask& part : parts) {
            for (const Run& run : runs) {
                next.push_back(part);
                if (!bound(next.back().axes[static_cast<std::size_t>(j)], run)) return false;
            }
        }
        parts = std::move(next);
    }
    const auto count = static_cast<std::int64_t>(parts.size());
    if (trips_.empty() && count * kElementsARun > made.shape.size()) return false;
    for (const Mask& part : parts)
        if (!fits(block, &part, trips_)) return false;
    if (!step(e.where, count)) return true;
    touch_parts(block, parts, read, write);
    return true;
}

/// What an access touches under the one or the other of some masks.
void Evaluator::touch_parts(const Block& block, std::span<const Mask> parts, bool read, bool write) {
    const auto param = static_cast<std::size_t>(block.param);
    const bool advances =
        read && !override_read_[param] && !symbol_loops_.empty() && symbol_loops_.back() >= 0;
    Advance advance, walk;
    if (on_line() && !parts.empty() && moves(block, parts)) {
        advance = touch_moving(block, parts, false, read, write);
        if (advances) advances_.push_back({symbol_loops_.back(), {block.param, advance}});
        return;
    }
    boxes_.clear();
    bool exact = true;
    bool leaves = false;
    const std::int32_t symbol = walk_symbol();
    for (const Mask& part : parts) {
        const Access access{.tensor = &tensors[param],
                            .pointer = &block,
                            .mask = &part,
                            .trips = trips_,
                            .innermost = static_cast<std::int32_t>(trips_.size()) - 1,
                            .walked = symbol};
        add_part(access, &part == parts.data(), boxes_, exact, leaves, advance, walk);
    }
    if (advances) advances_.push_back({symbol_loops_.back(), {block.param, advance}});
    note_boxes(block.param, read, write, exact, leaves, note_walk(walked_, symbol, walk));
}

}  // namespace syncopate::kernel::triton

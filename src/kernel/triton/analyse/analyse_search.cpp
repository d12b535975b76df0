// Grids found by looking at programs: along each axis up to the first one that writes nothing, in leaps or one
// by one, or only to where another axis begins. What all programs of such a grid then store says whether it is
// taken (analyse_grid.cpp).
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernel/triton/analyse/analysis.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

/// Whether the program at `id` of a grid of unknown extent writes anything.
Result<bool> Analysis::writes_at(const std::array<std::int64_t, 3>& id) {
    forget();
    written_ = 0;
    const Status status = evaluator_.run(id, {id[0] + 1, id[1] + 1, id[2] + 1});
    if (!status && !evaluator_.arithmetic_error && !evaluator_.overflow_error) return status.error();
    if (!status && evaluator_.overflow_error && (!overflow_ || id < overflow_at_)) {
        overflow_ = status.error();
        overflow_->message += "; or give --grid, where the launch has fewer programs";
        overflow_at_ = id;
    }
    for (const Touch& touch : evaluator_.found.touched) {
        if (!status || !touch.write || touch.shadow) continue;
        const std::size_t rank = evaluator_.tensors[at(touch.param)].shape.size();
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            std::int64_t size = 1;
            for (std::size_t d = 0; d < rank; ++d)
                size = wrap_multiply(size, evaluator_.found.boxes[b][d].size());
            written_ = wrap_add(written_, size);
        }
    }
    forget();
    return written_ > 0;
}

/// The elements of all tensors that it writes, as far as their shapes are known.
std::int64_t Analysis::elements_to_write() const {
    std::int64_t total = 0;
    for (std::size_t p = 0; p < evaluator_.tensors.size(); ++p) {
        if (!evaluator_.param_written[p] || evaluator_.tensors[p].shape.empty()) continue;
        std::int64_t size = 1;
        for (const std::int64_t extent : evaluator_.tensors[p].shape) size = wrap_multiply(size, extent);
        total = wrap_add(total, size);
    }
    return total;
}

bool Analysis::written_tensor_known() const {
    for (std::size_t p = 0; p < evaluator_.tensors.size(); ++p) {
        if (evaluator_.param_written[p] && !evaluator_.tensors[p].shape.empty()) return true;
    }
    return false;
}

/// Along each axis from `first_axis` on that addresses follow from, as many programs as write something.
Result<std::optional<std::string>> Analysis::search(std::size_t first_axis, bool one_by_one) {
    using Why = std::optional<std::string>;
    if (!written_tensor_known()) {
        for (std::size_t p = 0; p < function_.parameters.size(); ++p) {
            const std::string& name = function_.parameters[p].name;
            if (!evaluator_.param_written[p]) continue;
            return Why("the shape of `" + name + "`, which it writes, is not known: give --tensor " + name +
                       "=512x256:bf16");
        }
        return Why("the shape of no tensor that it writes is known");
    }
    const auto most = "more than " + std::to_string(effort_.programs) + " programs write something";
    for (std::size_t axis = first_axis; axis < 3; ++axis) {
        if (!used_[axis]) continue;
        if (!places_[axis])
            return Why("where it stores does not depend on axis " + std::string(1, "xyz"[axis]) + " of it");
        SYNCOPATE_TAKE(const std::int64_t extent, one_by_one ? count_writers(axis) : leap(axis));
        if (extent == 0) return Why(one_by_one ? "every program writes something" : "");
        grid_[axis] = extent;
        leapt_[axis] = !one_by_one;
    }
    if (grid_[1] > effort_.programs / grid_[0] || grid_[2] > effort_.programs / (grid_[0] * grid_[1]))
        return Why(most);
    return Why();
}

/// How many programs along an axis write, one after another; 0: they write more than there is.
Result<std::int64_t> Analysis::count_writers(std::size_t axis) {
    const std::int64_t all = elements_to_write();
    std::array<std::int64_t, 3> id{};
    for (std::int64_t written = 0; id[axis] <= effort_.programs && written <= all; ++id[axis]) {
        SYNCOPATE_TAKE(const auto writes, writes_at(id));
        if (!writes) return std::max<std::int64_t>(id[axis], 1);
        written = wrap_add(written, written_);
    }
    return std::int64_t{0};
}

/// The same in leaps, then by halves, if those that write come first. 0: not found.
Result<std::int64_t> Analysis::leap(std::size_t axis) {
    const auto writes = [&](std::int64_t at) {
        std::array<std::int64_t, 3> id{};
        id[axis] = at;
        return writes_at(id);
    };
    // Programs that far out may be none at all.
    const auto lost = [&](const Error& error) -> Result<std::int64_t> {
        if (evaluator_.no_tiles) return error;
        return std::int64_t{0};
    };
    std::int64_t writing = 0, beyond = 1;
    for (;; beyond *= 2) {
        if (beyond > effort_.programs) return std::int64_t{0};
        const auto any = writes(beyond);
        if (!any) return lost(any.error());
        if (!*any) break;
        writing = beyond;
    }
    while (beyond - writing > 1) {
        const std::int64_t middle = writing + (beyond - writing) / 2;
        const auto any = writes(middle);
        if (!any) return lost(any.error());
        (*any ? writing : beyond) = middle;
    }
    return beyond;
}

/// The box around what the program at `id` stores of a tensor, as in writes_at.
Result<std::optional<plan::Region>> Analysis::stores_at(const std::array<std::int64_t, 3>& id,
                                                        std::size_t memory) {
    forget();
    const Status status = evaluator_.run(id, {id[0] + 1, id[1] + 1, id[2] + 1});
    if (!status && !evaluator_.arithmetic_error && !evaluator_.overflow_error) return status.error();
    std::optional<plan::Region> around;
    const std::size_t rank = evaluator_.tensors[memory].shape.size();
    for (const Touch& touch : evaluator_.found.touched) {
        if (!status || !touch.write || touch.shadow || touch.param != static_cast<std::int32_t>(memory))
            continue;
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            const Box& box = evaluator_.found.boxes[b];
            const plan::Region region(box.begin(), box.begin() + static_cast<std::ptrdiff_t>(rank));
            around = around ? plan::bounding_box(*around, region) : region;
        }
    }
    forget();
    return around;
}

/// Axes of programs that run on into each other, as heads behind the last one of a batch are the next one's:
///
///      base = z * (HEADS * L * D) + h * (L * D)        programs h = HEADS, z = 0 and h = 0, z = 1 store the same
///
/// Of two axes that come to the same place, that one ends there which comes by the smaller step. An axis also
/// ends where it comes to another row of the first tile.
Result<std::optional<std::string>> Analysis::nest() {
    using Why = std::optional<std::string>;
    constexpr std::int64_t kMostTried = 2048;
    const Result<Why> leapt = search(0, false);
    if (!leapt || *leapt) return leapt;
    if (grid_[0] + grid_[1] + grid_[2] > kMostTried) return Why("");
    std::size_t memory = 0;
    while (!evaluator_.param_written[memory] || evaluator_.tensors[memory].shape.empty()) ++memory;
    const TensorView& tensor = evaluator_.tensors[memory];
    const auto first = stores_at({0, 0, 0}, memory);
    if (!first) return first.error();
    if (!*first) return Why("");
    const plan::Region& tile = **first;
    std::array<std::vector<std::int64_t>, 3> begins;  // by axis and id, from where the first program stores
    for (std::size_t axis = 0; axis < 3; ++axis) {
        std::array<std::int64_t, 3> id{};
        for (; id[axis] < grid_[axis]; ++id[axis]) {
            SYNCOPATE_TAKE(const auto stored, stores_at(id, memory));
            if (!stored) return Why("");
            std::int64_t& offset = begins[axis].emplace_back(0);
            for (std::size_t d = 0; d < tile.size(); ++d)
                offset =
                    wrap_add(offset, wrap_multiply((*stored)[d].begin - tile[d].begin, tensor.strides[d]));
        }
    }
    const auto is_in_first = [&](std::int64_t offset) {
        for (std::size_t d = 0; d < tile.size(); ++d) {
            const std::int64_t stride = tensor.strides[d];
            if (offset > 0 && stride > 0 && offset % stride == 0 && offset / stride < tile[d].size())
                return true;
        }
        return false;
    };
    const auto ends = [&](std::size_t axis, std::size_t i) {
        const std::int64_t offset = begins[axis][i], step = offset - begins[axis][i - 1];
        for (std::size_t other = 0; other < 3; ++other) {
            const auto at = std::find(begins[other].begin() + 1, begins[other].end(), offset);
            if (other != axis && at != begins[other].end() && step < offset - *(at - 1)) return true;
        }
        return is_in_first(offset);
    };
    const std::array<std::int64_t, 3> all = grid_;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        std::size_t i = 1;
        while (i < begins[axis].size() && !ends(axis, i)) ++i;
        grid_[axis] = static_cast<std::int64_t>(i);
    }
    leapt_.fill(false);
    return all == grid_ ? Why("") : Why();
}

/// Whether all programs of a grid that was found in leaps write, as these took for granted.
bool Analysis::wrote_all() const {
    const Findings& found = evaluator_.found;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (!leapt_[axis] || persistent_) continue;
        const std::int64_t stride = axis == 0 ? 1 : axis == 1 ? grid_[0] : grid_[0] * grid_[1];
        for (std::int64_t i = 0; i < grid_[axis]; ++i) {
            const TileRecord& tile = found.tiles[at(i * stride)];
            const auto first = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.begin),
                       last = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.end);
            if (std::none_of(first, last,
                             [](const Touch& t) { return t.write && !t.shadow && t.begin < t.end; }))
                return false;
        }
    }
    return true;
}

}  // namespace syncopate::kernel::triton

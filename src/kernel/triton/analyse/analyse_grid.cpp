// The launch grid, when it is not given. There are several ways to one: the stride of a loop over tiles, a
// directive, the tile counts that addresses follow from, the first program that writes nothing. None of them
// is believed: all programs of the grid are run, and it is taken only where their stores make up each tensor
// that the kernel writes, every element once.
#include <algorithm>
#include <set>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/partition.hpp"
#include "kernel/triton/footprints/tiles.hpp"

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
        const std::size_t rank = evaluator_.tensors[static_cast<std::size_t>(touch.param)].shape.size();
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

Error Analysis::needs_grid(const std::string& why) const {
    return module_.error(function_.name_range,
                         "the launch grid of `" + function_.name + "` does not follow from the kernel (" +
                             why +
                             "): give --grid X[,Y[,Z]], or mark the number of tiles with `# @sy.num_tiles`");
}

/// Whether the grid that is given can be one.
Status Analysis::check_given() const {
    const std::array<std::int64_t, 3>& grid = *arguments_.grid;
    const bool empty = std::ranges::any_of(grid, [](std::int64_t extent) { return extent < 1; });
    if (!empty && grid[0] <= effort_.programs && grid[1] <= effort_.programs / grid[0] &&
        grid[2] <= effort_.programs / (grid[0] * grid[1]))
        return Done{};
    return module_.error(function_.name_range, "the grid must have from 1 to " +
                                                   std::to_string(effort_.programs) +
                                                   " programs; give another --grid");
}

/// Which axes of the grid addresses follow from, and which those of stores do.
void Analysis::note_used_axes() {
    used_.fill(false);
    places_.fill(false);
    asked_.fill(false);
    const Findings& found = evaluator_.found;
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        if (source.kind != TaintSource::Kind::program_id) continue;
        const auto bit = std::min<std::size_t>(i, 63);
        const auto axis = static_cast<std::size_t>(source.grid_axis);
        asked_[axis] = true;
        // In a loop over tiles addresses follow from its variable, and that from its bounds.
        const std::uint64_t loops = persistent_ ? found.bound_taint : 0;
        if (((found.read_taint | found.write_taint | loops) >> bit & 1) != 0) used_[axis] = true;
        if (((found.write_taint | loops) >> bit & 1) != 0) places_[axis] = true;
    }
}

/// Runs a program that shows what the kernel is like.
Status Analysis::look_at(const std::array<std::int64_t, 3>& id) {
    forget();
    const Status status = evaluator_.run(id, arguments_.grid.value_or(std::array<std::int64_t, 3>{0, 0, 0}));
    const bool outside =
        (evaluator_.arithmetic_error || evaluator_.overflow_error) && id != std::array<std::int64_t, 3>{};
    return status || outside ? Status(Done{}) : status;
}

/// The ways to a grid that this kernel offers, those that say most first.
Result<std::vector<Analysis::Way>> Analysis::ways_to_a_grid() {
    using enum Way;
    if (const Status first = look_at({0, 0, 0}); !first) {
        if (evaluator_.arithmetic_error && arguments_.grid) {
            if (const Status status = check_given(); !status) return status.error();
        }
        return first.error();
    }
    const Findings& found = evaluator_.found;
    persistent_ = found.tile_loop != nullptr;
    if (arguments_.grid) {
        if (const Status status = check_given(); !status) return status.error();
        return std::vector{given};
    }
    if (persistent_) {
        if (const Status second = look_at({1, 0, 0}); !second) return second.error();
        if (const Status first = look_at({0, 0, 0}); !first) return first.error();
        note_used_axes();
        if (evaluator_.grid_asked && arguments_.num_sms < 1)
            return needs_grid(
                "it asks for tl.num_programs, and suits any number of them; --num-sms would do");
        if (found.strided && found.tile_start == 0 && found.tile_step >= 1) return std::vector{loop};
        return std::vector{leaps, each};
    }
    // One that stores nothing says too little.
    constexpr std::array<std::array<std::int64_t, 3>, 3> kOthers{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
    for (const auto& other : kOthers) {
        if (found.write_taint != 0 || found.tile_loop != nullptr) break;
        if (const Status more = look_at(other); !more) return more.error();
    }
    if (found.tile_loop != nullptr) return std::vector{leaps, each};
    note_used_axes();
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (asked_[axis] && !used_[axis])
            return needs_grid("what it touches does not depend on axis " + std::string(1, "xyz"[axis]) +
                              " of it, which it asks for");
    }
    if (evaluator_.grid_asked && loop_programs_ == 0)
        return needs_grid("it asks for tl.num_programs, and suits any number of them");
    std::vector<Way> ways;
    if (loop_programs_ > 0) ways.push_back(stride);
    if (const Directive* total = directive(DirectiveKind::num_tiles);
        total != nullptr && found.watched.contains(total->statement))
        ways.push_back(marked);
    const bool only_x = used_[0] && !used_[1] && !used_[2];
    if (!used_[0] && !used_[1] && !used_[2]) ways.push_back(single);
    if (only_x) ways.push_back(counts);
    if (used_[0] || used_[1] || used_[2]) ways.insert(ways.end(), {leaps, each});
    return ways;
}

/// Sets the grid, by one way to it; otherwise says why that leads to none.
Result<std::optional<std::string>> Analysis::propose(Way way) {
    using Why = std::optional<std::string>;
    grid_ = {1, 1, 1};
    leapt_.fill(false);
    const Findings& found = evaluator_.found;
    switch (way) {
        case Way::given: grid_ = *arguments_.grid; return Why();
        case Way::single: return Why();
        case Way::stride:
            grid_[0] = std::min(loop_programs_, effort_.programs);
            return used_[1] || used_[2] ? search(1, false) : Result<Why>(Why());
        case Way::marked: {
            const std::int64_t value = found.watched.at(directive(DirectiveKind::num_tiles)->statement);
            if (value < 1 || value > effort_.programs) return Why("too many tiles");
            grid_[0] = value;
            return Why();
        }
        case Way::counts: return count_programs();
        case Way::loop:
            grid_[0] =
                std::clamp<std::int64_t>(std::min(found.tile_step, found.tile_stop), 1, effort_.programs);
            return used_[1] || used_[2] ? search(1, false) : Result<Why>(Why());
        case Way::leaps: return search(0, false);
        case Way::each: return search(0, true);
    }
    return Why();
}

/// The product of the tile counts that stores follow from.
Result<std::optional<std::string>> Analysis::count_programs() {
    using Why = std::optional<std::string>;
    std::int64_t product = 1;
    const std::vector<TileAxis> axes = counted_axes(evaluator_.found.write_taint);
    for (const TileAxis& axis : axes) {
        if (axis.count < 1 || axis.count > effort_.programs) return Why("a tile count is out of range");
        product = std::min(product * axis.count, effort_.programs + 1);
    }
    if (axes.empty()) return Why("");
    if (product > effort_.programs) return Why("its tile counts make more programs than a launch has");
    grid_[0] = product;
    return Why();
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
        const Result<std::int64_t> extent = one_by_one ? count_writers(axis) : leap(axis);
        if (!extent) return extent.error();
        if (*extent == 0) return Why(one_by_one ? "every program writes something" : "");
        grid_[axis] = *extent;
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
        const auto writes = writes_at(id);
        if (!writes) return writes.error();
        if (!*writes) return std::max<std::int64_t>(id[axis], 1);
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

/// Whether all programs of a grid that was found in leaps write, as these took for granted.
bool Analysis::wrote_all() const {
    const Findings& found = evaluator_.found;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (!leapt_[axis] || persistent_) continue;
        const std::int64_t stride = axis == 0 ? 1 : axis == 1 ? grid_[0] : grid_[0] * grid_[1];
        for (std::int64_t i = 0; i < grid_[axis]; ++i) {
            const TileRecord& tile = found.tiles[static_cast<std::size_t>(i * stride)];
            const auto first = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.begin),
                       last = found.touched.begin() + static_cast<std::ptrdiff_t>(tile.end);
            if (std::none_of(first, last, [](const Touch& t) { return t.write && !t.shadow; })) return false;
        }
    }
    return true;
}

/// Whether a way states the grid: the launch, a directive, or a loop that strides over all programs.
bool Analysis::is_stated(Way way) const {
    const bool asks = std::ranges::any_of(evaluator_.sources, [](const TaintSource& source) {
        return source.kind == TaintSource::Kind::program_id;
    });
    return way == Way::given || way == Way::marked || (way == Way::single && !asks) ||
           (way == Way::loop && !used_[1] && !used_[2] && evaluator_.found.tile_step > 1);
}

/// Whether program `id`, behind the last one of a grid, is no tile by its coordinates: one of them is beyond
/// its count.
bool Analysis::numbers_none(std::int64_t id) {
    Findings& found = evaluator_.found;
    const std::size_t touched = found.touched.size(), tiles = found.tiles.size();
    const Status status = evaluator_.run({id, 0, 0}, {id + 1, 1, 1});
    bool none = !status;
    for (std::size_t a = 0; status && found.tiles.size() > tiles && a < axes_.size(); ++a)
        none = none || found.tiles.back().coord[a] < 0 || found.tiles.back().coord[a] >= axes_[a].count;
    found.touched.resize(touched);
    found.tiles.resize(tiles);
    return none;
}

/// Why the grid that `kernel` was run on may not be that of the launch; nothing where its stores make up what
/// it writes: each tensor is stored as a whole, and each tile stores to one of which no element is stored
/// twice.
std::optional<std::string> Analysis::doubt(Kernel& kernel, Way way) {
    const std::string of = "of a grid of " + std::to_string(kernel.num_programs()) +
                           (kernel.num_programs() == 1 ? " program" : " programs");
    std::vector<const Param*> unknown;
    std::set<std::string> once;
    std::string twice;
    for (const Param& param : kernel.params) {
        if (!param.written) continue;
        const auto loose = [&](const Tile& tile) { return tile.inexact_writes.contains(param.name); };
        if (std::ranges::any_of(kernel.tiles, loose))
            return "where it stores to " + param.name + " is stated by a directive, or depends on data";
        const auto tensor = kernel.arguments.tensors.find(param.name);
        if (tensor == kernel.arguments.tensors.end()) {
            unknown.push_back(&param);
            continue;
        }
        const Partition found = partition_of(tensor->second.shape, kernel.tiles, param.name);
        if (!found.known) return "where the tiles " + of + " store to " + param.name + " is too scattered";
        if (found.gap)
            return "the tiles " + of + " leave " + param.name + plan::to_string(*found.gap) + " out";
        if (!found.twice)
            once.insert(param.name);
        else if (twice.empty())
            twice = "several tiles " + of + " store to " + param.name + plan::to_string(*found.twice);
    }
    if (!unknown.empty()) {
        kernel.axes = axes_;
        const bool numbered = way == Way::counts &&
                              set_recorded_coordinates(kernel, evaluator_.found.tiles) &&
                              numbers_none(kernel.num_programs());
        if (numbered || (way == Way::stride && once.empty() && twice.empty())) return std::nullopt;
        return "the shape of " + unknown.front()->name + ", which it writes, is not known: give --tensor";
    }
    if (once.empty() && twice.empty()) return "no program " + of + " stores anything";
    const bool all = std::ranges::all_of(kernel.tiles, [&](const Tile& tile) {
        return tile.writes.empty() || std::ranges::any_of(tile.writes, [&](const auto& written) {
                   return once.contains(written.first);
               });
    });
    return all ? std::nullopt : std::optional(twice);
}

}  // namespace syncopate::kernel::triton

// The launch grid, when it is not given. There are several ways to one: the stride of a loop over tiles, a
// directive, the tile counts that addresses follow from, the first program that writes nothing. None of them
// is believed: all programs of the grid are run, and it is taken only where their stores make up each tensor
// that the kernel writes, every element once, and touch nothing outside of it.
#include <algorithm>
#include <set>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/partition.hpp"
#include "kernel/triton/footprints/tiles.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

Error Analysis::needs_grid(const std::string& why) const {
    const std::string hint = strides_hint();
    return module_.error(
        function_.name_range,
        (hint.empty() ? std::string() : hint + ": give the shape and strides of a launch. So ") +
            "the launch grid of `" + function_.name + "` does not follow from the kernel (" + why +
            "): give --grid X[,Y[,Z]], or mark the number of tiles with `# @sy.num_tiles`");
}

/// What speaks for strides that are not those of the tensors: a scalar that is called one, or the distance of
/// rows that are stored.
std::string Analysis::strides_hint() const {
    const std::vector<TensorView>& tensors = evaluator_.tensors;
    const auto is_one = [&](std::int64_t stride) {
        return std::ranges::any_of(tensors, [&](const TensorView& tensor) {
            return std::ranges::find(tensor.strides, stride) != tensor.strides.end();
        });
    };
    for (const auto& [name, scalar] : arguments_.scalars) {
        const auto* value = std::get_if<std::int64_t>(&scalar);
        if (name.find("stride") != std::string::npos && value != nullptr && *value > 1 && !is_one(*value))
            return "`" + name + "=" + std::to_string(*value) + "` is the stride of no tensor that is given";
    }
    for (const auto& [memory, step] : evaluator_.odd_steps)
        return "the rows of a block that it stores lie " + std::to_string(step) +
               " elements apart, which is no stride of " + tensor_text(memory);
    return {};
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
            SYNCOPATE_TRY(check_given());
        }
        return first.error();
    }
    const Findings& found = evaluator_.found;
    persistent_ = found.tile_loop != nullptr;
    if (arguments_.grid) {
        SYNCOPATE_TRY(check_given());
        return std::vector{given};
    }
    if (persistent_) {
        SYNCOPATE_TRY(look_at({1, 0, 0}));
        SYNCOPATE_TRY(look_at({0, 0, 0}));
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
        SYNCOPATE_TRY(look_at(other));
    }
    if (found.tile_loop != nullptr) return std::vector{leaps, each};
    const Directive* const total = directive(DirectiveKind::num_tiles);
    const bool is_marked = total != nullptr && found.watched.contains(total->statement);
    if (!is_marked && !std::ranges::any_of(evaluator_.param_written, [](bool written) { return written; }))
        return needs_grid("its first programs along each axis store nothing");
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
    if (is_marked) ways.push_back(marked);
    const bool only_x = used_[0] && !used_[1] && !used_[2];
    if (!used_[0] && !used_[1] && !used_[2]) ways.push_back(single);
    if (only_x) ways.push_back(counts);
    if (used_[0] || used_[1] || used_[2]) ways.insert(ways.end(), {leaps, nested, each});
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
        case Way::nested: return nest();
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

/// Of programs that store outside of a tensor, where a grid has several axes: those of which fewer programs would not; where it
/// takes fewer of several, those along which the first of these programs is not the first.
std::string Analysis::unknown_axes(const std::vector<std::size_t>& tiles) const {
    const std::array<std::int64_t, 3> first = program_of(tiles.front());
    std::array<std::int64_t, 3> least = first;
    for (const std::size_t tile : tiles) {
        const std::array<std::int64_t, 3> at = program_of(tile);
        for (std::size_t axis = 0; axis < 3; ++axis) least[axis] = std::min(least[axis], at[axis]);
    }
    const bool one_will_do = least != std::array<std::int64_t, 3>{};
    std::string axes;
    std::size_t beyond = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        beyond += (one_will_do ? grid_[axis] > 1 : first[axis] > 0) ? 1 : 0;
        if ((one_will_do ? least : first)[axis] > 0)
            axes += (axes.empty() ? "" : " and ") + std::string(1, "xyz"[axis]);
    }
    if (persistent_ || beyond < 2) return {};
    return ", so how many programs there are along " + std::string(axes.size() > 1 ? "axes " : "axis ") +
           axes + " is not known";
}

/// ": programs (0, 4, 0) and (0, 0, 1) do, so how many there are along axes y and z is not known"
std::string Analysis::who_store_twice(std::size_t memory, const plan::Region& region) const {
    const auto shared = shared_store(static_cast<std::int32_t>(memory), Stored::any);
    if (!shared || persistent_) return plan::to_string(region);
    const std::array<bool, 3> apart = differing_axes(*shared);
    std::string axes;
    for (std::size_t axis = 0; axis < 3; ++axis)
        if (apart[axis]) axes += (axes.empty() ? "" : " and ") + std::string(1, "xyz"[axis]);
    const bool several = axes.size() > 1;
    return plan::to_string(shared->box) + ": " + tile_text(shared->first) + " and " +
           tile_text(shared->second) + " do, so how many programs there are along " +
           (several ? "axes " : "axis ") + axes + " is not known";
}

/// Names the integer tensors that it loads and whose elements are not given.
std::string Analysis::values_hint() const {
    std::string names;
    for (std::size_t m = 0; m < evaluator_.tensors.size(); ++m) {
        if (evaluator_.tensors[m].shape.empty() || !evaluator_.may_have_values(static_cast<std::int32_t>(m)))
            continue;
        names += (names.empty() ? "" : " --values ") + evaluator_.memory_names[m] + "=…";
    }
    return names.empty() ? names : ", which --values " + names + " may tell";
}

/// Why the grid that `kernel` was run on may not be that of the launch; nothing where its stores make up what
/// it writes: each tensor is stored as a whole, none is left, and each tile stores to one of which no element is
/// stored twice.
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
            return "where it stores to " + param.name + " is stated by a directive, or depends on data" +
                   values_hint();
        const auto tensor = kernel.arguments.tensors.find(param.name);
        if (tensor == kernel.arguments.tensors.end()) {
            unknown.push_back(&param);
            continue;
        }
        const auto memory = static_cast<std::size_t>(std::ranges::find(evaluator_.memory_names, param.name) -
                                                     evaluator_.memory_names.begin());
        if (const auto all = leaving(static_cast<std::int32_t>(memory), true); !all.empty())
            return tile_text(all.front()) + " " + of + " stores to memory outside of " +
                   tensor_text(static_cast<std::int32_t>(memory)) + unknown_axes(all);
        const Partition found = partition_of(tensor->second.shape, kernel.tiles, param.name);
        if (!found.known) return "where the tiles " + of + " store to " + param.name + " is too scattered";
        if (found.gap)
            return "the tiles " + of + " leave " + param.name + plan::to_string(*found.gap) + " out";
        if (!found.twice)
            once.insert(param.name);
        else if (twice.empty())
            twice = "several tiles " + of + " store to " + param.name + who_store_twice(memory, *found.twice);
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

// One program of the launch from its first statement to its last, the limits that an analysis stays within,
// and how it fails. Binding, statements, loops and tiles are files of their own beside this one.
#include "kernel/triton/evaluate/evaluate.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/excerpt.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kMostKept = std::size_t{4} << 20;  // from program to program; stays in cache
constexpr std::int64_t kMostInstances = 1 << 17;
constexpr std::size_t kStack = std::size_t{1} << 14;  // values of all frames

}  // namespace

std::string quoted(const Module& module, const SourceRange& where) {
    return "`" + printable(module.text(where)) + "`";
}

Evaluator::Evaluator(Module& module, std::int32_t kernel, const Arguments& arguments,
                     const std::vector<Directive>& directives, const Effort& effort)
    : module_(module),
      kernel_(module.functions[at(kernel)]),
      kernel_index_(kernel),
      arguments_(arguments),
      directives_(directives),
      effort_(effort) {
    const std::size_t count = kernel_.parameters.size();
    read_outside.resize(count);
    param_read.resize(count);
    param_written.resize(count);
    param_descriptor.resize(count);
    param_pointer.resize(count);
    param_read_taint.resize(count);
    param_store_taint.resize(count);
    override_read_.resize(count);
    override_write_.resize(count);
    tensors.resize(count);
    tables_.resize(count);
    stack_.resize(kStack);
    for (const Parameter& parameter : kernel_.parameters) memory_names.push_back(parameter.name);
    for (const Directive& directive : directives_) {
        const bool watched = directive.kind == DirectiveKind::axis_count ||
                             directive.kind == DirectiveKind::num_tiles ||
                             directive.kind == DirectiveKind::tile_id;
        if (watched && directive.statement != nullptr) watch_[directive.statement] = true;
    }
}

void Evaluator::restart() {
    forget_values();
    found.touched.clear();
    found.boxes.clear();
    latest_store_ = latest_load_ = {};  // what is found now is noted anew
    latest_form_ = {};
    // An access that an attempt could not follow is not stated because of it.
    missing_.clear();
    override_read_.assign(override_read_.size(), false);
    override_write_.assign(override_write_.size(), false);
    for (std::size_t i = 0; i < stated_.size(); ++i) {
        if (stated_[i] < 0) continue;
        auto& stated = directives_[i].kind == DirectiveKind::reads ? override_read_ : override_write_;
        stated[at(stated_[i])] = true;
    }
}

/// What was evaluated before: values lie in the arena.
void Evaluator::forget_values() {
    moving_.clear();
    instances_ = 0;
    arena_.release(bound_mark_);
}

/// Begins at the kernel's first statement.
Evaluator::Frame Evaluator::enter(const std::array<std::int64_t, 3>& program,
                                  const std::array<std::int64_t, 3>& grid) {
    if (arena_.bytes() > kMostKept || instances_ > kMostInstances) forget_values();
    forget_dense();
    program_ = program;
    grid_ = grid;
    linear_program_ = program[0] + std::max<std::int64_t>(grid[0], 1) *
                                       (program[1] + std::max<std::int64_t>(grid[1], 1) * program[2]);
    error_.reset();
    arithmetic_error = overflow_error = not_affine_ = in_tile_loop_ = false;
    stack_used_ = kernel_.slots.size();
    Frame frame;
    frame.function = &kernel_;
    frame.slots = stack_.data();
    frame.is_kernel = true;
    std::copy(bound_.begin(), bound_.end(), stack_.begin());
    std::fill(stack_.begin() + static_cast<std::ptrdiff_t>(bound_.size()),
              stack_.begin() + static_cast<std::ptrdiff_t>(stack_used_), Value{});
    control_ = 0;
    maybe_ = 0;
    walked_ = -1;
    call_path_.clear();
    path_ = 0;
    dense_work_ = 0;
    loop_stores_ = 0;
    begin_tile(linear_program_);
    return frame;
}

Status Evaluator::run(const std::array<std::int64_t, 3>& program, const std::array<std::int64_t, 3>& grid) {
    if (kernel_.slots.size() > stack_.size())
        return module_.error(kernel_.name_range,
                             "the kernel has more than " + std::to_string(kStack) + " variables: use fewer");
    Frame frame = enter(program, grid);
    const std::size_t first_tile = found.tiles.size();
    const std::int64_t stores = stores_;
    const std::size_t outer_begin = tile_begin_;
    const Flow flow = execute(kernel_.body, frame);
    if (!missing_.empty() && !no_tiles) return missing_directives();
    if (flow == Flow::stop && error_) return *error_;
    if (found.tile_loop == nullptr) {
        end_tile(frame);
        if (error_) return *error_;
        if (last_in_body_ != nullptr &&
            (found.last_store == nullptr || last_in_body_->where.end > found.last_store->where.end)) {
            found.last_store = last_in_body_;
        }
        return Done{};
    }
    if (stores_ - stores != loop_stores_) {
        (void)refuse_tiles(found.tile_loop->where, "the kernel stores outside of it, too");
        return *error_;
    }
    if (last_in_loop_ != nullptr) found.last_store = last_in_loop_;
    // What a persistent program touches outside its tile loop, before, behind and between its tiles: reads belong to each
    // of its tiles, writes to the last.
    const std::size_t tiles_end = found.tiles.size();
    if (tiles_end == first_tile) return Done{};
    std::vector<Touch> outer;
    std::size_t last = outer_begin;
    const auto add_outer = [&](std::size_t end) {
        outer.insert(outer.end(), found.touched.begin() + static_cast<std::ptrdiff_t>(last),
                     found.touched.begin() + static_cast<std::ptrdiff_t>(end));
    };
    for (std::size_t t = first_tile; t < tiles_end; ++t) {
        add_outer(found.tiles[t].begin);
        last = found.tiles[t].end;
    }
    add_outer(found.touched.size());
    if (outer.empty()) return Done{};
    const std::vector<Touch> all(found.touched.begin() + static_cast<std::ptrdiff_t>(outer_begin),
                                 found.touched.end());
    found.touched.resize(outer_begin);
    for (std::size_t t = first_tile; t < tiles_end; ++t) {
        TileRecord& tile = found.tiles[t];
        const std::size_t begin = found.touched.size();
        if (!step(found.tile_loop->where, static_cast<std::int64_t>(outer.size()))) return *error_;
        for (std::size_t i = tile.begin; i < tile.end; ++i) found.touched.push_back(all[i - outer_begin]);
        for (const Touch& touch : outer) {
            if (!touch.write || t + 1 == tiles_end) found.touched.push_back(touch);
        }
        tile.begin = begin;
        tile.end = found.touched.size();
    }
    return Done{};
}

Value Evaluator::fail(const SourceRange& where, std::string message) {
    const Expr* call = call_path_.empty() ? nullptr : call_path_.front();
    if (call != nullptr && call->where.begin == where.begin) call = nullptr;  // that is where it is
    if (!error_) error_ = module_.error(where, std::move(message) + called_from(call));
    return {};
}

/// "program 3", "program (3, 1, 0)": the one that is being run, or the first one of a line.
std::string Evaluator::program_text() const {
    const std::string x = std::to_string(program_[0]);
    if (grid_[1] <= 1 && grid_[2] <= 1) return "program " + x;
    return "program (" + x + ", " + std::to_string(program_[1]) + ", " + std::to_string(program_[2]) + ")";
}

Value Evaluator::division_by_zero(const Expr& e) {
    arithmetic_error = true;
    return fail(e.where, "division by zero in " + quoted(module_, e.where) +
                             ": give --args for which the divisor is not 0");
}

Value Evaluator::not_affine(const Expr& e) {
    if (trips_.empty()) {
        return fail(e.where, quoted(module_, e.where) +
                                 " is not a form of address that can be followed; state "
                                 "what a tile touches with `# @sy.reads` or `# "
                                 "@sy.writes`");
    }
    not_affine_ = true;  // the loop around is run iteration by iteration instead
    return {};
}

Value Evaluator::opaque(const Expr& why, std::uint64_t taint, std::string_view reason) {
    if (!reason.empty()) reasons_.insert_or_assign(&why, reason);
    Value made;
    made.kind = ValueKind::opaque;
    made.runtime = true;
    made.taint = taint;
    made.why = &why;
    return made;
}

std::uint64_t Evaluator::new_source(const Expr& e, TaintSource source) {
    auto& node = const_cast<Expr&>(e);
    if (node.source < 0) {
        source.expr = &e;
        node.source = static_cast<std::int32_t>(sources.size());
        sources.push_back(source);
    }
    const std::uint64_t bit = std::uint64_t{1} << std::min(node.source, 63);
    if (source.kind == TaintSource::Kind::program_id) program_bits_ |= bit;
    if (source.kind == TaintSource::Kind::count) count_bits_ |= bit;
    return bit;
}

bool Evaluator::look_at_limits(const SourceRange& where) {
    constexpr std::int64_t kSometimes = 256;
    constexpr std::size_t kBoxesATile = 4;  // that take as much memory as a tile
    next_look_ = steps_ + kSometimes;
    const std::int64_t programs = grid_[0] * grid_[1] * grid_[2];
    const std::int64_t more = std::max<std::int64_t>(0, effort_.most_steps - effort_.steps);
    const std::int64_t steps = effort_.steps + std::min(more, programs * effort_.steps_a_program);
    const bool boxes =
        found.touched.size() + found.boxes.size() + kBoxesATile * found.tiles.size() > effort_.boxes;
    const bool last = last_step_ > 0 && steps_ > last_step_;
    if (last || steps_ > steps || arena_.bytes() > effort_.memory || boxes) {
        const std::string of = "; the " + std::to_string(programs) + " programs ";
        const std::string why = boxes ? of + "touch more than " + std::to_string(effort_.boxes) + " boxes"
                                : steps_ > steps && (on_line() || found.tiles.size() > 1)
                                    ? of + "take more than " + std::to_string(steps) + " steps"
                                    : std::string();
        fail(where,
             "the analysis gives up here after too many iterations: give --args of a smaller launch, --grid "
             "where the launch has fewer programs than were tried, or a loop that ends" +
                 why);
        next_look_ = 0;
        return false;
    }
    return true;
}

/// Whether a tuple of these items, and those inside them, is of a size that a kernel could mean; fails
/// otherwise. Items are shared, so a few lines `t = (t, t)` would make one that takes for ever to look at.
bool Evaluator::fits_a_tuple(const Expr& e, std::span<const Value> items) {
    constexpr std::size_t kMost = std::size_t{1} << 12;
    std::vector<const Value*> pending;
    std::size_t count = items.size();
    for (const Value& item : items) {
        if (item.kind == ValueKind::tuple) pending.push_back(&item);
    }
    while (!pending.empty() && count <= kMost) {
        const Tuple& inner = *pending.back()->tuple;
        pending.pop_back();
        count += static_cast<std::size_t>(inner.size);
        for (std::int32_t i = 0; i < inner.size; ++i) {
            if (inner.items[i].kind == ValueKind::tuple) pending.push_back(&inner.items[i]);
        }
    }
    if (count <= kMost) return step(e.where, static_cast<std::int64_t>(count));
    fail(e.where, quoted(module_, e.where) + " holds more than " + std::to_string(kMost) +
                      " items: write a smaller tuple");
    return false;
}

}  // namespace syncopate::kernel::triton

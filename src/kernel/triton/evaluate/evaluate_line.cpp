// Programs along one axis of the launch, evaluated at once: their id is an unknown, as the iteration of a
// loop is, and every value affine in it.
//
//      pid = tl.program_id(0)              first + p
//      offs = (pid % columns) * BN + …     (first + p - row * columns) * BN + …, while p stays in the row
//
// What the programs touch is then worked out for each of them from the one form (`MovingAccess`), exactly as
// if it had been evaluated alone: what was found on the way holds for all of them. Where an operation has no
// affine result, the line is too long (`line_fits_` says how long it may be) or the program is run alone.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr int kLine = 0;  // the symbol

}  // namespace

Value Evaluator::along_line(std::int64_t id) {
    Guess by_one;
    by_one.kind = Guess::Kind::advance;
    by_one.delta[0] = line_stride_;
    return advance(make_integer(id, true, 0), by_one, kLine, 0);
}

/// Notes that the line may be as long as `value` stays below the limit.
void Evaluator::fits_while_below(const Affine& value, std::int64_t limit) {
    if (!on_line() || value.slope[kLine] <= 0 || value.constant >= limit) return;
    const Wide room = static_cast<Wide>(limit) - 1 - value.constant;
    const auto fits = static_cast<std::int64_t>(room / value.slope[kLine]) + 1;
    line_fits_ = line_fits_ == 0 ? fits : std::min(line_fits_, fits);
}

/// … as `value` is below, at, or above 0 as it is for the first program.
void Evaluator::fits_while_same_sign(const Affine& value) {
    if (value.constant < 0) fits_while_below(value, 0);
    if (value.constant > 0) fits_while_below(value * -1, 0);
}

/// Notes that a line of every n-th program might do where dividing `value` by `by` stops this one.
void Evaluator::divides_when_every(const Affine& value, std::int64_t by) {
    const std::int64_t slope = value.slope[kLine];
    if (!on_line() || slope == 0 || by <= 0) return;
    const std::int64_t every = by / std::gcd(slope, by);
    line_every_ = std::max(line_every_, every);
}

/// Makes the line's programs tiles: what was touched from `first` on, each in its own place.
/// False where that would be too many.
bool Evaluator::spread_line(std::size_t first, const Line& line, std::int64_t apart,
                            std::span<const StatedBox> stated) {
    std::vector<Touch> all(found.touched.begin() + static_cast<std::ptrdiff_t>(first), found.touched.end());
    found.touched.resize(first);
    // By parameter, as tiles have them.
    std::stable_sort(all.begin(), all.end(), [](const Touch& a, const Touch& b) {
        return std::pair(a.param, a.write) < std::pair(b.param, b.write);
    });
    for (const Touch& touch : all)
        if (touch.moves) work_out_all(moving_[touch.begin]);
    all = together(std::move(all));
    for (std::int64_t i = 0; i < line.count; ++i) {
        if (!step(kernel_.name_range, static_cast<std::int64_t>(all.size()))) return false;
        const std::int64_t program = linear_program_ + i * apart;
        TileRecord record{program, program, found.touched.size(), 0, {}};
        for (Touch touch : all) {
            if (touch.moves) {
                const MovingAccess& access = moving_[touch.begin];
                const MovingAccess::Instance own = access.instances[static_cast<std::size_t>(i)];
                const bool solid = own.exact && access.solid, exact = touch.exact && solid;
                const bool leaves = own.leaves && exact;
                if (own.begin == own.end && !leaves) continue;
                touch = {touch.param, touch.write, exact,   solid,     touch.shadow, false,   touch.adds,
                         leaves,      own.begin,   own.end, own.along, own.by,       own.walk};
            }
            found.touched.push_back(touch);
        }
        for (const StatedBox& box : stated) note_stated(box, i);
        record.end = found.touched.size();
        for (std::size_t a = 0; a < kMostAxes; ++a)
            record.coord[a] = wrap_add(coord_[a].at, wrap_multiply(coord_[a].step, i));
        found.tiles.push_back(record);
    }
    return true;
}

/// From here on the line's symbol is around everything.
void Evaluator::begin_line(std::int32_t axis, std::int64_t count, std::int64_t stride) {
    line_axis_ = axis;
    line_stride_ = stride;
    line_fits_ = 0;
    line_every_ = 1;
    trips_.assign(1, count);
    symbol_loops_.assign(1, -1);
}

/// Back to single programs; forgets what was found from `before` on where the line came to nothing.
void Evaluator::end_line(bool done, const Found& before, std::int64_t count, LineHint& hint) {
    if (!done) {
        found.touched.resize(before.touched);
        found.tiles.resize(before.tiles);
        advances_.resize(before.advances);
    }
    hint.fewer = line_fits_ < count ? line_fits_ : 0;
    hint.every = line_every_;
    around_.clear();
    walked_ = -1;
    call_path_.clear();
    path_ = 0;
    trips_.clear();
    symbol_loops_.clear();
    silent_ = 0;
    error_.reset();
    no_tiles.reset();
    not_affine_ = in_tile_loop_ = false;
    line_axis_ = -1;
}

bool Evaluator::run_line(const Line& line, const std::array<std::int64_t, 3>& grid, LineHint& hint) {
    Frame frame = enter(line.first, grid);
    const Found before{found.touched.size(), found.tiles.size(), advances_.size()};
    begin_line(line.axis, line.count, line.stride);
    const Flow flow = execute(kernel_.body, frame);
    bool done = flow != Flow::stop && !stopped();
    std::vector<StatedBox> stated;
    if (done) done = state_tile(frame, stated);
    if (done) {
        const std::int64_t apart = line.stride * (line.axis == 0   ? 1
                                                  : line.axis == 1 ? grid[0]
                                                                   : grid[0] * grid[1]);
        done = spread_line(before.touched, line, apart, stated);
    }
    if (done && last_in_body_ != nullptr &&
        (found.last_store == nullptr || last_in_body_->where.end > found.last_store->where.end))
        found.last_store = last_in_body_;
    end_line(done, before, line.count, hint);
    return done;
}

}  // namespace syncopate::kernel::triton

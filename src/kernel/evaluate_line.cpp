// Programs along one axis of the launch, evaluated at once: their id is an unknown, as the iteration of a
// loop is, and every value affine in it.
//
//      pid = tl.program_id(0)                    first + p
//      offs = (pid % columns) * BN + …           (first + p - row * columns) * BN + …, while p stays in the
//      row
//
// What the programs touch is then worked out for each of them from the one form (`MovingAccess`), exactly as
// if it had been evaluated alone: what was found on the way holds for all of them. Where an operation has no
// affine result, the line is too long (`line_fits_` says how long it may be) or the program is run alone.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {
namespace {

constexpr int kLine = 0;  // the symbol

}  // namespace

Value Evaluator::along_line(std::int64_t id) {
    Guess by_one;
    by_one.kind = Guess::Kind::advance;
    by_one.delta[0] = 1;
    return advanced(make_integer(id, true, 0), by_one, kLine, 0);
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

/// Makes the line's programs tiles: what was touched from `first` on, each in its own place.
/// False where that would be too many.
bool Evaluator::spread_line(std::size_t first, std::int64_t stride, const Coordinates& coord) {
    const std::vector<Touch> all(found.touched.begin() + static_cast<std::ptrdiff_t>(first),
                                 found.touched.end());
    found.touched.resize(first);
    for (const Touch& touch : all)
        if (touch.moves) work_out_all(moving_[touch.begin]);
    for (std::int64_t i = 0; i < trips_[kLine]; ++i) {
        const std::int64_t id = linear_program_ + i * stride;
        if (!step(kernel_.name_range, static_cast<std::int64_t>(all.size()))) return false;
        TileRecord record{id, id, found.touched.size(), 0, {}};
        for (Touch touch : all) {
            if (touch.moves) {
                const MovingAccess& access = moving_[touch.begin];
                const MovingAccess::Instance own = access.instances[static_cast<std::size_t>(i)];
                if (own.begin == own.end) continue;
                const bool solid = own.exact && access.solid;
                touch = {touch.param, touch.write, touch.exact && solid, solid, touch.shadow, false,
                         own.begin,   own.end};
            }
            found.touched.push_back(touch);
        }
        record.end = found.touched.size();
        for (std::size_t a = 0; a < kMostAxes; ++a)
            record.coord[a] = wrap_add(coord[a].at, wrap_multiply(coord[a].step, i));
        found.tiles.push_back(record);
    }
    return true;
}

bool Evaluator::run_line(const std::array<std::int64_t, 3>& program, const std::array<std::int64_t, 3>& grid,
                         std::int32_t axis, std::int64_t count, std::int64_t& fewer) {
    Frame frame = enter(program, grid);
    const std::size_t first = found.touched.size(), advances = advances_.size(), tiles = found.tiles.size();
    line_axis_ = axis;
    line_fits_ = 0;
    trips_.assign(1, count);
    symbol_loops_.assign(1, -1);
    const Flow flow = execute(kernel_.body, frame);
    bool done = flow != Flow::stop && !stopped();
    if (done) {
        Coordinates coord = coord_;
        for (const Directive& directive : directives_) {
            std::size_t place = 0;
            if (directive.kind != DirectiveKind::pid_map) continue;
            for (const auto& [name, variable] : directive.mapping) {
                if (variable == nullptr || place >= kMostAxes) continue;
                const Value value = evaluate(*variable, frame);
                const Block* block = value.kind == ValueKind::block ? value.block : nullptr;
                if (value.kind == ValueKind::integer)
                    coord[place++] = {value.integer, 0};
                else if (block != nullptr && block->rank == 0)
                    coord[place++] = {block->base.constant, block->base.slope[kLine]};
                else
                    done = false;
            }
        }
        done = done && spread_line(first, axis == 0 ? 1 : axis == 1 ? grid[0] : grid[0] * grid[1], coord);
    }
    if (!done) {
        found.touched.resize(first);
        found.tiles.resize(tiles);
        advances_.resize(advances);
    }
    if (done && last_in_body_ != nullptr &&
        (found.last_store == nullptr || last_in_body_->where.end > found.last_store->where.end))
        found.last_store = last_in_body_;
    fewer = line_fits_ < count ? line_fits_ : 0;
    around_.clear();
    trips_.clear();
    symbol_loops_.clear();
    silent_ = 0;
    error_.reset();
    not_affine_ = false;
    line_axis_ = -1;
    return done;
}

}  // namespace syncopate::kernel

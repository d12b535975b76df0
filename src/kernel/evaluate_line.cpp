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

Affine at(Affine value, std::int64_t i) {
    value.constant = wrap_add(value.constant, wrap_multiply(value.slope[kLine], i));
    value.slope[kLine] = 0;
    return value;
}

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

bool Evaluator::moves(const Block& block, const Mask* mask) {
    const auto moving = [](const Affine& a) { return a.slope[kLine] != 0; };
    if (moving(block.base)) return true;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        for (std::int32_t p = 0; p < block.axes[j].count; ++p)
            if (moving(block.axes[j].pieces[p].base)) return true;
    }
    for (std::int32_t j = 0; mask != nullptr && j < mask->rank; ++j) {
        const MaskAxis& axis = mask->axes[j];
        for (std::int32_t b = 0; b < axis.lower_count; ++b)
            if (moving(axis.lower[b])) return true;
        for (std::int32_t b = 0; b < axis.upper_count; ++b)
            if (moving(axis.upper[b])) return true;
    }
    return false;
}

/// What the access touches in program i of the line: the boxes of the same access without the unknown.
Evaluator::MovingAccess::Instance Evaluator::instance(MovingAccess& access, std::int64_t i,
                                                      Advance* advance) {
    MovingAccess::Instance& made = access.instances[static_cast<std::size_t>(i)];
    if (made.made && advance == nullptr) return made;
    const Arena::Mark mark = arena_.mark();
    Block block = access.block;
    block.base = at(block.base, i);
    for (std::int32_t j = 0; j < block.rank; ++j) {
        BlockAxis& axis = block.axes[j];
        const Piece* pieces = axis.pieces;
        const bool still = std::none_of(pieces, pieces + axis.count,
                                        [](const Piece& piece) { return piece.base.slope[kLine] != 0; });
        if (still) continue;
        Piece* own = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
        for (std::int32_t p = 0; p < axis.count; ++p) {
            own[p] = pieces[p];
            own[p].base = at(own[p].base, i);
        }
        axis.pieces = own;
    }
    Mask mask;
    if (access.mask != nullptr) {
        mask = *access.mask;
        for (std::int32_t j = 0; j < mask.rank; ++j) {
            MaskAxis& axis = mask.axes[j];
            for (std::int32_t b = 0; b < axis.lower_count; ++b) axis.lower[b] = at(axis.lower[b], i);
            for (std::int32_t b = 0; b < axis.upper_count; ++b) axis.upper[b] = at(axis.upper[b], i);
        }
    }
    boxes_.clear();
    const Access one{
        .tensor = &tensors[static_cast<std::size_t>(access.param)],
        .pointer = &block,
        .mask = access.mask != nullptr ? &mask : nullptr,
        .direct = access.direct,
        .trips = access.trips,
        .innermost = access.trips.size() > 1 ? static_cast<std::int32_t>(access.trips.size()) - 1 : -1};
    bool exact = access.mask == nullptr || access.mask->exact;
    const Advance advances = footprint(one, boxes_, exact);
    if (advance != nullptr) *advance = advances;
    if (!made.made) {
        made = {static_cast<std::uint32_t>(found.boxes.size()), 0, true, exact};
        found.boxes.insert(found.boxes.end(), boxes_.begin(), boxes_.end());
        made.end = static_cast<std::uint32_t>(found.boxes.size());
    }
    arena_.release(mark);
    return made;
}

/// Notes an access that each program of the line makes in its own place, and how it advances with the
/// innermost loop around: if in all programs alike, then in the first and the last.
Advance Evaluator::touch_moving(const Block& block, const Mask* mask, bool direct, bool read, bool write) {
    MovingAccess& access = moving_.emplace_back();
    access.param = block.param;
    access.direct = direct;
    access.block = block;
    if (mask != nullptr) {
        Mask* kept = arena_.make<Mask>();
        *kept = *mask;
        access.mask = kept;
    }
    access.trips = trips_;
    access.instances.resize(static_cast<std::size_t>(trips_[kLine]));
    instances_ += trips_[kLine];
    access.trips[kLine] = 1;
    const auto p = static_cast<std::size_t>(block.param);
    const auto number = static_cast<std::uint32_t>(moving_.size() - 1);
    const bool sure = maybe_ == 0;
    if (read) found.touched.push_back({block.param, false, sure, true, override_read_[p], true, number, 0});
    if (write) found.touched.push_back({block.param, true, sure, true, override_write_[p], true, number, 0});
    Advance first;
    if (!read || trips_.size() < 2) return first;
    Advance last;
    (void)instance(access, 0, &first);
    (void)instance(access, trips_[kLine] - 1, &last);
    if (!(first == last)) first.several = true;
    return first;
}

/// Makes the line's programs tiles: what was touched from `first` on, each in its own place.
/// False where that would be too many.
bool Evaluator::spread_line(std::size_t first, std::int64_t stride, const Coordinates& coord) {
    const std::vector<Touch> all(found.touched.begin() + static_cast<std::ptrdiff_t>(first),
                                 found.touched.end());
    found.touched.resize(first);
    for (std::int64_t i = 0; i < trips_[kLine]; ++i) {
        const std::int64_t id = linear_program_ + i * stride;
        if (!step(kernel_.name_range, static_cast<std::int64_t>(all.size()))) return false;
        TileRecord record{id, id, found.touched.size(), 0, {}};
        for (Touch touch : all) {
            if (touch.moves) {
                const MovingAccess::Instance own = instance(moving_[touch.begin], i);
                if (own.begin == own.end) continue;
                touch = {touch.param, touch.write, touch.exact && own.exact, own.exact, touch.shadow, false,
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

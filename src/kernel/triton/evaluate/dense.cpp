// Blocks and conditions that are no sums of functions of one index each: kept as what they are computed from
// (Lazy), and worked out element by element when an address needs them. Inside a loop that is run for all of
// its iterations at once they cannot be; the loop is then run iteration by iteration instead.
#include <algorithm>
#include <utility>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "kernel/triton/footprints/footprint_boxes.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kMostWork = std::int64_t{1} << 27;      // elements worked out for one program
constexpr std::size_t kMostKept = std::size_t{1} << 25;        // elements kept at a time
constexpr std::int64_t kLargestDense = std::int64_t{1} << 21;  // elements of one block

using What = Lazy::What;

bool is_condition(What what) {
    return what == What::comparison || what == What::both || what == What::either || what == What::invert;
}

}  // namespace

Evaluator::Shape Evaluator::shape_of(const Value& value) {
    Shape shape;
    if (is_block(value)) {
        shape.rank = value.block->rank;
        for (std::int32_t j = 0; j < shape.rank; ++j) shape.extents[j] = value.block->axes[j].extent;
    } else if (value.kind == ValueKind::mask) {
        shape.rank = value.mask->rank;
        for (std::int32_t j = 0; j < shape.rank; ++j) shape.extents[j] = value.mask->axes[j].extent;
    } else if (value.kind == ValueKind::lazy) {
        shape.rank = value.lazy->rank;
        shape.extents = value.lazy->extents;
    }
    return shape;
}

/// The shape of two blocks that are combined; nullopt when they do not fit each other.
std::optional<Evaluator::Shape> Evaluator::broadcast(const Shape& a, const Shape& b) {
    Shape made;
    made.rank = std::max(a.rank, b.rank);
    for (std::int32_t j = 0; j < made.rank; ++j) {
        const std::int32_t i = j - (made.rank - a.rank), k = j - (made.rank - b.rank);
        const std::int64_t x = i < 0 ? 1 : a.extents[i], y = k < 0 ? 1 : b.extents[k];
        if (x != y && x != 1 && y != 1) return std::nullopt;
        made.extents[j] = std::max(x, y);
    }
    return made;
}

/// Whether its elements follow from the arguments, the program and the iteration alone.
bool Evaluator::is_known(const Value& value) {
    return is_number(value) || is_block(value) || value.kind == ValueKind::lazy ||
           (value.kind == ValueKind::mask && (value.mask->exact || value.mask->form != nullptr));
}

Lazy* Evaluator::new_lazy(const Expr& e, What what, std::span<const Value> from, const Shape& shape) {
    Lazy* made = arena_.make<Lazy>();
    made->what = what;
    made->e = &e;
    made->rank = shape.rank;
    made->extents = shape.extents;
    made->count = static_cast<std::int32_t>(from.size());
    Value* operands = arena_.make<Value>(from.size());
    std::copy(from.begin(), from.end(), operands);
    made->from = operands;
    return made;
}

/// The type of what it makes of its operands.
IntegerType Evaluator::type_of_elements(const Lazy& lazy) const {
    if (lazy.type != IntegerType::python || is_condition(lazy.what)) return lazy.type;
    if (lazy.what == What::look_up) return type_of_tensor(lazy.axis);
    if (lazy.what == What::where) return type_of_both(lazy.from[1], lazy.from[2]);
    return type_of(lazy.from[0]);
}

/// The value that a Lazy is: a condition as a mask that lets everything through until it is worked out.
Value Evaluator::from_lazy(Lazy* lazy) {
    Value made;
    made.runtime = true;
    for (std::int32_t i = 0; i < lazy->count; ++i) made.taint |= lazy->from[i].taint;
    made.type = type_of_elements(*lazy);
    if (lazy->rank == 0) {
        std::vector<std::int64_t> one;
        const Known known = fill(*lazy, one);
        if (known == Known::overflow) return opaque(*overflowed_, made.taint);
        if (known != Known::yes) return opaque(*lazy->e, made.taint);
        made.kind = is_condition(lazy->what) ? ValueKind::boolean : ValueKind::integer;
        if (is_condition(lazy->what))
            made.boolean = one[0] != 0;
        else
            made.integer = one[0];
        return made;
    }
    if (is_condition(lazy->what)) {
        Mask* mask = arena_.make<Mask>();
        mask->rank = lazy->rank;
        for (std::int32_t j = 0; j < lazy->rank; ++j) mask->axes[j].extent = lazy->extents[j];
        mask->exact = false;
        mask->form = lazy;
        made.kind = ValueKind::mask;
        made.mask = mask;
        return made;
    }
    made.kind = ValueKind::lazy;
    made.lazy = lazy;
    return made;
}

/// An operation on elements, left to be done: unknown if an operand is.
Value Evaluator::lazily(const Expr& e, What what, Operator op, std::initializer_list<Value> from) {
    Shape shape;
    std::int32_t param = -1;
    std::uint64_t taint = 0;
    for (const Value& v : from) taint |= v.taint;
    for (const Value& v : from) {
        if (!is_known(v)) return opaque(v.kind == ValueKind::opaque ? *v.why : e, taint);
        const auto both = broadcast(shape, shape_of(v));
        if (!both)
            return fail(e.where,
                        "blocks of different shape cannot be combined in " + quoted(module_, e.where));
        shape = *both;
        const std::int32_t own = v.kind == ValueKind::lazy ? v.lazy->param : param_of(v);
        if (own >= 0 && param >= 0 && own != param) return opaque(e, taint);
        param = std::max(param, own);
    }
    if (shape.size() > kLargestBlock) return opaque(e, taint);
    Lazy* made = new_lazy(e, what, {from.begin(), from.size()}, shape);
    made->op = op;
    made->param = is_condition(what) ? -1 : param;
    return from_lazy(made);
}

Evaluator::Known Evaluator::fill(const Value& value, const Shape& shape, std::vector<std::int64_t>& out) {
    const std::int64_t size = shape.size();
    if (size > kLargestDense || (dense_work_ += size) > kMostWork) return Known::too_large;
    constexpr std::int64_t kElementsAStep = 64;
    steps_ += size / kElementsAStep;  // all programs together, so that an analysis ends
    if (is_number(value)) return out.assign(static_cast<std::size_t>(size), number_of(value)), Known::yes;
    const Shape own = shape_of(value);
    std::vector<std::int64_t> narrow;
    std::vector<std::int64_t>& mine = own == shape ? out : narrow;
    if (value.kind == ValueKind::mask && value.mask->form != nullptr) {
        if (const Known known = fill(*value.mask->form, mine); known != Known::yes) return known;
    } else if (value.kind == ValueKind::lazy) {
        if (const Known known = fill(*value.lazy, mine); known != Known::yes) return known;
    } else if (is_block(value)) {
        const Block& block = *value.block;
        if (!block.base.is_constant()) return Known::moves;
        mine.assign(1, block.base.constant);
        for (std::int32_t j = 0; j < block.rank; ++j) {
            std::vector<std::int64_t> along, next;
            if (!expand(block.axes[j], along)) return Known::moves;
            next.reserve(mine.size() * along.size());
            for (const std::int64_t before : mine)
                for (const std::int64_t one : along) next.push_back(wrap_add(before, one));
            mine = std::move(next);
        }
    } else if (value.kind == ValueKind::mask && value.mask->exact) {
        const Mask& mask = *value.mask;
        mine.assign(1, mask.never ? 0 : 1);
        for (std::int32_t j = 0; j < mask.rank; ++j) {
            std::int64_t low = 0, high = mask.axes[j].extent;
            for (std::int32_t b = 0; b < mask.axes[j].lower_count; ++b) {
                if (!mask.axes[j].lower[b].is_constant()) return Known::moves;
                low = std::max(low, mask.axes[j].lower[b].constant);
            }
            for (std::int32_t b = 0; b < mask.axes[j].upper_count; ++b) {
                if (!mask.axes[j].upper[b].is_constant()) return Known::moves;
                high = std::min(high, mask.axes[j].upper[b].constant);
            }
            std::vector<std::int64_t> next;
            next.reserve(mine.size() * static_cast<std::size_t>(mask.axes[j].extent));
            for (const std::int64_t before : mine)
                for (std::int64_t i = 0; i < mask.axes[j].extent; ++i)
                    next.push_back(before != 0 && i >= low && i < high ? 1 : 0);
            mine = std::move(next);
        }
    } else {
        return Known::data;
    }
    if (own == shape) return Known::yes;
    // Stretched: axes in front, and those of extent 1.
    out.resize(static_cast<std::size_t>(size));
    std::array<std::int64_t, kRank> index{};
    for (std::int64_t i = 0; i < size; ++i) {
        std::int64_t at = 0;
        for (std::int32_t j = 0; j < own.rank; ++j) {
            const std::int64_t here = index[static_cast<std::size_t>(j + shape.rank - own.rank)];
            at = at * own.extents[j] + (own.extents[j] == 1 ? 0 : here);
        }
        out[static_cast<std::size_t>(i)] = mine[static_cast<std::size_t>(at)];
        for (std::int32_t j = shape.rank; j-- > 0 && ++index[j] >= shape.extents[j];) index[j] = 0;
    }
    return Known::yes;
}

Evaluator::Known Evaluator::fill(Lazy& lazy, std::vector<std::int64_t>& out) {
    if (lazy.round == dense_round_) {
        out = dense_[static_cast<std::size_t>(lazy.made)];
        return Known::yes;
    }
    if (dense_depth_ > kDeepestDense) return Known::too_large;
    ++dense_depth_;
    const Known known = work_out(lazy, out);
    --dense_depth_;
    if (known != Known::yes) return known;
    if (!keep_in_type(lazy, out)) return Known::overflow;
    lazy.made = static_cast<std::int32_t>(dense_.size());
    lazy.round = dense_round_;
    dense_kept_ += out.size();
    dense_.push_back(out);
    return Known::yes;
}

namespace {

using Elements = std::vector<std::int64_t>;

/// A block's elements along one axis, or all of them: (outer, extent, inner).
struct Along {
    std::int64_t outer = 1, extent = 1, inner = 1;
    [[nodiscard]] std::size_t place(std::int64_t o, std::int64_t at, std::int64_t i) const {
        return static_cast<std::size_t>((o * extent + at) * inner + i);
    }
};

std::int64_t compared(Operator op, std::int64_t a, std::int64_t b) {
    switch (op) {
        case Operator::less: return a < b;
        case Operator::less_equal: return a <= b;
        case Operator::greater: return a > b;
        case Operator::greater_equal: return a >= b;
        case Operator::not_equal:
        case Operator::is_not: return a != b;
        default: return a == b;
    }
}

/// What makes each element of those at the same place; false for what does not, arithmetic aside.
bool combine(const Lazy& lazy, const std::array<Elements, 3>& from, std::size_t size, Elements& out) {
    const Elements &a = from[0], &b = from[1], &c = from[2];
    const auto each = [&](const auto& f) {
        out.resize(size);
        for (std::size_t i = 0; i < size; ++i) out[i] = f(i);
        return true;
    };
    switch (lazy.what) {
        case What::comparison: return each([&](std::size_t i) { return compared(lazy.op, a[i], b[i]); });
        case What::both: return each([&](std::size_t i) { return a[i] != 0 && b[i] != 0 ? 1 : 0; });
        case What::either: return each([&](std::size_t i) { return a[i] != 0 || b[i] != 0 ? 1 : 0; });
        case What::invert: return each([&](std::size_t i) { return a[i] == 0 ? 1 : 0; });
        case What::where: return each([&](std::size_t i) { return a[i] != 0 ? b[i] : c[i]; });
        case What::least: return each([&](std::size_t i) { return std::min(a[i], b[i]); });
        case What::most: return each([&](std::size_t i) { return std::max(a[i], b[i]); });
        case What::absolute:
            return each([&](std::size_t i) { return a[i] < 0 ? wrap_multiply(a[i], -1) : a[i]; });
        default: return false;
    }
}

/// `first`: the extents of what is permuted.
void permute(const Lazy& lazy, std::span<const std::int64_t> first, const Elements& from, std::size_t size,
             Elements& out) {
    std::array<std::int64_t, kRank> step{}, index{};
    for (std::int32_t j = 0; j < lazy.rank; ++j) {
        if (lazy.axes[j] < 0) continue;
        step[j] = 1;
        for (auto k = static_cast<std::size_t>(lazy.axes[j]) + 1; k < first.size(); ++k) step[j] *= first[k];
    }
    out.resize(size);
    for (std::int64_t& value : out) {
        std::int64_t at = 0;
        for (std::int32_t j = 0; j < lazy.rank; ++j) at += index[j] * step[j];
        value = from[static_cast<std::size_t>(at)];
        for (std::int32_t j = lazy.rank; j-- > 0 && ++index[j] >= lazy.extents[j];) index[j] = 0;
    }
}

/// flip, running sums, gather: `length` elements along the axis, of which `at` says the places in a gather.
/// False where one is beyond the axis.
bool rearrange(const Lazy& lazy, const Along& along, std::int64_t length, const Elements& from,
               const Elements& at, Elements& out) {
    for (std::int64_t o = 0; o < along.outer; ++o) {
        for (std::int64_t i = 0; i < along.inner; ++i) {
            std::int64_t total = 0;
            for (std::int64_t k = 0; k < length; ++k) {
                const auto to = static_cast<std::size_t>((o * length + k) * along.inner + i);
                std::int64_t source = lazy.what == What::flip ? along.extent - 1 - k : k;
                if (lazy.what == What::gather) source = at[to];
                if (source < 0 || source >= along.extent) return false;
                const std::int64_t value = from[along.place(o, source, i)];
                out[to] = lazy.what == What::running ? total = wrap_add(total, value) : value;
            }
        }
    }
    return true;
}

/// sum, lowest and highest along an axis.
void reduce(What what, const Along& along, const Elements& from, Elements& out) {
    for (std::int64_t o = 0; o < along.outer; ++o) {
        for (std::int64_t i = 0; i < along.inner; ++i) {
            std::int64_t value = from[along.place(o, 0, i)];
            for (std::int64_t k = 1; k < along.extent; ++k) {
                const std::int64_t one = from[along.place(o, k, i)];
                value = what == What::sum      ? wrap_add(value, one)
                        : what == What::lowest ? std::min(value, one)
                                               : std::max(value, one);
            }
            out.push_back(value);
        }
    }
}

}  // namespace

Evaluator::Known Evaluator::work_out(const Lazy& lazy, std::vector<std::int64_t>& out) {
    Shape shape;
    shape.rank = lazy.rank;
    shape.extents = lazy.extents;
    const auto size = static_cast<std::size_t>(shape.size());
    std::array<Elements, 3> from;
    const bool elementwise = lazy.what <= What::absolute;
    for (std::int32_t i = 0; i < lazy.count; ++i) {
        const Shape wanted = elementwise ? shape : shape_of(lazy.from[i]);
        const Known known = fill(lazy.from[i], wanted, from[static_cast<std::size_t>(i)]);
        if (known != Known::yes) return known;
    }
    if (lazy.what == What::look_up)
        return look_up_all(lazy, from[0], from[1], from[2], out) ? Known::yes : Known::data;
    if (combine(lazy, from, size, out)) return Known::yes;
    const Elements &a = from[0], &b = from[1];
    const Shape first = lazy.count > 0 ? shape_of(lazy.from[0]) : Shape{};
    Along along;
    for (std::int32_t j = 0; j < first.rank; ++j)
        (lazy.axis < 0 || j == lazy.axis ? along.extent
         : j < lazy.axis                 ? along.outer
                                         : along.inner) *= first.extents[j];
    switch (lazy.what) {
        case What::arithmetic:
            out.resize(size);
            for (std::size_t i = 0; i < size; ++i) {
                const auto made = calculated(lazy.op, a[i], b[i]);
                if (!made) return Known::data;
                out[i] = *made;
            }
            break;
        case What::permute:
            permute(lazy, {first.extents.data(), static_cast<std::size_t>(first.rank)}, a, size, out);
            break;
        case What::reshape: out = a; break;
        case What::flip:
        case What::running:
        case What::gather: {
            const bool gathers = lazy.what == What::gather;
            const std::int64_t length = gathers ? shape_of(lazy.from[1]).extents[lazy.axis] : along.extent;
            out.resize(size);
            if (!rearrange(lazy, along, length, a, b, out)) return Known::data;
            break;
        }
        case What::join:
        case What::interleave:
            for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i]), out.push_back(b[i]);
            break;
        case What::split:
            for (std::size_t i = static_cast<std::size_t>(lazy.axis); i < a.size(); i += 2)
                out.push_back(a[i]);
            break;
        case What::cat:
            out = a;
            out.insert(out.end(), b.begin(), b.end());
            break;
        default: reduce(lazy.what, along, a, out);
    }
    return out.size() == size ? Known::yes : Known::data;
}

/// a op b as the kernel computes it at run time; nullopt for what has no whole number as its result.
std::optional<std::int64_t> Evaluator::calculated(Operator op, std::int64_t a, std::int64_t b) {
    switch (op) {
        case Operator::add: return wrap_add(a, b);
        case Operator::subtract: return wrap_add(a, wrap_multiply(b, -1));
        case Operator::multiply: return wrap_multiply(a, b);
        case Operator::floor_divide:
        case Operator::modulo:
            // Of a lane that is divided by zero nothing is defined; that it is masked is for the kernel to
            // see to.
            if (b == 0) return 0;
            if (b == -1) return op == Operator::modulo ? 0 : wrap_multiply(a, -1);
            return op == Operator::modulo ? a % b : a / b;
        case Operator::shift_left: return b < 0 || b > 62 ? 0 : wrap_multiply(a, std::int64_t{1} << b);
        case Operator::shift_right: return b < 0 || b > 63 ? 0 : a >> b;
        case Operator::bit_and: return a & b;
        case Operator::bit_or: return a | b;
        case Operator::bit_xor: return a ^ b;
        default: return std::nullopt;
    }
}

/// An access by addresses, or under a condition, that have to be worked out. False: they are too many.
bool Evaluator::touch_elements(const Expr& e, const Value& pointer, const Value* mask, std::int32_t param,
                               bool read, bool write) {
    const auto p = static_cast<std::size_t>(param);
    if (dense_kept_ > kMostKept) forget_dense();
    Shape shape = shape_of(pointer);
    if (mask != nullptr) {
        const auto both = broadcast(shape, shape_of(*mask));
        if (!both) return false;
        shape = *both;
    }
    std::vector<std::int64_t> offsets, holds;
    // On a line the pointers of each program may be those of the one before, moved as a whole.
    Value still = pointer;
    std::int64_t shift = 0;
    if (on_line() && outside_loops() && is_block(pointer)) {
        Block* block = arena_.make<Block>();
        *block = *pointer.block;
        shift = block->base.slope[0];
        block->base.slope[0] = 0;
        still.block = block;
    }
    Known known = fill(still, shape, offsets);
    if (known == Known::yes && mask != nullptr) known = fill(*mask, shape, holds);
    if (known == Known::moves) {
        not_affine_ = true;
        return true;
    }
    if (known == Known::overflow) {
        const auto stated = (!read || override_read_[p]) && (!write || override_write_[p]);
        if (!stated) (void)miss(e.where, overflowed_, {}, param, read, write);
        return true;
    }
    if (known != Known::yes) return false;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (mask == nullptr || holds[i] != 0) offsets[kept++] = offsets[i];
    }
    offsets.resize(kept);
    if (shift != 0) {
        touch_moving_elements(param, std::move(offsets), shift, read, write);
        return true;
    }
    if (read && !symbol_loops_.empty() && symbol_loops_.back() >= 0)
        advances_.push_back({symbol_loops_.back(), {param, Advance{}}});
    boxes_.clear();
    const bool leaves = boxes_of_offsets(tensors[p], offsets, boxes_);
    note_boxes(param, read, write, maybe_ == 0, leaves, note_walk(walked_, walk_symbol(), Advance{}));
    return true;
}

void Evaluator::forget_dense() {
    dense_.clear();
    dense_kept_ = 0;
    ++dense_round_;
}

}  // namespace syncopate::kernel::triton

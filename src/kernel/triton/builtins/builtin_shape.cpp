// Builtins that change the axes, the order or the number of a block's elements, and those that make numbers
// of known elements: exact where the elements are known, unknown for data.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {
namespace {

using What = Lazy::What;

}  // namespace

/// Axis j of the result is axis axes[j] of the value; -1: a new one of extent 1.
Value Evaluator::permuted(const Expr& e, const Value& value, std::span<const std::int32_t> axes) {
    if (axes.size() > kRank) return fail(e.where, "blocks of more than 5 axes are not supported");
    Value made = value;
    const auto rank = static_cast<std::int32_t>(axes.size());
    Lazy* lazy = nullptr;
    const bool needs_form =
        value.kind == ValueKind::lazy || (value.kind == ValueKind::mask && value.mask->form != nullptr);
    if (needs_form) {
        const Shape from = shape_of(value);
        Shape shape;
        shape.rank = rank;
        for (std::int32_t j = 0; j < rank; ++j)
            shape.extents[j] =
                axes[static_cast<std::size_t>(j)] < 0 ? 1 : from.extents[axes[static_cast<std::size_t>(j)]];
        lazy = new_lazy(e, What::permute, {&value, 1}, shape);
        for (std::int32_t j = 0; j < rank; ++j) lazy->axes[j] = axes[static_cast<std::size_t>(j)];
        if (value.kind == ValueKind::lazy) lazy->param = value.lazy->param;
    }
    if (value.kind == ValueKind::lazy) {
        made.lazy = lazy;
        return made;
    }
    if (value.kind == ValueKind::mask) {
        Mask* mask = arena_.make<Mask>();
        *mask = *value.mask;
        for (std::int32_t j = 0; j < rank; ++j) {
            const std::int32_t from = axes[static_cast<std::size_t>(j)];
            mask->axes[j] = from < 0 ? MaskAxis{} : value.mask->axes[from];
        }
        mask->rank = rank;
        mask->form = lazy;
        made.mask = mask;
        return made;
    }
    const Block* from = as_block(value);
    if (from == nullptr) return opaque(value.kind == ValueKind::opaque ? *value.why : e, value.taint);
    Block* block = arena_.make<Block>();
    block->param = from->param;
    block->base = from->base;
    block->rank = rank;
    for (std::int32_t j = 0; j < rank; ++j) {
        const std::int32_t axis = axes[static_cast<std::size_t>(j)];
        if (axis >= 0) block->axes[j] = from->axes[axis];
    }
    made.kind = from->param >= 0 ? ValueKind::pointer : ValueKind::block;
    made.block = block;
    return made;
}

Value Evaluator::reshaped(const Expr& e, const Value& value, const Shape& shape) {
    if (!is_known(value)) return opaque(value.kind == ValueKind::opaque ? *value.why : e, value.taint);
    const Shape from = shape_of(value);
    if (from == shape) return value;
    if (from.size() != shape.size())
        return fail(e.where, quoted(module_, e.where) + " changes the number of elements");
    // Axes of extent 1 come and go; all others stay as they are.
    std::vector<std::int32_t> axes;
    std::int32_t next = 0;
    const auto skip = [&] {
        while (next < from.rank && from.extents[next] == 1) ++next;
    };
    bool same = true;
    for (std::int32_t j = 0; j < shape.rank && same; ++j) {
        skip();
        if (shape.extents[j] == 1) {
            axes.push_back(-1);
        } else if (next < from.rank && from.extents[next] == shape.extents[j]) {
            axes.push_back(next++);
        } else {
            same = false;
        }
    }
    const bool drops = is_block(value) && [&] {  // an axis of extent 1 may hold an element that is not zero
        for (std::int32_t j = 0; j < from.rank; ++j)
            if (from.extents[j] == 1 && value.block->axes[j].count > 0) return true;
        return false;
    }();
    const bool bounds =
        value.kind == ValueKind::mask && std::any_of(from.extents.begin(), from.extents.begin() + from.rank,
                                                     [](std::int64_t x) { return x == 1; });
    if (same && !drops && !bounds) return permuted(e, value, axes);
    Lazy* lazy = new_lazy(e, What::reshape, {&value, 1}, shape);
    if (value.kind == ValueKind::lazy) lazy->param = value.lazy->param;
    if (value.kind == ValueKind::pointer) lazy->param = value.block->param;
    Value made = from_lazy(lazy);
    if (value.kind != ValueKind::mask) return made;
    const Value zero = make_integer(0, false, 0);
    return lazily(e, What::comparison, Operator::not_equal, {made, zero});
}

/// nullopt: `e` is none of these, or its operands are data.
std::optional<Value> Evaluator::shape_builtin(const Expr& e, std::span<const Value> arguments, Frame& frame) {
    enum class Job : std::uint8_t {
        reshape,
        ravel,
        permute,
        flip,
        join,
        split,
        cat,
        interleave,
        gather,
        sum,
        lowest,
        highest,
        running,
        broadcast,
        clamp
    };
    static const std::unordered_map<std::string_view, Job> table{
        {"reshape", Job::reshape}, {"view", Job::reshape},
        {"ravel", Job::ravel},     {"trans", Job::permute},
        {"permute", Job::permute}, {"flip", Job::flip},
        {"join", Job::join},       {"split", Job::split},
        {"cat", Job::cat},         {"interleave", Job::interleave},
        {"gather", Job::gather},   {"sum", Job::sum},
        {"min", Job::lowest},      {"max", Job::highest},
        {"cumsum", Job::running},  {"broadcast", Job::broadcast},
        {"clamp", Job::clamp}};
    const auto job = table.find(e.text);
    if (job == table.end() || arguments.empty()) return std::nullopt;
    const Value& x = arguments[0];
    if (!is_known(x) || is_number(x)) {
        if (job->second != Job::clamp) return std::nullopt;
    }
    const Shape shape = shape_of(x);
    // Numbers that follow, as one tuple or one by one.
    const auto listed = [&](std::size_t from,
                            std::string_view keyword_name) -> std::optional<std::vector<std::int64_t>> {
        std::vector<std::int64_t> all;
        std::vector<Value> items(
            arguments.begin() + static_cast<std::ptrdiff_t>(std::min(from, arguments.size())),
            arguments.end());
        if (items.empty()) {
            const Value named = argument(e, {}, 0, keyword_name, frame);
            if (named.kind != ValueKind::undefined) items.push_back(named);
        }
        if (items.size() == 1 && items[0].kind == ValueKind::tuple)
            items.assign(items[0].tuple->items, items[0].tuple->items + items[0].tuple->size);
        for (const Value& item : items) {
            if (item.kind == ValueKind::boolean) continue;  // can_reorder
            if (item.kind != ValueKind::integer) return std::nullopt;
            all.push_back(item.integer);
        }
        if (all.size() > kRank) return std::nullopt;
        return all;
    };
    const auto axis_of = [&](std::size_t index, std::string_view name,
                             std::int32_t otherwise) -> std::optional<std::int32_t> {
        const Value v = argument(e, arguments, index, name, frame);
        if (v.kind == ValueKind::undefined || v.kind == ValueKind::none) return otherwise;
        if (v.kind != ValueKind::integer) return std::nullopt;
        const std::int64_t axis = v.integer < 0 ? v.integer + shape.rank : v.integer;
        if (axis < 0 || axis >= shape.rank) return std::nullopt;
        return static_cast<std::int32_t>(axis);
    };
    const auto made = [&](What what, std::span<const Value> from, const Shape& result, std::int32_t axis) {
        Lazy* lazy = new_lazy(e, what, from, result);
        lazy->axis = axis;
        return from_lazy(lazy);
    };
    switch (job->second) {
        case Job::reshape:
        case Job::ravel: {
            const Expr* reorder = keyword(e, "can_reorder");
            if (reorder != nullptr || e.text == "view") {
                const bool fixed = reorder == nullptr ? false
                                                      : reorder->kind == ExprKind::literal &&
                                                            std::holds_alternative<bool>(reorder->literal) &&
                                                            !std::get<bool>(reorder->literal);
                if (!fixed && e.text != "view") return std::nullopt;
            }
            Shape wanted;
            if (job->second == Job::ravel) {
                wanted.rank = 1;
                wanted.extents[0] = shape.size();
            } else {
                const auto extents = listed(1, "shape");
                if (!extents || extents->empty()) return std::nullopt;
                wanted.rank = static_cast<std::int32_t>(extents->size());
                std::copy(extents->begin(), extents->end(), wanted.extents.begin());
            }
            return reshaped(e, x, wanted);
        }
        case Job::permute: {
            const auto axes = listed(1, "dims");
            if (!axes) return std::nullopt;
            std::vector<std::int32_t> order;
            for (const std::int64_t axis : *axes) {
                const std::int64_t at = axis < 0 ? axis + shape.rank : axis;
                if (at < 0 || at >= shape.rank || std::count(order.begin(), order.end(), at) > 0)
                    return std::nullopt;
                order.push_back(static_cast<std::int32_t>(at));
            }
            if (order.empty()) {  // the last two axes exchanged
                for (std::int32_t j = 0; j < shape.rank; ++j) order.push_back(j);
                if (shape.rank > 1) std::swap(order[order.size() - 1], order[order.size() - 2]);
            }
            if (static_cast<std::int32_t>(order.size()) != shape.rank) return std::nullopt;
            return permuted(e, x, order);
        }
        case Job::flip: {
            const auto axis = axis_of(1, "dim", shape.rank - 1);
            if (!axis) return std::nullopt;
            return made(What::flip, {&x, 1}, shape, *axis);
        }
        case Job::running: {
            const auto axis = axis_of(1, "axis", 0);
            if (!axis || keyword(e, "reverse") != nullptr) return std::nullopt;
            return made(What::running, {&x, 1}, shape, *axis);
        }
        case Job::split: {
            if (shape.rank < 1 || shape.extents[shape.rank - 1] != 2) return std::nullopt;
            Shape half = shape;
            --half.rank;
            half.extents[half.rank] = 0;
            const std::array<Value, 2> parts{made(What::split, {&x, 1}, half, 0),
                                             made(What::split, {&x, 1}, half, 1)};
            return make_tuple(parts);
        }
        case Job::join:
        case Job::interleave:
        case Job::cat: {
            if (arguments.size() < 2 || !is_known(arguments[1]) || !(shape_of(arguments[1]) == shape))
                return std::nullopt;
            if (job->second == Job::cat && (shape.rank != 1 || keyword(e, "can_reorder") != nullptr))
                return std::nullopt;
            Shape wanted = shape;
            if (job->second == Job::join) {
                if (wanted.rank >= kRank) return std::nullopt;
                wanted.extents[wanted.rank++] = 2;
            } else {
                if (shape.rank < 1) return std::nullopt;
                wanted.extents[wanted.rank - 1] *= 2;
            }
            const What what = job->second == Job::join  ? What::join
                              : job->second == Job::cat ? What::cat
                                                        : What::interleave;
            return made(what, arguments.first(2), wanted, -1);
        }
        case Job::gather: {
            if (arguments.size() < 2 || !is_known(arguments[1])) return std::nullopt;
            const auto axis = axis_of(2, "axis", 0);
            if (!axis || shape_of(arguments[1]).rank != shape.rank) return std::nullopt;
            return made(What::gather, arguments.first(2), shape_of(arguments[1]), *axis);
        }
        case Job::sum:
        case Job::lowest:
        case Job::highest: {
            if (arguments.size() > 1 && arguments[1].kind != ValueKind::integer &&
                arguments[1].kind != ValueKind::none)
                return std::nullopt;
            const auto axis = axis_of(1, "axis", -1);
            if (!axis || keyword(e, "return_indices") != nullptr || keyword(e, "keep_dims") != nullptr)
                return std::nullopt;
            Shape left;
            for (std::int32_t j = 0; j < shape.rank; ++j) {
                if (*axis >= 0 && j != *axis) left.extents[left.rank++] = shape.extents[j];
            }
            const What what = job->second == Job::sum      ? What::sum
                              : job->second == Job::lowest ? What::lowest
                                                           : What::highest;
            return made(what, {&x, 1}, left, *axis);
        }
        case Job::broadcast: {
            if (arguments.size() != 2 || !is_known(arguments[1])) return std::nullopt;
            const auto both = broadcast(shape, shape_of(arguments[1]));
            if (!both) return std::nullopt;
            std::array<Value, 2> stretched{};
            for (std::size_t i = 0; i < 2; ++i) {
                if (!is_block(arguments[i])) return std::nullopt;
                Block* zero = arena_.make<Block>();
                zero->rank = both->rank;
                for (std::int32_t j = 0; j < both->rank; ++j) zero->axes[j].extent = both->extents[j];
                Value shaped;
                shaped.kind = ValueKind::block;
                shaped.block = zero;
                stretched[i] = add(e, arguments[i], shaped, 1);
            }
            return make_tuple(stretched);
        }
        case Job::clamp: {
            if (arguments.size() < 3 || !is_known(x) || !is_known(arguments[1]) || !is_known(arguments[2]))
                return std::nullopt;
            const Value high = extreme(e, false, x, arguments[2]);
            return stopped() ? Value{} : extreme(e, true, high, arguments[1]);
        }
    }
    return std::nullopt;
}

}  // namespace syncopate::kernel::triton

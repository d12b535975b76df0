// Expressions: what a name, a literal, an attribute or a subscript stands for, and in which order operands
// are evaluated. Arithmetic and calls are done beside this file, in operators*.cpp and calls*.cpp.
#include <algorithm>
#include <map>
#include <string>

#include "kernel/triton/analyse/item_name.hpp"
#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::kernel::triton {

const Chooser* Evaluator::is_chosen(const std::string& parameter) const {
    const Chooser* some = nullptr;  // one whose configurations are made elsewhere
    for (const Chooser& chooser : kernel_.choosers) {
        bool lists = false;
        for (const auto& [name, value] : chooser.values) {
            if (name == parameter) return &chooser;
            lists = lists || !value.empty();
        }
        if (!lists && chooser.name.ends_with("autotune")) some = &chooser;
    }
    const auto declared = std::find_if(kernel_.parameters.begin(), kernel_.parameters.end(),
                                       [&](const Parameter& p) { return p.name == parameter; });
    return declared != kernel_.parameters.end() && declared->constant ? some : nullptr;
}

/// ", since @triton.autotune on line 8 chooses it (16, 32)"; empty where nothing does.
std::string Evaluator::who_chooses(const std::string& parameter) const {
    const Chooser* chooser = is_chosen(parameter);
    if (chooser == nullptr) return {};
    std::vector<std::string> values;
    for (const auto& [name, value] : chooser->values) {
        const bool is_new = std::find(values.begin(), values.end(), value) == values.end();
        if (name == parameter && !value.empty() && is_new) values.push_back(value);
    }
    std::string list;
    for (const std::string& value : values) list += (list.empty() ? " (" : ", ") + value;
    return ", since @" + chooser->name + " on line " + std::to_string(chooser->line) + " chooses it" +
           (list.empty() ? "" : list + ")");
}

Value Evaluator::name(const Expr& e, Frame& frame) {
    if (e.slot < 0) {
        Value made = opaque(e, 0);
        if (e.function >= 0) {
            made.kind = ValueKind::function;
            made.runtime = false;
            made.integer = e.function;
            return made;
        }
        if (e.global != nullptr) {
            if (calls_ >= kDeepestCalls)
                return fail(e.where, "what " + quoted(module_, e.where) +
                                         " is assigned leads back to itself: assign a value that does not");
            Frame top;  // of no function: an expression of the file has no variables
            ++calls_;
            made = evaluate(*e.global, top);
            --calls_;
            return made;
        }
        if (e.undecided)
            return opaque(e, 0, "whose value only running the file tells: bind it once, at the top level");
        if (e.unbound) {
            const std::string meant =
                frame.function == nullptr ? std::string() : did_you_mean(e.text, frame.function->slots);
            return fail(e.where, "`" + e.text +
                                     "` is neither a variable of the kernel nor a constant of the file" +
                                     (meant.empty() ? "; assign it in the file, as in " + e.text +
                                                          " = tl.constexpr(…), or make it a parameter"
                                                    : meant));
        }
        return made;
    }
    const Value& value = frame.slots[e.slot];
    if (value.kind == ValueKind::undefined && in_tile_loop_ && frame.is_kernel) {
        (void)refuse_tiles(found.tile_loop->where, "it carries `" + e.text + "` from one round to the next");
        return {};
    }
    if (value.kind == ValueKind::undefined)
        return fail(e.where,
                    "`" + e.text + "` is used before it has a value: assign it on every way to this line");
    if (value.kind == ValueKind::missing) {
        const std::string& parameter = kernel_.parameters[at(value.integer)].name;
        return fail(e.where,
                    "parameter `" + parameter + "` has no value" + who_chooses(parameter) + ": give --args " +
                        parameter + "=…" +
                        (is_chosen(parameter) ? " as the launch has it"
                                              : " (or --tensor " + parameter + "=… if it is a tensor)"));
    }
    if (in_tile_loop_ && found.own_id == nullptr && own_ids_.contains(&e)) found.own_id = &e;
    if (e.source >= 0 && !by_program && sources[at(e.source)].kind == TaintSource::Kind::carried_id) {
        Value made = value;
        TaintSource& source = sources[at(e.source)];
        const bool is_id = on_line() ? value.kind == ValueKind::block && value.block->rank == 0 &&
                                           value.block->base == Affine{tile_id_, {line_stride_}}
                                     : value.kind == ValueKind::integer && value.integer == tile_id_;
        if (!is_id) source.is_tile_id = false;
        const std::uint64_t bit = std::uint64_t{1} << std::min(e.source, 63);
        taken_ |= bit;
        made.taint = (value.taint & ~program_bits_) | bit;
        return made;
    }
    return value;
}

Value Evaluator::evaluate(const Expr& e, Frame& frame) {
    if (error_ || !step(e.where)) return {};
    constexpr std::int32_t kDeepest = 1000;  // what a thread's stack surely holds
    if (depth_ >= kDeepest) {
        return fail(e.where, "the expressions around here are nested more than " + std::to_string(kDeepest) +
                                 " levels deep: assign parts of them to variables");
    }
    ++depth_;
    const Value made = evaluate_at_depth(e, frame);
    --depth_;
    return made;
}

Value Evaluator::evaluate_at_depth(const Expr& e, Frame& frame) {
    switch (e.kind) {
        case ExprKind::name: return name(e, frame);
        case ExprKind::literal: return literal(e);
        case ExprKind::tuple: return tuple(e, frame);
        case ExprKind::attribute: return attribute(e, frame);
        case ExprKind::call: return call(e, frame);
        case ExprKind::method: return method(e, frame);
        case ExprKind::subscript: return subscript(e, frame);
        case ExprKind::unary:
        case ExprKind::binary:
        case ExprKind::compare: return operation(e, frame);
        case ExprKind::both:
        case ExprKind::either: return logical(e, frame);
        case ExprKind::invert: return inverted(e, frame);
        case ExprKind::conditional: return conditional(e, frame);
        case ExprKind::bind: {
            const Value a = evaluate(*e.kids[0], frame);
            if (!stopped() && e.slot >= 0) frame.slots[e.slot] = a;
            return a;
        }
        case ExprKind::each: return each(e, frame);
        case ExprKind::unsupported: return unknown_syntax(e, frame);
        case ExprKind::splat:
        case ExprKind::slice: return opaque(e, 0);
    }
    return {};
}

Value Evaluator::literal(const Expr& e) {
    Value made;
    if (const auto* i = std::get_if<std::int64_t>(&e.literal))
        made.kind = ValueKind::integer, made.integer = *i;
    else if (const auto* b = std::get_if<bool>(&e.literal))
        made.kind = ValueKind::boolean, made.boolean = *b;
    else if (const auto* r = std::get_if<double>(&e.literal))
        made.kind = ValueKind::real, made.real = *r;
    else if (const auto* t = std::get_if<std::string>(&e.literal))
        made.kind = ValueKind::text, made.text = t;
    else
        made.kind = ValueKind::none;
    return made;
}

/// An operator on one or two values.
Value Evaluator::operation(const Expr& e, Frame& frame) {
    const Value a = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (e.kind == ExprKind::unary) return unary(e, a);
    const Value b = evaluate(*e.kids[1], frame);
    if (stopped()) return {};
    if (const bool first = is_no_count(a); frame.is_kernel && first != is_no_count(b))
        note_whole(*e.kids[first ? 0 : 1], first ? b : a);
    if (e.kind == ExprKind::compare) {
        const Value holds = compare(e, e.op, a, b);
        return holds.kind == ValueKind::opaque
                   ? described(holds, element_of(plan::DType::boolean), shape_of_both(a, b))
                   : holds;
    }
    if (e.axis >= 0 && silent_ == 0) note_coordinate(e, e.axis_side == 0 ? a : b);
    const Value made = binary(e, e.op, a, b);
    return e.is_count && !stopped() ? count(e, Value{}, b, made, frame) : made;
}

/// The product of a tile's coordinate `side` and the block size of its axis is being evaluated.
void Evaluator::note_coordinate(const Expr& e, const Value& side) {
    Coordinate& coord = coord_[at(e.axis)];
    if (side.kind == ValueKind::integer && coord.at < 0) coord = {side.integer, 0};
    if (on_line() && side.kind == ValueKind::block && side.block->rank == 0 && coord.at < 0) {
        const Affine& value = side.block->base;
        if (Affine{value.constant, {value.slope[0]}} == value) coord = {value.constant, value.slope[0]};
    }
}

/// `and` and `or`.
Value Evaluator::logical(const Expr& e, Frame& frame) {
    const Value a = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (a.kind == ValueKind::mask) {
        const Value b = evaluate(*e.kids[1], frame);
        return stopped() ? Value{} : masks_joined(e, a, b, e.kind == ExprKind::both);
    }
    Value b;
    const bool joined = !e.is_condition && a.runtime && is_real_or_number(a);
    if (joined) {
        // Triton leaves constants out of what it joins: `n and 3` is n there, and 3 in Python.
        b = evaluate(*e.kids[1], frame);
        if (stopped()) return {};
        const bool known = b.kind != ValueKind::opaque && b.kind != ValueKind::mask;
        if (known && (a.kind != ValueKind::boolean || b.kind != ValueKind::boolean))
            return opaque(e, a.taint | b.taint, "which Triton and Python compute differently: write an `if`");
    }
    const std::optional<bool> left = truth(*e.kids[0], a);
    if (stopped()) return {};
    if (left && *left == (e.kind == ExprKind::either)) return a;
    if (!joined) {
        maybe_ += left ? 0 : 1;  // Python leaves it out where data decides
        b = evaluate(*e.kids[1], frame);
        maybe_ -= left ? 0 : 1;
    }
    if (stopped()) return {};
    if (!left) {
        const std::optional<bool> right = truth(*e.kids[1], b);
        if (right && *right == (e.kind == ExprKind::either)) return b;
        return stopped() ? Value{} : opaque(e, a.taint | b.taint);
    }
    b.taint |= a.taint;
    b.runtime = b.runtime || a.runtime;
    return b;
}

Value Evaluator::inverted(const Expr& e, Frame& frame) {
    const Value a = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    const std::optional<bool> known = truth(*e.kids[0], a);
    if (stopped()) return {};
    if (a.kind == ValueKind::mask) return mask_inverted(e, a);
    if (!known) return opaque(e, a.taint);
    Value made = with(ValueKind::boolean, a, a);
    made.boolean = !*known;
    return made;
}

Value Evaluator::conditional(const Expr& e, Frame& frame) {
    const Value condition = evaluate(*e.kids[1], frame);
    if (stopped()) return {};
    const std::optional<bool> known = truth(*e.kids[1], condition);
    if (stopped()) return {};
    if (known) {
        Value made = evaluate(*e.kids[*known ? 0 : 2], frame);
        if (condition.runtime) made = as_variable(made);
        made.taint |= condition.taint;
        return made;
    }
    // As a branch: which of the two is made depends on loaded data.
    const Value* before = snapshot(frame);
    ++maybe_;
    const std::size_t first = found.touched.size();
    const Value a = evaluate(*e.kids[0], frame);
    const Value* after = snapshot(frame);
    const std::size_t second = found.touched.size();
    std::copy_n(before, frame.num_slots(), frame.slots);
    const Value b = evaluate(*e.kids[2], frame);
    --maybe_;
    if (stopped()) return {};
    settle(first, second);
    join(frame, after, *e.kids[1]);
    return equal(a, b) && a.kind != ValueKind::opaque ? a : opaque(e, a.taint | b.taint | condition.taint);
}

Value Evaluator::make_tuple(std::span<const Value> items) {
    Tuple* tuple = arena_.make<Tuple>();
    tuple->size = static_cast<std::int32_t>(items.size());
    tuple->items = arena_.make<Value>(items.size());
    std::copy(items.begin(), items.end(), tuple->items);
    Value made;
    made.kind = ValueKind::tuple;
    made.tuple = tuple;
    return made;
}

Value Evaluator::tuple(const Expr& e, Frame& frame) {
    std::vector<Value> items;
    items.reserve(e.kids.size());
    for (const Expr* kid : e.kids) {
        const Value item = evaluate(kid->kind == ExprKind::splat ? *kid->kids[0] : *kid, frame);
        if (stopped()) return {};
        if (kid->kind != ExprKind::splat)
            items.push_back(item);
        else if (item.kind == ValueKind::tuple)
            items.insert(items.end(), item.tuple->items, item.tuple->items + item.tuple->size);
        else
            return unknown_syntax(*kid, frame);
        if (kid->kind == ExprKind::splat && !fits_a_tuple(e, items)) return {};
    }
    if (!fits_a_tuple(e, items)) return {};
    return make_tuple(items);
}

Value Evaluator::each(const Expr& e, Frame& frame) {
    const Value over = evaluate(*e.kids[2], frame);
    if (stopped()) return {};
    std::vector<Value> items;
    constexpr std::int64_t kMost = 1024;
    const bool counts = over.kind == ValueKind::iterable && over.iterable->known &&
                        over.iterable->start.is_constant() && over.iterable->stop.is_constant();
    if (over.kind == ValueKind::tuple) {
        items.assign(over.tuple->items, over.tuple->items + over.tuple->size);
    } else if (counts) {
        const Iterable& range = *over.iterable;
        for (std::int64_t i = range.start.constant;
             range.step > 0 ? i < range.stop.constant : i > range.stop.constant;
             i = wrap_add(i, range.step)) {
            if (static_cast<std::int64_t>(items.size()) >= kMost)
                return fail(e.where, quoted(module_, e.where) + " is too long: make it at most 1024 items");
            items.push_back(make_integer(i, false, over.taint));
        }
    } else {
        return unknown_syntax(e, frame);
    }
    const Value* before = snapshot(frame);
    for (Value& item : items) {
        assign(*e.kids[1], item, frame);
        if (stopped()) return {};
        item = evaluate(*e.kids[0], frame);
        if (stopped()) return {};
    }
    // Python gives its names back after it, and Triton does not.
    join(frame, before, e);
    if (!fits_a_tuple(e, items)) return {};
    return make_tuple(items);
}

/// Syntax that is not understood. Its value is unknown; it must not be able to touch memory.
Value Evaluator::unknown_syntax(const Expr& e, Frame& frame) {
    for (const Expr* part : flattened(const_cast<Expr*>(&e))) {
        const bool calls = part->kind == ExprKind::call || part->kind == ExprKind::method;
        const bool names_memory =
            part->kind == ExprKind::name && part->slot >= 0 && param_of(frame.slots[part->slot]) >= 0;
        const bool touches = calls && (part->builtin == Builtin::helper || part->builtin == Builtin::load ||
                                       part->builtin == Builtin::store || part->builtin == Builtin::atomic ||
                                       part->builtin == Builtin::descriptor_load ||
                                       part->builtin == Builtin::descriptor_store);
        if (names_memory || touches)
            return fail(e.where,
                        "this is not understood, and could touch memory: " + quoted(module_, e.where));
    }
    return opaque(e, 0);
}

std::optional<bool> Evaluator::truth(const Expr& e, const Value& value) {
    switch (value.kind) {
        case ValueKind::boolean: return value.boolean;
        case ValueKind::integer: return value.integer != 0;
        case ValueKind::real:
        case ValueKind::between: return compared(Operator::not_equal, interval_of(value), {0, 0});
        case ValueKind::none: return false;
        case ValueKind::text: return !value.text->empty();
        case ValueKind::tuple: return value.tuple->size != 0;
        case ValueKind::descriptor:
        case ValueKind::block_pointer: return true;
        case ValueKind::pointer: return true;
        case ValueKind::block:
            if (value.block->rank == 0) {
                const std::int64_t low = lowest_highest(value.block->base, false).constant;
                const std::int64_t high = lowest_highest(value.block->base, true).constant;
                if (low > 0 || high < 0) return true;
            }
            (void)not_affine(e);
            return std::nullopt;
        default: not_affine_ = not_affine_ || is_lost_on_line(value); return std::nullopt;
    }
}

Value Evaluator::attribute(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (e.text == "value") return object;
    if (e.text == "T") return transposed(e, object);
    if (const auto made = type_attribute(e, object)) return *made;
    return opaque(object.kind == ValueKind::opaque ? *object.why : e, object.taint);
}

/// t[begin:end:step] of a tuple.
Value Evaluator::tuple_slice(const Expr& e, const Value& object, Frame& frame) {
    const std::int64_t size = object.tuple->size;
    std::array<std::optional<std::int64_t>, 3> given;
    for (std::size_t i = 0; i < 3; ++i) {
        if (e.kids[1]->kids[i] == nullptr) continue;
        const Value part = evaluate(*e.kids[1]->kids[i], frame);
        if (stopped()) return {};
        if (part.kind == ValueKind::none) continue;
        if (part.kind != ValueKind::integer) return opaque(e, object.taint | part.taint);
        given[i] = part.integer;
    }
    const std::int64_t by = given[2].value_or(1);
    if (by == 0) return fail(e.where, quoted(module_, e.where) + " has a step of zero");
    const auto place = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
        if (!at) return otherwise;
        return std::clamp<std::int64_t>(*at < 0 ? wrap_add(*at, size) : *at, by > 0 ? 0 : -1,
                                        by > 0 ? size : size - 1);
    };
    const std::int64_t begin = place(given[0], by > 0 ? 0 : size - 1),
                       end = place(given[1], by > 0 ? size : -1);
    std::vector<Value> items;
    for (std::int64_t i = begin; by > 0 ? i < end : i > end; i = wrap_add(i, by))
        items.push_back(object.tuple->items[i]);
    Value made = make_tuple(items);
    made.taint = object.taint;
    return made;
}

Value Evaluator::subscript(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (object.kind == ValueKind::tuple) {
        if (e.kids.size() == 2 && e.kids[1]->kind == ExprKind::slice) return tuple_slice(e, object, frame);
        if (e.kids.size() != 2) return opaque(e, object.taint);
        const Value index = evaluate(*e.kids[1], frame);
        if (stopped()) return {};
        // Each iteration of the loop around may take an item of its own.
        if (is_block(index) && !trips_.empty()) return not_affine(e);
        if (index.kind != ValueKind::integer) return opaque(e, object.taint | index.taint);
        const std::int64_t size = object.tuple->size;
        const std::int64_t at = index.integer < 0 ? index.integer + size : index.integer;
        if (at < 0 || at >= size)
            return fail(e.where, quoted(module_, e.where) + " is out of range: the tuple has " +
                                     std::to_string(size) + " items");
        Value made = object.tuple->items[at];
        made.taint |= object.taint;
        return made;
    }
    if (object.kind == ValueKind::block || object.kind == ValueKind::pointer ||
        object.kind == ValueKind::lazy || object.kind == ValueKind::mask ||
        object.kind == ValueKind::integer || (object.kind == ValueKind::opaque && object.extents != 0)) {
        std::array<bool, kRank> is_new{};
        if (e.kids.size() - 1 > kRank)
            return fail(e.where, "blocks of more than 5 axes are not supported: write fewer indices");
        for (std::size_t i = 1; i < e.kids.size(); ++i) {
            const Expr& index = *e.kids[i];
            const bool whole = index.kind == ExprKind::slice && index.kids[0] == nullptr &&
                               index.kids[1] == nullptr && index.kids[2] == nullptr;
            const bool none =
                index.kind == ExprKind::literal && std::holds_alternative<NoneValue>(index.literal);
            if (!whole && !none && object.kind == ValueKind::pointer && object.block->rank == 0) {
                const std::string item = item_of(name_of(object.block->param), 0);
                return fail(e.where, quoted(module_, e.where) + " takes an item of a pointer: if `" +
                                         name_of(object.block->param) +
                                         "` is a tuple, give its tensors, as in --tensor " + item +
                                         "=512x256:bf16");
            }
            if (!whole && !none) return opaque(e, object.taint);
            is_new[i - 1] = none;
        }
        // x[None] of a block with axes: they follow.
        std::size_t rank = e.kids.size() - 1;
        const auto olds = static_cast<std::int32_t>(std::count(is_new.begin(), is_new.begin() + rank, false));
        for (std::int32_t more = known_rank(object) - olds; more > 0 && rank < kRank; --more) ++rank;
        return expanded(e, object, {is_new.data(), rank});
    }
    if (object.kind == ValueKind::lost_pointer) return object;
    const Value made = opaque(object.kind == ValueKind::opaque ? *object.why : e, object.taint);
    return described(made, object.element, std::nullopt);
}

}  // namespace syncopate::kernel::triton

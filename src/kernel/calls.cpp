// Builtins of triton.language, helper functions, and memory: the places where footprints arise.
#include <algorithm>
#include <cstdlib>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {
namespace {

constexpr std::int32_t kDeepestCalls = 32;
constexpr std::int64_t kLargestBlock = std::int64_t{1} << 24;

Value make_integer(std::int64_t value, bool runtime, std::uint64_t taint) {
    Value made;
    made.kind = ValueKind::integer;
    made.runtime = runtime;
    made.taint = taint;
    made.integer = value;
    return made;
}

}  // namespace

std::uint64_t Evaluator::taint_of(const Value& value) {
    std::uint64_t taint = value.taint;
    if (value.kind == ValueKind::tuple) {
        for (std::int32_t i = 0; i < value.tuple->size; ++i) taint |= taint_of(value.tuple->items[i]);
    }
    return taint;
}

const Expr* Evaluator::keyword(const Expr& e, std::string_view name) const {
    for (const auto& [key, value] : e.keywords) {
        if (key == name) return value;
    }
    return nullptr;
}

Value Evaluator::argument(const Expr& e, std::span<const Value> arguments, std::size_t index,
                          std::string_view name, Frame& frame) {
    if (index < arguments.size()) return arguments[index];
    const Expr* named = keyword(e, name);
    return named != nullptr ? evaluate(*named, frame) : Value{};
}

/// The numbers of a tuple (or one number), each affine in the iteration; false when one is not known.
bool Evaluator::numbers(const Value& value, std::array<Affine, kRank>& out, std::int32_t& count) const {
    const auto one = [](const Value& v, Affine& number) {
        if (v.kind == ValueKind::integer) return number = {v.integer, {}}, true;
        if (v.kind == ValueKind::block && v.block->rank == 0) return number = v.block->base, true;
        return false;
    };
    count = 1;
    if (value.kind != ValueKind::tuple) return one(value, out[0]);
    count = value.tuple->size;
    if (count > kRank) return false;
    for (std::int32_t i = 0; i < count; ++i) {
        if (!one(value.tuple->items[i], out[static_cast<std::size_t>(i)])) return false;
    }
    return true;
}

Value Evaluator::call(const Expr& e, Frame& frame) {
    std::array<Value, 16> small;
    std::vector<Value> large;
    if (e.kids.size() > small.size()) large.resize(e.kids.size());
    const std::span<Value> arguments =
        large.empty() ? std::span<Value>(small.data(), e.kids.size()) : std::span<Value>(large);
    for (std::size_t i = 0; i < e.kids.size(); ++i) {
        arguments[i] = evaluate(*e.kids[i], frame);
        if (stopped()) return {};
    }
    if (e.builtin == Builtin::helper) {
        std::vector<Value> all(arguments.begin(), arguments.end());
        const Function& callee = module_.functions[static_cast<std::size_t>(e.function)];
        all.resize(std::max(all.size(), callee.parameters.size()));
        for (const auto& [key, expr] : e.keywords) {
            std::size_t p = 0;
            while (p < callee.parameters.size() && callee.parameters[p].name != key) ++p;
            if (p == callee.parameters.size())
                return fail(expr->where, "`" + callee.name + "` has no parameter `" + key + "`");
            all[p] = evaluate(*expr, frame);
            if (stopped()) return {};
        }
        return helper(e, all, frame);
    }
    return builtin(e, e.builtin, arguments, frame);
}

Value Evaluator::helper(const Expr& e, std::span<const Value> arguments, Frame& frame) {
    const Function& callee = module_.functions[static_cast<std::size_t>(e.function)];
    if (!callee.lowered) return fail(e.where, "`" + callee.name + "` cannot be followed");
    if (arguments.size() > callee.parameters.size())
        return fail(e.where, "too many arguments for `" + callee.name + "`");
    if (calls_ >= kDeepestCalls)
        return fail(e.where, "calls nested more than 32 deep at " + quoted(module_, e.where));
    const std::size_t base = stack_used_;
    if (base + callee.slots.size() > stack_.size())
        return fail(e.where, "too many variables in the calls around here");
    stack_used_ += callee.slots.size();
    ++calls_;
    Frame inner;
    inner.function = &callee;
    inner.slots = stack_.data() + base;
    inner.result.kind = ValueKind::none;
    std::fill_n(inner.slots, callee.slots.size(), Value{});
    for (std::size_t p = 0; p < callee.parameters.size() && !stopped(); ++p) {
        if (p < arguments.size() && arguments[p].kind != ValueKind::undefined)
            inner.slots[p] = arguments[p];
        else if (callee.parameters[p].fallback != nullptr)
            inner.slots[p] = evaluate(*callee.parameters[p].fallback, frame);
        else
            fail(e.where, "`" + callee.name + "` needs a value for `" + callee.parameters[p].name + "`");
    }
    if (!stopped()) (void)execute(callee.body, inner);
    stack_used_ = base;
    --calls_;
    return stopped() ? Value{} : inner.result;
}

Value Evaluator::method(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    const bool is_descriptor =
        object.kind == ValueKind::descriptor || object.kind == ValueKind::block_pointer;
    if (is_descriptor) {
        const bool reads = e.text == "load" || e.text == "gather",
                   writes = e.text == "store" || e.text == "scatter";
        const bool atomic = e.builtin == Builtin::atomic;
        if (reads || writes || atomic) {
            Value offsets =
                e.kids.size() > 1 ? evaluate(*e.kids[1], frame) : argument(e, {}, 0, "offsets", frame);
            for (std::size_t i = 2; i < e.kids.size() && !stopped(); ++i) (void)evaluate(*e.kids[i], frame);
            if (stopped()) return {};
            if (e.text == "gather" || e.text == "scatter") offsets = opaque(e, offsets.taint);
            return descriptor_access(e, object, &offsets, reads || atomic, writes || atomic);
        }
    }
    if ((e.text == "load" || e.text == "store") && object.kind == ValueKind::pointer &&
        object.block->rank == 0) {
        const std::string& name = kernel_.parameters[static_cast<std::size_t>(object.block->param)].name;
        return fail(e.where, "`" + name +
                                 "` is used as a tensor descriptor: give its block too, as in --tensor " +
                                 name + "=512x256:bf16@128x64");
    }
    std::vector<Value> arguments{object};
    for (std::size_t i = 1; i < e.kids.size(); ++i) {
        arguments.push_back(evaluate(*e.kids[i], frame));
        if (stopped()) return {};
    }
    switch (e.builtin) {
        case Builtin::cast:
        case Builtin::transpose:
        case Builtin::expand_dims:
        case Builtin::broadcast_to:
        case Builtin::advance: return builtin(e, e.builtin, arguments, frame);
        default: return builtin(e, Builtin::other, arguments, frame);
    }
}

Value Evaluator::count(const Expr& e, const Value& of, const Value& by, const Value& result, Frame& frame) {
    if (result.kind != ValueKind::integer || by.kind != ValueKind::integer ||
        (result.taint & ~count_bits_) != 0 || (of.taint & ~count_bits_) != 0) {
        return result;
    }
    Value made = result;
    const std::uint64_t bit = new_source(e, {.kind = TaintSource::Kind::count, .in_kernel = frame.is_kernel});
    TaintSource& source = sources[static_cast<std::size_t>(e.source)];
    source.count = result.integer;
    source.block = by.integer;
    made.taint |= bit;
    found.all_counts |= bit;
    return made;
}

Value Evaluator::builtin(const Expr& e, Builtin builtin, std::span<const Value> arguments, Frame& frame) {
    std::uint64_t taint = 0;
    bool runtime = false;
    for (const Value& v : arguments) taint |= taint_of(v), runtime = runtime || v.runtime;
    const auto tainted = [&](Value made) {
        made.taint = taint;
        made.runtime = runtime;
        return made;
    };
    const auto integer_argument = [&](std::size_t index, std::string_view name,
                                      std::int64_t fallback) -> std::optional<std::int64_t> {
        const Value v = argument(e, arguments, index, name, frame);
        if (stopped()) return std::nullopt;
        if (v.kind == ValueKind::undefined) return fallback;
        if (v.kind == ValueKind::integer) return v.integer;
        fail(e.where, "the arguments of " + quoted(module_, e.where) + " must be known whole numbers");
        return std::nullopt;
    };
    const auto extents_of = [&](const Value& shape, Block& block) {
        std::array<Affine, kRank> extents{};
        std::int32_t count = 0;
        if (!numbers(shape, extents, count)) return false;
        std::int64_t size = 1;
        for (std::int32_t j = 0; j < count; ++j) {
            const Affine& extent = extents[static_cast<std::size_t>(j)];
            if (!extent.is_constant() || extent.constant < 1 || extent.constant > kLargestBlock) return false;
            size *= extent.constant;
            if (size > kLargestBlock) return false;
            block.axes[static_cast<std::size_t>(j)].extent = extent.constant;
        }
        block.rank = count;
        return true;
    };
    switch (builtin) {
        case Builtin::program_id: {
            const auto axis = integer_argument(0, "axis", 0);
            if (!axis) return {};
            if (*axis < 0 || *axis > 2) return fail(e.where, "tl.program_id takes axis 0, 1 or 2");
            const std::uint64_t bit = new_source(e, {.kind = TaintSource::Kind::program_id,
                                                     .grid_axis = static_cast<std::int32_t>(*axis),
                                                     .in_kernel = frame.is_kernel});
            return make_integer(program_[static_cast<std::size_t>(*axis)], true, bit);
        }
        case Builtin::num_programs: {
            const auto axis = integer_argument(0, "axis", 0);
            if (!axis) return {};
            if (*axis < 0 || *axis > 2) return fail(e.where, "tl.num_programs takes axis 0, 1 or 2");
            grid_asked = true;
            const std::int64_t known = grid_[static_cast<std::size_t>(*axis)];
            return make_integer(known > 0 ? known : *axis == 0 ? arguments_.num_sms : 1, true, 0);
        }
        case Builtin::load:
        case Builtin::store:
        case Builtin::atomic: {
            const Value pointer = argument(e, arguments, 0, "pointer", frame);
            const bool is_load = builtin == Builtin::load, is_store = builtin == Builtin::store;
            if (pointer.kind == ValueKind::block_pointer) {
                return descriptor_access(e, pointer, nullptr, is_load, is_store);
            }
            const Value mask = argument(e, arguments,
                                        is_load                  ? 1
                                        : e.text == "atomic_cas" ? 9
                                                                 : 2,
                                        "mask", frame);
            for (const auto& [key, value] : e.keywords) {
                if (key == "other" || key == "value" || key == "val") (void)evaluate(*value, frame);
            }
            if (stopped()) return {};
            touch(e, pointer, mask.kind == ValueKind::undefined ? nullptr : &mask, !is_store, !is_load);
            return is_store ? tainted({}) : opaque(e, taint);
        }
        case Builtin::descriptor_load:
        case Builtin::descriptor_store: {
            if (arguments.size() < 2)
                return fail(e.where,
                            "a descriptor and its offsets are needed in " + quoted(module_, e.where));
            const bool is_load = builtin == Builtin::descriptor_load;
            return descriptor_access(e, arguments[0], &arguments[1], is_load, !is_load);
        }
        case Builtin::make_descriptor: return make_descriptor(e, arguments, frame, false);
        case Builtin::make_block_ptr: return make_descriptor(e, arguments, frame, true);
        case Builtin::advance: {
            const Value pointer = argument(e, arguments, 0, "base", frame);
            const Value by = argument(e, arguments, 1, "offsets", frame);
            std::array<Affine, kRank> offsets{};
            std::int32_t count = 0;
            if (stopped()) return {};
            if (pointer.kind != ValueKind::block_pointer) return opaque(e, taint);
            const auto param = static_cast<std::size_t>(pointer.descriptor->param);
            if (!numbers(by, offsets, count) || count != pointer.descriptor->rank) {
                if (override_read_[param] || override_write_[param]) return pointer;
                return fail(e.where,
                            quoted(module_, e.where) +
                                " advances by what cannot be known before the kernel runs; state the "
                                "footprint with `# @sy.reads " +
                                kernel_.parameters[param].name + "[…]`");
            }
            Descriptor* moved = arena_.make<Descriptor>();
            *moved = *pointer.descriptor;
            for (std::int32_t d = 0; d < count; ++d) moved->offsets[d] = moved->offsets[d] + offsets[d];
            Value made = tainted(pointer);
            made.descriptor = moved;
            return made;
        }
        case Builtin::arange: {
            const auto start = integer_argument(0, "start", 0), end = integer_argument(1, "end", 0);
            if (!start || !end) return {};
            if (*end <= *start || *start < -kLargestBlock || *end > kLargestBlock)
                return fail(e.where, quoted(module_, e.where) + " is an empty or too large range");
            Block* block = arena_.make<Block>();
            Piece* piece = arena_.make<Piece>();
            *piece = {0, *end - *start, {*start, {}}, 1};
            block->rank = 1;
            block->axes[0] = {*end - *start, piece, 1};
            Value made;
            made.kind = ValueKind::block;
            made.block = block;
            made = tainted(made);
            made.runtime = true;
            return made;
        }
        case Builtin::zeros:
        case Builtin::full: {
            const Value shape = argument(e, arguments, 0, "shape", frame);
            const Value value = builtin == Builtin::zeros ? make_integer(0, false, 0)
                                                          : argument(e, arguments, 1, "value", frame);
            if (stopped()) return {};
            Block* block = arena_.make<Block>();
            if (!extents_of(shape, *block) || value.kind != ValueKind::integer) return opaque(e, taint);
            block->base.constant = value.integer;
            Value made;
            made.kind = ValueKind::block;
            made.block = block;
            return tainted(made);
        }
        case Builtin::zeros_like: {
            if (arguments.empty() || arguments[0].kind != ValueKind::block) return opaque(e, taint);
            Block* block = arena_.make<Block>();
            block->rank = arguments[0].block->rank;
            for (std::int32_t j = 0; j < block->rank; ++j)
                block->axes[j].extent = arguments[0].block->axes[j].extent;
            Value made;
            made.kind = ValueKind::block;
            made.block = block;
            return tainted(made);
        }
        case Builtin::cdiv: {
            if (arguments.size() != 2) return opaque(e, taint);
            const Value& a = arguments[0];
            const Value& b = arguments[1];
            if (a.kind == ValueKind::integer && b.kind == ValueKind::integer) {
                if (b.integer == 0) {
                    arithmetic_error = true;
                    return fail(e.where, "division by zero in " + quoted(module_, e.where));
                }
                if (b.integer == -1) return opaque(e, taint);
                const std::int64_t up = wrap_add(wrap_add(a.integer, b.integer), -1);
                return count(e, a, b, tainted(make_integer(up / b.integer, runtime, taint)), frame);
            }
            if (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque) return opaque(e, taint);
            const Value up =
                binary(e, Operator::add, binary(e, Operator::add, a, b), make_integer(-1, false, 0));
            return stopped() ? Value{} : binary(e, Operator::floor_divide, up, b);
        }
        case Builtin::minimum:
        case Builtin::maximum: {
            if (arguments.size() < 2) return opaque(e, taint);  // tl.max(block): data
            // tl.max(x, axis) reduces, max(a, b) compares; a block with one known axis number is the former.
            if (arguments.size() == 2 && arguments[0].kind == ValueKind::opaque)
                return opaque(*arguments[0].why, taint);
            if (e.text == "min" || e.text == "max") {
                const bool blocks = std::any_of(arguments.begin(), arguments.end(), [](const Value& v) {
                    return v.kind == ValueKind::block && v.block->rank > 0;
                });
                if (blocks) return opaque(e, taint);
            }
            Value made = arguments[0];
            for (std::size_t i = 1; i < arguments.size() && !stopped(); ++i) {
                made = extreme(e, builtin == Builtin::maximum, made, arguments[i]);
            }
            return stopped() ? Value{} : made;
        }
        case Builtin::where: {
            if (arguments.size() != 3) return opaque(e, taint);
            return where(e, arguments[0], arguments[1], arguments[2]);
        }
        case Builtin::same: return arguments.empty() ? opaque(e, taint) : arguments[0];
        case Builtin::ignore: return {};
        case Builtin::static_assertion: {
            if (arguments.empty()) return {};
            const std::optional<bool> holds = truth(*e.kids[0], arguments[0]);
            if (!stopped() && holds && !*holds)
                return fail(e.where, "the kernel's own assertion fails for these arguments: " +
                                         quoted(module_, e.kids[0]->where));
            return {};
        }
        case Builtin::cast: {
            if (arguments.empty()) return opaque(e, taint);
            const Value type = argument(e, arguments, 1, "dtype", frame);
            if (stopped()) return {};
            const bool is_integer = type.kind == ValueKind::text &&
                                    (type.text->starts_with("int") || type.text->starts_with("uint"));
            const Value& value = arguments[0];
            if (is_integer && (value.kind == ValueKind::integer || value.kind == ValueKind::block ||
                               value.kind == ValueKind::mask))
                return value;
            if (is_integer && value.kind == ValueKind::boolean)
                return tainted(make_integer(value.boolean ? 1 : 0, runtime, taint));
            if (is_integer && value.kind == ValueKind::real && std::abs(value.real) < 9e15) {
                return tainted(make_integer(static_cast<std::int64_t>(value.real), runtime, taint));
            }
            if (value.kind == ValueKind::integer && type.kind == ValueKind::text &&
                (type.text->starts_with("fp") || *type.text == "bf16")) {
                Value made;
                made.kind = ValueKind::real;
                made.real = static_cast<double>(value.integer);
                return tainted(made);
            }
            if (value.kind == ValueKind::pointer || value.kind == ValueKind::lost_pointer) {
                LostPointer* lost = arena_.make<LostPointer>();
                lost->param = value.kind == ValueKind::pointer ? value.block->param : value.lost->param;
                lost->why = &e;
                Value made;
                made.kind = ValueKind::lost_pointer;
                made.lost = lost;
                return tainted(made);
            }
            return opaque(value.kind == ValueKind::opaque ? *value.why : e, taint);
        }
        case Builtin::transpose:
            if (arguments.size() == 1 || (arguments.size() == 3 && arguments[1].kind == ValueKind::integer &&
                                          arguments[1].integer == 1)) {
                return transposed(e, arguments[0]);
            }
            break;
        case Builtin::expand_dims: {
            const auto axis = integer_argument(1, "axis", 0);
            if (!axis) return {};
            if (arguments.empty()) return opaque(e, taint);
            std::int32_t rank = 0;
            if (arguments[0].kind == ValueKind::block || arguments[0].kind == ValueKind::pointer)
                rank = arguments[0].block->rank;
            if (arguments[0].kind == ValueKind::mask) rank = arguments[0].mask->rank;
            const std::int64_t at = *axis < 0 ? *axis + rank + 1 : *axis;
            if (at < 0 || at > rank || rank >= kRank) return opaque(e, taint);
            std::array<bool, kRank> is_new{};
            is_new[static_cast<std::size_t>(at)] = true;
            return expanded(e, arguments[0], {is_new.data(), static_cast<std::size_t>(rank) + 1});
        }
        case Builtin::broadcast_to: {
            Block* block = arena_.make<Block>();
            const Value shape = argument(e, arguments, 1, "shape", frame);
            if (stopped()) return {};
            if (arguments.empty() || arguments[0].kind != ValueKind::block || !extents_of(shape, *block))
                break;
            Value zero;
            zero.kind = ValueKind::block;
            zero.block = block;
            return stopped() ? Value{} : tainted(add(e, arguments[0], zero, 1));
        }
        case Builtin::swizzle2d: {
            for (std::size_t i = 0; i < 5; ++i) {
                if (i >= arguments.size() || arguments[i].kind != ValueKind::integer) return opaque(e, taint);
            }
            const std::int64_t i = arguments[0].integer, j = arguments[1].integer,
                               size_i = arguments[2].integer;
            const std::int64_t size_j = arguments[3].integer, size_g = arguments[4].integer;
            if (size_j <= 0 || size_g <= 0) return opaque(e, taint);
            constexpr std::int64_t kMost = std::int64_t{1} << 30;
            for (const std::int64_t x : {i, j, size_i, size_j, size_g}) {
                if (x < 0 || x > kMost) return opaque(e, taint);
            }
            const std::int64_t ij = i * size_j + j, size_gj = size_g * size_j, group = ij / size_gj,
                               off_i = group * size_g;
            const std::int64_t rows = std::min(size_i - off_i, size_g);
            if (rows <= 0) {
                arithmetic_error = true;
                return fail(e.where, "division by zero in " + quoted(module_, e.where));
            }
            const std::int64_t within = ij % size_gj;
            Tuple* tuple = arena_.make<Tuple>();
            tuple->size = 2;
            tuple->items = arena_.make<Value>(2);
            tuple->items[0] = make_integer(off_i + within % rows, true, taint);
            tuple->items[1] = make_integer(within / rows, true, taint);
            Value made;
            made.kind = ValueKind::tuple;
            made.tuple = tuple;
            return tainted(made);
        }
        case Builtin::range:
        case Builtin::static_range: {
            Iterable* range = arena_.make<Iterable>();
            range->unrolled = builtin == Builtin::static_range;
            std::array<Affine, 3> parts{Affine{0, {}}, Affine{0, {}}, Affine{1, {}}};
            std::array<Value, 3> given{};
            const std::size_t positional = arguments.size();
            if (positional == 1) given[1] = arguments[0];
            for (std::size_t i = 0; positional >= 2 && i < std::min<std::size_t>(3, positional); ++i)
                given[i] = arguments[i];
            const std::array<std::string_view, 3> names{"arg1", "arg2", "step"};
            for (std::size_t i = 0; i < 3; ++i) {
                if (given[i].kind == ValueKind::undefined && keyword(e, names[i]) != nullptr)
                    given[i] = evaluate(*keyword(e, names[i]), frame);
                if (stopped()) return {};
                std::array<Affine, kRank> number{};
                std::int32_t count = 0;
                if (given[i].kind == ValueKind::undefined) continue;
                if (given[i].kind == ValueKind::tuple || !numbers(given[i], number, count))
                    range->known = false;
                parts[i] = number[0];
                taint |= given[i].taint;
            }
            if (range->known &&
                (!parts[2].is_constant() || parts[2].constant == 0 || parts[2].constant == INT64_MIN)) {
                return parts[2].is_constant()
                           ? fail(e.where, "the step of " + quoted(module_, e.where) + " is zero")
                           : not_affine(e);
            }
            range->start = parts[0];
            range->stop = parts[1];
            range->step = parts[2].constant;
            Value made;
            made.kind = ValueKind::iterable;
            made.iterable = range;
            return tainted(made);
        }
        case Builtin::absolute:
            if (arguments.size() == 1 && arguments[0].kind == ValueKind::integer) {
                return tainted(make_integer(
                    arguments[0].integer < 0 ? wrap_multiply(arguments[0].integer, -1) : arguments[0].integer,
                    runtime, taint));
            }
            break;
        case Builtin::length:
            if (arguments.size() == 1 && arguments[0].kind == ValueKind::tuple)
                return make_integer(arguments[0].tuple->size, false, taint);
            break;
        case Builtin::to_int:
            if (arguments.size() == 1 && arguments[0].kind == ValueKind::integer) return arguments[0];
            if (arguments.size() == 1 && arguments[0].kind == ValueKind::boolean)
                return tainted(make_integer(arguments[0].boolean ? 1 : 0, runtime, taint));
            break;
        case Builtin::to_float:
            if (arguments.size() == 1 && arguments[0].kind == ValueKind::text) {
                Value made;
                made.kind = ValueKind::real;
                made.real = std::strtod(arguments[0].text->c_str(), nullptr);
                return tainted(made);
            }
            break;
        case Builtin::helper:
        case Builtin::other: break;
    }
    // An operation on data. One that is handed memory could touch it in ways that are not known here.
    for (const Value& v : arguments) {
        const bool is_memory = v.kind == ValueKind::pointer || v.kind == ValueKind::descriptor ||
                               v.kind == ValueKind::block_pointer || v.kind == ValueKind::lost_pointer;
        if (!is_memory) continue;
        const std::int32_t param = v.kind == ValueKind::pointer        ? v.block->param
                                   : v.kind == ValueKind::lost_pointer ? v.lost->param
                                                                       : v.descriptor->param;
        const auto p = static_cast<std::size_t>(param);
        if (override_read_[p] || override_write_[p]) continue;
        const std::string& name = kernel_.parameters[p].name;
        return fail(e.where, "what " + quoted(module_, e.where) + " touches of `" + name +
                                 "` is not known; state it with `# @sy.reads " + name +
                                 "[…]` or `# @sy.writes " + name + "[…]`");
    }
    for (const Value& v : arguments) {
        if (v.kind == ValueKind::opaque) return opaque(*v.why, taint);
    }
    return opaque(e, taint);
}

Value Evaluator::make_descriptor(const Expr& e, std::span<const Value> arguments, Frame& frame,
                                 bool block_pointer) {
    const Value base = argument(e, arguments, 0, "base", frame);
    const Value shape = argument(e, arguments, 1, "shape", frame);
    const Value strides = argument(e, arguments, 2, "strides", frame);
    const Value offsets = block_pointer ? argument(e, arguments, 3, "offsets", frame) : Value{};
    const Value block = argument(e, arguments, block_pointer ? 4 : 3, "block_shape", frame);
    if (stopped()) return {};
    if (base.kind != ValueKind::pointer || base.block->rank != 0) {
        const bool lost = base.kind == ValueKind::lost_pointer;
        if (lost && (override_read_[static_cast<std::size_t>(base.lost->param)] ||
                     override_write_[static_cast<std::size_t>(base.lost->param)]))
            return base;
        return fail(e.where, "the base of " + quoted(module_, e.where) +
                                 " is no pointer that can be followed" +
                                 (lost ? why_lost(base.lost->why) : std::string()));
    }
    Descriptor* made = arena_.make<Descriptor>();
    made->param = base.block->param;
    made->base = base.block->base;
    std::array<Affine, kRank> extents{}, steps{}, blocks{};
    std::int32_t rank = 0, stride_rank = 0, block_rank = 0, offset_rank = 0;
    if (!numbers(shape, extents, rank) || !numbers(strides, steps, stride_rank) ||
        !numbers(block, blocks, block_rank) ||
        (block_pointer && !numbers(offsets, made->offsets, offset_rank))) {
        return fail(e.where, "the shape, strides, offsets and block of " + quoted(module_, e.where) +
                                 " must follow from the arguments");
    }
    if (stride_rank != rank || block_rank != rank || (block_pointer && offset_rank != rank)) {
        return fail(e.where,
                    "shape, strides, offsets and block of " + quoted(module_, e.where) + " differ in length");
    }
    made->rank = rank;
    for (std::int32_t d = 0; d < rank; ++d) {
        if (!extents[d].is_constant() || !steps[d].is_constant() || !blocks[d].is_constant())
            return not_affine(e);
        made->shape[d] = extents[d].constant;
        made->strides[d] = steps[d].constant;
        made->block[d] = blocks[d].constant;
        if (made->block[d] < 1 || made->block[d] > kLargestBlock)
            return fail(e.where, "the block of " + quoted(module_, e.where) + " is empty or too large");
    }
    // One that describes the whole parameter addresses it by the tensor's own axes.
    const TensorView& tensor = tensors[static_cast<std::size_t>(made->param)];
    made->host = !block_pointer && made->base == Affine{} &&
                 static_cast<std::size_t>(rank) == tensor.shape.size() &&
                 std::equal(tensor.shape.begin(), tensor.shape.end(), made->shape.begin()) &&
                 std::equal(tensor.strides.begin(), tensor.strides.end(), made->strides.begin());
    Value value;
    value.kind = block_pointer ? ValueKind::block_pointer : ValueKind::descriptor;
    value.taint = base.taint | taint_of(shape) | taint_of(strides) | taint_of(offsets);
    value.descriptor = made;
    return value;
}

Value Evaluator::descriptor_access(const Expr& e, const Value& descriptor, const Value* offsets, bool read,
                                   bool write) {
    if (descriptor.kind == ValueKind::lost_pointer || descriptor.kind == ValueKind::opaque) {
        touch(e, descriptor, nullptr, read, write);
        return opaque(e, descriptor.taint);
    }
    if (descriptor.kind != ValueKind::descriptor && descriptor.kind != ValueKind::block_pointer) {
        return fail(e.where, quoted(module_, e.where) + " is not applied to a tensor descriptor");
    }
    const Descriptor& d = *descriptor.descriptor;
    const auto param = static_cast<std::size_t>(d.param);
    const std::uint64_t taint = descriptor.taint | (offsets != nullptr ? taint_of(*offsets) : 0);
    std::array<Affine, kRank> at = d.offsets;
    std::int32_t count = d.rank;
    if (offsets != nullptr && !numbers(*offsets, at, count)) {
        const bool stated = (!read || override_read_[param]) && (!write || override_write_[param]);
        if (!stated) {
            const Expr* why = offsets->kind == ValueKind::opaque ? offsets->why : nullptr;
            for (std::int32_t i = 0; offsets->kind == ValueKind::tuple && i < offsets->tuple->size; ++i) {
                if (offsets->tuple->items[i].kind == ValueKind::opaque) why = offsets->tuple->items[i].why;
            }
            return fail(e.where, "where " + quoted(module_, e.where) + " touches `" +
                                     kernel_.parameters[param].name +
                                     "` cannot be known before "
                                     "the kernel runs" +
                                     why_lost(why) + "; state it with `# @sy." +
                                     (read ? "reads " : "writes ") + kernel_.parameters[param].name + "[…]`");
        }
        touch_block(e, Block{}, nullptr, false, taint, false, false);
        (void)(read ? (param_read[param] = true) : false);
        (void)(write ? (param_written[param] = true) : false);
        if (write) ++stores_;
        return opaque(e, taint);
    }
    if (!d.known) count = d.rank;
    if (d.known && count != d.rank)
        return fail(e.where, std::to_string(count) + " offsets for a descriptor of " +
                                 std::to_string(d.rank) + " axes in " + quoted(module_, e.where));
    Block* block = arena_.make<Block>();
    Mask* mask = arena_.make<Mask>();
    block->param = d.param;
    block->base = d.base;
    block->rank = mask->rank = d.rank;
    // tl.load of a block pointer clips only the axes that it is told to check; a descriptor clips all.
    std::array<bool, kRank> clipped{};
    clipped.fill(descriptor.kind == ValueKind::descriptor);
    if (descriptor.kind == ValueKind::block_pointer) {
        if (const Expr* check = keyword(e, "boundary_check"); check != nullptr) {
            std::vector<const Expr*> listed{check};
            if (check->kind == ExprKind::tuple) listed.assign(check->kids.begin(), check->kids.end());
            for (const Expr* axis : listed) {
                if (axis->kind != ExprKind::literal || !std::holds_alternative<std::int64_t>(axis->literal))
                    continue;
                const std::int64_t index = std::get<std::int64_t>(axis->literal);
                if (index >= 0 && index < kRank) clipped[static_cast<std::size_t>(index)] = true;
            }
        }
    }
    for (std::int32_t j = 0; j < d.rank; ++j) {
        const std::int64_t stride = d.host ? 1 : d.strides[j];
        Piece* piece = arena_.make<Piece>();
        *piece = {0, d.block[j], at[j] * stride, stride};
        block->axes[j] = {d.block[j], piece, 1};
        MaskAxis& bounds = mask->axes[j];
        bounds.extent = d.block[j];
        if (!clipped[static_cast<std::size_t>(j)]) continue;
        bounds.lower[bounds.lower_count++] = at[j] * -1;
        bounds.upper[bounds.upper_count++] = at[j] * -1 + d.shape[j];
    }
    touch_block(e, *block, mask, d.host, taint, read, write);
    return opaque(e, taint);
}

std::string Evaluator::why_lost(const Expr* why) const {
    if (why == nullptr) return {};
    const bool loads = (why->kind == ExprKind::call || why->kind == ExprKind::method) &&
                       (why->builtin == Builtin::load || why->builtin == Builtin::descriptor_load ||
                        why->builtin == Builtin::atomic || why->text == "load");
    const std::string place = " (line " + std::to_string(why->where.line) + ")";
    return loads ? ": it depends on data loaded by " + quoted(module_, why->where) + place
                 : ": it depends on " + quoted(module_, why->where) + place;
}

void Evaluator::touch(const Expr& e, const Value& pointer, const Value* mask, bool read, bool write) {
    if (pointer.kind == ValueKind::pointer) {
        const Block& block = *pointer.block;
        std::uint64_t taint = pointer.taint;
        Mask aligned;
        const Mask* used = nullptr;
        if (mask != nullptr) {
            taint |= mask->taint;
            if (mask->kind == ValueKind::boolean || mask->kind == ValueKind::integer) {
                aligned.never = mask->kind == ValueKind::boolean ? !mask->boolean : mask->integer == 0;
                used = &aligned;
            } else if (mask->kind == ValueKind::mask && mask->mask->rank <= block.rank) {
                const std::int32_t shift = block.rank - mask->mask->rank;
                aligned = *mask->mask;
                aligned.rank = block.rank;
                for (std::int32_t j = 0; j < block.rank; ++j) {
                    aligned.axes[j] = j < shift ? MaskAxis{} : mask->mask->axes[j - shift];
                    if (aligned.axes[j].extent != block.axes[j].extent)
                        aligned.axes[j].lower_count = aligned.axes[j].upper_count = 0;
                }
                used = &aligned;
            }
        }
        return touch_block(e, block, used, false, taint, read, write);
    }
    if (write) ++stores_;
    const bool lost = pointer.kind == ValueKind::lost_pointer;
    const std::int32_t param = lost ? pointer.lost->param : -1;
    const std::string name = param >= 0 ? kernel_.parameters[static_cast<std::size_t>(param)].name : "TENSOR";
    if (param >= 0) {
        const auto p = static_cast<std::size_t>(param);
        if (read) param_read[p] = true;
        if (write) param_written[p] = true;
        param_pointer[p] = true;
        if ((!read || override_read_[p]) && (!write || override_write_[p])) {
            if (silent_ == 0 && read) found.read_taint |= pointer.taint | control_;
            if (silent_ == 0 && write) found.write_taint |= pointer.taint | control_;
            return;
        }
    }
    const Expr* why = lost ? pointer.lost->why : pointer.kind == ValueKind::opaque ? pointer.why : nullptr;
    const SourceRange& where = e.kids.empty() ? e.where : e.kids[0]->where;
    fail(where, "the address " + quoted(module_, where) + " cannot be known before the kernel runs" +
                    why_lost(why) + "; state what a tile touches with `# @sy." +
                    (read ? "reads " : "writes ") + name + "[…]`");
}

void Evaluator::touch_block(const Expr& e, const Block& block, const Mask* mask, bool direct,
                            std::uint64_t taint, bool read, bool write) {
    if (!step(e.where) || block.param < 0) return;
    const auto param = static_cast<std::size_t>(block.param);
    if (read) param_read[param] = true;
    if (write) param_written[param] = true;
    if (!direct) param_pointer[param] = true;
    if (write) ++stores_;
    if (silent_ > 0) return;
    if (read) found.read_taint |= taint | control_;
    if (write) found.write_taint |= taint | control_;
    if (read) {
        for (const std::int32_t loop : around_) loops[static_cast<std::size_t>(loop)].reads = true;
    }
    if (tensors[param].shape.empty()) return;
    const bool note_read = read && !override_read_[param], note_write = write && !override_write_[param];
    if (!note_read && !note_write) return;
    if (!fits(block, mask, trips_)) {
        fail(e.where, "the addresses of " + quoted(module_, e.where) + " are beyond any memory");
        return;
    }
    boxes_.clear();
    const Access access{.tensor = &tensors[param],
                        .pointer = &block,
                        .mask = mask,
                        .direct = direct,
                        .trips = trips_,
                        .innermost = static_cast<std::int32_t>(trips_.size()) - 1};
    const Advance advance = footprint(access, boxes_);
    if (note_read && advance.dim >= 0) advances_.push_back({symbol_loops_.back(), {block.param, advance}});
    for (const Box& box : boxes_) {
        if (note_read) found.touched.push_back({block.param, false, box});
        if (note_write) found.touched.push_back({block.param, true, box});
    }
}

}  // namespace syncopate::kernel

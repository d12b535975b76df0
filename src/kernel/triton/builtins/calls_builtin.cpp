// Builtins of triton.language: what each makes of its arguments.
#include <algorithm>
#include <cstdlib>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {

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
        fail(e.where, "the arguments of " + quoted(module_, e.where) +
                          " must be known whole numbers: write numbers, or "
                          "constexpr parameters");
        return std::nullopt;
    };
    const auto extents_of = [&](const Value& shape, Block& block) {
        std::array<Affine, kRank> extents{};
        std::int32_t count = 0;
        if (!numbers(shape, extents, count)) return false;
        std::int64_t size = 1;
        for (std::int32_t j = 0; j < count; ++j) {
            const Affine& extent = extents[static_cast<std::size_t>(j)];
            if (!extent.is_constant()) return false;
            if (extent.constant < 1 || extent.constant > kLargestBlock ||
                (size *= extent.constant) > kLargestBlock) {
                fail(e.where, quoted(module_, e.where) + " has an extent of " +
                                  std::to_string(extent.constant) +
                                  ": write 1 or more, with at most 2^24 elements in all");
                return false;
            }
            block.axes[static_cast<std::size_t>(j)].extent = extent.constant;
        }
        block.rank = count;
        return true;
    };
    switch (builtin) {
        case Builtin::program_id: {
            const auto axis = integer_argument(0, "axis", 0);
            if (!axis) return {};
            if (*axis < 0 || *axis > 2)
                return fail(e.where, "tl.program_id takes axis 0, 1 or 2: write one of those");
            impure_ = true;
            const std::uint64_t bit = new_source(e, {.kind = TaintSource::Kind::program_id,
                                                     .grid_axis = static_cast<std::int32_t>(*axis),
                                                     .in_kernel = frame.is_kernel});
            const std::int64_t id = program_[static_cast<std::size_t>(*axis)];
            if (on_line() && in_tile_loop_) return not_affine_ = true, Value{};  // of several programs
            if (*axis != line_axis_) return make_integer(id, true, bit);
            Value moving = along_line(id);
            moving.taint = bit;
            return moving;
        }
        case Builtin::num_programs: {
            const auto axis = integer_argument(0, "axis", 0);
            if (!axis) return {};
            if (*axis < 0 || *axis > 2)
                return fail(e.where, "tl.num_programs takes axis 0, 1 or 2: write one of those");
            grid_asked = impure_ = true;
            const std::int64_t known = grid_[static_cast<std::size_t>(*axis)];
            return make_integer(known > 0 ? known : *axis == 0 ? arguments_.num_sms : 1, true, 0);
        }
        case Builtin::load:
        case Builtin::store:
        case Builtin::atomic: {
            const Value pointer = argument(e, arguments, 0, "pointer", frame);
            const bool is_load = builtin == Builtin::load, is_store = builtin == Builtin::store;
            if (pointer.kind == ValueKind::block_pointer) {
                const Value check = argument(e, arguments, 3, "boundary_check", frame);
                return stopped() ? Value{}
                                 : descriptor_access(e, pointer, nullptr, is_load, is_store, &check);
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
                return fail(e.where, "a descriptor and its offsets are needed in " +
                                         quoted(module_, e.where) + ": write (descriptor, [offsets])");
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
                                memory_names[param] + "[…]`");
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
            if (*end <= *start)
                return fail(e.where, quoted(module_, e.where) +
                                         " is empty: write an end above its start, here " +
                                         std::to_string(*start));
            if (*start < -kLargestBlock || *end > kLargestBlock)
                return fail(e.where, quoted(module_, e.where) + " goes up to " + std::to_string(*end) +
                                         ": make it smaller, a block has at most 2^24 elements");
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
            if (!extents_of(shape, *block) || value.kind != ValueKind::integer)
                return stopped() ? Value{} : opaque(e, taint);
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
                    return division_by_zero(e);
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
            if (const auto reduced =
                    e.text == "min" || e.text == "max" ? shape_builtin(e, arguments, frame) : std::nullopt) {
                if (arguments.size() < 2 || rank_of(arguments[0]) > 0) return tainted(*reduced);
            }
            if (arguments.size() < 2) return opaque(e, taint);  // tl.max(block): data
            // tl.max(x, axis) reduces, max(a, b) compares; a block with one known axis number is the former.
            if (arguments.size() == 2 && arguments[0].kind == ValueKind::opaque)
                return opaque(*arguments[0].why, taint);
            if (e.text == "min" || e.text == "max") {
                const bool blocks = std::any_of(arguments.begin(), arguments.end(), [](const Value& v) {
                    return (v.kind == ValueKind::block && v.block->rank > 0) || v.kind == ValueKind::lazy;
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
                                         quoted(module_, e.kids[0]->where) +
                                         "; give --args for which it holds");
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
                               value.kind == ValueKind::lazy || value.kind == ValueKind::mask))
                return value;
            if (type.kind == ValueKind::text && *type.text == "int1" && is_known(value)) {
                const Value holds = compare(e, Operator::not_equal, value, make_integer(0, false, 0));
                return stopped() ? Value{} : tainted(holds);
            }
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
        case Builtin::transpose: break;
        case Builtin::expand_dims: {
            const auto axis = integer_argument(1, "axis", 0);
            if (!axis) return {};
            if (arguments.empty()) return opaque(e, taint);
            std::int32_t rank = 0;
            if (arguments[0].kind == ValueKind::block || arguments[0].kind == ValueKind::pointer)
                rank = arguments[0].block->rank;
            if (arguments[0].kind == ValueKind::mask) rank = arguments[0].mask->rank;
            if (arguments[0].kind == ValueKind::lazy) rank = arguments[0].lazy->rank;
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
            if (arguments.empty() || !is_known(arguments[0])) break;
            const Value sizes = arguments.size() > 2 ? make_tuple(arguments.subspan(1)) : shape;
            if (!extents_of(sizes, *block)) {
                if (stopped()) return {};
                break;
            }
            Value zero;
            zero.kind = ValueKind::block;
            zero.block = block;
            if (arguments[0].kind == ValueKind::mask) {
                Mask* all = arena_.make<Mask>();
                all->rank = block->rank;
                for (std::int32_t j = 0; j < block->rank; ++j) all->axes[j].extent = block->axes[j].extent;
                zero.kind = ValueKind::mask;
                zero.mask = all;
                return tainted(masks_joined(e, arguments[0], zero, true));
            }
            const Value stretched = binary(e, Operator::add, arguments[0], zero);
            return stopped() ? Value{} : tainted(stretched);
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
                return division_by_zero(e);
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
                return parts[2].is_constant() ? fail(e.where, "the step of " + quoted(module_, e.where) +
                                                                  " is zero: write another one")
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
            if (arguments.size() == 1 && is_known(arguments[0]))
                return tainted(lazily(e, Lazy::What::absolute, Operator::add, {arguments[0]}));
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
    if (const auto made = shape_builtin(e, arguments, frame)) return stopped() ? Value{} : tainted(*made);
    if (stopped()) return {};
    // An operation on data. One that is handed memory could touch it in ways that are not known here.
    std::vector<Value> handed(arguments.begin(), arguments.end());
    for (const auto& [key, value] : e.keywords) {
        handed.push_back(evaluate(*value, frame));
        if (stopped()) return {};
        taint |= handed.back().taint;
    }
    for (std::size_t i = 0; i < handed.size(); ++i) {
        const Value v = handed[i];
        if (v.kind == ValueKind::tuple)
            handed.insert(handed.end(), v.tuple->items, v.tuple->items + v.tuple->size);
        const std::int32_t param = param_of(v);
        if (param < 0) continue;
        const auto p = static_cast<std::size_t>(param);
        if (override_read_[p] || override_write_[p]) continue;
        const std::string& name = memory_names[p];
        return fail(e.where, "what " + quoted(module_, e.where) + " touches of `" + name +
                                 "` is not known; state it with `# @sy.reads " + name +
                                 "[…]` or `# @sy.writes " + name + "[…]`");
    }
    for (const Value& v : handed) {
        if (v.kind == ValueKind::opaque) return opaque(*v.why, taint);
    }
    return opaque(e, taint);
}

}  // namespace syncopate::kernel::triton

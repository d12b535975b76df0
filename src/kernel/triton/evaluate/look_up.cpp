// Loads from tensors whose elements the launch gives (TensorArgument::values): offsets of sequences, a page
// table, the sorted tokens of experts. What they give is as exact as a scalar argument:
//
//      begin = tl.load(cu_seqlens + z)         an integer
//      begin = tl.load(cu_seqlens + pid)       on a line of programs: affine where the elements are
//      rows = tl.load(index + offs, mask=m)    a block, element by element
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kMostInTurn = 1 << 16;  // iterations whose elements are compared

}  // namespace

/// Null: the launch does not give them.
const std::vector<std::int64_t>* Evaluator::table_of(std::int32_t memory) const {
    if (memory < 0) return nullptr;
    return tables_[static_cast<std::size_t>(memory)];
}

/// Of its elements; python where they are no whole numbers.
IntegerType Evaluator::type_of_tensor(std::int32_t memory) const {
    const auto tensor = arguments_.tensors.find(name_of(memory));
    return tensor == arguments_.tensors.end() ? IntegerType::python
                                              : integer_type(plan::name_of(tensor->second.dtype));
}

/// The element that lies `offset` elements behind a tensor's first one; nullopt: there is none.
std::optional<std::int64_t> Evaluator::element(std::int32_t memory, std::int64_t offset) const {
    const TensorView& tensor = tensors[static_cast<std::size_t>(memory)];
    std::array<std::int64_t, kRank> at{};
    for (const std::int32_t axis : tensor.by_stride) {
        const auto d = static_cast<std::size_t>(axis);
        const std::int64_t stride = tensor.strides[d];
        if (offset < 0) return std::nullopt;
        at[d] = stride > 0 ? std::min(offset / stride, tensor.shape[d] - 1) : 0;
        offset -= at[d] * stride;
    }
    if (offset != 0) return std::nullopt;
    std::int64_t place = 0;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) place = place * tensor.shape[d] + at[d];
    return (*table_of(memory))[static_cast<std::size_t>(place)];
}

Value Evaluator::no_element(const Expr& e, std::int32_t memory, std::int64_t offset) {
    arithmetic_error = true;
    return fail(e.where, quoted(module_, e.where) + " loads what lies " + std::to_string(offset) +
                             " elements behind the first one of `" + name_of(memory) + "`, which has " +
                             std::to_string(table_of(memory)->size()) + " elements, in " + program_text() +
                             ": mask the load, or give the tensor and the grid of the launch");
}

/// One element, whose address may move with the iterations of one loop, or with the programs of a line.
Value Evaluator::number_looked_up(const Expr& e, std::int32_t memory, const Affine& at) {
    std::size_t symbol = kSymbols;
    for (std::size_t s = 0; s < kSymbols; ++s) {
        if (at.slope[s] == 0) continue;
        if (symbol != kSymbols) return not_affine_ = true, Value{};
        symbol = s;
    }
    const auto found_at = [&](std::int64_t i) {
        const std::int64_t slope = symbol < kSymbols ? at.slope[symbol] : 0;
        return element(memory, wrap_add(at.constant, wrap_multiply(slope, i)));
    };
    const auto first = found_at(0);
    if (symbol == kSymbols) return first ? make_integer(*first, true, 0) : no_element(e, memory, at.constant);
    const std::int64_t trips = trips_[symbol];
    if (!first || trips > kMostInTurn) return not_affine_ = true, Value{};
    const auto second = trips > 1 ? found_at(1) : first;
    const std::int64_t by = second ? wrap_add(*second, wrap_multiply(*first, -1)) : 0;
    std::int64_t alike = 1;
    for (; alike < trips; ++alike) {
        const auto next = found_at(alike);
        if (!next || *next != wrap_add(*first, wrap_multiply(by, alike))) break;
        if (!step(e.where)) return {};
    }
    if (alike < trips) {
        if (on_line() && symbol == 0) line_fits_ = line_fits_ == 0 ? alike : std::min(line_fits_, alike);
        return not_affine_ = true, Value{};
    }
    Block* block = arena_.make<Block>();
    block->base.constant = *first;
    block->base.slope[symbol] = by;
    return from_block(block);
}

/// What a load gives; nullopt where data decides. An undefined `mask` lets everything through, and an
/// undefined `other` is 0.
std::optional<Value> Evaluator::looked_up(const Expr& e, const Value& pointer, const Value& mask,
                                          const Value& other) {
    const std::int32_t memory = pointer.kind == ValueKind::lazy ? pointer.lazy->param : param_of(pointer);
    if (table_of(memory) == nullptr || (pointer.kind != ValueKind::lazy && !is_block(pointer)))
        return std::nullopt;
    Value all;
    all.kind = ValueKind::boolean;
    all.boolean = true;
    const Value holds = mask.kind == ValueKind::undefined ? all : mask;
    Value otherwise = other.kind == ValueKind::undefined ? make_integer(0, false, 0) : other;
    if (is_real(otherwise)) {
        if (const auto whole = truncated(interval_of(otherwise))) otherwise = make_integer(*whole, false, 0);
    }
    if (!is_known(holds) || (!is_known(otherwise) && mask.kind != ValueKind::undefined)) return std::nullopt;
    if (!is_known(otherwise)) otherwise = make_integer(0, false, 0);
    const std::uint64_t taint = pointer.taint | holds.taint | otherwise.taint;
    const auto tainted = [&](Value made) {
        made.taint = taint;
        made.runtime = true;
        made.type = type_of_tensor(memory);
        return made;
    };
    if (is_number(holds) && number_of(holds) == 0 && rank_of(pointer) == 0) return tainted(otherwise);
    if (rank_of(pointer) == 0 && is_number(holds) && is_block(pointer))
        return tainted(number_looked_up(e, memory, pointer.block->base));
    Shape shape = shape_of(pointer);
    for (const Value& more : {holds, otherwise}) {
        const auto both = broadcast(shape, shape_of(more));
        if (!both) return fail(e.where, "blocks of different shape meet in " + quoted(module_, e.where));
        shape = *both;
    }
    const std::array<Value, 3> from{pointer, holds, otherwise};
    Lazy* lazy = new_lazy(e, Lazy::What::look_up, from, shape);
    lazy->axis = memory;
    // A vector gets a form of its own, so that what is computed from it need not be worked out.
    std::int32_t along = -1;
    for (std::int32_t j = 0; j < shape.rank; ++j) {
        if (shape.extents[j] > 1) along = along == -1 ? j : -2;
    }
    std::vector<std::int64_t> elements;
    if (along == -2 || shape.size() > kLargestExpanded) return tainted(from_lazy(lazy));
    const Known known = fill(*lazy, elements);
    if (stopped()) return Value{};
    if (known != Known::yes) return tainted(from_lazy(lazy));
    Block* block = arena_.make<Block>();
    block->rank = shape.rank;
    for (std::int32_t j = 0; j < shape.rank; ++j) block->axes[j].extent = shape.extents[j];
    if (along >= 0)
        block->axes[along] = compress(arena_, elements);
    else
        block->base.constant = elements[0];
    return tainted(from_block(block));
}

/// The elements at `offsets`, where `holds`; false where one of them does not exist: then the evaluation has
/// failed.
bool Evaluator::look_up_all(const Lazy& lazy, std::span<const std::int64_t> offsets,
                            std::span<const std::int64_t> holds, std::span<const std::int64_t> otherwise,
                            std::vector<std::int64_t>& out) {
    out.resize(offsets.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (holds[i] == 0) {
            out[i] = otherwise[i];
            continue;
        }
        const auto found_there = element(lazy.axis, offsets[i]);
        if (!found_there) return (void)no_element(*lazy.e, lazy.axis, offsets[i]), false;
        out[i] = *found_there;
    }
    return true;
}

}  // namespace syncopate::kernel::triton

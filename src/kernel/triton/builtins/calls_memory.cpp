// Memory: loads, stores and atomics through pointers, block pointers and tensor descriptors; the places where
// footprints arise.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kMostPieces = 1 << 16;

}  // namespace

/// What of some numbers, or tuples of them, is not known; `e` where that is not said.
const Expr* Evaluator::unknown_part(std::initializer_list<Value> values, const Expr& e) const {
    std::array<Affine, kRank> any{};
    std::int32_t count = 0;
    for (const Value& value : values) {
        if (value.kind == ValueKind::undefined || numbers(value, any, count)) continue;
        if (value.kind == ValueKind::opaque) return value.why;
        for (std::int32_t i = 0; value.kind == ValueKind::tuple && i < value.tuple->size; ++i) {
            if (value.tuple->items[i].kind == ValueKind::opaque) return value.tuple->items[i].why;
        }
    }
    return &e;
}

Value Evaluator::make_descriptor(const Expr& e, std::span<const Value> arguments, Frame& frame,
                                 bool block_pointer) {
    const Value base = argument(e, arguments, 0, "base", frame);
    const Value shape = argument(e, arguments, 1, "shape", frame);
    const Value strides = argument(e, arguments, 2, "strides", frame);
    const Value offsets = block_pointer ? argument(e, arguments, 3, "offsets", frame) : Value{};
    const Value block = argument(e, arguments, block_pointer ? 4 : 3, "block_shape", frame);
    if (stopped()) return {};
    // What cannot be followed is told where it is used, if it is.
    if (base.kind == ValueKind::lost_pointer) return base;
    if (base.kind == ValueKind::lazy && base.lazy->param >= 0) return lost_pointer(base.lazy->param, &e);
    if (base.kind != ValueKind::pointer)
        return opaque(base.kind == ValueKind::opaque ? *base.why : e, base.taint);
    if (base.block->rank != 0) return lost_pointer(base.block->param, &e);
    Descriptor* made = arena_.make<Descriptor>();
    made->param = base.block->param;
    made->base = base.block->base;
    made->made = &e;
    std::array<Affine, kRank> extents{}, steps{}, blocks{};
    std::int32_t rank = 0, stride_rank = 0, block_rank = 0, offset_rank = 0;
    if (!numbers(shape, extents, rank) || !numbers(strides, steps, stride_rank) ||
        !numbers(block, blocks, block_rank) ||
        (block_pointer && !numbers(offsets, made->offsets, offset_rank))) {
        Value lost = lost_pointer(made->param, unknown_part({shape, strides, block, offsets}, e));
        lost.taint = base.taint | taint_of(shape) | taint_of(strides) | taint_of(offsets);
        return lost;
    }
    if (stride_rank != rank || block_rank != rank || (block_pointer && offset_rank != rank)) {
        return fail(e.where, "shape, strides, offsets and block of " + quoted(module_, e.where) +
                                 " differ in length: write one of each for every axis");
    }
    made->rank = rank;
    for (std::int32_t d = 0; d < rank; ++d) {
        if (!extents[d].is_constant() || !steps[d].is_constant() || !blocks[d].is_constant())
            return not_affine(e);
        made->shape[d] = extents[d].constant;
        made->strides[d] = steps[d].constant;
        made->block[d] = blocks[d].constant;
        if (made->block[d] < 1 || made->block[d] > kLargestBlock)
            return fail(e.where, "the block of " + quoted(module_, e.where) +
                                     " is empty or too large: write extents from 1 to 2^24");
    }
    // One that describes the whole parameter addresses it by the tensor's own axes.
    const TensorView& tensor = tensors[static_cast<std::size_t>(made->param)];
    made->host = !block_pointer && made->base == Affine{} &&
                 static_cast<std::size_t>(rank) == tensor.shape.size() &&
                 std::equal(tensor.shape.begin(), tensor.shape.end(), made->shape.begin()) &&
                 tensor.has_strides(made->strides);
    Value value;
    value.kind = block_pointer ? ValueKind::block_pointer : ValueKind::descriptor;
    value.taint = base.taint | taint_of(shape) | taint_of(strides) | taint_of(offsets);
    value.descriptor = made;
    return value;
}

Value Evaluator::descriptor_access(const Expr& e, const Value& descriptor, const Value* offsets, bool read,
                                   bool write, const Value* check) {
    if (descriptor.kind == ValueKind::lost_pointer || descriptor.kind == ValueKind::opaque) {
        touch(e, descriptor, nullptr, read, write);
        return opaque(e, descriptor.taint);
    }
    if (descriptor.kind != ValueKind::descriptor && descriptor.kind != ValueKind::block_pointer) {
        return fail(e.where, quoted(module_, e.where) +
                                 " is not applied to a tensor descriptor: make one with "
                                 "tl.make_tensor_descriptor");
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
            const bool goes_on =
                miss(e.where, why,
                     "where " + quoted(module_, e.where) + " touches `" + memory_names[param] +
                         "` cannot be known before the kernel runs" + why_lost(why),
                     d.param, read, write);
            if (!goes_on) return {};
        }
        touch_block(e, Block{}, nullptr, false, taint, false, false);
        (void)(read ? (param_read[param] = true) : false);
        (void)(write ? (param_written[param] = true) : false);
        note_call(e, d.param, read, write);
        return opaque(e, taint);
    }
    if (!d.known) count = d.rank;
    if (d.known && count != d.rank)
        return fail(e.where, std::to_string(count) + " offsets for a descriptor of " +
                                 std::to_string(d.rank) + " axes in " + quoted(module_, e.where) +
                                 ": write " + std::to_string(d.rank));
    Block* block = arena_.make<Block>();
    Mask* mask = arena_.make<Mask>();
    block->param = d.param;
    block->base = d.base;
    block->rank = mask->rank = d.rank;
    // tl.load of a block pointer clips only the axes that it is told to check; a descriptor clips all.
    std::array<bool, kRank> clipped{};
    clipped.fill(descriptor.kind == ValueKind::descriptor);
    if (descriptor.kind == ValueKind::block_pointer) {
        std::array<Affine, kRank> axes{};
        std::int32_t listed = 0;
        if (check == nullptr || !numbers(*check, axes, listed)) listed = 0;
        for (std::int32_t i = 0; i < listed; ++i) {
            const std::int64_t axis = axes[static_cast<std::size_t>(i)].constant;
            if (axis >= 0 && axis < kRank) clipped[static_cast<std::size_t>(axis)] = true;
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
    note_descriptor(e, descriptor);
    Shape shape{.rank = d.rank};
    shape.extents = d.block;
    const Value data = described(opaque(e, taint), element_of_tensor(d.param),
                                 d.known ? std::optional(shape) : std::nullopt);
    if (stopped() || !read || write || table_of(d.param) == nullptr) return data;
    // What is loaded, where the launch gives the elements: as through pointers, 0 beyond the bounds.
    Block* pointers = arena_.make<Block>();
    *pointers = *block;
    for (std::int32_t j = 0; d.host && j < d.rank; ++j) {
        Piece* piece = arena_.make<Piece>();
        *piece = {0, d.block[j], at[j] * d.strides[j], d.strides[j]};
        pointers->axes[j].pieces = piece;
    }
    Value bounds;
    bounds.kind = ValueKind::mask;
    bounds.mask = mask;
    Value pointer = from_block(pointers);
    pointer.taint = bounds.taint = taint;
    const std::optional<Value> loaded = looked_up(e, pointer, bounds, Value{});
    return loaded ? *loaded : data;
}

std::string Evaluator::why_lost(const Expr* why) const {
    if (why == nullptr) return {};
    const bool loads = (why->kind == ExprKind::call || why->kind == ExprKind::method) &&
                       (why->builtin == Builtin::load || why->builtin == Builtin::descriptor_load ||
                        why->builtin == Builtin::atomic || why->text == "load");
    const auto reason = reasons_.find(why);
    const std::string place = " (line " + std::to_string(why->where.line) + ")" +
                              (reason == reasons_.end() ? "" : ", " + std::string(reason->second));
    return loads ? ": it depends on data loaded by " + quoted(module_, why->where) + place
                 : ": it depends on " + quoted(module_, why->where) + place;
}

/// How often a loop runs, or whether it goes on, which data decides.
std::string Evaluator::how_often(const Expr& steering) const {
    const auto by = steered_by_.find(&steering);
    const Expr* why = by == steered_by_.end() || by->second == nullptr ? &steering : by->second;
    if (const auto reason = reasons_.find(why); reason != reasons_.end()) {
        return (steering.kind == ExprKind::call
                    ? "how often the loop over " + quoted(module_, steering.where) + " runs"
                    : "whether the loop goes on") +
               " is not known" + why_lost(why);
    }
    const std::string data = by == steered_by_.end() || by->second == nullptr || by->second == &steering
                                 ? std::string()
                                 : ", " + quoted(module_, by->second->where) + " (line " +
                                       std::to_string(by->second->where.line) + ")";
    if (steering.kind == ExprKind::call)
        return "how often the loop over " + quoted(module_, steering.where) + " runs depends on loaded data" +
               data;
    return "whether the loop goes on depends on loaded data: " + quoted(module_, steering.where) + data;
}

/// An access that cannot be followed: false where each iteration of a loop that is run for all of them at
/// once may tell more alone. Otherwise it goes on as if a directive stated what is touched; in the end the
/// directives that are missing are told, all of them. Where a loop changes what the access starts from, the
/// loop is what is not known. Without a tensor that a directive could name, the evaluation fails.
bool Evaluator::miss(const SourceRange& where, const Expr* why, std::string message, std::int32_t memory,
                     bool read, bool write) {
    if (!trips_.empty()) {
        not_affine_ = true;
        return false;
    }
    if (const auto overflow = overflows_.find(why); overflow != overflows_.end()) {
        overflow_error = true;
        return (void)fail(overflow->second.where, overflow_text(overflow->second)), false;
    }
    const bool steers = why != nullptr && why->steers_loop;
    if (steers) message = how_often(*why);
    if (memory < 0) return (void)fail(steers ? why->where : where, std::move(message)), false;
    const auto m = static_cast<std::size_t>(memory);
    if (missing_.empty()) {
        missing_where_ = steers ? why->where : where;
        missing_why_ = std::move(message);
        missing_values_ = values_hint(why);
        missing_call_ = call_path_.empty() ? nullptr : call_path_.front();
    }
    if (read && !override_read_[m]) missing_.push_back({memory, false, where.line});
    if (write && !override_write_[m]) missing_.push_back({memory, true, where.line});
    override_read_[m] = override_read_[m] || read;
    override_write_[m] = override_write_[m] || write;
    return true;
}

Error Evaluator::missing_directives() const {
    std::string list;
    for (std::size_t i = 0; i < missing_.size(); ++i) {
        const Missing& one = missing_[i];
        if (i > 0) list += i + 1 == missing_.size() ? " and " : ", ";
        list += std::string("`# @sy.") + (one.write ? "writes " : "reads ") + name_of(one.memory) + "[…]`";
        if (one.line != missing_where_.line) list += " (line " + std::to_string(one.line) + ")";
    }
    return module_.error(missing_where_, missing_why_ + called_from(missing_call_) +
                                             "; state what a tile touches with " + list + missing_values_);
}

/// Names the integer tensor that was loaded, where `why` is such a load and the launch might give its elements.
std::string Evaluator::values_hint(const Expr* why) const {
    if (why != nullptr && why->steers_loop) {
        const auto by = steered_by_.find(why);
        if (by != steered_by_.end() && by->second != nullptr) why = by->second;
    }
    for (const auto& [access, form] : found.accesses) {
        const auto& [call, memory] = access;
        if (call == why && form.loads && may_have_values(memory))
            return ", or give the elements of `" + name_of(memory) +
                   "`, where the host knows them, with --values " + name_of(memory) + "=…";
    }
    return {};
}

/// " (called by `f(x)` in line 12)", where a helper is being run; `call`: the kernel's own call.
std::string Evaluator::called_from(const Expr* call) const {
    return call == nullptr ? std::string()
                           : " (called by " + quoted(module_, call->where) + " in line " +
                                 std::to_string(call->where.line) + ")";
}

void Evaluator::note_call(const Expr& e, std::int32_t param, bool read, bool write) {
    const std::pair call(&e, param);
    if (write && table_of(param) != nullptr)
        fail(e.where, "the values of `" + name_of(param) + "` are given, but " + quoted(module_, e.where) +
                          " stores to it: leave its --values out");
    if (write) ++stores_;
    if (read && waiting_ > 0) found.accesses[call].awaited = true;
    if (read && latest_load_ != call) {
        latest_load_ = call;
        AccessForm& form = found.accesses[call];
        form.loads = true;
        form.outside = form.outside || !in_tile_loop_;
        if (in_tile_loop_) form.taken &= taken_;
        if (form.within == nullptr) form.within = in_body_;
    }
    if (write && latest_store_ != call) {
        latest_store_ = call;
        AccessForm& form = found.accesses[call];
        form.stores = true;
        if (form.within == nullptr) form.within = in_body_;
    }
}

/// Through what descriptor or block pointer a call goes that has been noted.
void Evaluator::note_descriptor(const Expr& e, const Value& descriptor) {
    const Descriptor& d = *descriptor.descriptor;
    const std::tuple seen(&e, d.param, d.made, d.block[0]);
    if (latest_form_ == seen) return;
    const auto noted = found.accesses.find({&e, d.param});
    if (noted == found.accesses.end()) return;
    latest_form_ = seen;
    AccessForm& form = noted->second;
    const bool whole = descriptor.kind == ValueKind::descriptor && d.host;
    const bool same = form.rows == d.block[0] && form.made == d.made;
    if (!whole || (form.rows != 0 && !same)) {
        form.by = ParamAccess::By::other;
    } else if (form.rows == 0) {
        form.by = ParamAccess::By::descriptor;
        form.made = d.made;
        form.rows = d.block[0];
    }
}

void Evaluator::touch(const Expr& e, const Value& pointer, const Value* mask, bool read, bool write) {
    if (mask != nullptr && mask->kind == ValueKind::lazy) {
        const Value holds = compare(e, Operator::not_equal, *mask, make_integer(0, false, 0));
        if (!stopped()) touch(e, pointer, &holds, read, write);
        return;
    }
    // A condition that only a loop around has lost is known iteration by iteration.
    if (mask != nullptr && mask->kind == ValueKind::opaque && mask->why->steers_loop && !outside_loops()) {
        not_affine_ = true;
        return;
    }
    if (mask != nullptr && is_lost_on_line(*mask)) {
        not_affine_ = true;
        return;
    }
    const bool has_form = mask != nullptr && mask->kind == ValueKind::mask && !mask->mask->exact &&
                          mask->mask->form != nullptr && !mask->mask->never;
    const bool is_lazy = pointer.kind == ValueKind::lazy && pointer.lazy->param >= 0;
    if (is_lazy || (has_form && pointer.kind == ValueKind::pointer)) {
        const std::int32_t param = is_lazy ? pointer.lazy->param : pointer.block->param;
        const auto p = static_cast<std::size_t>(param);
        const std::uint64_t taint = pointer.taint | (mask != nullptr ? mask->taint : 0);
        const bool scalar = mask != nullptr && is_number(*mask);
        const bool usable =
            has_form || scalar || (mask != nullptr && mask->kind == ValueKind::mask && mask->mask->exact);
        if (tensors[p].shape.empty() || silent_ > 0) {
            (void)note_access(e, param, false, taint, read, write);
            return;
        }
        if (mask != nullptr && !usable) ++maybe_;  // data decides
        const auto touched = found.touched.size();
        const bool done = (!is_lazy && touch_runs(e, *pointer.block, *mask, read, write)) ||
                          touch_elements(e, pointer, usable ? mask : nullptr, param, read, write);
        if (mask != nullptr && !usable) --maybe_;
        if (done || is_lazy) {
            if (!note_access(e, param, false, taint, read, write) || done) return;
            found.touched.resize(touched);
            boxes_.assign(1, Box{});  // too many to be told apart
            for (std::size_t d = 0; d < tensors[p].shape.size(); ++d) boxes_[0][d] = {0, tensors[p].shape[d]};
            note_boxes(param, read, write, false, false, note_walk(walked_, walk_symbol(), Advance{}));
            return;
        }
    }
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
                    if (aligned.axes[j].extent == block.axes[j].extent) continue;
                    if (aligned.axes[j].lower_count + aligned.axes[j].upper_count > 0) aligned.exact = false;
                    aligned.axes[j].lower_count = aligned.axes[j].upper_count = 0;
                }
                used = &aligned;
            } else {  // data: it may let any element through, or none
                aligned.rank = block.rank;
                for (std::int32_t j = 0; j < block.rank; ++j) aligned.axes[j].extent = block.axes[j].extent;
                aligned.exact = false;
                used = &aligned;
            }
        }
        return touch_block(e, block, used, false, taint, read, write);
    }
    const bool lost = pointer.kind == ValueKind::lost_pointer;
    const std::int32_t param = lost ? pointer.lost->param : -1;
    note_call(e, param, read, write);
    if (param >= 0) {
        const auto p = static_cast<std::size_t>(param);
        if (read) param_read[p] = true;
        if (write) param_written[p] = true;
        param_pointer[p] = true;
        if ((!read || override_read_[p]) && (!write || override_write_[p])) {
            if (silent_ == 0) note_taint(param, pointer.taint, read, write);
            return;
        }
    }
    if (const std::string name = lost ? std::string() : given_number(e); !name.empty()) {
        fail(e.where, "`" + name + "` is used as an address in " + quoted(module_, e.where) +
                          ", but --args gives it " + "a number: give its tensor instead, as in --tensor " +
                          name + "=512x256:bf16");
        return;
    }
    const Expr* why = lost ? pointer.lost->why : pointer.kind == ValueKind::opaque ? pointer.why : nullptr;
    const SourceRange& where = e.kids.empty() ? e.where : e.kids[0]->where;
    const std::string what =
        "the address " + quoted(module_, where) + " cannot be known before the kernel runs";
    (void)miss(where, why, what + why_lost(why), param, read, write);
}

/// A parameter that is given a number, though an address of the kernel's own begins with it; empty: none.
std::string Evaluator::given_number(const Expr& access) const {
    const bool in_kernel = access.where.begin >= kernel_.whole.begin && access.where.end <= kernel_.whole.end;
    if (!in_kernel || access.kids.empty()) return {};
    const Expr* first = access.kids[0];
    while (first->kind == ExprKind::binary) first = first->kids[0];
    if (first->kind != ExprKind::name || first->slot < 0 ||
        static_cast<std::size_t>(first->slot) >= kernel_.parameters.size())
        return {};
    const auto given = arguments_.scalars.find(first->text);
    const bool is_number = given != arguments_.scalars.end() &&
                           !std::holds_alternative<NoneValue>(given->second) &&
                           !std::holds_alternative<std::string>(given->second);
    return is_number ? first->text : std::string();
}

/// Which sources an access' address, and whether it happens, follow from.
void Evaluator::note_taint(std::int32_t param, std::uint64_t taint, bool read, bool write) {
    taint |= control_;
    if (read) found.read_taint |= taint;
    if (read) param_read_taint[static_cast<std::size_t>(param)] |= taint;
    if (write) found.write_taint |= taint;
    if (write && !read) param_store_taint[static_cast<std::size_t>(param)] |= taint | stored_taint_;
}

/// What an access says of parameters, taints and loops; whether its boxes are wanted.
bool Evaluator::note_access(const Expr& e, std::int32_t param, bool direct, std::uint64_t taint, bool read,
                            bool write) {
    if (!step(e.where) || param < 0) return false;
    const auto p = static_cast<std::size_t>(param);
    if (read) param_read[p] = true;
    if (write) param_written[p] = true;
    if (!direct) param_pointer[p] = true;
    note_call(e, param, read, write);
    if (silent_ > 0) return false;
    note_taint(param, taint, read, write);
    if (read) {
        for (const std::int32_t loop : around_) {
            LoopRecord& record = loops[static_cast<std::size_t>(loop)];
            record.reads = record.reads || !record.parts || loop == around_.back();
        }
        if (around_.empty()) read_outside[p] = true;
    }
    return !tensors[p].shape.empty();
}

void Evaluator::touch_block(const Expr& e, const Block& block, const Mask* mask, bool direct,
                            std::uint64_t taint, bool read, bool write) {
    if (!note_access(e, block.param, direct, taint, read, write)) return;
    const auto param = static_cast<std::size_t>(block.param);
    if (!direct) note_odd_step(block, write);
    Wide pieces = 1;  // a footprint has a part for each choice of one piece an axis
    for (std::int32_t j = 0; j < block.rank; ++j) pieces *= std::max(1, block.axes[j].count);
    if (pieces > kMostPieces) {
        fail(e.where, quoted(module_, e.where) + " touches memory in more than " +
                          std::to_string(kMostPieces) + " pieces; state what a tile touches with `# @sy." +
                          (read ? "reads " : "writes ") + memory_names[param] + "[…]`");
        return;
    }
    if (!step(e.where, static_cast<std::int64_t>(pieces))) return;
    if (!fits(block, mask, trips_)) {
        fail(e.where, "the addresses of " + quoted(module_, e.where) +
                          " are beyond any memory: are the sizes and strides "
                          "given with --args and --tensor those of a launch?");
        return;
    }
    const std::span<const Mask> masks(mask, mask != nullptr ? 1 : 0);
    if (on_line() && moves(block, masks)) {
        const Advance advance = touch_moving(block, masks, direct, read, write);
        if (read && !override_read_[param] && symbol_loops_.back() >= 0)
            advances_.push_back({symbol_loops_.back(), {block.param, advance}});
        return;
    }
    boxes_.clear();
    const Access access{.tensor = &tensors[param],
                        .pointer = &block,
                        .mask = mask,
                        .direct = direct,
                        .trips = trips_,
                        .innermost = static_cast<std::int32_t>(trips_.size()) - 1,
                        .walked = walk_symbol()};
    bool exact = mask == nullptr || mask->exact;
    bool leaves = false;
    Advance walk;
    const Advance advance = footprint(access, boxes_, exact, leaves, walk);
    // A read that does not move with the loop is no slice, also where others of the parameter are.
    if (read && !override_read_[param] && !symbol_loops_.empty() && symbol_loops_.back() >= 0)
        advances_.push_back({symbol_loops_.back(), {block.param, advance}});
    note_boxes(block.param, read, write, exact, leaves, note_walk(walked_, access.walked, walk));
}

void Evaluator::note_odd_step(const Block& block, bool write) {
    const std::vector<std::int64_t>& strides = tensors[static_cast<std::size_t>(block.param)].strides;
    const auto step_along = [&](std::int32_t j) -> std::int64_t {
        const BlockAxis& axis = block.axes[j];
        return axis.count == 0 || axis.extent < 2 ? 0 : std::llabs(axis.pieces[0].step);
    };
    bool is_of_rows = false;
    for (std::int32_t j = 0; j < block.rank; ++j) is_of_rows = is_of_rows || step_along(j) == 1;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        const std::int64_t step = step_along(j);
        if (step < 2 || std::ranges::find(strides, step) != strides.end()) continue;
        if (write) odd_steps.try_emplace(block.param, step);
        const auto skips_rows = [&](std::int64_t stride) { return stride > 1 && step % stride == 0; };
        if (is_of_rows && strides.size() > 1 && std::ranges::none_of(strides, skips_rows))
            odd_rows.try_emplace(block.param, step);
    }
}

/// The symbol of the tile's loop around; below 0 where it has none, since its rounds are run one by one.
std::int32_t Evaluator::walk_symbol() const {
    if (walked_ < 0) return -1;
    const std::int32_t loop = walked[static_cast<std::size_t>(walked_)].statement->loop;
    const auto found_at = std::ranges::find(symbol_loops_, loop);
    return found_at == symbol_loops_.end() ? -1 : static_cast<std::int32_t>(found_at - symbol_loops_.begin());
}

std::int32_t Evaluator::note_walk(const Walk& walk) {
    const auto next = static_cast<std::int32_t>(found.walks.size());
    const auto [at, is_new] = found.walk_index.try_emplace(walk, next);
    if (is_new) found.walks.push_back(walk);
    return at->second;
}

std::int32_t Evaluator::note_walk(std::int32_t loop, std::int32_t symbol, const Advance& advance) {
    if (loop < 0 || symbol < 0) return -1;
    Walk walk{.loop = loop, .trips = trips_[static_cast<std::size_t>(symbol)]};
    if (!advance.several && advance.dim >= 0) {
        walk.dim = advance.dim;
        walk.base = advance.base;
        walk.step = advance.step;
        walk.extent = advance.extent;
    }
    return note_walk(walk);
}

void Evaluator::note_boxes(std::int32_t param, bool read, bool write, bool solid, bool leaves,
                           std::int32_t walk) {
    const bool exact = solid && maybe_ == 0;
    leaves = leaves && exact;
    if (boxes_.empty() && !leaves) return;
    const auto p = static_cast<std::size_t>(param);
    const auto begin = static_cast<std::uint32_t>(found.boxes.size());
    found.boxes.insert(found.boxes.end(), boxes_.begin(), boxes_.end());
    const auto end = static_cast<std::uint32_t>(found.boxes.size());
    const auto note = [&](bool writes, bool shadow) {
        found.touched.push_back({param, writes, exact, solid, shadow, false, read && write, leaves, begin,
                                 end, -1, 0, walk, maybe_});
    };
    if (read) note(false, override_read_[p]);
    if (write) note(true, override_write_[p]);
}

}  // namespace syncopate::kernel::triton

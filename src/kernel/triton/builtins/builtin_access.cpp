// Builtins of memory. Where footprints arise is calls_memory.cpp.
#include "kernel/triton/builtins/builtin_call.hpp"

namespace syncopate::kernel::triton {

/// Loads, stores and atomics through pointers and block pointers.
BuiltinCall::Made BuiltinCall::access() {
    const Value pointer = argument(0, "pointer");
    const bool is_load = builtin_ == Builtin::load, is_store = builtin_ == Builtin::store;
    if (pointer.kind == ValueKind::block_pointer) {
        const Value check = argument(3, "boundary_check");
        if (ev_.stopped()) return Value{};
        ev_.stored_taint_ = taint_;
        return ev_.descriptor_access(e_, pointer, nullptr, is_load, is_store, &check);
    }
    Value mask = argument(is_load ? 1 : e_.text == "atomic_cas" ? 9 : 2, "mask");
    if (mask.kind == ValueKind::none) mask = Value{};
    Value other = is_load && arguments_.size() > 2 ? arguments_[2] : Value{};
    for (const auto& [key, value] : e_.keywords) {
        if (key != "other" && key != "value" && key != "val") continue;
        other = ev_.evaluate(*value, frame_);
    }
    if (ev_.stopped()) return Value{};
    ev_.stored_taint_ = taint_;
    ev_.touch(e_, pointer, mask.kind == ValueKind::undefined ? nullptr : &mask, !is_store, !is_load);
    if (ev_.stopped()) return Value{};
    if (is_store) return tainted({});
    const Made found = is_load ? ev_.looked_up(e_, pointer, mask, other) : std::nullopt;
    return found ? *found : unknown();
}

BuiltinCall::Made BuiltinCall::descriptor_access() {
    if (arguments_.size() < 2)
        return fail("a descriptor and its offsets are needed in " + quoted() +
                    ": write (descriptor, [offsets])");
    const bool is_load = builtin_ == Builtin::descriptor_load;
    // (descriptor, offsets, value), but in an older form (descriptor, value, offsets).
    const bool value_first = e_.text == "_experimental_descriptor_store";
    const Value offsets = value_first ? argument(2, "offsets") : arguments_[1];
    if (ev_.stopped()) return Value{};
    ev_.stored_taint_ = taint_;
    return ev_.descriptor_access(e_, arguments_[0], &offsets, is_load, !is_load);
}

BuiltinCall::Made BuiltinCall::make_descriptor() {
    return ev_.make_descriptor(e_, arguments_, frame_, false);
}

BuiltinCall::Made BuiltinCall::make_block_ptr() { return ev_.make_descriptor(e_, arguments_, frame_, true); }

BuiltinCall::Made BuiltinCall::advance() {
    const Value pointer = argument(0, "base");
    const Value by = argument(1, "offsets");
    std::array<Affine, kRank> offsets{};
    std::int32_t count = 0;
    if (ev_.stopped()) return Value{};
    if (pointer.kind == ValueKind::lost_pointer) return pointer;
    if (pointer.kind != ValueKind::block_pointer) return unknown();
    if (!ev_.numbers(by, offsets, count) || count != pointer.descriptor->rank)
        return tainted(ev_.lost_pointer(pointer.descriptor->param, ev_.unknown_part({by}, e_)));
    Descriptor* moved = ev_.arena_.make<Descriptor>();
    *moved = *pointer.descriptor;
    for (std::int32_t d = 0; d < count; ++d) moved->offsets[d] = moved->offsets[d] + offsets[d];
    Value made = tainted(pointer);
    made.descriptor = moved;
    return made;
}

}  // namespace syncopate::kernel::triton

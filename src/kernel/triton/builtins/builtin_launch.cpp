// Builtins that ask which program this is, and how many there are.
#include <algorithm>
#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {

/// The axis of the grid that is asked for; nullopt: the call has failed.
std::optional<std::size_t> BuiltinCall::grid_axis(const char* name) {
    const auto axis = integer_argument(0, "axis", 0);
    if (!axis) return std::nullopt;
    if (*axis >= 0 && *axis <= 2) return static_cast<std::size_t>(*axis);
    fail(std::string(name) + " takes axis 0, 1 or 2: write one of those");
    return std::nullopt;
}

BuiltinCall::Made BuiltinCall::program_id() {
    const auto axis = grid_axis("tl.program_id");
    if (!axis) return Value{};
    const auto grid_axis = static_cast<std::int32_t>(*axis);
    const std::uint64_t bit = ev_.new_source(
        e_, {.kind = TaintSource::Kind::program_id, .grid_axis = grid_axis, .in_kernel = frame_.is_kernel});
    if (ev_.in_tile_loop_ && ev_.found.own_id == nullptr) ev_.found.own_id = &e_;
    const std::int64_t id = ev_.program_[*axis];
    if (ev_.on_line() && ev_.in_tile_loop_) return ev_.not_affine_ = true, Value{};  // of several programs
    if (grid_axis != ev_.line_axis_) return make_integer(id, true, bit, IntegerType::int32);
    Value moving = ev_.along_line(id);
    moving.taint = bit;
    moving.type = IntegerType::int32;
    return moving;
}

BuiltinCall::Made BuiltinCall::num_programs() {
    const auto axis = grid_axis("tl.num_programs");
    if (!axis) return Value{};
    ev_.grid_asked = true;
    const std::int64_t known = ev_.grid_[*axis];
    const std::int64_t assumed = *axis == 0 ? std::max(ev_.arguments_.num_sms, 1) : 1;
    return make_integer(known > 0 ? known : assumed, true, 0, IntegerType::int32);
}

}  // namespace syncopate::kernel::triton

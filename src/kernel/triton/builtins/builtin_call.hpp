// A call of a builtin of triton.language, or of Python, on abstract values. A table leads from each builtin
// to the function that says what it makes of its arguments; these are sorted by what they are about:
//
//      builtin_launch.cpp      which program this is, and how many there are
//      builtin_access.cpp      memory: loads, stores, atomics, descriptors, block pointers
//      builtin_block.cpp       blocks: ranges, constants, new axes, casts
//      builtin_number.cpp      numbers: counts, extremes, loop ranges, assertions
//      builtin_type.cpp        what type and shape data has that they make
//      builtin_shape.cpp       the axes, the order and the number of a block's elements, by name
//
// All that no table knows, and all that these do not follow, is an operation on data: its result is unknown,
// and it must not be handed memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {

class BuiltinCall {
public:
    /// Refers to its arguments.
    BuiltinCall(Evaluator& evaluator, const Expr& e, Builtin builtin, std::span<const Value> arguments,
                Evaluator::Frame& frame);
    /// What the call gives back; nothing where it failed.
    [[nodiscard]] Value run();

private:
    using What = Lazy::What;
    using Shape = Evaluator::Shape;
    /// nullopt: its arguments are not of a kind that is followed.
    using Made = std::optional<Value>;
    using Rule = Made (BuiltinCall::*)();
    /// A builtin that is known by its name; `what`: what a Lazy of it is.
    struct ShapeRule {
        Made (BuiltinCall::*rule)(const Shape& shape, What what);
        What what = What::reshape;
    };
    static Rule rule_of(Builtin builtin);
    static const ShapeRule* shape_rule_of(std::string_view name);

    // builtin_call.cpp
    Value tainted(Value made) const;
    Value unknown() { return ev_.opaque(e_, taint_); }
    Value fail(std::string message) { return ev_.fail(e_.where, std::move(message)); }
    std::string quoted() const;
    Value argument(std::size_t index, std::string_view name) {
        return ev_.argument(e_, arguments_, index, name, frame_);
    }
    std::optional<std::int64_t> integer_argument(std::size_t index, std::string_view name,
                                                 std::int64_t fallback);
    /// Whether a flag has its default, which is false. Else the call does something that is not followed.
    bool is_off(std::size_t index, std::string_view name);
    Value on_data();
    void note_counts();
    Value value_made();

    // builtin_type.cpp
    Element element_argument(std::size_t index, std::string_view name);
    Value described_access(const Value& made);
    Value described_dot(const Value& made);
    Value described_reduction(const Value& made);
    Value described_shape(const Value& made);
    Value with_type(const Value& made);

    // builtin_launch.cpp
    std::optional<std::size_t> grid_axis(const char* name);
    Made program_id();
    Made num_programs();

    // builtin_access.cpp
    Made access();
    Made descriptor_access();
    Made make_descriptor();
    Made make_block_ptr();
    Made advance();

    // builtin_block.cpp
    bool set_extents(const Value& shape, Block& block);
    Value block_value(const Block* block) const;
    Made arange();
    Made full();
    Made zeros_like();
    Made cast();
    Made expand_dims();
    Made broadcast_to();

    // builtin_number.cpp
    Made cdiv();
    Made next_power();
    Made extreme();
    bool made_alike(std::span<Value> values);
    Made where();
    Made same();
    Made ignore();
    Made static_assertion();
    Made swizzle2d();
    Made range();
    Made absolute();
    Made length();
    Made pointer_type();
    Made to_int();
    Made to_float();

    // builtin_shape.cpp
    Made by_name();
    std::optional<std::vector<std::int64_t>> listed(std::size_t from, std::string_view keyword);
    std::optional<std::int32_t> axis_argument(const Shape& shape, std::size_t index, std::string_view name,
                                              std::int32_t otherwise);
    Value lazy(What what, std::span<const Value> from, const Shape& shape, std::int32_t axis);
    bool takes_two_alike(const Shape& shape);
    Made reshape(const Shape& shape, What what);
    Made ravel(const Shape& shape, What what);
    Made permute(const Shape& shape, What what);
    Made flip(const Shape& shape, What what);
    Made running(const Shape& shape, What what);
    Made split(const Shape& shape, What what);
    Made join(const Shape& shape, What what);
    Made lengthened(const Shape& shape, What what);
    Made gather(const Shape& shape, What what);
    Made reduced(const Shape& shape, What what);
    Made broadcast(const Shape& shape, What what);
    Made clamp(const Shape& shape, What what);

    Evaluator& ev_;
    const Expr& e_;
    Builtin builtin_;
    std::span<const Value> arguments_;
    Evaluator::Frame& frame_;
    std::uint64_t taint_ = 0;  ///< of all arguments
    bool runtime_ = false;     ///< some argument is known at run time only
};

}  // namespace syncopate::kernel::triton

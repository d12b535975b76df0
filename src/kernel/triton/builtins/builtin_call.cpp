#include "kernel/triton/builtins/builtin_call.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kernel/triton/evaluate/operators.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

BuiltinCall::BuiltinCall(Evaluator& evaluator, const Expr& e, Builtin builtin,
                         std::span<const Value> arguments, Evaluator::Frame& frame)
    : ev_(evaluator), e_(e), builtin_(builtin), arguments_(arguments), frame_(frame) {
    for (const Value& v : arguments) {
        taint_ |= Evaluator::taint_of(v);
        runtime_ = runtime_ || v.runtime;
    }
}

/// Null: the builtin has no rule of its own.
BuiltinCall::Rule BuiltinCall::rule_of(Builtin builtin) {
    static constexpr std::size_t kCount = static_cast<std::size_t>(Builtin::to_float) + 1;
    static constexpr auto kRules = [] {
        using B = Builtin;
        std::array<Rule, kCount> rules{};
        constexpr std::array<std::pair<B, Rule>, 33> kList{{
            {B::program_id, &BuiltinCall::program_id},
            {B::num_programs, &BuiltinCall::num_programs},
            {B::load, &BuiltinCall::access},
            {B::store, &BuiltinCall::access},
            {B::atomic, &BuiltinCall::access},
            {B::make_descriptor, &BuiltinCall::make_descriptor},
            {B::descriptor_load, &BuiltinCall::descriptor_access},
            {B::descriptor_store, &BuiltinCall::descriptor_access},
            {B::make_block_ptr, &BuiltinCall::make_block_ptr},
            {B::advance, &BuiltinCall::advance},
            {B::arange, &BuiltinCall::arange},
            {B::zeros, &BuiltinCall::full},
            {B::full, &BuiltinCall::full},
            {B::zeros_like, &BuiltinCall::zeros_like},
            {B::cdiv, &BuiltinCall::cdiv},
            {B::next_power, &BuiltinCall::next_power},
            {B::minimum, &BuiltinCall::extreme},
            {B::maximum, &BuiltinCall::extreme},
            {B::where, &BuiltinCall::where},
            {B::same, &BuiltinCall::same},
            {B::ignore, &BuiltinCall::ignore},
            {B::static_assertion, &BuiltinCall::static_assertion},
            {B::cast, &BuiltinCall::cast},
            {B::expand_dims, &BuiltinCall::expand_dims},
            {B::broadcast_to, &BuiltinCall::broadcast_to},
            {B::swizzle2d, &BuiltinCall::swizzle2d},
            {B::range, &BuiltinCall::range},
            {B::static_range, &BuiltinCall::range},
            {B::absolute, &BuiltinCall::absolute},
            {B::length, &BuiltinCall::length},
            {B::pointer_type, &BuiltinCall::pointer_type},
            {B::to_int, &BuiltinCall::to_int},
            {B::to_float, &BuiltinCall::to_float},
        }};
        for (const auto& [name, rule] : kList) rules[at(name)] = rule;
        return rules;
    }();
    return kRules[at(builtin)];
}

Value BuiltinCall::run() { return with_type(value_made()); }

/// Notes the parameters behind arguments that have to be whole numbers, and are none.
void BuiltinCall::note_counts() {
    struct Counting {
        Builtin builtin;
        std::size_t begin, end;  // the positional arguments that count
    };
    using enum Builtin;
    static constexpr std::array<Counting, 6> kCounting{{{range, 0, 3},
                                                        {static_range, 0, 3},
                                                        {cdiv, 0, 2},
                                                        {make_block_ptr, 1, 5},
                                                        {advance, 1, 2},
                                                        {make_descriptor, 1, 4}}};
    static constexpr std::array<std::string_view, 11> kCounts{
        "arg1", "arg2", "start", "end", "step", "x", "div", "shape", "strides", "offsets", "block_shape"};
    const auto counting = std::ranges::find(kCounting, builtin_, &Counting::builtin);
    if (!frame_.is_kernel || counting == kCounting.end()) return;
    const bool known = arguments_.size() == e_.kids.size();  // no `*items` among them
    for (std::size_t k = counting->begin; k < std::min(counting->end, e_.kids.size()); ++k)
        if (!known || !is_number(arguments_[k])) ev_.note_counts(*e_.kids[k]);
    for (const auto& [name, kid] : e_.keywords)
        if (std::ranges::find(kCounts, name) != kCounts.end()) ev_.note_counts(*kid);
}

Value BuiltinCall::value_made() {
    note_counts();
    if (const Rule rule = rule_of(builtin_)) {
        if (const Made made = (this->*rule)()) return *made;
    }
    if (ev_.stopped()) return {};
    if (const Made made = by_name()) return ev_.stopped() ? Value{} : tainted(*made);
    if (ev_.stopped()) return {};
    return on_data();
}

/// One that is handed memory could touch it in ways that are not known here.
Value BuiltinCall::on_data() {
    std::vector<Value> handed(arguments_.begin(), arguments_.end());
    for (const auto& [key, value] : e_.keywords) {
        handed.push_back(ev_.evaluate(*value, frame_));
        if (ev_.stopped()) return {};
        taint_ |= handed.back().taint;
    }
    for (std::size_t i = 0; i < handed.size(); ++i) {
        const Value v = handed[i];
        if (v.kind == ValueKind::tuple)
            handed.insert(handed.end(), v.tuple->items, v.tuple->items + v.tuple->size);
        const std::int32_t param = Evaluator::param_of(v);
        if (param < 0) continue;
        const auto p = static_cast<std::size_t>(param);
        if (ev_.override_read_[p] || ev_.override_write_[p]) continue;
        const std::string& name = ev_.memory_names[p];
        if (e_.callee == Callee::type)
            return fail("`" + e_.text + "` is a class, and holds `" + name +
                        "` from here on: aggregates are not followed; "
                        "call @triton.jit functions with the tensors and numbers themselves");
        return fail("what " + quoted() + " touches of `" + name +
                    "` is not known; state it with `# @sy.reads " + name + "[…]` or `# @sy.writes " + name +
                    "[…]`");
    }
    for (const Value& v : handed) {
        if (v.kind == ValueKind::opaque) return ev_.opaque(*v.why, taint_);
    }
    switch (e_.callee) {
        case Callee::known: return unknown();
        case Callee::given:
            return ev_.opaque(e_, taint_, "a function that is given as a value, which is not followed");
        case Callee::foreign:
            return ev_.opaque(e_, taint_, "which is no function of this project that is followed");
        case Callee::undecided:
            return ev_.opaque(e_, taint_,
                              "which function it is, only running the file tells: define it once");
        case Callee::type: return ev_.opaque(e_, taint_, "an aggregate, which is not followed");
    }
    return unknown();
}

Value BuiltinCall::tainted(Value made) const {
    made.taint = taint_;
    made.runtime = runtime_;
    return made;
}

std::string BuiltinCall::quoted() const { return triton::quoted(ev_.module_, e_.where); }

/// nullopt: it is not known, and the call has failed.
std::optional<std::int64_t> BuiltinCall::integer_argument(std::size_t index, std::string_view name,
                                                          std::int64_t fallback) {
    const Value v = argument(index, name);
    if (ev_.stopped()) return std::nullopt;
    if (v.kind == ValueKind::undefined) return fallback;
    if (v.kind == ValueKind::integer) return v.integer;
    fail("the arguments of " + quoted() +
         " must be known whole numbers: write numbers, or "
         "constexpr parameters");
    return std::nullopt;
}

bool BuiltinCall::is_off(std::size_t index, std::string_view name) {
    const Value flag = argument(index, name);
    if (flag.kind == ValueKind::boolean) return !flag.boolean;
    return flag.kind == ValueKind::undefined || flag.kind == ValueKind::none;
}

}  // namespace syncopate::kernel::triton

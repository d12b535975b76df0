// Calls: the values of their arguments, helper functions of the same file, methods, and tile counts (tl.cdiv
// and the like). Builtins of triton.language and memory have files of their own.
#include <algorithm>
#include <vector>

#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::kernel::triton {
namespace {

std::vector<std::string> names_of(const Function& function) {
    std::vector<std::string> names;
    for (const Parameter& parameter : function.parameters) names.push_back(parameter.name);
    return names;
}

std::string listed(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    return list.empty() ? "none" : list;
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
        if (!one(value.tuple->items[i], out[at(i)])) return false;
    }
    return true;
}

namespace {

/// The types that a value is an instance of, as a kernel names them.
std::vector<std::string_view> types_of(const Value& value) {
    switch (value.kind) {
        case ValueKind::descriptor: return {"tensor_descriptor", "tensor_descriptor_base"};
        case ValueKind::tuple: return {"tuple"};
        case ValueKind::boolean:
        case ValueKind::integer:
        case ValueKind::real:
            if (value.runtime) return {"tensor"};
            if (value.kind == ValueKind::real) return {"constexpr", "float"};
            if (value.kind == ValueKind::integer) return {"constexpr", "int"};
            return {"constexpr", "bool", "int"};
        case ValueKind::text:
            if (value.text->starts_with('*')) return {"dtype", "pointer_type"};
            if (value.text->starts_with('<')) return {"dtype", "block_type"};
            return {"constexpr", "str", "dtype"};
        case ValueKind::none: return {"constexpr"};
        default: return {"tensor"};
    }
}

}  // namespace

/// isinstance(value, type), isinstance(value, (type, …)): how kernels take a tensor or its descriptor alike.
Value Evaluator::is_instance(const Expr& e, Frame& frame) {
    const Value value = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    const std::vector<std::string_view> own = types_of(value);
    Value made;
    made.kind = ValueKind::boolean;
    made.boolean = false;
    const Expr* one = e.kids[1];
    const std::vector<Expr*> types = one->kind == ExprKind::tuple ? one->kids : std::vector<Expr*>{e.kids[1]};
    for (const Expr* type : types) {
        const std::string_view text = module_.text(type->where);
        const std::string_view name = text.substr(text.find_last_of('.') + 1);
        made.boolean = made.boolean || std::find(own.begin(), own.end(), name) != own.end();
    }
    return made;
}

/// It may wait by itself, and may be what a loop waits by.
void Evaluator::note_assembler(const Expr& e) {
    const Expr* const code = e.kids.empty() ? nullptr : e.kids.front();
    const bool written = code != nullptr && code->kind == ExprKind::literal;
    const auto* text = written ? std::get_if<std::string>(&code->literal) : nullptr;
    const bool may_branch = text == nullptr || text->find("bra") != std::string::npos;
    if (waiting_ > 0 || may_branch) found.waits_in_assembler = true;
}

Value Evaluator::call(const Expr& e, Frame& frame) {
    if (e.text == "isinstance" && e.kids.size() == 2 && e.slot < 0 && e.function < 0)
        return is_instance(e, frame);
    if (e.text.ends_with("inline_asm_elementwise")) note_assembler(e);
    std::array<Value, 6> small;
    std::vector<Value> large;
    const bool splats = std::any_of(e.kids.begin(), e.kids.end(),
                                    [](const Expr* kid) { return kid->kind == ExprKind::splat; });
    std::span<Value> arguments(small.data(), std::min(small.size(), e.kids.size()));
    if (splats) {
        const Value all = tuple(e, frame);
        if (stopped()) return {};
        if (all.kind != ValueKind::tuple) return all;
        large.assign(all.tuple->items, all.tuple->items + all.tuple->size);
        arguments = large;
    } else {
        if (e.kids.size() > small.size()) large.resize(e.kids.size()), arguments = large;
        for (std::size_t i = 0; i < e.kids.size(); ++i) {
            arguments[i] = evaluate(*e.kids[i], frame);
            if (stopped()) return {};
        }
    }
    std::int32_t function = e.builtin == Builtin::helper ? e.function : -1;
    if (e.slot >= 0 && frame.slots[e.slot].kind == ValueKind::function)  // a combine function, an activation
        function = static_cast<std::int32_t>(frame.slots[e.slot].integer);
    if (function >= 0) {
        std::vector<Value> all(arguments.begin(), arguments.end());
        const Function& callee = module_.functions[at(function)];
        if (!callee.parameters.empty() && callee.parameters.back().rest) {
            const std::size_t named = std::min(all.size(), callee.parameters.size() - 1);
            const Value rest = make_tuple(std::span<const Value>(all).subspan(named));
            all.resize(callee.parameters.size());
            all.back() = rest;
        }
        all.resize(std::max(all.size(), callee.parameters.size()));
        for (const auto& [key, expr] : e.keywords) {
            std::size_t p = 0;
            while (p < callee.parameters.size() && callee.parameters[p].name != key) ++p;
            if (p == callee.parameters.size())
                return fail(expr->where, "`" + callee.name + "` has no parameter `" + key + "`" +
                                             did_you_mean(key, names_of(callee)) + "; it has " +
                                             listed(names_of(callee)));
            all[p] = evaluate(*expr, frame);
            if (stopped()) return {};
        }
        return helper(e, callee, all);
    }
    return BuiltinCall(*this, e, e.builtin, arguments, frame).run();
}

Value Evaluator::helper(const Expr& e, const Function& callee, std::span<const Value> arguments) {
    if (!callee.parsed)
        return fail(e.where,
                    "`" + callee.name + "` cannot be followed; call @triton.jit functions of this project");
    if (arguments.size() > callee.parameters.size())
        return fail(e.where, "too many arguments for `" + callee.name + "`: it takes " +
                                 std::to_string(callee.parameters.size()));
    if (calls_ >= kDeepestCalls)
        return fail(e.where, "calls nested more than 32 deep at " + quoted(module_, e.where) +
                                 ": write a loop instead of a function that calls itself");
    const std::size_t base = stack_used_;
    if (base + callee.slots.size() > stack_.size())
        return fail(e.where,
                    "too many variables in the calls around here; call fewer helpers inside helpers");
    stack_used_ += callee.slots.size();
    ++calls_;
    const std::int32_t path = path_;
    path_ = paths_.try_emplace({path, &e}, static_cast<std::int32_t>(paths_.size()) + 1).first->second;
    call_path_.push_back(&e);
    Frame outside;  // defaults are expressions of the file
    Frame inner;
    inner.function = &callee;
    inner.slots = stack_.data() + base;
    inner.result.kind = ValueKind::none;
    std::fill_n(inner.slots, callee.slots.size(), Value{});
    for (std::size_t p = 0; p < callee.parameters.size() && !stopped(); ++p) {
        if (p < arguments.size() && arguments[p].kind != ValueKind::undefined)
            inner.slots[p] = arguments[p];
        else if (callee.parameters[p].fallback != nullptr)
            inner.slots[p] = evaluate(*callee.parameters[p].fallback, outside);
        else
            fail(e.where, "`" + callee.name + "` needs a value for `" + callee.parameters[p].name +
                              "`: pass it, or give the parameter a default");
    }
    const std::int32_t maybe = maybe_;
    if (!stopped() && execute(callee.body, inner) != Flow::returned && inner.may_have_returned) {
        Value none;
        none.kind = ValueKind::none;
        inner.result = joined(inner.result, none, e);
    }
    maybe_ = maybe;
    stack_used_ = base;
    --calls_;
    path_ = path;
    call_path_.pop_back();
    if (stopped()) return {};
    return callee.jit ? as_variable(inner.result) : inner.result;
}

Value Evaluator::method(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (object.kind == ValueKind::text) {
        if (const auto answer = asked_of_type(e, *object.text)) return *answer;
    }
    const bool is_descriptor =
        object.kind == ValueKind::descriptor || object.kind == ValueKind::block_pointer;
    if (is_descriptor) {
        const bool reads = e.text == "load" || e.text == "gather",
                   writes = e.text == "store" || e.text == "scatter";
        const bool atomic = e.builtin == Builtin::atomic;
        if (reads || writes || atomic) {
            Value offsets =
                e.kids.size() > 1 ? evaluate(*e.kids[1], frame) : argument(e, {}, 0, "offsets", frame);
            std::uint64_t stored = e.keywords.empty() ? 0 : ~std::uint64_t{0};
            for (std::size_t i = 2; i < e.kids.size() && !stopped(); ++i)
                stored |= taint_of(evaluate(*e.kids[i], frame));
            if (stopped()) return {};
            stored_taint_ = stored;
            if (e.text == "gather" || e.text == "scatter") offsets = opaque(e, offsets.taint);
            return descriptor_access(e, object, &offsets, reads || atomic, writes || atomic);
        }
    }
    const bool accesses = e.builtin == Builtin::load || e.builtin == Builtin::store ||
                          e.builtin == Builtin::atomic || e.text == "gather" || e.text == "scatter";
    if (accesses && (object.kind == ValueKind::lost_pointer || object.kind == ValueKind::opaque)) {
        const bool reads = e.text == "load" || e.text == "gather" || e.builtin == Builtin::atomic;
        for (std::size_t i = 1; i < e.kids.size() && !stopped(); ++i) (void)evaluate(*e.kids[i], frame);
        // tl.gather(x, …) of data is no access.
        if (object.kind == ValueKind::opaque && e.builtin == Builtin::other)
            return opaque(*object.why, object.taint);
        return stopped()
                   ? Value{}
                   : descriptor_access(e, object, nullptr, reads, e.text != "load" && e.text != "gather");
    }
    if ((e.text == "load" || e.text == "store") && object.kind == ValueKind::pointer &&
        object.block->rank == 0) {
        const std::string& name = name_of(object.block->param);
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
        case Builtin::minimum:
        case Builtin::maximum:
        case Builtin::absolute:
        case Builtin::advance: return BuiltinCall(*this, e, e.builtin, arguments, frame).run();
        default: return BuiltinCall(*this, e, Builtin::other, arguments, frame).run();
    }
}

Value Evaluator::count(const Expr& e, const Value& of, const Value& by, const Value& result, Frame& frame) {
    if (result.kind != ValueKind::integer || by.kind != ValueKind::integer ||
        (result.taint & ~count_bits_) != 0 || (of.taint & ~count_bits_) != 0) {
        return result;
    }
    Value made = result;
    const std::uint64_t bit = new_source(e, {.kind = TaintSource::Kind::count, .in_kernel = frame.is_kernel});
    TaintSource& source = sources[at(e.source)];
    source.count = result.integer;
    source.block = by.integer;
    made.taint |= bit;
    found.all_counts |= bit;
    return made;
}

}  // namespace syncopate::kernel::triton

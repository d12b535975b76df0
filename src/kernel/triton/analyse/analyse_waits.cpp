// Whether a kernel's tiles wait for others of it: scans that look back, the locks of stream-K, parts that are added in turn. Such
// a kernel keeps the order of its tiles (fuse/passes/order.hpp), or one would spin for another that comes behind it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernel/triton/analyse/analysis.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

/// A call's argument that is written as a number.
std::optional<std::int64_t> number_of(const Expr& call, std::size_t place, std::string_view name) {
    const auto named = std::ranges::find(call.keywords, name, &std::pair<std::string, Expr*>::first);
    const Expr* const found = place < call.kids.size()       ? call.kids[place]
                              : named != call.keywords.end() ? named->second
                                                             : nullptr;
    const auto* number = found == nullptr || found->kind != ExprKind::literal
                             ? nullptr
                             : std::get_if<std::int64_t>(&found->literal);
    return number == nullptr ? std::nullopt : std::optional(*number);
}

/// tl.atomic_cas(p, 0, 1) or tl.atomic_xchg(p, 1).
bool takes_lock(const Expr& call) {
    if (call.text.ends_with("atomic_xchg")) return number_of(call, 1, "val").value_or(0) != 0;
    return call.text.ends_with("atomic_cas") && number_of(call, 1, "cmp") == 0 &&
           number_of(call, 2, "val").value_or(0) != 0;
}

/// What a call that takes a lock leaves there.
std::optional<std::int64_t> taken_value(const Expr& call) {
    return number_of(call, call.text.ends_with("atomic_cas") ? 2 : 1, "val");
}

/// tl.atomic_xchg(p, value) or tl.store(p, value).
bool stores_number(const Expr& call, std::optional<std::int64_t> value) {
    const bool xchg = call.text.ends_with("atomic_xchg");
    return (xchg || call.builtin == Builtin::store) && number_of(call, 1, xchg ? "val" : "value") == value;
}

bool holds(const Function& function, const Expr& call) {
    return std::ranges::any_of(flattened(function.body), [&](const Stmt* statement) {
        const auto in = [&](Expr* root) {
            return std::ranges::any_of(flattened(root), [&](const Expr* part) { return part == &call; });
        };
        return in(statement->value) || in(statement->target);
    });
}

/// Whether a name in `pointer` gets another value on these lines.
bool changes_on(const Function& function, const Expr& pointer, std::int32_t first, std::int32_t last) {
    std::set<std::int32_t> slots;
    for (const Expr* part : flattened(const_cast<Expr*>(&pointer)))
        if (part->slot >= 0) slots.insert(part->slot);
    const auto names_one = [&](const Expr* in) {
        return std::ranges::any_of(flattened(const_cast<Expr*>(in)),
                                   [&](const Expr* part) { return slots.contains(part->slot); });
    };
    return std::ranges::any_of(flattened(function.body), [&](const Stmt* statement) {
        if (statement->where.line < first || statement->where.line > last) return false;
        const auto binds_one = [&](const Expr* part) {
            return part->kind == ExprKind::bind && names_one(part);
        };
        return names_one(statement->target) || std::ranges::any_of(statement->also, names_one) ||
               std::ranges::any_of(flattened(statement->value), binds_one);
    });
}

}  // namespace

/// Whether both name their memory in the same words, which mean the same in both.
bool Analysis::is_same_pointer(const Expr& call, const Expr& other) const {
    if (&call == &other) return true;
    if (call.kids.empty() || other.kids.empty()) return false;
    const Expr& pointer = *call.kids[0];
    if (module_.text(pointer.where) != module_.text(other.kids[0]->where)) return false;
    const auto [first, last] = std::minmax(call.where.line, other.where.line);
    return std::ranges::any_of(module_.functions, [&](const Function& function) {
        return holds(function, call) && holds(function, other) && !changes_on(function, pointer, first, last);
    });
}

/// Whether `call` takes a lock that its own tile frees: that is free whoever had it. What else stores to this memory could
/// hand it on from tile to tile, unless it stores what a lock that is taken holds.
bool Analysis::is_lock(const Expr& call, std::int32_t memory) const {
    if (!takes_lock(call)) return false;
    bool freed = false;
    for (const auto& [access, form] : evaluator_.found.accesses) {
        const auto& [other, of] = access;
        if (!form.stores || (of != memory && of >= 0)) continue;
        if (stores_number(*other, taken_value(call))) continue;
        if (!is_same_pointer(call, *other) || !(takes_lock(*other) || stores_number(*other, 0))) return false;
        freed = freed || stores_number(*other, 0);
    }
    return freed;
}

/// Whether tiles may wait for others: data decides how often a `while` runs that reads, itself or by functions, what the kernel
/// stores. Where that is not meant to wait, it costs no more than the order.
bool Analysis::awaits_tiles() const {
    const bool stores = std::ranges::find(evaluator_.param_written, true) != evaluator_.param_written.end();
    if (stores && evaluator_.found.waits_in_assembler) return true;
    return std::ranges::any_of(evaluator_.found.accesses, [&](const auto& access) {
        const auto& [call, memory] = access.first;
        return access.second.awaited && memory >= 0 && evaluator_.param_written[at(memory)] &&
               !is_lock(*call, memory);
    });
}

}  // namespace syncopate::kernel::triton

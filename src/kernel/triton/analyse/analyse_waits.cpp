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

/// tl.atomic_xchg(p, 0) or tl.store(p, 0).
bool frees_lock(const Expr& call) {
    const bool xchg = call.text.ends_with("atomic_xchg");
    return (xchg || call.builtin == Builtin::store) && number_of(call, 1, xchg ? "val" : "value") == 0;
}

/// Whether a name in `pointer` gets another value between these lines.
bool changes_between(const Function& function, const Expr& pointer, std::int32_t first, std::int32_t last) {
    std::set<std::int32_t> slots;
    for (const Expr* part : flattened(const_cast<Expr*>(&pointer)))
        if (part->slot >= 0) slots.insert(part->slot);
    const auto sets = [&](const Expr* target) {
        return std::ranges::any_of(flattened(const_cast<Expr*>(target)), [&](const Expr* part) {
            return part->kind == ExprKind::name && slots.contains(part->slot);
        });
    };
    return std::ranges::any_of(flattened(function.body), [&](const Stmt* statement) {
        const bool between = statement->where.line > first && statement->where.line <= last;
        return between && (sets(statement->target) || std::ranges::any_of(statement->also, sets));
    });
}

}  // namespace

/// Whether `call` takes a lock that its own tile frees: that is free whoever had it. Others are handed on from tile to tile.
bool Analysis::is_lock(const Expr& call) const {
    if (!takes_lock(call) || call.kids.empty()) return false;
    const Expr& pointer = *call.kids[0];
    for (const Function& function : module_.functions) {
        bool takes = false, frees = false;
        for (const Stmt* statement : flattened(function.body)) {
            for (Expr* root : {statement->value, statement->target}) {
                for (const Expr* part : flattened(root)) {
                    takes = takes || part == &call;
                    const bool same = takes && part->kind == ExprKind::call && frees_lock(*part) &&
                                      !part->kids.empty() &&
                                      quoted(module_, part->kids[0]->where) == quoted(module_, pointer.where);
                    frees = frees ||
                            (same && !changes_between(function, pointer, call.where.line, part->where.line));
                }
            }
        }
        if (takes) return frees;
    }
    return false;
}

/// Whether tiles may wait for others: data decides how often a `while` runs that reads, itself or by functions, what the kernel
/// stores. Where that is not meant to wait, it costs no more than the order.
bool Analysis::awaits_tiles() const {
    const bool stores = std::ranges::find(evaluator_.param_written, true) != evaluator_.param_written.end();
    if (stores && evaluator_.found.waits_in_assembler) return true;
    return std::ranges::any_of(evaluator_.found.accesses, [&](const auto& access) {
        const auto& [call, memory] = access.first;
        return access.second.awaited && memory >= 0 && evaluator_.param_written[at(memory)] &&
               !is_lock(*call);
    });
}

}  // namespace syncopate::kernel::triton

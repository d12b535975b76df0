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

/// tl.atomic_cas(p, 0, 1) or tl.atomic_xchg(p, 1): a lock is free whoever had it. Others look, or take what was handed over.
bool takes_lock(const Expr& read) {
    const auto given = [&](std::size_t place, std::string_view name) -> std::optional<std::int64_t> {
        const auto named = std::ranges::find(read.keywords, name, &std::pair<std::string, Expr*>::first);
        const Expr* const found = place < read.kids.size()       ? read.kids[place]
                                  : named != read.keywords.end() ? named->second
                                                                 : nullptr;
        const auto* number = found == nullptr || found->kind != ExprKind::literal
                                 ? nullptr
                                 : std::get_if<std::int64_t>(&found->literal);
        return number == nullptr ? std::nullopt : std::optional(*number);
    };
    if (read.text.ends_with("atomic_xchg")) return given(1, "val").value_or(0) != 0;
    return read.text.ends_with("atomic_cas") && given(1, "cmp") == 0 && given(2, "val").value_or(0) != 0;
}

}  // namespace

/// Whether tiles may wait for others: data decides how often a `while` runs that reads, itself or by functions, what the kernel
/// stores. Where that is not meant to wait, it costs no more than the order.
bool Analysis::awaits_tiles() const {
    std::vector<const Stmt*> inside(evaluator_.found.waits.begin(), evaluator_.found.waits.end());
    std::set<const Expr*> calls;
    std::set<std::int32_t> entered;
    for (std::size_t i = 0; i < inside.size(); ++i) {
        for (const std::vector<Stmt*>* block : {&inside[i]->body, &inside[i]->otherwise})
            inside.insert(inside.end(), block->begin(), block->end());
        for (Expr* root : {inside[i]->value, inside[i]->target}) {
            if (root == nullptr) continue;
            for (const Expr* part : flattened(root)) {
                calls.insert(part);
                if (part->function < 0 || !entered.insert(part->function).second) continue;
                const std::vector<Stmt*>& body = module_.functions[at(part->function)].body;
                inside.insert(inside.end(), body.begin(), body.end());
            }
        }
    }
    const bool stores = std::ranges::find(evaluator_.param_written, true) != evaluator_.param_written.end();
    const auto in_assembler = [](const Expr* call) { return call->text.ends_with("inline_asm_elementwise"); };
    if (stores && std::ranges::any_of(calls, in_assembler)) return true;
    return std::ranges::any_of(evaluator_.found.accesses, [&](const auto& access) {
        const auto& [call, memory] = access.first;
        return memory >= 0 && evaluator_.param_written[at(memory)] && calls.contains(call) &&
               !takes_lock(*call);
    });
}

}  // namespace syncopate::kernel::triton

// The loops inside a tile that read: which of them can be run range by range, and where they stand.
#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "kernel/triton/sites/sites.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

bool is_literal(const Expr* e, std::int64_t value) {
    return e->kind == ExprKind::literal && std::holds_alternative<std::int64_t>(e->literal) &&
           std::get<std::int64_t>(e->literal) == value;
}

/// Whether something in the body of a loop ends the loop before its last round.
bool ends_early(const std::vector<Stmt*>& body) {
    return std::any_of(body.begin(), body.end(), [](const Stmt* s) {
        if (s->kind == StmtKind::stop_loop || s->kind == StmtKind::give_back) return true;
        const bool loop = s->kind == StmtKind::for_loop || s->kind == StmtKind::while_loop;
        return loop ? false : ends_early(s->body) || ends_early(s->otherwise);
    });
}

/// Whether `e` has another value once the loop's body has run.
bool changes(const Stmt& loop, Expr* e) {
    return std::ranges::any_of(flattened(e), [&](const Expr* part) {
        if (part->kind == ExprKind::bind) return true;
        return part->kind == ExprKind::name && part->slot >= 0 &&
               std::ranges::find(loop.assigned, part->slot) != loop.assigned.end();
    });
}

/// Names of what tl.range takes: the first and the end of its numbers, and how far they are apart.
constexpr std::array<std::string_view, 3> kRangeParts{"arg1", "arg2", "step"};

/// Adds what it takes to run only some iterations of `for x in range(begin, end, step)`, all of which it runs
/// else; false for a loop of another form.
bool add_range(const Module& module, const Stmt& loop, LoopSite& site) {
    const Expr& over = *loop.value;
    if (over.kind != ExprKind::call || over.builtin != Builtin::range) return false;
    if (!loop.otherwise.empty() || ends_early(loop.body)) return false;
    const SourceRange between{.begin = loop.header.end, .end = loop.body.front()->where.begin};
    if (module.text(between).find('\n') == std::string_view::npos) return false;  // no line for a wait
    const std::vector<Expr*>& given = over.kids;
    const bool spread = std::ranges::any_of(given, [](const Expr* e) { return e->kind == ExprKind::splat; });
    if (spread || given.size() > 3) return false;
    std::array<Expr*, 3> parts{};
    std::ranges::copy(given, parts.begin());
    for (const auto& [name, value] : over.keywords) {
        const auto at = std::ranges::find(kRangeParts, name);
        if (at != kRangeParts.end()) parts[static_cast<std::size_t>(at - kRangeParts.begin())] = value;
    }
    for (Expr*& part : parts)
        if (part != nullptr && module.text(part->where) == "None")
            part = nullptr;                                  // as where it is not given
    if (parts[1] == nullptr) std::swap(parts[0], parts[1]);  // the end alone
    if (parts[1] == nullptr) return false;
    Expr* const begin = parts[0];
    Expr* const step = parts[2];
    const auto text = [&](const Expr* e) {
        const std::string written(module.text(e->where));
        return e->kind == ExprKind::name || e->kind == ExprKind::literal ? written : "(" + written + ")";
    };
    if ((begin != nullptr && changes(loop, begin)) || (step != nullptr && changes(loop, step))) return false;
    if (begin != nullptr && !is_literal(begin, 0)) site.begin = text(begin);
    if (step != nullptr && !is_literal(step, 1)) site.step = text(step);
    site.bound = module.text(parts[1]->where);
    return true;
}

/// Whether a comment `# @sy.any_order` trails the loop's header, or stands on the line above it.
bool has_any_order(const Module& module, const Stmt& loop) {
    return std::ranges::any_of(module.comments, [&](const Comment& comment) {
        const std::string_view text = module.text(comment.where);
        const std::size_t at = text.find_first_not_of("# \t");
        if (at == std::string_view::npos || !text.substr(at).starts_with("@sy.any_order")) return false;
        const std::int32_t line = comment.where.line;
        return line == loop.where.line - 1 ||
               (comment.where.begin >= loop.header.end && line <= loop.body.front()->where.line &&
                comment.where.begin < loop.body.front()->where.begin);
    });
}

/// The helper that `call` calls; null where its text is not in the kernel's file, or others call it, too, who
/// know of no schedule.
const Function* own_helper(const Module& module, std::int32_t kernel, const Expr& call) {
    if (call.function < 0) return nullptr;
    const Function& helper = module.functions[at(call.function)];
    if (helper.file != 0) return nullptr;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        if (static_cast<std::int32_t>(i) == kernel || &module.functions[i] == &helper) continue;
        if (module.functions[i].calls.contains(call.function)) return nullptr;
    }
    return helper.calls.contains(call.function) ? nullptr : &helper;
}

std::size_t calls_of(const Function& kernel, std::int32_t function) {
    std::size_t count = 0;
    for (const Stmt* s : flattened(kernel.body)) {
        for (Expr* root : {s->value, s->target}) {
            if (root == nullptr) continue;
            count += static_cast<std::size_t>(std::ranges::count_if(
                flattened(root), [&](const Expr* e) { return e->function == function; }));
        }
    }
    return count;
}

class Loops {
public:
    Loops(const Module& module, std::int32_t kernel, const Evaluator& evaluator)
        : module_(module), kernel_(kernel), evaluator_(evaluator) {}

    FoundLoops run() {
        for (const WalkedLoop& walked : evaluator_.walked) {
            const LoopRecord& record = evaluator_.loops[at(walked.statement->loop)];
            if (!record.reads || record.statement == nullptr ||
                walked.statement->kind != StmtKind::for_loop) {
                made_.index.push_back(-1);
                continue;
            }
            made_.index.push_back(static_cast<std::int32_t>(made_.loops.size()));
            add(walked, record);
        }
        check_helpers();
        made_.tiles_differ = differ();
        return std::move(made_);
    }

private:
    void add(const WalkedLoop& walked, const LoopRecord& record) {
        const Stmt& statement = *walked.statement;
        Loop loop;
        if (statement.target->kind == ExprKind::name) loop.variable = statement.target->text;
        loop.trips = record.trips;
        LoopSite site;
        site.statement = statement.where;
        site.header = statement.header;
        site.iterable = statement.value->where;
        site.indent = statement.where.column - 1;
        const bool placed = walked.calls.empty() || place_in_helper(walked, site);
        loop.divisible = !walked.whole && placed && in_tile(walked) && add_range(module_, statement, site);
        loop.any_order = has_any_order(module_, statement);
        if (loop.any_order && record.counted >= 0) refuse_order(walked, record.counted);
        for (const auto& [param, advance] : record.slices) {
            if (advance.dim < 0 || !record.same_trips || evaluator_.read_outside[at(param)]) continue;
            loop.slices.push_back({evaluator_.memory_names[at(param)], advance.dim, advance.base,
                                   advance.step, advance.extent});
        }
        made_.loops.push_back(std::move(loop));
        made_.sites.push_back(std::move(site));
        walked_.push_back(&walked);
    }

    /// Another order would change what the variable is in an iteration.
    void refuse_order(const WalkedLoop& walked, std::int32_t slot) {
        const std::int32_t function = walked.calls.empty() ? kernel_ : walked.calls.back()->function;
        const std::string& name = module_.functions[at(function)].slots[at(slot)];
        made_.wrong =
            module_.error(walked.statement->header,
                          "`@sy.any_order`: `" + name +
                              "` moves on from one iteration to the next, so the order matters; take "
                              "what it is from the loop's variable, or leave the directive out");
    }

    /// Whether it is run once a tile: in a persistent kernel, inside the loop over tiles.
    [[nodiscard]] bool in_tile(const WalkedLoop& walked) const {
        const Stmt* tiles = evaluator_.found.tile_loop;
        if (tiles == nullptr) return true;
        const SourceRange& where = walked.calls.empty() ? walked.statement->where : walked.calls[0]->where;
        return tiles->where.begin <= where.begin && where.end <= tiles->where.end;
    }

    [[nodiscard]] bool place_in_helper(const WalkedLoop& walked, LoopSite& site) const {
        const Expr& call = *walked.calls.front();
        const Function* helper = walked.calls.size() == 1 ? own_helper(module_, kernel_, call) : nullptr;
        if (helper == nullptr) return false;
        site.call = call.where;
        const std::string_view text = module_.text(call.where);
        const std::size_t open = text.find('(');
        if (open == std::string_view::npos) return false;
        site.call_arguments = call.where;
        site.call_arguments.begin += static_cast<std::uint32_t>(open + 1);
        site.helper_parameters = helper->parameters_range;
        for (const WalkedLoop* before : walked_) {
            if (!before->calls.empty() && before->calls.front() == &call) ++site.in_call;
        }
        return true;
    }

    /// A helper takes part only if all calls of it do, each with the same loops one behind another.
    void check_helpers() {
        std::map<std::int32_t, std::map<const Expr*, std::vector<std::size_t>>> by_call;
        for (std::size_t i = 0; i < walked_.size(); ++i) {
            if (!walked_[i]->calls.empty())
                by_call[walked_[i]->calls.front()->function][walked_[i]->calls.front()].push_back(i);
        }
        const Function& kernel = module_.functions[at(kernel_)];
        for (const auto& [function, calls] : by_call) {
            const std::vector<std::size_t>& first = calls.begin()->second;
            bool sound = calls_of(kernel, function) == calls.size();
            for (const auto& [call, loops] : calls) {
                sound =
                    sound && loops.size() == first.size() && loops.back() - loops.front() + 1 == loops.size();
                for (std::size_t i = 0; sound && i < loops.size(); ++i) {
                    sound = made_.loops[loops[i]].divisible &&
                            walked_[loops[i]]->statement == walked_[first[i]]->statement;
                }
            }
            if (sound) continue;
            for (const auto& [call, loops] : calls)
                for (const std::size_t loop : loops) made_.loops[loop].divisible = false;
        }
        for (std::size_t i = 0; i < made_.loops.size(); ++i)
            if (!made_.loops[i].divisible) made_.sites[i].bound.clear();
    }

    /// Whether what tiles read in their loops has to be told tile by tile.
    [[nodiscard]] bool differ() const {
        if (made_.loops.empty()) return false;
        if (made_.loops.size() > 1) return true;
        const LoopRecord& record = evaluator_.loops[at(walked_.front()->statement->loop)];
        if (!record.same_trips) return true;
        return std::ranges::any_of(record.slices, [&](const auto& slice) {
            return slice.second.dim < 0 || evaluator_.read_outside[at(slice.first)];
        });
    }

    const Module& module_;
    std::int32_t kernel_;
    const Evaluator& evaluator_;
    FoundLoops made_;
    std::vector<const WalkedLoop*> walked_;  ///< by loop
};

}  // namespace

FoundLoops find_loops(const Module& module, std::int32_t kernel, const Evaluator& evaluator) {
    return Loops(module, kernel, evaluator).run();
}

}  // namespace syncopate::kernel::triton

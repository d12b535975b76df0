#include "kernel/triton/syntax/directive.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::array<std::pair<std::string_view, DirectiveKind>, 12> kNames{
    {{"axis_count", DirectiveKind::axis_count},
     {"num_tiles", DirectiveKind::num_tiles},
     {"tile_id", DirectiveKind::tile_id},
     {"persistent_init", DirectiveKind::persistent_init},
     {"dispatch", DirectiveKind::dispatch},
     {"pid_map", DirectiveKind::pid_map},
     {"producer_epilogue", DirectiveKind::producer_epilogue},
     {"host_entry", DirectiveKind::host_entry},
     {"kernel_launch", DirectiveKind::kernel_launch},
     {"reads", DirectiveKind::reads},
     {"writes", DirectiveKind::writes},
     {"any_order", DirectiveKind::any_order}}};

struct Word {
    std::string_view text;
    SourceRange where;
};

class Reader {
public:
    Reader(Module& module, std::int32_t kernel)
        : module_(module), index_(kernel), kernel_(module.functions[at(kernel)]) {
        for (const Stmt* s : flattened(kernel_.body)) statements_.push_back(s);
        std::sort(statements_.begin(), statements_.end(),
                  [](const Stmt* a, const Stmt* b) { return a->where.begin < b->where.begin; });
    }

    Result<std::vector<Directive>> run() {
        for (const Comment& comment : module_.comments) {
            SYNCOPATE_TRY(one(comment.where));
        }
        for (std::size_t open : open_) {
            if (open != kNone) {
                return module_.error(result_[open].where,
                                     "this `begin` has no `end`: write the same directive with `end` below "
                                     "the lines that it is about");
            }
        }
        return std::move(result_);
    }

private:
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    bool inside(const SourceRange& where, const SourceRange& range) const {
        return where.begin >= range.begin && where.end <= range.end;
    }

    /// In the kernel, or on lines of comments right above it.
    bool is_of(const Function& kernel, const SourceRange& where) const {
        // A comment after the last statement still belongs to the function if it is indented.
        if (where.begin >= kernel.whole.begin && where.begin < kernel.whole.end) return true;
        const std::uint32_t from = std::min(where.end, kernel.whole.begin),
                            to = std::max(where.begin, kernel.whole.end);
        const bool above = where.end <= kernel.whole.begin;
        if (!above && where.column == 1) return false;
        std::string_view between = above ? module_.source.substr(from, kernel.whole.begin - from)
                                         : module_.source.substr(kernel.whole.end, to - kernel.whole.end);
        while (!between.empty()) {
            const std::size_t end = std::min(between.find('\n'), between.size() - 1);
            const std::string_view line = between.substr(0, end);
            const std::size_t first = line.find_first_not_of(" \t\r");
            if (first != std::string_view::npos && line[first] != '#') return false;
            between.remove_prefix(end + 1);
        }
        return true;
    }

    bool of_other_kernel(const SourceRange& where) const {
        return std::any_of(module_.functions.begin(), module_.functions.end(), [&](const Function& f) {
            return &f != &kernel_ && f.jit && inside(where, f.whole);
        });
    }

    const Stmt* statement_of(const SourceRange& comment) const {
        const Stmt* trailed = nullptr;
        for (const Stmt* s : statements_) {
            if (s->where.begin >= comment.begin) break;
            const bool starts_here = s->where.line == comment.line;
            const std::string_view between =
                s->where.end <= comment.begin
                    ? module_.source.substr(s->where.end, comment.begin - s->where.end)
                    : std::string_view("\n");
            if (starts_here || between.find('\n') == std::string_view::npos) {
                if (trailed == nullptr || starts_here) trailed = s;
            }
        }
        if (trailed != nullptr) return trailed;
        for (const Stmt* s : statements_) {
            if (s->where.begin > comment.begin) return s;
        }
        return nullptr;
    }

    Error wrong(const SourceRange& where, std::string message) const {
        return module_.error(where, std::move(message));
    }

    std::vector<Word> words(SourceRange where) const {
        std::vector<Word> result;
        const std::string_view text = module_.text(where);
        for (std::size_t i = 0; i < text.size();) {
            if (text[i] == ' ' || text[i] == '\t' || text[i] == '\r') {
                ++i;
                continue;
            }
            std::size_t end = i;
            while (end < text.size() && text[end] != ' ' && text[end] != '\t' && text[end] != '\r') ++end;
            result.push_back({text.substr(i, end - i), part(where, i, end)});
            i = end;
        }
        return result;
    }

    static SourceRange part(const SourceRange& whole, std::size_t begin, std::size_t end) {
        return {whole.begin + static_cast<std::uint32_t>(begin),
                whole.begin + static_cast<std::uint32_t>(end), whole.line,
                whole.column + static_cast<std::int32_t>(begin)};
    }

    /// An expression over the kernel's variables.
    Result<Expr*> expression(const SourceRange& where) const {
        Result<Expr*> parsed = module_.parse_fragment(module_.text(where), index_, where);
        if (!parsed) return parsed;
        for (const Expr* e : flattened(*parsed)) {
            if (e->kind == ExprKind::unsupported)
                return wrong(
                    e->where,
                    "this is not an expression that a directive can use: write variables, whole numbers "
                    "and operators");
            if (e->kind == ExprKind::name && e->slot < 0) {
                return wrong(e->where, "`" + e->text + "` is not a variable of kernel `" + kernel_.name +
                                           "`" + did_you_mean(e->text, kernel_.slots));
            }
        }
        return parsed;
    }

    Status one(const SourceRange& comment) {
        const std::string_view text = module_.text(comment);
        std::size_t at = text.find_first_not_of("# \t");
        if (at == std::string_view::npos || text.substr(at, 4) != "@sy.") return Done{};
        std::size_t end = at + 4;
        while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
            ++end;
        const std::string_view name = text.substr(at + 4, end - at - 4);
        Directive made;
        made.where = part(comment, at, text.size());
        const auto known = std::find_if(kNames.begin(), kNames.end(),
                                        [&](const auto& entry) { return entry.first == name; });
        if (known == kNames.end()) {
            std::vector<std::string_view> names;
            for (const auto& entry : kNames) names.push_back(entry.first);
            return wrong(made.where,
                         "unknown directive `@sy." + std::string(name) + "`" + did_you_mean(name, names));
        }
        made.kind = known->second;
        const SourceRange rest = part(comment, end, text.size());
        if (made.kind == DirectiveKind::host_entry || made.kind == DirectiveKind::kernel_launch)
            return wrong(made.where,
                         "`@sy." + std::string(name) +
                             "`: host code is not rewritten: `syncopate run` launches what `syncopate "
                             "fuse` writes, and `sy.fuse(" +
                             kernel_.name +
                             ", plan, bind=…)[grid](…)` stands for a launch in Python; leave the "
                             "directive out");
        if (!is_of(kernel_, comment)) {
            if (of_other_kernel(comment)) return Done{};
            // Comments right above another kernel are that kernel's.
            if (made.kind == DirectiveKind::reads || made.kind == DirectiveKind::writes) {
                const bool above = std::ranges::any_of(
                    module_.functions, [&](const Function& f) { return f.jit && is_of(f, comment); });
                if (above) return Done{};
                return wrong(made.where, "`@sy." + std::string(name) +
                                             "` belongs inside a kernel or right above one: move it there");
            }
            return wrong(made.where,
                         "`@sy." + std::string(name) + "` belongs inside a kernel: move it there");
        }
        made.statement = statement_of(comment);
        const Status status = arguments(made, rest, name);
        if (status) result_.push_back(std::move(made));
        return status;
    }

    Status no_more(const std::vector<Word>& given, std::size_t count, std::string_view name) const {
        if (given.size() <= count) return Done{};
        return wrong(given[count].where, "`" + std::string(given[count].text) +
                                             "` is not expected after `@sy." + std::string(name) +
                                             "`: leave it out");
    }

    Status needs_assignment(const Directive& made, std::string_view name) const {
        const bool is_loop = made.statement != nullptr && made.statement->kind == StmtKind::for_loop;
        const bool assigns = made.statement != nullptr && made.statement->kind == StmtKind::assign &&
                             made.statement->target->kind == ExprKind::name;
        if (assigns || (is_loop && made.kind == DirectiveKind::tile_id)) return Done{};
        return wrong(made.where, "`@sy." + std::string(name) +
                                     "` belongs on the assignment of one variable: move it to "
                                     "that line");
    }

    Status arguments(Directive& made, const SourceRange& rest, std::string_view name) {
        const std::vector<Word> given = words(rest);
        switch (made.kind) {
            case DirectiveKind::axis_count: return axis_count(made, given, name);
            case DirectiveKind::num_tiles:
                SYNCOPATE_TRY(no_more(given, 0, name));
                return needs_assignment(made, name);
            case DirectiveKind::tile_id: return tile_id(made, given, name);
            case DirectiveKind::persistent_init:
            case DirectiveKind::dispatch: return begin_or_end(made, given, name);
            case DirectiveKind::pid_map: return pid_map(made, given);
            case DirectiveKind::reads:
            case DirectiveKind::writes: return stated_footprint(made, given, name);
            case DirectiveKind::any_order:
                if (made.statement == nullptr || made.statement->kind != StmtKind::for_loop)
                    return wrong(made.where,
                                 "`@sy.any_order` belongs on a `for` loop of a tile: move it to that line");
                return no_more(given, 0, name);
            case DirectiveKind::producer_epilogue:
            case DirectiveKind::host_entry:
            case DirectiveKind::kernel_launch: return no_more(given, 0, name);
        }
        return Done{};
    }

    Status axis_count(Directive& made, const std::vector<Word>& given, std::string_view name) const {
        if (given.empty())
            return wrong(made.where,
                         "`@sy.axis_count` needs an axis and its block size, as in `@sy.axis_count M "
                         "block=BLOCK_M`");
        std::string_view axis = given[0].text;
        if (const std::size_t equals = axis.find('='); equals != std::string_view::npos) {
            if (equals == 0 || axis.substr(equals + 1) != "range")
                return wrong(given[0].where, "`" + std::string(axis) +
                                                 "`: an axis is NAME or NAME=range; write one of those");
            axis = axis.substr(0, equals);
            made.looped = true;
        }
        made.axis = axis;
        SYNCOPATE_TRY(no_more(given, 2, name));
        for (std::size_t i = 1; i < given.size(); ++i) {
            if (given[i].text.substr(0, 6) != "block=")
                return wrong(given[i].where,
                             "`" + std::string(given[i].text) + "` is not expected; write block=NAME");
            const SourceRange value = part(given[i].where, 6, given[i].text.size());
            SYNCOPATE_TAKE(Expr * block, expression(value));
            made.block = block;
        }
        return needs_assignment(made, name);
    }

    Status tile_id(Directive& made, const std::vector<Word>& given, std::string_view name) const {
        if (!given.empty()) {
            if (given[0].text != "persistent")
                return wrong(given[0].where,
                             "`" + std::string(given[0].text) +
                                 "` is not expected; write `@sy.tile_id` or `@sy.tile_id persistent`");
            made.persistent = true;
        }
        SYNCOPATE_TRY(no_more(given, 1, name));
        return needs_assignment(made, name);
    }

    Status begin_or_end(Directive& made, const std::vector<Word>& given, std::string_view name) {
        if (given.empty() || (given[0].text != "begin" && given[0].text != "end")) {
            return wrong(given.empty() ? made.where : given[0].where,
                         "`@sy." + std::string(name) + "` needs `begin` or `end`");
        }
        made.begins = given[0].text == "begin";
        std::size_t& open = open_[made.kind == DirectiveKind::dispatch ? 1 : 0];
        if (made.begins && open != kNone)
            return wrong(made.where,
                         "`@sy." + std::string(name) + " begin` inside another one: write its `end` first");
        if (!made.begins && open == kNone)
            return wrong(made.where, "`@sy." + std::string(name) +
                                         " end` without a `begin`: write that above the lines "
                                         "that it is about");
        open = made.begins ? result_.size() : kNone;
        return no_more(given, 1, name);
    }

    Status pid_map(Directive& made, const std::vector<Word>& given) const {
        if (open_[1] == kNone)
            return wrong(made.where,
                         "`@sy.pid_map` belongs between `@sy.dispatch begin` and `@sy.dispatch end`");
        if (std::ranges::any_of(result_, [](const Directive& d) { return d.kind == DirectiveKind::pid_map; }))
            return wrong(made.where, "this is a second `@sy.pid_map`: map all axes in one");
        if (given.empty())
            return wrong(made.where,
                         "`@sy.pid_map` needs AXIS=VARIABLE pairs, as in `@sy.pid_map M=pid_m N=pid_n`");
        for (const Word& word : given) {
            const std::size_t equals = word.text.find('=');
            if (equals == std::string_view::npos || equals == 0)
                return wrong(word.where,
                             "`" + std::string(word.text) + "` is not AXIS=VARIABLE, as in M=pid_m");
            const std::string axis(word.text.substr(0, equals));
            const bool twice =
                std::ranges::any_of(made.mapping, [&](const auto& entry) { return entry.first == axis; }) ||
                std::ranges::any_of(made.bounds, [&](const auto& entry) { return entry.axis == axis; });
            if (twice) return wrong(word.where, "axis `" + axis + "` is mapped twice: leave one out");
            const std::size_t dots = word.text.find("..", equals);
            const auto variable = [&](std::size_t begin, std::size_t stop) {
                return expression(part(word.where, begin, stop));
            };
            if (dots == std::string_view::npos) {
                SYNCOPATE_TAKE(Expr * parsed, variable(equals + 1, word.text.size()));
                made.mapping.emplace_back(axis, parsed);
            } else {
                SYNCOPATE_TAKE(Expr * low, variable(equals + 1, dots));
                SYNCOPATE_TAKE(Expr * high, variable(dots + 2, word.text.size()));
                for (const Expr* bound : {low, high}) {
                    if (bound->kind == ExprKind::name || bound->kind == ExprKind::literal) continue;
                    return wrong(bound->where, "a bound is a variable or a whole number, as in KV=lo..hi");
                }
                made.bounds.push_back({axis, low, high});
            }
        }
        return Done{};
    }

    Status stated_footprint(Directive& made, const std::vector<Word>& given, std::string_view name) const {
        if (given.empty())
            return wrong(made.where, "`@sy." + std::string(name) + "` needs a footprint, as in `@sy." +
                                         std::string(name) + " A[m*BM:(m+1)*BM, :]`");
        SourceRange place = given.front().where;
        place.end = given.back().where.end;
        SYNCOPATE_TAKE(Expr * parsed, expression(place));
        const Expr& e = *parsed;
        const Expr* of = e.kind == ExprKind::subscript ? e.kids[0] : nullptr;
        for (; of != nullptr && of->kind == ExprKind::subscript; of = of->kids[0]) {  // a tuple's
            const auto* index = of->kids.size() == 2 && of->kids[1]->kind == ExprKind::literal
                                    ? std::get_if<std::int64_t>(&of->kids[1]->literal)
                                    : nullptr;
            if (index == nullptr)
                return wrong(place, "which tensor of a tuple is meant is not a number: write `@sy." +
                                        std::string(name) + " A[0][m*BM:(m+1)*BM, :]`");
            made.item.insert(0, "[" + std::to_string(*index) + "]");
        }
        const bool names_param = of != nullptr && of->kind == ExprKind::name && of->slot >= 0 &&
                                 static_cast<std::size_t>(of->slot) < kernel_.parameters.size();
        if (!names_param)
            return wrong(place,
                         "a footprint is PARAMETER[range, …], with a parameter of the kernel: write `@sy." +
                             std::string(name) + " A[m*BM:(m+1)*BM, :]`");
        made.param = of->slot;
        for (std::size_t i = 1; i < e.kids.size(); ++i) {
            Expr* range = e.kids[i];
            if (range->kind == ExprKind::slice && range->kids[2] != nullptr)
                return wrong(range->where, "a footprint's range has no step: write begin:end");
            if (range->kind == ExprKind::slice)
                made.ranges.push_back({range->kids[0], range->kids[1], false});
            else
                made.ranges.push_back({range, nullptr, true});
        }
        return Done{};
    }

    Module& module_;
    std::int32_t index_;
    const Function& kernel_;
    std::vector<const Stmt*> statements_;
    std::vector<Directive> result_;
    std::array<std::size_t, 2> open_{kNone, kNone};  // persistent_init, dispatch: index of the open `begin`
};

}  // namespace

Result<std::vector<Directive>> read_directives(Module& module, std::int32_t kernel) {
    return Reader(module, kernel).run();
}

}  // namespace syncopate::kernel::triton

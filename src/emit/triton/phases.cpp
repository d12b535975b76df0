#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "emit/triton/steps.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit::triton {
namespace {

/// What phases say of iterations as the loop's variable has it: `sy_lo`, or `begin + sy_lo * step`.
std::string bound_of_phase(const kernel::triton::LoopSite& loop, const std::string& iteration) {
    const std::string steps = loop.step.empty() ? iteration : iteration + " * " + loop.step;
    return loop.begin.empty() ? steps : loop.begin + " + " + steps;
}

/// `range(n)` or `tl.range(n, num_stages=3)` as `range(sy_lo, sy_hi)`, `tl.range(sy_lo, sy_hi,
/// num_stages=3)`; `range(lo, hi, BN)` as `range(lo + sy_lo * BN, lo + sy_hi * BN, BN)`.
Result<std::string> iterable_of_phase(const SourceText& text, const Facts& facts,
                                      const kernel::triton::LoopSite& loop) {
    const auto found = std::ranges::find_if(
        facts.calls, [&](const Call& call) { return call.callee.begin == loop.iterable.begin; });
    const Call* iterable = found == facts.calls.end() ? nullptr : &*found;
    const std::string callee = iterable == nullptr ? "" : text.of(iterable->callee);
    if (iterable == nullptr || callee.ends_with("static_range")) {
        return text.error_at(
            loop.iterable,
            "a loop over anything but range(…) cannot be cut into phases: fuse without phases");
    }
    std::string phase = callee + "(" + bound_of_phase(loop, "sy_lo") + ", " + bound_of_phase(loop, "sy_hi") +
                        (loop.step.empty() ? "" : ", " + loop.step);
    for (const CallArgument& argument : iterable->arguments) {
        const bool told =
            argument.keyword == "arg1" || argument.keyword == "arg2" || argument.keyword == "step";
        if (!argument.keyword.empty() && !told) phase += ", " + text.of(argument.whole);
    }
    return phase + ")";
}

/// Indents the lines of the loop by one more level; not those inside a string, nor those of the iterable,
/// which is replaced.
void indent_loop(const Rewriting& to, const Facts& facts, const kernel::triton::LoopSite& loop,
                 const std::string& level) {
    for (std::uint32_t line = to.text.line_begin(loop.statement.begin); line < loop.statement.end;) {
        const bool in_string = std::ranges::any_of(
            facts.strings, [line](const Span& string) { return string.begin < line && line < string.end; });
        const bool replaced = loop.iterable.begin < line && line < loop.iterable.end;
        if (!in_string && !replaced && !to.text.is_blank_line(line)) to.edits.insert(line, level);
        line = to.text.next_line(line);
    }
}

/// Triton would flatten the nest with the wait inside it.
void keep_nested(const Rewriting& to) {
    const kernel::triton::SourceRange& header = to.sites().tile_loop_header;
    for (const Call& call : to.text.facts().calls) {
        if (call.callee.begin < header.begin || call.callee.end > header.end) continue;
        for (const CallArgument& argument : call.arguments) {
            if (argument.keyword == "flatten") to.edits.replace(argument.value, "False");
        }
    }
}

/// The number of the kernel's loop, as its phases are asked for; in a helper, that of its call's first one
/// and more.
std::string number_of(const kernel::triton::LoopSite& loop, std::size_t index) {
    if (!loop.in_helper()) return std::to_string(index);
    return loop.in_call == 0 ? "sy_loop" : "sy_loop + " + std::to_string(loop.in_call);
}

Status nest(const Rewriting& to, const kernel::triton::LoopSite& loop, std::size_t index, bool only) {
    if (!to.text.begins_its_line(loop.statement.begin)) {
        return to.text.error_at(loop.statement,
                                "the reduction loop must begin a line of its own: put it on one");
    }
    for (const std::uint32_t end : {loop.header.end, loop.statement.end}) {
        SYNCOPATE_TRY(to.text.check_ends_its_line(end, "the reduction loop"));
    }
    // The text's facts are those of the kernel; a helper has its own.
    const Facts own = loop.in_helper() ? facts_of(to.text.all(), span_of(loop.statement)) : Facts{};
    const Facts& facts = loop.in_helper() ? own : to.text.facts();
    SYNCOPATE_TAKE(const std::string iterable, iterable_of_phase(to.text, facts, loop));

    const std::string indent = to.text.indent_at(loop.statement.begin);
    const std::string level = level_like(indent);
    const std::string number = number_of(loop, index);
    const std::string last =
        to.edits.use("sy_num_phases") + "(sy_schedule, sy_slot" + (only ? ")" : ", " + number + ")");
    const std::string phases =
        only ? last : to.edits.use("sy_first_phase") + "(sy_schedule, sy_slot, " + number + "), " + last;
    to.edits.add_line_before(loop.statement.begin, indent + "for sy_phase in range(" + phases +
                                                       "):" + "  # as many as sets of chunks to wait for");
    to.edits.add_line_before(loop.statement.begin, indent + level +
                                                       "sy_lo, sy_hi = " + to.edits.use("sy_acquire_phase") +
                                                       "(sy_schedule, sy_control, sy_slot, sy_phase)" +
                                                       "  # these iterations may run");
    indent_loop(to, facts, loop, level);
    to.edits.replace(span_of(loop.iterable), iterable);
    return Done{};
}

}  // namespace

Status nest_loops(const Rewriting& to) {
    const std::vector<kernel::triton::LoopSite>& loops = to.sites().loops;
    const auto is_cut = [](const kernel::triton::LoopSite& loop) { return !loop.bound.empty(); };
    if (std::ranges::none_of(loops, is_cut)) {
        return to.text.error_at(to.sites().name,
                                "the schedule has phases, but the kernel has no reduction loop over "
                                "range(n): fuse without phases");
    }
    std::set<std::uint32_t> nested, called, given;  // loops, calls and helpers that have been rewritten
    for (std::size_t index = 0; index < loops.size(); ++index) {
        const kernel::triton::LoopSite& loop = loops[index];
        if (!is_cut(loop)) continue;
        if (nested.insert(loop.statement.begin).second) {
            SYNCOPATE_TRY(nest(to, loop, index, loops.size() == 1 && !loop.in_helper()));
        }
        if (!loop.in_helper()) continue;
        if (given.insert(loop.helper_parameters.begin).second) {
            const bool none = loop.helper_parameters.begin == loop.helper_parameters.end;
            to.edits.insert(loop.helper_parameters.begin,
                            std::string("sy_schedule, sy_control, sy_slot, sy_loop") + (none ? "" : ", "));
        }
        if (called.insert(loop.call.begin).second) {
            const bool none = loop.call_arguments.begin + 1 == loop.call.end;
            to.edits.insert(loop.call_arguments.begin, "sy_schedule, sy_control, sy_slot, " +
                                                           std::to_string(index) + (none ? "" : ", "));
        }
    }
    if (to.program.kernel.persistent) keep_nested(to);
    return Done{};
}

Status take_own_tiles(const Rewriting& to) {
    if (!to.program.kernel.persistent) return Done{};
    const kernel::triton::SourceRange& header = to.sites().tile_loop_header;
    for (const Call& call : to.text.facts().calls) {
        if (call.callee.begin < header.begin || call.callee.end > header.end) continue;
        if (!to.text.of(call.callee).ends_with("range")) continue;
        // The end stands second, or by its name; alone it is the first.
        const CallArgument* first = nullptr;
        const CallArgument* second = nullptr;
        std::size_t place = 0;
        for (const CallArgument& argument : call.arguments) {
            const bool by_place = argument.keyword.empty();
            if (argument.keyword == "arg1" || (by_place && place == 0)) first = &argument;
            if (argument.keyword == "arg2" || (by_place && place == 1)) second = &argument;
            place += by_place ? 1 : 0;
        }
        const CallArgument* const end = second != nullptr ? second : first;
        if (end == nullptr) break;
        to.edits.replace(end->value, to.edits.use("sy_num_slots") + "(sy_schedule)");
        return Done{};
    }
    return to.text.error_at(
        header,
        "ranks run some of the tiles each, and this loop over tiles is none over range(…), "
        "whose end could be another: write it as one");
}

}  // namespace syncopate::emit::triton

#include <algorithm>
#include <string_view>

#include "emit/triton/steps.hpp"

namespace syncopate::emit::triton {
namespace {

/// `range(n)` or `tl.range(n, num_stages=3)` as `range(sy_lo, sy_hi)`, `tl.range(sy_lo, sy_hi,
/// num_stages=3)`.
Result<std::string> iterable_of_phase(const SourceText& text, const kernel::triton::LoopSite& loop) {
    const Call* iterable = text.find_call(span_of(loop.iterable));
    const std::string callee = iterable == nullptr ? "" : text.of(iterable->callee);
    if (iterable == nullptr || callee.ends_with("static_range")) {
        return text.error_at(
            loop.iterable,
            "a loop over anything but range(n) cannot be cut into phases: fuse without phases");
    }
    std::string phase = callee + "(sy_lo, sy_hi";
    for (const CallArgument& argument : iterable->arguments) {
        if (!argument.keyword.empty()) phase += ", " + text.of(argument.whole);
    }
    return phase + ")";
}

/// Indents the lines of the loop by one more level; not those inside a string, nor those of the iterable,
/// which is replaced.
void indent_loop(const Rewriting& to, const kernel::triton::LoopSite& loop, const std::string& level) {
    for (std::uint32_t line = to.text.line_begin(loop.statement.begin); line < loop.statement.end;) {
        const bool in_string = std::ranges::any_of(to.text.facts().strings, [line](const Span& string) {
            return string.begin < line && line < string.end;
        });
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

}  // namespace

Status nest_reduction(const Rewriting& to) {
    if (to.sites().loops.empty() || to.sites().loops.front().bound.empty()) {
        return to.text.error_at(to.sites().name,
                                "the schedule has phases, but the kernel has no reduction loop over "
                                "range(n): fuse without phases");
    }
    const kernel::triton::LoopSite& loop = to.sites().loops.front();
    if (!to.text.begins_its_line(loop.statement.begin)) {
        return to.text.error_at(loop.statement,
                                "the reduction loop must begin a line of its own: put it on one");
    }
    for (const std::uint32_t end : {loop.header.end, loop.statement.end}) {
        if (Status status = to.text.check_ends_its_line(end, "the reduction loop"); !status)
            return status.error();
    }
    const Result<std::string> iterable = iterable_of_phase(to.text, loop);
    if (!iterable) return iterable.error();

    const std::string indent = to.text.indent_at(loop.statement.begin);
    const std::string level = level_like(indent);
    to.edits.add_line_before(loop.statement.begin,
                             indent + "for sy_phase in range(" + to.edits.use("sy_num_phases") +
                                 "(sy_schedule, sy_slot)):" + "  # as many as sets of chunks to wait for");
    to.edits.add_line_before(loop.statement.begin, indent + level +
                                                       "sy_lo, sy_hi = " + to.edits.use("sy_acquire_phase") +
                                                       "(sy_schedule, sy_control, sy_slot, sy_phase)" +
                                                       "  # these iterations may run");
    indent_loop(to, loop, level);
    to.edits.replace(span_of(loop.iterable), *iterable);
    if (to.program.kernel.persistent) keep_nested(to);
    return Done{};
}

}  // namespace syncopate::emit::triton

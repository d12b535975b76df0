// The user's file with the few lines that make its kernel follow a schedule: emit.hpp shows them.
#include <algorithm>
#include <array>
#include <string_view>

#include "emit/triton/steps.hpp"
#include "emit/triton/triton.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit::triton {
namespace {

constexpr std::array<std::string_view, 42> kNames{"sy_acquire",     "sy_acquire_2d",
                                                  "sy_acquire_3d",  "sy_acquire_phase",
                                                  "sy_all_rows",    "sy_control",
                                                  "sy_copy",        "sy_finish",
                                                  "sy_from",        "sy_hi",
                                                  "sy_linear_2d",   "sy_linear_3d",
                                                  "sy_lo",          "sy_load_offset",
                                                  "sy_load_row",    "sy_num_phases",
                                                  "sy_offset",      "sy_own",
                                                  "sy_own_offset",  "sy_phase",
                                                  "sy_post",        "sy_post_at_once",
                                                  "sy_post_last",   "sy_post_previous",
                                                  "sy_range",       "sy_reads_own",
                                                  "sy_row",         "sy_schedule",
                                                  "sy_slot",        "sy_tile",
                                                  "sy_tile_2d",     "sy_tile_3d",
                                                  "sy_x",           "sy_y",
                                                  "sy_z",           "SyncopateFault",
                                                  "sy_first_phase", "sy_loop",
                                                  "sy_num_slots",   "sy_split_2d",
                                                  "sy_split_3d",    "sy_start_next"};

Status check_names(const SourceText& text) {
    for (const Identifier& identifier : text.facts().identifiers) {
        if (std::ranges::find(kNames, identifier.name) != kNames.end()) {
            return text.error_at(identifier.where,
                                 identifier.name + " is a name that the fused kernel needs: rename it");
        }
    }
    return Done{};
}

void add_parameters(const Rewriting& to) {
    const std::vector<kernel::triton::SourceRange>& params = to.sites().parameter;
    const kernel::triton::SourceRange* last = nullptr;
    for (const kernel::triton::SourceRange& param : params) {
        if (to.text.of(span_of(param)).find('=') == std::string::npos) last = &param;
    }
    const std::string added =
        std::string("sy_schedule, sy_control") + (to.form.loads && to.form.loads->own ? ", sy_own" : "");
    if (last != nullptr) {
        to.edits.insert(last->end, ", " + added);
    } else {
        to.edits.insert(to.sites().parameters.begin, params.empty() ? added : added + ", ");
    }
}

void add_import(const Rewriting& to) {
    std::string names;
    for (const std::string& name : to.edits.used()) names += (names.empty() ? "" : ", ") + name;
    const kernel::triton::Sites& sites = to.sites();
    to.edits.add_line_before(
        sites.imports_end > 0 ? sites.imports_end : sites.function.begin,
        "from syncopate.language import " + names + "  # the schedule's tiles, waits and posts");
}

}  // namespace

Result<std::string> rewrite(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                            std::size_t stage) {
    const Form form = form_of(program, schedule, stage);
    const SourceText text(program.kernel);
    Edits edits(text);
    const Rewriting to{program, form, text, edits};

    SYNCOPATE_TRY(check_names(text));
    add_parameters(to);
    if (form.lets_next_start) {
        const std::uint32_t body = to.sites().body.begin;
        edits.add_line_before(body, text.indent_at(body) + edits.use("sy_start_next") +
                                        "()  # the next kernel may start: it waits for these tiles itself");
    }
    SYNCOPATE_TAKE(const SlotOfStore slot, take_tiles(to));
    if (form.phased) {
        SYNCOPATE_TRY(nest_loops(to));
    }
    if (form.partial) {
        SYNCOPATE_TRY(take_own_tiles(to));
    }
    const bool later = form.produces && can_post_later(to);
    if (form.produces) {
        SYNCOPATE_TRY(add_posts(to, slot, later));
    }
    if (form.stores) {
        SYNCOPATE_TRY(redirect_stores(to, slot));
    }
    if (form.loads) {
        SYNCOPATE_TRY(redirect_loads(to));
    }
    add_finish(to, later);
    add_import(to);
    return edits.apply();
}

}  // namespace syncopate::emit::triton

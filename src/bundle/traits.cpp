#include "syncopate/bundle/traits.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "emit/form.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"

namespace syncopate::bundle {

Traits traits_of(const fuse::StagedProgram& program, const fuse::Schedule& schedule, std::size_t stage) {
    Traits made;
    const auto add = [&](std::string_view name, std::int64_t value) {
        if (value != 0) made.emplace(name, value);
    };
    const auto add_inline = [&](const std::string& name, const std::optional<emit::InlineForm>& form) {
        if (!form) return;
        add(name + "_by_row", form->by_row);
        add(name + "_rows_of_16", form->rows_of_16);
        add(name + "_copies", form->copies);
    };
    const fuse::StageSlots& slots = schedule.stages[stage];
    const std::int64_t summands = fuse::kernel_summands(schedule);
    const bool tells = std::ranges::any_of(
        schedule.ranks, [](const fuse::RankSchedule& rank) { return !rank.kernel_posts.empty(); });
    const bool alone = schedule.stages.size() == 1 && summands == 0;
    add("FETCHED", schedule.loads() && !schedule.loads()->own);
    add("OWN", schedule.loads() && schedule.loads()->own);
    add("TELLS", alone && tells);
    add("QUIET", alone && !tells);
    add("SUMS", summands);
    add("PUSHED", schedule.stores().has_value());
    add("COPIES", schedule.stores() ? schedule.most_stores(0) : 0);
    add("STARTS_NEXT", stage + 1 < schedule.stages.size() && schedule.stages[stage + 1].overlaps);
    add("HEAD_START", slots.head_start.programs != 0 || slots.head_start.rounds != 0);
    const fuse::Stage& of = program.stages[stage];
    const emit::Form form = emit::form_of({of.kernel, program.plan, of.bindings}, schedule, stage);
    add("axes", static_cast<std::int64_t>(slots.own_grid.size()));
    add("phased", form.phased);
    add("loops", form.phased ? slots.loops : 0);
    add("partial", form.partial);
    add("program_a_slot", form.program_a_slot);
    add("produces", form.produces);
    add("awaits_chunks", form.awaits_chunks);
    add("lets_next_start", form.lets_next_start);
    add("can_wait", form.can_wait);
    add_inline("stores", form.stores);
    add_inline("loads", form.loads);
    return made;
}

}  // namespace syncopate::bundle

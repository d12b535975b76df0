#include "syncopate/bundle/traits.hpp"

#include <algorithm>
#include <string_view>

#include "syncopate/fuse/inline/kernel_sums.hpp"

namespace syncopate::bundle {

Traits traits_of(const fuse::Schedule& schedule, std::size_t stage) {
    Traits made;
    const auto add = [&](std::string_view name, std::int64_t value) {
        if (value != 0) made.emplace(name, value);
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
    add("phased", slots.phased);
    add("loops", slots.phased ? slots.loops : 0);
    add("produces", schedule.produces(stage));
    add("plain", slots.plain);
    add("axes", static_cast<std::int64_t>(slots.own_grid.size()));
    add("stores_by_row", schedule.stores() && schedule.stores()->by_row);
    add("loads_by_row", schedule.loads() && schedule.loads()->by_row);
    return made;
}

}  // namespace syncopate::bundle

#include "bundle/host_slots.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/emit/layout.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::bundle {

namespace table = emit::table;

std::vector<const std::int32_t*> records_of(const std::int32_t* words, std::int64_t first,
                                            std::int64_t count) {
    const std::int32_t* const records = words + words[table::groups] + 4;
    std::vector<const std::int32_t*> by_group(at(count));
    for (std::int64_t record = 0; record < count; ++record) {
        const std::int32_t* const one = records + table::slot_words * record;
        by_group[at((one[table::slot_tile] - first) % count)] = one;
    }
    return by_group;
}

Status make_slots(std::int32_t* words, const HostGroups& groups, const SlotCut& cut,
                  std::span<const std::int64_t> order) {
    const auto count = static_cast<std::int64_t>(groups.rows.size());
    const auto down_of = [&](std::int64_t group) {
        return std::max<std::int64_t>(ceil_div(groups.rows[at(group)], cut.rows), 1);
    };
    const auto tiles_of = [&](std::int64_t group) {
        return std::max<std::int64_t>(ceil_div(groups.rows[at(group)], cut.rows) * cut.columns, 1);
    };
    std::int64_t needed = 0;
    for (std::int64_t group = 0; group < count; ++group) needed += tiles_of(group);
    const std::int32_t room = words[words[table::groups] + 1];
    if (needed > room)
        return Error{fmt::format("{} slots are needed, and the table has room for {}", needed, room)};
    const std::vector<const std::int32_t*> by_group = records_of(words, cut.first, count);
    std::int32_t slot = 0;
    for (const std::int64_t group : order) {
        const std::int64_t down = down_of(group);
        for (std::int64_t n = 0; n < tiles_of(group); ++n, ++slot) {
            std::int32_t* const made = words + table::first_slot + table::slot_words * slot;
            std::copy_n(by_group[at(group)], table::slot_words, made);
            const std::int64_t row = n % down * cut.rows;
            made[table::slot_tile] =
                static_cast<std::int32_t>((groups.begin[at(group)] + row) * cut.columns + n / down);
            made[table::slot_group] = static_cast<std::int32_t>(group);
            made[table::slot_rows] = static_cast<std::int32_t>(
                std::clamp<std::int64_t>(groups.rows[at(group)] - row, 0, cut.rows));
        }
    }
    words[table::num_slots] = slot;
    for (std::int64_t group = 0; group < count; ++group) {
        const std::int32_t* const record = by_group[at(group)];
        for (std::int32_t chunk = record[table::slot_makes];
             chunk < (record[table::slot_makes + 1] & ~table::at_once); chunk += table::made_words) {
            std::int32_t* const made = words + chunk;
            made[table::made_tiles] =
                made[table::made_groups] == 1 ? static_cast<std::int32_t>(tiles_of(group)) : slot;
        }
    }
    return Done{};
}

std::vector<std::int64_t> in_order(std::int64_t groups) {
    std::vector<std::int64_t> order(at(groups));
    std::iota(order.begin(), order.end(), 0);
    return order;
}

std::vector<std::int64_t> next_rank_first(std::int64_t rank, std::int64_t ranks, std::int64_t own) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < ranks * own; ++i)
        order.push_back((rank + 1 + i % ranks) % ranks * own + i / ranks);
    return order;
}

void tell_of_call(std::span<std::uint32_t> seen, std::int64_t over, std::uint32_t bad) {
    seen[ops::kOver] = std::max(seen[ops::kOver], static_cast<std::uint32_t>(over));
    seen[ops::kBad] += bad;
    seen[ops::kCallsOver] += over > 0 ? 1 : 0;
    seen[ops::kCallsBad] += bad > 0 ? 1 : 0;
}

}  // namespace syncopate::bundle

#include "syncopate/emit/made_table.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/emit/layout.hpp"

namespace syncopate::emit {
namespace {

class MadeTable {
public:
    MadeTable(std::span<const std::int32_t> words, const MadeStage& of) : words_(words), of_(of) {}

    std::string objection() {
        if (words_.size() < at(table::first_slot)) return "it is cut off";
        const auto records = std::int64_t{word(table::groups)};
        const auto count = static_cast<std::int64_t>(of_.groups.size());
        if (records < table::first_slot || !has(records, 4 + table::slot_words * count))
            return "it has no groups";
        if (word(records) != count) return fmt::format("it has {} groups, not {}", word(records), count);
        const std::int64_t slots = word(table::num_slots);
        const std::int64_t room = word(records + 1);
        if (slots < count || slots > room)
            return fmt::format("{} slots: at least {} groups have one, and there is room for {}", slots,
                               count, room);
        if (!has(table::first_slot, table::slot_words * slots)) return "its slots are cut off";
        record_of_.resize(at(count));
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t record = records + 4 + table::slot_words * i;
            const std::int64_t group = (word(record + table::slot_tile) - of_.first) % count;
            if (group < 0) return fmt::format("record {} is of no group", i);
            if (record_of_[at(group)] != 0) return fmt::format("record {} is of group {} again", i, group);
            record_of_[at(group)] = record;
        }
        for (std::int64_t slot = 0; slot < slots; ++slot) {
            if (std::string why = add(slot); !why.empty()) return fmt::format("slot {}: {}", slot, why);
        }
        for (std::int64_t group = 0; group < count; ++group) {
            if (std::string why = missing(group, slots); !why.empty())
                return fmt::format("group {}: {}", group, why);
        }
        return {};
    }

private:
    [[nodiscard]] std::int32_t word(std::int64_t index) const { return words_[at(index)]; }
    [[nodiscard]] bool has(std::int64_t first, std::int64_t count) const {
        return first >= 0 && count >= 0 && first + count <= static_cast<std::int64_t>(words_.size());
    }
    [[nodiscard]] std::int64_t tiles_down(std::int64_t group) const {
        return (of_.groups[at(group)].size() + of_.tile - 1) / of_.tile;
    }
    std::string add(std::int64_t slot) {
        const std::int64_t at_slot = table::first_slot + table::slot_words * slot;
        const std::int64_t group = word(at_slot + table::slot_group);
        if (group < 0 || at(group) >= of_.groups.size()) return fmt::format("it is of group {}", group);
        for (const std::int32_t field : {table::slot_waits, table::slot_waits + 1, table::slot_phases,
                                         table::slot_makes, table::slot_makes + 1}) {
            if (word(at_slot + field) != word(record_of_[at(group)] + field))
                return "it does not wait and post as its group does";
        }
        const plan::Interval& rows = of_.groups[at(group)];
        const std::int64_t tile = word(at_slot + table::slot_tile);
        const std::int64_t many = word(at_slot + table::slot_rows);
        const std::int64_t row = tile / of_.columns - rows.begin;
        const std::int64_t column = tile % of_.columns;
        if (tile < 0 || row < 0 || row % of_.tile != 0)
            return fmt::format("its tile {} begins at no row of group {}", tile, group);
        if (many != std::clamp<std::int64_t>(rows.size() - row, 0, of_.tile))
            return fmt::format("it has {} rows from row {} on, and group {} has {}", many, row, group,
                               rows.size());
        if (many == 0 && (row > 0 || column > 0))
            return fmt::format("it begins behind the rows of group {}", group);
        if (!made_[group].emplace(row, column).second)
            return fmt::format("rows from {} on of group {}, column {}, are made twice", row, group, column);
        return {};
    }

    std::string missing(std::int64_t group, std::int64_t slots) {
        const auto found = static_cast<std::int64_t>(made_[group].size());
        const std::int64_t wanted = of_.groups[at(group)].size() == 0 ? 1 : tiles_down(group) * of_.columns;
        if (found != wanted) return fmt::format("{} of its {} tiles are made", found, wanted);
        const std::int64_t record = record_of_[at(group)];
        const std::int32_t end = word(record + table::slot_makes + 1) & ~table::at_once;
        for (std::int32_t chunk = word(record + table::slot_makes); chunk < end; chunk += table::made_words) {
            if (!has(chunk, table::made_words)) return "what it makes is cut off";
            const std::int64_t counted = word(chunk + table::made_tiles);
            const std::int64_t right = word(chunk + table::made_groups) == 1 ? found : slots;
            if (counted != right) return fmt::format("its chunk counts {} tiles, not {}", counted, right);
        }
        return {};
    }

    std::span<const std::int32_t> words_;
    const MadeStage& of_;
    std::vector<std::int64_t> record_of_;  ///< by group
    std::map<std::int64_t, std::set<std::pair<std::int64_t, std::int64_t>>> made_;
};

}  // namespace

std::string made_table_objection(std::span<const std::int32_t> words, const MadeStage& of) {
    return MadeTable(words, of).objection();
}

}  // namespace syncopate::emit

#include "syncopate/runtime/host/table_player.hpp"

#include <span>

#include "syncopate/at.hpp"
#include "syncopate/emit/layout.hpp"
#include "syncopate/runtime/signals/control.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

namespace table = emit::table;

std::int64_t long_at(std::span<const std::int32_t> words, std::int32_t at) {
    const auto word = static_cast<std::size_t>(at);
    return static_cast<std::int64_t>(static_cast<std::uint32_t>(words[word])) |
           (static_cast<std::int64_t>(words[word + 1]) << 32);
}

/// Words of a table from `at` on, a pair each, are distances from the control block to words that get the epoch.
void post_all(const FusedOp& op, std::span<const std::int32_t> words, std::int32_t begin, std::int32_t end,
              std::uint32_t epoch) {
    for (std::int32_t pair = begin; pair < end; pair += table::pair_words) {
        HostControl(op.control_address() + static_cast<std::uint64_t>(long_at(words, pair))).store(0, epoch);
    }
}

/// Every stage's table has the kernel's posts; here stages run one after another, and the last one makes them.
bool is_last(const FusedOp& op, std::size_t stage) { return stage + 1 == op.schedule().stages.size(); }

}  // namespace

std::vector<std::int64_t> offsets_of(const FusedOp& op, std::size_t stage, std::int32_t slot) {
    if (!op.schedule().stores()) return {0};
    const std::span<const std::int32_t> words = op.table(stage);
    const std::int32_t record = table::first_slot + table::slot_words * slot + table::slot_store;
    const std::int32_t copies = op.schedule().most_stores(stage);
    std::int32_t word = copies > 1 ? words[at(record)] : record;
    std::vector<std::int64_t> offsets;
    for (std::int32_t copy = 0; copy < copies; ++copy, word += table::pair_words)
        offsets.push_back(long_at(words, word));
    return offsets;
}

std::int64_t load_number_of(const FusedOp& op, std::size_t stage, std::int32_t slot) {
    if (!op.schedule().loads()) return 0;
    const std::span<const std::int32_t> words = op.table(stage);
    return long_at(words, words[at(table::loads)] + table::pair_words * slot);
}

void post_slot(const FusedOp& op, std::size_t stage, std::int32_t slot) {
    const std::span<const std::int32_t> words = op.table(stage);
    const HostControl control(op.control_address());
    const std::uint32_t epoch = control.load(emit::control::epoch);
    const auto at = [&](std::int32_t word) { return words[static_cast<std::size_t>(word)]; };
    const std::int32_t makes = table::first_slot + table::slot_words * slot + table::slot_makes;
    for (std::int32_t record = at(makes); record < (at(makes + 1) & ~table::at_once);
         record += table::made_words) {
        for (std::int32_t gate = 0; gate < 2; ++gate) {  // streams wait for these
            if (at(record + table::made_gates + gate) != 0)
                (void)control.add(at(record) + emit::control::gate + gate, 1);
        }
        if (at(record + table::made_told) == 0) continue;  // nobody polls
        if (control.add(at(record), 1) + 1 != static_cast<std::uint32_t>(at(record + table::made_tiles)))
            continue;
        control.store(at(record), 0);
        const std::int32_t posts = record + table::made_posts;
        post_all(op, words, at(posts), at(posts + 1), epoch);
    }
}

Status play_table(const FusedOp& op, std::size_t stage,
                  const std::function<Status(std::int64_t tile, std::int32_t slot)>& make) {
    const fuse::Schedule& schedule = op.schedule();
    const std::span<const fuse::Slot> slots = schedule.slots_of(schedule.ranks[at(op.rank())], stage);
    const std::span<const std::int32_t> words = op.table(stage);
    const HostControl control(op.control_address());
    const std::uint32_t epoch = control.load(emit::control::epoch);
    const auto over = [&](const std::vector<fuse::Wait>& waits, std::int32_t slot) {
        for (const fuse::Wait& wait : waits) {
            if (!control.wait(wait, epoch, slot)) return false;
        }
        return true;
    };
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const auto slot = static_cast<std::int32_t>(i);
        if (!over(slots[i].waits, slot)) return Done{};
        for (const fuse::Phase& phase : slots[i].phases) {
            if (!over(phase.waits, slot)) return Done{};
        }
        SYNCOPATE_TRY(make(slots[i].tile, slot));
        post_slot(op, stage, slot);
    }
    if (control.faulty() || !is_last(op, stage)) return Done{};
    const auto posts = static_cast<std::size_t>(table::kernel_posts);
    post_all(op, words, words[posts], words[posts] + table::pair_words * words[table::num_kernel_posts],
             epoch);
    return Done{};
}

Status play_made_table(const FusedOp& op, std::size_t stage,
                       const std::function<Status(const TableSlot& slot)>& make) {
    const std::span<const std::int32_t> words = op.table(stage);
    const HostControl control(op.control_address());
    const std::uint32_t epoch = control.load(emit::control::epoch);
    const auto word = [&](std::int32_t index) { return words[at(index)]; };
    for (std::int32_t slot = 0; slot < word(table::num_slots); ++slot) {
        const std::int32_t record = table::first_slot + table::slot_words * slot;
        const std::int32_t waits = record + table::slot_waits;
        for (std::int32_t pair = word(waits); pair < word(waits + 1); pair += table::pair_words) {
            if (!control.wait(word(pair), word(pair + 1), epoch, slot)) return Done{};
        }
        SYNCOPATE_TRY(make({word(record + table::slot_tile), word(record + table::slot_group),
                            word(record + table::slot_rows)}));
        post_slot(op, stage, slot);
    }
    if (control.faulty() || !is_last(op, stage)) return Done{};
    const std::int32_t posts = word(table::kernel_posts);
    post_all(op, words, posts, posts + table::pair_words * word(table::num_kernel_posts), epoch);
    return Done{};
}

}  // namespace syncopate::runtime

#include "syncopate/emit/table.hpp"

#include <gtest/gtest.h>

namespace syncopate::emit {
namespace {

using Words = std::vector<std::int32_t>;

Words table_of(fuse::RankSchedule schedule, std::int32_t rank, std::int64_t stride, std::int64_t programs) {
    fuse::Schedule all;
    all.stages = {{.count = static_cast<std::int64_t>(schedule.slots.size())}};
    all.ranks.resize(static_cast<std::size_t>(rank) + 1);
    all.ranks.back() = std::move(schedule);
    return make_table(all, rank, stride, programs);
}

TEST(Table, HoldsSlotsWithTheirWaits) {
    fuse::RankSchedule schedule;
    schedule.slots = {{2, {}, {}}, {0, {{1, 0}, {3, 1}}, {}}};
    const Words words = table_of(schedule, 0, 4096, 7);
    EXPECT_EQ(Words(words.begin(), words.begin() + 4), (Words{2, 0, 36, 7}));
    EXPECT_EQ(Words(words.begin() + 16, words.begin() + 24), (Words{2, 32, 32, 0, 0, 0, 0, 0}));
    EXPECT_EQ(Words(words.begin() + 24, words.begin() + 28), (Words{0, 32, 36, 0}));
    EXPECT_EQ(Words(words.begin() + 32, words.end()), (Words{32 + 8, 0, 32 + 24, 1}));
}

TEST(Table, LetsTilesOfOneRankWaitForCountsOfTiles) {
    // Slots 0 to 2 make chunk 0, which posts signal 0; slot 3 waits for it.
    fuse::RankSchedule schedule;
    schedule.signals.resize(1);
    schedule.slots = {{0, {}, {}}, {1, {}, {}}, {2, {}, {}}, {3, {{0, 0}}, {}}};
    for (int slot = 0; slot < 3; ++slot) schedule.slots[static_cast<std::size_t>(slot)].makes = {0};
    schedule.chunks.resize(1);
    schedule.chunks[0].counting = {0, 1, 2};
    schedule.chunks[0].posts = {{0, 0}};
    const Words words = table_of(schedule, 0, 4096, 4);
    const auto at = [&](std::size_t word) { return static_cast<std::size_t>(words[word]); };
    const std::size_t wait = at(table::first_slot + 3 * table::slot_words + table::slot_waits);
    EXPECT_EQ(words[wait], counter_of(schedule, 0) + control::gate);
    EXPECT_EQ(words[wait + 1], 2 << table::wait_count_shift) << "three posts of this call";
    const std::size_t made = at(table::first_slot + table::slot_makes);
    EXPECT_EQ(words[made + table::made_gates], 1);
    EXPECT_EQ(words[made + table::made_told], 0) << "nobody else is to be told";
}

TEST(Table, CountsThePostsOfSignalsThatAreAddedTo) {
    fuse::Schedule all;
    all.stages = {{.count = 1}};
    all.ranks.resize(2);
    // The slot waits for signal 0, its second phase for signal 1 of the call before.
    all.ranks[1].slots = {{0, {{0, 0}}, {{.iteration_end = 3}, {0, 3, 5, {{1, 1}, {2, 0}}}}}};
    all.ranks[1].counted = {{0, 5}, {1, 1}, {2, 8}};
    const Words words = make_table(all, 1, 4096, 1);
    const auto at = [&](std::size_t word) { return static_cast<std::size_t>(words[word]); };
    const auto wait = [&](std::size_t word) { return Words{words[word], words[word + 1]}; };
    const std::size_t of_slot = at(table::first_slot + table::slot_waits);
    EXPECT_EQ(wait(of_slot), (Words{control::word_of(0), 4 << table::wait_count_shift}));
    const std::size_t phase = at(table::first_slot + table::slot_phases) + table::phase_words;
    const std::size_t of_phase = at(phase + table::phase_waits);
    EXPECT_EQ(wait(of_phase), (Words{control::word_of(1), 1})) << "one post: only the lag";
    EXPECT_EQ(wait(of_phase + table::pair_words), (Words{control::word_of(2), 7 << table::wait_count_shift}));

    all.ranks[1].slots[0].waits = {{0, 1}};
    all.ranks[1].counted = {{0, 5}};
    const Words lagging = make_table(all, 1, 4096, 1);
    EXPECT_EQ(lagging[of_slot + 1], 1 | 4 << table::wait_count_shift);
    EXPECT_EQ(lagging[of_phase + table::pair_words + 1], 0) << "a signal that is set";
}

TEST(Table, LeavesChunksAsTheyAreWhereSignalsAreAddedTo) {
    // Slots 0 and 1 make a chunk whose completion the other rank awaits; slot 2 waits for what that one
    // sends.
    fuse::Schedule all;
    all.stages = {{.count = 3}};
    all.ranks.resize(2);
    fuse::RankSchedule& schedule = all.ranks[0];
    schedule.signals.resize(1);
    schedule.slots = {{0, {}, {}, {0}}, {1, {}, {}, {0}}, {2, {{0, 0}}, {}}};
    schedule.chunks = {{.counting = {0, 1}, .posts = {{1, 0}}}};
    const Words set = make_table(all, 0, 4096, 3);
    schedule.counted = {{0, 6}};
    Words added = make_table(all, 0, 4096, 3);
    const auto made = static_cast<std::size_t>(added[table::first_slot + table::slot_makes]);
    EXPECT_EQ(added[made + table::made_counter], counter_of(schedule, 0));
    EXPECT_EQ(added[made + table::made_gates], 0) << "tiles do not wait for its gate";
    EXPECT_EQ(added[made + table::made_told], 1);
    const auto wait =
        static_cast<std::size_t>(added[table::first_slot + 2 * table::slot_words + table::slot_waits]);
    EXPECT_EQ(added[wait + 1], 5 << table::wait_count_shift);
    added[wait + 1] = 0;
    EXPECT_EQ(added, set) << "nothing else differs";
}

TEST(Table, PrecedesPhasesByTheirCount) {
    fuse::RankSchedule schedule;
    schedule.slots = {{0, {{0, 0}}, {{.iteration_end = 3}, {0, 3, 5, {{1, 0}}}}}};
    const Words words = table_of(schedule, 0, 4096, 1);
    // record: tile, waits 24..26, phases at 32; waits of signal 0 and 1; 0, 0, {0, 2}; {0, 3, 26, 26}, {3, 5,
    // 26, 28}
    EXPECT_EQ(Words(words.begin() + 16, words.end()),
              (Words{0, 24, 26, 32, 0, 0, 0, 0, 32, 0, 40, 0, 0, 0, 0, 2, 0, 3, 26, 26, 3, 5, 26, 28}));
}

TEST(Table, GivesDistancesToPeersOfEitherSide) {
    fuse::RankSchedule schedule;
    schedule.kernel_posts = {{0, 1}, {2, 0}};
    const std::int64_t stride = std::int64_t{1} << 36;
    const Words words = table_of(schedule, 1, stride, 1);
    ASSERT_EQ(words[table::num_kernel_posts], 2);
    const auto distance = [&](std::size_t at) {
        return (static_cast<std::int64_t>(words[at + 1]) << 32) | static_cast<std::uint32_t>(words[at]);
    };
    EXPECT_EQ(distance(16), -stride + 4 * 40);
    EXPECT_EQ(distance(18), stride + 4 * 32);
}

TEST(Table, HasTheKernelsPostsInEveryStageSinceAnyMayEndLast) {
    fuse::Schedule all;
    all.stages = {{.count = 2}, {.first = 2, .count = 1}};
    all.ranks.resize(2);
    all.ranks[0].slots = {{0, {}, {}}, {1, {}, {}}, {0, {}, {}}};
    all.ranks[0].kernel_posts = {{1, 3}};
    for (const std::size_t stage : {0, 1}) {
        const Words words = make_table(all, 0, 4096, 4, {}, stage);
        ASSERT_EQ(words[table::num_kernel_posts], 1) << stage;
        EXPECT_EQ(words[static_cast<std::size_t>(words[table::kernel_posts])],
                  4096 + 4 * control::word_of(3));
    }
}

TEST(Table, AlignsEveryPair) {
    fuse::RankSchedule schedule;
    for (int n = 0; n < 5; ++n)
        schedule.slots.push_back({n, std::vector<fuse::Wait>(n % 3), {{0, 0, 1, {{0, 0}}}, {0, 1, 2, {}}}});
    schedule.kernel_posts = {{0, 0}};
    const Words words = table_of(schedule, 0, 4096, 1);
    EXPECT_EQ(words.size() % 2, 0U);
    EXPECT_EQ(words[table::kernel_posts] % 2, 0);
    for (int n = 0; n < 5; ++n) {
        for (int field = 1; field < 4; ++field)
            EXPECT_EQ(words[table::first_slot + table::slot_words * n + field] % 2, 0);
    }
}

TEST(Table, SaysWhichChunksATileMakesAndWhomTheLastOneTells) {
    fuse::RankSchedule schedule;
    schedule.signals.resize(3);
    schedule.slots = {
        {0, {}, {}, {0}}, {1, {}, {}, {0, 1}}, {2, {}, {}, {}}, {3, {}, {}, {0}}, {4, {}, {}, {0}}};
    schedule.chunks = {{.counting = {0, 1, 3}, .posts = {{1, 2}}, .at_once = true},
                       {.counting = {1}, .posts = {{0, 0}, {1, 1}}}};
    const Words words = table_of(schedule, 0, 4096, 1);
    const auto records = [&](std::size_t slot) {
        const std::size_t at = table::first_slot + table::slot_words * slot + table::slot_makes;
        return std::pair(words[at], words[at + 1] & ~table::at_once);
    };
    const auto at_once = [&](std::size_t slot) {
        return (words[table::first_slot + table::slot_words * slot + table::slot_makes + 1] &
                table::at_once) != 0;
    };
    EXPECT_EQ(records(0), records(3)) << "slots that make the same share their records";
    EXPECT_EQ(records(2).first, records(2).second);
    EXPECT_EQ(records(4).first, records(4).second) << "a later tile of its program counts";
    EXPECT_TRUE(at_once(0) && at_once(1) && !at_once(4));
    EXPECT_EQ(records(0).second - records(0).first, 8);
    ASSERT_EQ(records(1).second - records(1).first, 16);
    const auto record = [&](std::size_t at) { return Words(words.begin() + at, words.begin() + at + 4); };
    const auto both = static_cast<std::size_t>(records(1).first);
    EXPECT_EQ(both % 4, 0U) << "records are read 16 bytes at a time";
    const Words first = record(both);
    const Words second = record(both + 8);
    EXPECT_EQ(first[0], control::word_of(3)) << "counters follow the signals";
    EXPECT_EQ(first[1], 3);
    EXPECT_EQ(first[3] - first[2], 2);
    EXPECT_EQ(words[static_cast<std::size_t>(first[2])], 4096 + 4 * control::word_of(2));
    EXPECT_EQ(second[0], control::word_of(4));
    EXPECT_EQ(second[3] - second[2], 4);
    EXPECT_EQ(words[static_cast<std::size_t>(second[2])], 4 * control::word_of(0));
}

TEST(Table, HasNoMakesWhereTilesMakeNothing) {
    fuse::RankSchedule schedule;
    schedule.slots = {{0, {}, {}}};
    EXPECT_EQ(table_of(schedule, 0, 4096, 1)[table::first_slot + table::slot_makes], 0);
}

TEST(Table, OfAKernelAloneHasEveryTileInOrder) {
    const std::vector<std::int32_t> words = identity_table(3, 2);
    ASSERT_EQ(words.size(), static_cast<std::size_t>(table::first_slot + 3 * table::slot_words));
    EXPECT_EQ(words[table::num_slots], 3);
    EXPECT_EQ(words[table::num_programs], 2);
    EXPECT_EQ(words[table::num_kernel_posts], 0);
    for (std::size_t slot = 0; slot < 3; ++slot) {
        const std::size_t record = table::first_slot + table::slot_words * slot;
        EXPECT_EQ(words[record + table::slot_tile], static_cast<std::int32_t>(slot));
        EXPECT_EQ(words[record + table::slot_waits], words[record + table::slot_waits + 1]) << "no waits";
        EXPECT_EQ(words[record + table::slot_makes], words[record + table::slot_makes + 1]) << "no posts";
    }
}

}  // namespace
}  // namespace syncopate::emit

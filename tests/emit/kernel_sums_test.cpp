// What the table tells a kernel that sums: what to await, and where the summands are in this call.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "fuse/summing.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/heap.hpp"

namespace syncopate::emit {
namespace {

using Words = std::vector<std::int32_t>;
using fuse::sample::kColumns;

constexpr std::int64_t kRow = kColumns * 2;  // bytes

std::int64_t number_at(const Words& words, std::size_t at) {
    return (std::int64_t{words[at + 1]} << 32) | static_cast<std::uint32_t>(words[at]);
}

struct Tables {
    fuse::Schedule schedule;
    std::vector<std::uint64_t> offsets;  ///< of even calls: tensors, then the control block
    std::vector<std::uint64_t> others;   ///< of odd calls

    explicit Tables(const plan::Plan& plan)
        : schedule(fuse::fuse(fuse::sample::summed(plan), fuse::sample::in_kernel()).value()),
          offsets(schedule.heap.tensors) {
        offsets.push_back(schedule.heap.control);
        others = fuse::in_turn(schedule, offsets);
    }
    [[nodiscard]] Words even(std::int32_t rank,
                             const std::map<std::int32_t, std::int32_t>& added = {}) const {
        return table(rank, offsets, added);
    }
    [[nodiscard]] Words odd(std::int32_t rank) const { return table(rank, others, {}); }
    /// Bytes from a tensor's first place to its second one.
    [[nodiscard]] std::int64_t turn(std::int32_t tensor) const {
        const auto index = static_cast<std::size_t>(tensor);
        return static_cast<std::int64_t>(others[index] - offsets[index]);
    }

private:
    [[nodiscard]] Words table(std::int32_t rank, const std::vector<std::uint64_t>& at,
                              const std::map<std::int32_t, std::int32_t>& added) const {
        fuse::Schedule counting = schedule;
        std::vector<fuse::CountedSignal>& counted = counting.ranks[static_cast<std::size_t>(rank)].counted;
        counted.clear();
        for (const auto& [signal, posts] : added) counted.push_back({signal, posts});
        return make_table(counting, rank, static_cast<std::int64_t>(heap_bytes(schedule)), 3, at);
    }
};

/// Where the summands are, in bytes from the control block.
std::vector<std::int64_t> places_of(const Words& words) {
    const auto record = static_cast<std::size_t>(words[table::sum]);
    std::vector<std::int64_t> places;
    for (std::int32_t summand = 0; summand < words[record + table::sum_summands]; ++summand)
        places.push_back(number_at(
            words, record + table::sum_places + static_cast<std::size_t>(table::pair_words * summand)));
    return places;
}

const plan::PushReduceToAllOptions kPadded{.all = false, .rows = 41};  // shares of 14, 14 and 13 rows

TEST(TableOfASum, IsInTheScheduleOfEachRank) {
    const Tables tables(fuse::sample::to_all(3, kPadded));
    for (std::int32_t rank = 0; rank < 3; ++rank) {
        const Words words = tables.even(rank);
        ASSERT_GT(words[table::sum], 0);
        EXPECT_EQ(words[table::sum] % 4, 0) << "its first four words are one load";
        const auto record = static_cast<std::size_t>(words[table::sum]);
        EXPECT_EQ(words[record + table::sum_elements], (rank < 2 ? 14 : 13) * kColumns);
        EXPECT_EQ(words[record + table::sum_summands], 3);
        EXPECT_EQ(words.size(), record + table::sum_places + 3 * table::pair_words) << "it is the last";
        EXPECT_EQ(words[table::other], 0) << "whoever has both tables says where the other one is";
    }
}

TEST(TableOfASum, CountsThePostsOfThePrograms) {
    const Tables tables(fuse::sample::to_owners(3));
    const std::vector<fuse::Wait>& waits = tables.schedule.ranks[2].transfers.front().waits;
    ASSERT_EQ(waits.size(), 3U);
    const Words words = tables.even(2, {{waits[0].signal, 5}, {waits[1].signal, 1}, {waits[2].signal, 8}});
    const auto record = static_cast<std::size_t>(words[table::sum]);
    const auto begin = static_cast<std::size_t>(words[record + table::sum_waits]);
    ASSERT_EQ(words[record + table::sum_waits + 1], words[record + table::sum_waits] + 3 * table::pair_words);
    EXPECT_EQ(begin % table::pair_words, 0U);
    EXPECT_EQ(Words(words.begin() + static_cast<std::ptrdiff_t>(begin),
                    words.begin() + static_cast<std::ptrdiff_t>(begin) + 6),
              (Words{control::word_of(waits[0].signal), 4 << table::wait_count_shift,
                     control::word_of(waits[1].signal), 0, control::word_of(waits[2].signal),
                     7 << table::wait_count_shift}));
}

TEST(TableOfASum, HasTheSummandsInTheOrderOfRanksTheOwnOneInItsTurn) {
    // D's rows are summed where they are asked for, of slots of 48 rows.
    const Tables all(fuse::sample::to_all(3, kPadded));
    const auto at = [](const Tables& tables, std::size_t tensor, std::int64_t bytes) {
        return static_cast<std::int64_t>(tables.offsets[tensor]) + bytes -
               static_cast<std::int64_t>(tables.offsets.back());
    };
    const auto staged = [&](std::int64_t slot, std::int64_t row) {
        return at(all, 2, (48 * slot + row) * kRow);
    };
    EXPECT_EQ(places_of(all.even(0)), (std::vector{at(all, 1, 0), staged(0, 0), staged(1, 0)}));
    EXPECT_EQ(places_of(all.even(1)), (std::vector{staged(0, 14), at(all, 1, 14 * kRow), staged(1, 14)}));
    EXPECT_EQ(places_of(all.even(2)), (std::vector{staged(0, 28), staged(1, 28), at(all, 1, 28 * kRow)}));
    // A rank's own rows of C, of slots of its 16 rows.
    const Tables owners(fuse::sample::to_owners(3));
    EXPECT_EQ(places_of(owners.even(1)),
              (std::vector{at(owners, 1, 0), at(owners, 0, 16 * kRow), at(owners, 1, 16 * kRow)}));
}

TEST(TableOfASum, DiffersInOddCallsOnlyInWhereWhatIsStagedIs) {
    for (const plan::Plan& plan :
         {fuse::sample::to_all(3, kPadded), fuse::sample::to_owners(3), fuse::sample::to_owners(2)}) {
        const Tables tables(plan);
        const std::int32_t staging = fuse::alternating_tensors(tables.schedule).front();
        const std::int64_t turn = tables.turn(staging);
        ASSERT_GT(turn, 0);
        const std::int32_t copies = tables.schedule.most_stores(0);
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            const Words even = tables.even(rank);
            const Words odd = tables.odd(rank);
            ASSERT_EQ(even.size(), odd.size());
            std::set<std::size_t> expected;  // words that may differ
            const auto allow = [&](std::size_t at) { expected.insert({at, at + 1}); };

            const std::vector<std::int64_t> before = places_of(even);
            const std::vector<std::int64_t> after = places_of(odd);
            for (std::size_t summand = 0; summand < before.size(); ++summand) {
                const bool own = summand == static_cast<std::size_t>(rank);
                EXPECT_EQ(after[summand] - before[summand], own ? 0 : turn);
                if (!own)
                    allow(static_cast<std::size_t>(even[table::sum]) + table::sum_places +
                          table::pair_words * summand);
            }
            const fuse::RankSchedule& own = tables.schedule.ranks[static_cast<std::size_t>(rank)];
            for (std::size_t slot = 0; slot < own.slots.size(); ++slot) {
                const std::size_t record = table::first_slot + table::slot_words * slot + table::slot_store;
                const std::size_t first = copies == 1 ? record : static_cast<std::size_t>(even[record]);
                const std::vector<fuse::Place> stores = own.stores_of(own.slots[slot]);
                for (std::size_t place = 0; place < stores.size(); ++place) {
                    const std::size_t store = first + table::pair_words * place;
                    const bool sent = stores[place].tensor == staging;
                    EXPECT_EQ(number_at(odd, store) - number_at(even, store), sent ? turn / kRow : 0)
                        << "slot " << slot << ", in rows";
                    if (sent) allow(store);
                }
            }
            for (std::size_t word = 0; word < even.size(); ++word)
                EXPECT_TRUE(even[word] == odd[word] || expected.contains(word)) << "word " << word;
        }
    }
}

TEST(TableOfASum, IsNotThereWhereTheKernelSumsNothing) {
    fuse::Options options = fuse::sample::in_kernel();
    options.device = fuse::Device::host;
    const fuse::Schedule schedule =
        fuse::fuse(fuse::sample::summed(fuse::sample::to_owners(2)), options).value();
    std::vector<std::uint64_t> offsets = schedule.heap.tensors;
    offsets.push_back(schedule.heap.control);
    const auto stride = static_cast<std::int64_t>(heap_bytes(schedule));
    EXPECT_EQ(make_table(schedule, 1, stride, 3, offsets)[table::sum], 0);
}

}  // namespace
}  // namespace syncopate::emit

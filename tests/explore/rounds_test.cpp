// How ranks agree to go on [P34], where one of them dies at any step: the library's own rounds (runtime/recover/round.hpp), by
// turns, with a death at every turn of every order that a few seeds give.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "explore/played_op.hpp"
#include "explore/simulated_ranks.hpp"
#include "runtime/recover/round.hpp"

namespace syncopate::explore {
namespace {

using runtime::Milliseconds;

constexpr Milliseconds kDeadline{2'000};

struct Ending {
    int round = 0;
    std::vector<int> ranks;  ///< with whom it goes on; empty: it was left out, or failed
    std::string error;
};

struct Agreed {
    std::vector<std::optional<Ending>> endings;  ///< by rank; nullopt: it died
    std::uint64_t turns = 0;
    bool ended = false;
};

/// `dies`: the rank that does, at turn `at`. `fails`: the rank that cannot go on in the first round that it is in.
Agreed agree(int size, std::uint64_t seed, int dies, std::uint64_t at, int fails) {
    SimulatedRanks ranks({.seed = seed});
    const auto store = std::make_shared<Store>();
    Agreed agreed;
    agreed.endings.resize(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
        ranks.add_rank([&, rank] {
            const auto meeting = Store::meeting(store, rank, size);
            Ending ending;
            for (int attempt = 0; attempt <= size; ++attempt) {
                bool left_out = false;
                auto round = runtime::Round::enter(*meeting, {.deadline = kDeadline}, left_out);
                if (!round) {
                    ending.error = round.error().message;
                    break;
                }
                if (!round->conclude(!(rank == fails && attempt == 0))) continue;
                ending.round = round->number();
                ending.ranks = round->ranks();
                break;
            }
            agreed.endings[static_cast<std::size_t>(rank)] = ending;
            ranks.changed();
        });
    }
    ranks.each_turn = [&] {
        if (dies >= 0 && agreed.turns++ == at && !agreed.endings[static_cast<std::size_t>(dies)])
            ranks.kill(dies);
        if (dies < 0) ++agreed.turns;
    };
    agreed.ended = ranks.run();
    return agreed;
}

/// "" where all who live go on together, or are told that the others have.
std::string wrong_with(const Agreed& agreed) {
    if (!agreed.ended) return "somebody waits for ever";
    const Ending* group = nullptr;
    for (const auto& ending : agreed.endings) {
        if (!ending || ending->ranks.empty()) continue;
        if (group == nullptr) group = &*ending;
        if (group->ranks != ending->ranks || group->round != ending->round) return "two groups go on";
    }
    if (group == nullptr) return "nobody goes on";
    for (std::size_t rank = 0; rank < agreed.endings.size(); ++rank) {
        const auto& ending = agreed.endings[rank];
        if (!ending) continue;
        const bool is_member = std::ranges::find(group->ranks, static_cast<int>(rank)) != group->ranks.end();
        if (is_member == ending->ranks.empty()) return "a member does not go on, or another one does";
        if (!is_member && ending->error.find("without this rank") == std::string::npos)
            return "who is left out is not told: " + ending->error;
    }
    return "";
}

void expect_agreement(int size, std::uint64_t first, std::uint64_t seeds, std::uint64_t step) {
    int runs = 0;
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
        const int fails = seed % 3 == 0 ? static_cast<int>(seed / 3) % size : -1;
        const Agreed all = agree(size, seed, -1, 0, fails);
        EXPECT_EQ(wrong_with(all), "") << "seed " << seed;
        const int dies = static_cast<int>(seed) % size;
        for (std::uint64_t at = 0; at < all.turns; at += step, ++runs) {
            const Agreed some = agree(size, seed, dies, at, fails);
            ASSERT_EQ(wrong_with(some), "")
                << "seed " << seed << ": rank " << dies << " of " << size << " dies at turn " << at;
        }
    }
    std::printf("%d deaths\n", runs);
    EXPECT_GT(runs, 50);
}

TEST(Rounds, LeaveOneGroupWhereverARankDies) {
    expect_agreement(2, 1, 6, 3);
    expect_agreement(3, 100, 6, 5);
}
TEST(RoundsSweep, LeaveOneGroupWhereverARankDies) {
    expect_agreement(2, 1'000, 60, 1);
    expect_agreement(3, 2'000, 40, 1);
    expect_agreement(4, 3'000, 20, 1);
}

}  // namespace
}  // namespace syncopate::explore

// Who has ended its last call may go on, close, let go or die while another rank is still in that call, wherever that is
// [P27, P32, P35]: the other one's call is right, or fails. Ranks as processes, and as threads of one.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <atomic>
#include <string>
#include <thread>

#include "runtime/recover/gathering_rank.hpp"
#include "runtime/thread_store.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::await;
using testing::GatheringRank;
using testing::gathers;
using testing::meet;
using testing::Phase;
using testing::run_ranks;
using testing::tell;
using testing::TemporaryDirectory;
using testing::ThreadStore;

constexpr std::int64_t kDeadline = 20'000;  // ms, of calls: none passes
constexpr Milliseconds kLong{60'000};
constexpr Milliseconds kToLeaveOut{1'500};
constexpr int kSlow = 1;
constexpr Phase kPhases[] = {Phase::begun, Phase::working, Phase::worked, Phase::ended};
constexpr const char* kNames[] = {"begun", "working", "worked", "ended"};

enum class Way { recover, recover_without, reset, close, drop, die };
constexpr const char* kWays[] = {"goes on", "goes on without it", "resets", "closes", "lets go", "dies"};

struct Arrangement {
    Way way = Way::recover;
    Phase phase = Phase::begun;
    int leaver = 0;
    plan::Backend backend = plan::Backend::host;
    bool pull = false;

    [[nodiscard]] bool interrupts() const {
        return way == Way::recover || way == Way::recover_without || way == Way::reset;
    }
};

bool done(const Status& status) {
    RANK_CHECK(status, status.error().to_string());
    return true;
}

bool recovers(GatheringRank& rank, Milliseconds deadline, const std::vector<int>& left) {
    if (!done(rank.recover(deadline))) return false;
    RANK_CHECK(rank.ranks() == left, "another group");
    return rank.renewed() || done(rank.make());
}

/// The rank that is still in its call when another one has left it.
bool is_slow(GatheringRank& rank, const Arrangement& as, const TemporaryDirectory& directory) {
    rank.at = [&](Phase phase) {
        if (phase != as.phase) return;
        if (as.way == Way::recover || as.way == Way::reset) {
            while (rank.op()->poll()) std::this_thread::sleep_for(Milliseconds{1});
            return;
        }
        await(directory, "left");
        std::this_thread::sleep_for(Milliseconds{2});
    };
    const auto said = rank.call(7 + kSlow);
    rank.at = [](Phase) {};
    if (as.interrupts()) {
        RANK_CHECK(!said, "a call that another rank has ended for all reports success");
        RANK_CHECK(said.error().error_class == ErrorClass::machine, said.error().to_string());
        return true;
    }
    RANK_CHECK(said, said.error().to_string());
    RANK_CHECK((*said == std::vector<std::int32_t>{7, 8, 9}), "wrong data");
    return true;
}

/// One that has ended the call, as all but the slow one have. Who dies does not come back.
bool leaves(GatheringRank& rank, int number, const Arrangement& as, const TemporaryDirectory& directory) {
    const auto said = rank.call(7 + number);
    RANK_CHECK(said, said.error().to_string());
    RANK_CHECK((*said == std::vector<std::int32_t>{7, 8, 9}), "wrong data");
    tell(directory, fmt::format("ended {}", number));
    for (const char* both : {"ended 0", "ended 2"}) await(directory, both);
    if (number != as.leaver || as.way == Way::recover_without) return true;
    if (as.way == Way::drop) rank.drop();
    tell(directory, "left");
    if (as.way == Way::die) _exit(0);
    return true;
}

/// All of them after that.
bool ends(GatheringRank& rank, int number, const Arrangement& as, const TemporaryDirectory& directory) {
    switch (as.way) {
        case Way::recover: return recovers(rank, kLong, all_ranks(3)) && gathers(rank, all_ranks(3));
        case Way::reset: return done(rank.op()->reset()) && gathers(rank, all_ranks(3));
        case Way::close: return done(rank.op()->destroy());
        case Way::drop: return true;
        case Way::die:
            if (number == kSlow) tell(directory, "ended 1");
            await(directory, "ended 1");
            RANK_CHECK(!rank.call(0), "a call without a rank");
            return true;
        case Way::recover_without: break;
    }
    if (number == kSlow) {
        const Status late = rank.recover(kLong);
        RANK_CHECK(!late && late.error().message.find("gone on without this rank") != std::string::npos,
                   late ? "went on" : late.error().to_string());
        tell(directory, "told");
    }
    return recovers(rank, kLong, all_ranks(3)) && gathers(rank, all_ranks(3));
}

bool takes_part(const Arrangement& as, const TemporaryDirectory& directory, int number,
                const std::shared_ptr<Rendezvous>& group) {
    RANK_CHECK(group != nullptr, "they do not meet");
    GatheringRank rank(group, kDeadline);
    rank.backend = as.backend;
    rank.pull = as.pull;
    if (!done(rank.make()) || !gathers(rank, all_ranks(3), 2)) return false;
    if (number == kSlow) return is_slow(rank, as, directory) && ends(rank, number, as, directory);
    if (!leaves(rank, number, as, directory)) return false;
    if (as.way == Way::recover_without) {
        if (!recovers(rank, kToLeaveOut, {0, 2}) || !gathers(rank, {0, 2})) return false;
        tell(directory, fmt::format("gone on {}", number));
        for (const char* both : {"gone on 0", "gone on 2"}) await(directory, both);
        tell(directory, "left");
        await(directory, "told");
    }
    return ends(rank, number, as, directory);
}

void run_threads(const std::vector<int>& ranks, const std::function<bool(int)>& body) {
    std::atomic<int> good = 0;
    {
        std::vector<std::jthread> threads;
        for (const int rank : ranks) threads.emplace_back([&, rank] { good += body(rank) ? 1 : 0; });
    }
    EXPECT_EQ(good, static_cast<int>(ranks.size()));
}

class Leaving : public ::testing::TestWithParam<Way> {};

/// Each phase, by processes and threads; backends, directions and the rank that leaves by turns.
TEST_P(Leaving, LeavesTheOthersRightOrToldOfIt) {
    static constexpr plan::Backend kBackends[] = {plan::Backend::host, plan::Backend::tma_dedicated,
                                                  plan::Backend::copy_engine};
    int turn = static_cast<int>(GetParam());
    for (const bool threads : {false, true}) {
        if (threads && GetParam() == Way::die) continue;
        for (const Phase phase : kPhases) {
            if (GetParam() == Way::recover_without && (phase == Phase::begun || phase == Phase::ended))
                continue;  // each takes a deadline
            const Arrangement as{.way = GetParam(),
                                 .phase = phase,
                                 .leaver = turn % 4 < 2 ? 0 : 2,
                                 .backend = kBackends[turn % 3],
                                 .pull = turn % 2 == 1};
            ++turn;
            SCOPED_TRACE(fmt::format("rank {} {}: {} of {}, {}, {}", as.leaver,
                                     kWays[static_cast<int>(as.way)], threads ? "threads" : "processes",
                                     kNames[static_cast<int>(phase)], plan::name_of(as.backend),
                                     as.pull ? "pull" : "push"));
            const TemporaryDirectory directory;
            ThreadStore store;
            if (threads)
                run_threads(all_ranks(3), [&](int number) {
                    return takes_part(as, directory, number, store.rendezvous(number, 3));
                });
            else
                run_ranks(all_ranks(3), [&](int number) {
                    return takes_part(as, directory, number, meet(directory, number, 3));
                });
        }
    }
}

INSTANTIATE_TEST_SUITE_P(OnHost, Leaving,
                         ::testing::Values(Way::recover, Way::recover_without, Way::reset, Way::close,
                                           Way::drop, Way::die));

}  // namespace
}  // namespace syncopate::runtime

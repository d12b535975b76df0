#include "syncopate/runtime/heap/rendezvous.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/fork.hpp"
#include "runtime/thread_store.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::await;
using testing::run_ranks;
using testing::tell;
using testing::TemporaryDirectory;
using testing::ThreadStore;

class Ranks : public ::testing::TestWithParam<int> {};

TEST_P(Ranks, GatherEveryRanksBytesInOrder) {
    const TemporaryDirectory directory;
    const int size = GetParam();
    run_ranks(all_ranks(size), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, size, "run:1/é");
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        for (int round = 0; round < 20; ++round) {
            const Bytes mine = std::to_string(rank * 100 + round) + std::string(1, '\0');
            const std::string label =
                round % 2 == 0 ? "round" : std::string(300, 'r');  // longer than a file's name
            auto all = all_gather(**rendezvous, label, mine);
            RANK_CHECK(all, all.error().to_string());
            for (int r = 0; r < size; ++r) {
                RANK_CHECK((*all)[static_cast<std::size_t>(r)] ==
                               std::to_string(r * 100 + round) + std::string(1, '\0'),
                           "bytes");
            }
        }
        const Status met = barrier(**rendezvous, "end");
        RANK_CHECK(met, met.error().to_string());
        return true;
    });
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "the last rank clears up";
}

INSTANTIATE_TEST_SUITE_P(OnHost, Ranks, ::testing::Values(1, 2, 3, 5, 8));

TEST(FileRendezvous, NamesTheRankThatNeverJoins) {
    const TemporaryDirectory directory;
    run_ranks({0, 1, 3}, [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 4, "run", Milliseconds{1500});
        RANK_CHECK(!rendezvous, "it should not come about");
        RANK_CHECK(rendezvous.error().message.find("rank 2 of 4 did not come") != std::string::npos,
                   rendezvous.error().message);
        RANK_CHECK(rendezvous.error().error_class == ErrorClass::machine, "class");
        return true;
    });
}

TEST(FileRendezvous, RanksMeetHoweverOftenOneOfThemHasTriedAlone) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        for (int tries = 0; tries < (rank == 0 ? 3 : 0); ++tries) {
            auto alone = FileRendezvous::create(directory.path(), 0, 2, "run", Milliseconds{20});
            RANK_CHECK(!alone, "the other one is not there");
        }
        const std::filesystem::path tried = directory.path() / "tried";
        if (rank == 0) std::ofstream(tried) << "thrice";
        while (!std::filesystem::exists(tried)) std::this_thread::sleep_for(Milliseconds{1});
        for (const char* label : {"first", "second"}) {
            auto rendezvous = FileRendezvous::create(directory.path(), rank, 2, "run");
            RANK_CHECK(rendezvous, rendezvous.error().to_string());
            const Status met = barrier(**rendezvous, label);
            RANK_CHECK(met, met.error().to_string());
        }
        return true;
    });
}

TEST(FileRendezvous, NamesTheRanksThatStayAwayFromABarrier) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 4);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        if (rank == 1 || rank == 2) return true;
        const Status met = barrier(**rendezvous, "start", Milliseconds{1000});
        RANK_CHECK(!met, "it should fail");
        RANK_CHECK(met.error().message.find("ranks 1, 2 of 4 did not come to 'start' within 1000 ms") !=
                       std::string::npos,
                   met.error().message);
        return true;
    });
}

/// Some attempts of the others are over by then, not as many on each; what they brought to those is not taken for what they
/// bring now.
TEST(FileRendezvous, MeetsARankThatWasLateAtTheNextAttemptAndStaysInStep) {
    for (const auto& [late, attempts] : {std::pair(0, 1), std::pair(1, 3), std::pair(2, 2)}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&, late = late, attempts = attempts](int rank) {
            auto made = FileRendezvous::create(directory.path(), rank, 3);
            RANK_CHECK(made, made.error().to_string());
            Rendezvous& store = **made;
            const auto brings = [&](int round) { return fmt::format("{} of {}", round, rank); };
            const auto meets = [&](const char* label, int round) {
                const auto all = all_gather(store, label, brings(round), Milliseconds{60'000});
                RANK_CHECK(all, all.error().to_string());
                for (int of = 0; of < 3; ++of)
                    RANK_CHECK((*all)[static_cast<std::size_t>(of)] == fmt::format("{} of {}", round, of),
                               (*all)[static_cast<std::size_t>(of)]);
                return true;
            };
            if (!meets("start", 0)) return false;
            for (int attempt = 0; rank != late && attempt < attempts + rank; ++attempt)
                RANK_CHECK(!all_gather(store, "again", "old", Milliseconds{30}), "met without a rank");
            tell(directory, fmt::format("failed {}", rank));
            for (int other = 0; rank == late && other < 3; ++other)
                await(directory, fmt::format("failed {}", other));
            for (int round = 1; round < 4; ++round) {
                if (!meets("again", round) || !meets("between", round)) return false;
            }
            return true;
        });
    }
}

TEST(FileRendezvous, DoesNotTakeADeadProcessForARank) {
    const TemporaryDirectory directory;
    const std::vector<int> first{0,
                                 1};  // rank 2 never comes: the two leave no trace that a later run believes
    run_ranks(first, [&](int rank) {
        (void)FileRendezvous::create(directory.path(), rank, 3, "again", Milliseconds{100});
        std::ofstream(directory.path() / "again" / ("hello.0." + std::to_string(rank)))
            << "0123 none " << getpid() << " 1";
        return true;
    });
    run_ranks({2}, [&](int rank) {
        // Of another pid namespace ("none") nothing can be known, so write what a crashed rank of this one
        // would leave.
        char space[64] = {};
        RANK_CHECK(readlink("/proc/self/ns/pid", space, sizeof(space) - 1) > 0, "namespace");
        for (int r = 0; r < 2; ++r) {
            std::ofstream(directory.path() / "again" / ("hello.0." + std::to_string(r)))
                << "0123 " << space << " 999999999 1";
        }
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 3, "again", Milliseconds{100});
        RANK_CHECK(!rendezvous, "it met ghosts");
        RANK_CHECK(rendezvous.error().message.find("rank 0, 1 of 3") != std::string::npos,
                   rendezvous.error().message);
        return true;
    });
    run_ranks(all_ranks(3), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 3, "again");
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        return bool(barrier(**rendezvous, "end"));
    });
}

TEST(FileRendezvous, CanBeMadeAgainInTheSameProcesses) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        for (int round = 0; round < 5; ++round) {
            auto rendezvous = FileRendezvous::create(directory.path(), rank, 3, "run");
            RANK_CHECK(rendezvous, rendezvous.error().to_string());
            auto all = all_gather(**rendezvous, "x", std::to_string(round));
            RANK_CHECK(all, all.error().to_string());
            for (const Bytes& bytes : *all) RANK_CHECK(bytes == std::to_string(round), bytes);
        }
        return true;
    });
}

TEST(FileRendezvous, RefusesARankThatIsNone) {
    const TemporaryDirectory directory;
    EXPECT_FALSE(FileRendezvous::create(directory.path(), 4, 4));
    EXPECT_FALSE(FileRendezvous::create(directory.path(), -1, 4));
    EXPECT_FALSE(FileRendezvous::create("/proc/none", 0, 1));
}

TEST(Agree, TellsEveryRankOfOneRanksError) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 3);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        auto all = agree(
            **rendezvous, "memory",
            rank == 1 ? Result<Bytes>(Error{"no room", {}, ErrorClass::machine}) : Result<Bytes>("fine"));
        RANK_CHECK(!all, "it should fail");
        RANK_CHECK(all.error().error_class == ErrorClass::machine, "class");
        RANK_CHECK(all.error().to_string() ==
                       (rank == 1 ? "rank 1: no room" : "rank 1: failed at 'memory': no room"),
                   all.error().to_string());
        return true;
    });
}

TEST(CallbackRendezvous, CarriesWhatTheStoreGivesAndItsExceptions) {
    ThreadStore store;
    const std::shared_ptr<Rendezvous> ranks[] = {store.rendezvous(0, 2), store.rendezvous(1, 2)};
    Rendezvous &zero = *ranks[0], &one = *ranks[1];
    std::thread other([&] { EXPECT_TRUE(barrier(one, "x")); });
    EXPECT_TRUE(barrier(zero, "x"));
    other.join();
    const Status alone = barrier(zero, "y", Milliseconds{20});
    ASSERT_FALSE(alone);
    EXPECT_NE(alone.error().message.find("rank 1 of 2 did not come"), std::string::npos)
        << alone.error().message;
    EXPECT_NE(alone.error().message.find("nothing at "), std::string::npos) << alone.error().message;
}

TEST(CallbackRendezvous, EndsAMeetingWhoseStoreFailsAtOnce) {
    int asked = 0;
    CallbackRendezvous only(
        0, 2, [](const std::string&, const Bytes&) {},
        [&](const std::string&, Milliseconds) -> Bytes {
            ++asked;
            throw std::runtime_error("the server is gone");
        });
    const auto met = all_gather(only, "a call", "", Milliseconds{600'000});
    ASSERT_FALSE(met.ok());
    EXPECT_NE(met.error().message.find("the server is gone"), std::string::npos);
    EXPECT_LT(asked, 10);
}

/// What a meeting of three ranks says on rank 0 with such a store, and how often it asked.
std::pair<std::string, int> said_of(const std::function<Bytes(int rank, int asked, Milliseconds)>& get,
                                    Milliseconds timeout) {
    int asked = 0;
    CallbackRendezvous only(
        0, 3, [](const std::string&, const Bytes&) {},
        [&](const std::string& key, Milliseconds wait) { return get(key.back() - '0', ++asked, wait); });
    const auto met = all_gather(only, "a call", "", timeout);
    return {met ? "they met" : met.error().message, asked};
}

const Bytes kThere("ca call\0\0", 9);  // its label, no caller

Bytes fail() { throw std::runtime_error("the server is gone"); }

Bytes wait_in_vain(Milliseconds wait) {
    std::this_thread::sleep_for(wait);
    throw std::runtime_error("nothing there");
}

TEST(CallbackRendezvous, TellsAStoreThatFailsFromRanksThatAreLate) {
    constexpr Milliseconds kLong{600'000};
    const auto fails = [](const auto& said) {
        return said.second < 30 &&
               said.first.find("'a call' cannot take place, as the store fails") != std::string::npos &&
               said.first.find("the server is gone") != std::string::npos;
    };
    const auto of_one_rank =
        said_of([](int rank, int, Milliseconds) { return rank == 1 ? kThere : fail(); }, kLong);
    EXPECT_TRUE(fails(of_one_rank)) << of_one_rank.first << of_one_rank.second;
    const auto later = said_of(
        [](int, int asked, Milliseconds wait) { return asked < 4 ? wait_in_vain(wait) : fail(); }, kLong);
    EXPECT_TRUE(fails(later)) << later.first << later.second;
    // What passes is no failure, and what has no sense no store that waits.
    const auto passing =
        said_of([](int, int asked, Milliseconds) { return asked < 3 ? fail() : kThere; }, kLong);
    EXPECT_EQ(passing.first, "they met");
    for (const Bytes& nonsense : {Bytes(), Bytes("?"), Bytes("c")}) {
        const auto senseless = said_of([&](int, int, Milliseconds) { return nonsense; }, Milliseconds{300});
        EXPECT_NE(senseless.first.find("had given up 'a call'"), std::string::npos) << senseless.first;
        EXPECT_LT(senseless.second, 400);
    }
    const auto late =
        said_of([](int, int, Milliseconds wait) { return wait_in_vain(wait); }, Milliseconds{300});
    EXPECT_NE(late.first.find("ranks 1, 2 of 3 did not come to 'a call' within 300 ms"), std::string::npos);
}

TEST(CallbackRendezvous, SaysWhyNothingCanBePut) {
    CallbackRendezvous only(
        0, 2, [](const std::string&, const Bytes&) { throw std::runtime_error("read-only"); },
        [](const std::string&, Milliseconds wait) { return wait_in_vain(wait); });
    const auto met = all_gather(only, "a call", "", Milliseconds{600'000});
    ASSERT_FALSE(met.ok());
    EXPECT_NE(met.error().message.find("read-only"), std::string::npos) << met.error().message;
}

TEST(LaunchEnvironment, ReadsTorchrunAndOpenMpi) {
    run_ranks({0}, [](int) {
        clearenv();
        RANK_CHECK(!launch_environment(), "nothing is set");
        setenv("OMPI_COMM_WORLD_RANK", "2", 1);
        setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
        setenv("PMIX_NAMESPACE", "job7", 1);
        auto mpi = launch_environment();
        RANK_CHECK(
            mpi && mpi->launcher == "mpirun" && mpi->rank == 2 && mpi->size == 4 && mpi->job == "mpirun-job7",
            "mpi");
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
        setenv("LOCAL_RANK", "0", 1);
        setenv("MASTER_ADDR", "localhost", 1);
        setenv("MASTER_PORT", "29500", 1);
        auto torchrun = launch_environment();
        RANK_CHECK(torchrun && torchrun->rank == 1 && torchrun->local_rank == 0, "torchrun");
        RANK_CHECK(torchrun->job == "torchrun-localhost-29500", torchrun->job);
        setenv("RANK", "2", 1);
        RANK_CHECK(!launch_environment(), "rank 2 of 2");
        setenv("RANK", "two", 1);
        RANK_CHECK(!launch_environment(), "no number");
        return true;
    });
}

TEST(EnvironmentRendezvous, MeetsUnderTheTemporaryDirectory) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        clearenv();
        setenv("TMPDIR", directory.path().c_str(), 1);
        setenv("RANK", std::to_string(rank).c_str(), 1);
        setenv("WORLD_SIZE", "2", 1);
        setenv("MASTER_PORT", "1", 1);
        auto rendezvous = environment_rendezvous();
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        return bool(barrier(**rendezvous, "x"));
    });
}

}  // namespace
}  // namespace syncopate::runtime

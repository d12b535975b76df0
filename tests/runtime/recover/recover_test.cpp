#include "syncopate/runtime/recover/recover.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>

#include "runtime/recover/gathering_rank.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::await;
using testing::GatheringRank;
using testing::gathers;
using testing::meet;
using testing::run_ranks;
using testing::tell;
using testing::TemporaryDirectory;
using testing::WatchedStore;

constexpr std::int64_t kDeadline = 1'500;  // ms, of calls
constexpr Milliseconds kToCome{4'000};     // of ranks that are to come, also on a busy machine

/// A death that the tests want: the process is gone at once, as by SIGKILL, and counts as good.
[[noreturn]] void die() { _exit(0); }

Bytes value_of(const Result<Bytes>& found) {
    if (!found) throw std::runtime_error(found.error().message);
    return *found;
}

bool says(const Error& error, const std::string& words) {
    return error.message.find(words) != std::string::npos;
}

/// Each takes some deadlines.
std::vector<std::string> some_of(std::vector<std::string> all) {
    if (std::getenv("SYNCOPATE_SWEEP") == nullptr) all.resize(1);
    return all;
}

bool failed(const Status& status) {
    RANK_CHECK(status, status.error().to_string());
    return true;
}

/// A rank that dies may have sent all of its call: then the next one fails.
bool fails(GatheringRank& rank) {
    for (int call = 0; call < 3; ++call) {
        if (!rank.call(0)) return true;
    }
    return false;
}

/// A heap whose group has not gone on: nobody is told to restore it, as nobody can.
bool is_lost(SymmetricHeap& heap) {
    std::int32_t word = 0;
    const Result<std::uint64_t> room = heap.allocate(4);
    const Status all[] = {heap.require_there(), heap.read(heap.local(0), &word, 4),
                          heap.write(heap.local(0), &word, 4), room ? Status(Done{}) : Status(room.error()),
                          heap.rendezvous().memory().require(4)};
    for (const Status& asked : all) {
        RANK_CHECK(!asked && says(asked.error(), "cannot be restored, as it was of a group that"),
                   asked ? "there" : asked.error().message);
        RANK_CHECK(!says(asked.error(), "restore it first"), "told to restore it");
    }
    RANK_CHECK(heap.rendezvous().memory().bytes_released() == 0, "counts as released");
    return true;
}

class Recover : public ::testing::TestWithParam<int> {};

TEST_P(Recover, GoesOnWithoutARankThatDiesInAKernel) {
    const int victim = GetParam();
    const TemporaryDirectory directory;
    std::vector<int> left = all_ranks(3);
    std::erase(left, victim);
    run_ranks(all_ranks(3), [&](int number) {
        GatheringRank rank(meet(directory, number, 3), kDeadline);
        if (Status made = rank.make(); !made) return failed(made);
        if (!gathers(rank, all_ranks(3))) return false;
        if (number == victim) rank.in_kernel = [] { die(); };
        RANK_CHECK(fails(rank), "a call without a rank");
        const Status recovered = rank.recover(kToCome);
        RANK_CHECK(recovered, recovered.error().to_string());
        RANK_CHECK(rank.ranks() == left && !rank.renewed(), "another group");
        const auto refused = rank.call(0);
        RANK_CHECK(!refused && says(refused.error(),
                                    "op 'gather' was made in a group of 3 ranks, which has gone on with 2"),
                   refused.error().message);
        const Status made = rank.make();
        RANK_CHECK(made, made.error().to_string());
        return gathers(rank, left);
    });
}

TEST_P(Recover, TakesARankThatWasStartedAgainInItsPlace) {
    const int victim = GetParam();
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int number) {
        const bool again = number == 3;  // the new process of the victim's rank
        std::shared_ptr<Rendezvous> group;
        if (again) {
            await(directory, "died");
            auto joined = FileRendezvous::rejoin(directory.path(), victim, 3);
            RANK_CHECK(joined, joined.error().to_string());
            group = std::move(joined).value();
        } else {
            group = meet(directory, number, 3);
        }
        GatheringRank rank(group, kDeadline);
        if (!again) {
            if (Status made = rank.make(); !made) return failed(made);
            if (!gathers(rank, all_ranks(3))) return false;
            if (number == victim) {
                rank.in_kernel = [&] {
                    tell(directory, "died");
                    die();
                };
            }
            RANK_CHECK(fails(rank), "a call without a rank");
        }
        const Status recovered = rank.recover(Milliseconds{60'000});
        RANK_CHECK(recovered, recovered.error().to_string());
        RANK_CHECK(rank.ranks() == all_ranks(3), "not all are there");
        const Status made = rank.make();
        RANK_CHECK(made, made.error().to_string());
        return gathers(rank, all_ranks(3));
    });
}

INSTANTIATE_TEST_SUITE_P(OnHost, Recover, ::testing::Values(0, 1, 2));

TEST(Recovery, RenewsOpsAtTheirAddressesWhereAllRanksGoOn) {
    for (const plan::Backend backend :
         {plan::Backend::host, plan::Backend::tma_dedicated, plan::Backend::copy_engine}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int number) {
            GatheringRank rank(meet(directory, number, 3), kDeadline);
            rank.backend = backend;
            if (Status made = rank.make(); !made) return failed(made);
            const std::uint64_t base = rank.heap().base();
            for (int fault = 0; fault < 2; ++fault) {
                if (!gathers(rank, all_ranks(3), 3 + fault)) return false;
                if (number == 1) await(directory, "failed" + std::to_string(fault));
                RANK_CHECK(fails(rank), "a call that a rank did not make in time");
                tell(directory, "failed" + std::to_string(fault));
                const Status recovered = rank.recover(Milliseconds{60'000});
                RANK_CHECK(recovered, recovered.error().to_string());
                RANK_CHECK(rank.renewed() && rank.heap().base() == base, "made anew");
            }
            return gathers(rank, all_ranks(3));
        });
    }
}

TEST(Recovery, ResetsAnOpForWhichARankWasLate) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int number) {
        GatheringRank rank(meet(directory, number, 3), kDeadline);
        if (Status made = rank.make(); !made) return failed(made);
        for (int fault = 0; fault < 2; ++fault) {
            if (!gathers(rank, all_ranks(3))) return false;
            if (number == 2) await(directory, "failed" + std::to_string(fault));
            RANK_CHECK(fails(rank), "a call that a rank did not make in time");
            tell(directory, "failed" + std::to_string(fault));
            const Status reset = rank.op()->reset();
            RANK_CHECK(reset, reset.error().to_string());
        }
        return gathers(rank, all_ranks(3));
    });
}

/// What is in the store when the second rank dies: nothing of it, its coming, its part of a meeting, its part done.
TEST(Recovery, GoesOnWhenAnotherRankDiesMeanwhile) {
    for (const std::string& at : some_of({"group.0.0.0.1", "hello", "done"})) {
        const TemporaryDirectory directory;
        const std::vector<int> left{1, 3};
        run_ranks(all_ranks(4), [&](int number) {
            std::shared_ptr<Rendezvous> group = meet(directory, number, 4);
            group = std::make_shared<WatchedStore>(group, [&, number](const std::string& key) {
                if (number == 2 && key.find(at) != std::string::npos) die();
            });
            GatheringRank rank(group, kDeadline);
            if (Status made = rank.make(); !made) return failed(made);
            if (number == 0) rank.in_kernel = [] { die(); };
            RANK_CHECK(fails(rank), "a call without a rank");
            const Status recovered = rank.recover(kToCome);
            RANK_CHECK(recovered, recovered.error().to_string());
            RANK_CHECK(rank.ranks() == left, "another group");
            const Status made = rank.make();
            RANK_CHECK(made, made.error().to_string());
            return gathers(rank, left);
        });
    }
}

TEST(Recovery, GoesOnWhenARankDiesWhileTheHeapIsRenewed) {
    for (const std::string& at : some_of({"group.0.0.5.2", "group.0.0.2.2", "group.0.0.9.2"})) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int number) {
            const std::shared_ptr<Rendezvous> group = std::make_shared<WatchedStore>(
                meet(directory, number, 3), [&, number](const std::string& key) {
                    if (number == 2 && key.find(at) != std::string::npos) die();
                });
            GatheringRank rank(group, kDeadline);
            if (Status made = rank.make(); !made) return failed(made);
            if (!gathers(rank, all_ranks(3))) return false;
            if (!barrier(*group, "all have ended their calls")) return false;
            const Status recovered = rank.recover(kToCome);
            RANK_CHECK(recovered, recovered.error().to_string());
            RANK_CHECK(rank.ranks() == all_ranks(2), "another group");
            const auto refused = rank.call(0);
            RANK_CHECK(!refused && says(refused.error(), "gone on with 2"), "an op of another group");
            if (Status made = rank.make(); !made) return failed(made);
            return gathers(rank, all_ranks(2));
        });
    }
}

TEST(Recovery, LeavesOutARankThatComesTooLateWhichSaysSoAndMayJoinLater) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int number) {
        GatheringRank rank(meet(directory, number, 3), kDeadline);
        if (Status made = rank.make(); !made) return failed(made);
        if (number == 0) {
            await(directory, "gone on");
            const Status late = rank.recover(kToCome);
            RANK_CHECK(!late && says(late.error(),
                                     "the group has gone on without this rank, which came too late: with "
                                     "ranks 1, 2 of 3"),
                       late ? "went on" : late.error().to_string());
            tell(directory, "told");
        } else {
            RANK_CHECK(fails(rank), "a call without a rank");
            const Status recovered = rank.recover(Milliseconds{1'500});
            RANK_CHECK(recovered, recovered.error().to_string());
            if (Status made = rank.make(); !made) return failed(made);
            if (!gathers(rank, {1, 2})) return false;
            // Who goes on ends what the other one is still in.
            tell(directory, "gathered " + std::to_string(number));
            for (const char* both : {"gathered 1", "gathered 2"}) await(directory, both);
            tell(directory, "gone on");
            await(directory, "told");
        }
        const Status joined = rank.recover(Milliseconds{60'000});
        RANK_CHECK(joined, joined.error().to_string());
        RANK_CHECK(rank.ranks() == all_ranks(3), "another group");
        if (Status made = rank.make(); !made) return failed(made);
        return gathers(rank, all_ranks(3));
    });
}

TEST(Recovery, TakesANewGroupWhereTheOldStoreIsGone) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int number) {
        bool is_gone = false;
        const auto file = meet(directory, number, 3);
        const auto put = [&](const std::string& key, const Bytes& value) {
            if (is_gone) throw std::runtime_error("connection refused");
            (void)file->put("c." + key, value);
        };
        const auto get = [&](const std::string& key, Milliseconds timeout) {
            if (is_gone) throw std::runtime_error("connection refused");
            return value_of(file->get("c." + key, timeout));
        };
        GatheringRank rank(std::make_shared<CallbackRendezvous>(number, 3, put, get), kDeadline);
        if (Status made = rank.make(); !made) return failed(made);
        if (number == 0) rank.in_kernel = [] { die(); };  // it serves the store
        RANK_CHECK(fails(rank), "a call without a rank");
        is_gone = true;
        const Status alone = rank.recover(kToCome);
        RANK_CHECK(!alone && says(alone.error(), "connection refused"), "went on without a store");
        const Status recovered = rank.recover(kToCome, meet(directory, number - 1, 2, "second"));
        RANK_CHECK(recovered, recovered.error().to_string());
        if (Status made = rank.make(); !made) return failed(made);
        return gathers(rank, all_ranks(2));
    });
}

TEST(Recovery, TakesAllRanksOfAStoreThatCannotDecideOrFailsOnAll) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int number) {
        const auto file = meet(directory, number, 2);
        const auto put = [&](const std::string& key, const Bytes& value) {
            (void)file->put("c." + key, value);
        };
        const auto get = [&](const std::string& key, Milliseconds timeout) {
            return value_of(file->get("c." + key, timeout));
        };
        GatheringRank rank(std::make_shared<CallbackRendezvous>(number, 2, put, get), kDeadline);
        if (Status made = rank.make(); !made) return failed(made);
        if (number == 1) await(directory, "failed");
        RANK_CHECK(fails(rank), "a call that a rank did not make in time");
        tell(directory, "failed");
        const Status recovered = rank.recover(Milliseconds{60'000});
        RANK_CHECK(recovered, recovered.error().to_string());
        if (!gathers(rank, all_ranks(2))) return false;
        if (number == 1) return true;
        RANK_CHECK(fails(rank), "a call without a rank");
        const Status alone = rank.recover(Milliseconds{500});
        RANK_CHECK(!alone && says(alone.error(), "bring a group of those that are there"), "went on alone");
        return is_lost(rank.heap());
    });
}

/// A graph that was captured in a group that is gone may still be replayed: it writes where peers were.
TEST(Recovery, LetsARetiredHeapTouchNobodyElsesMemory) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int number) {
        auto heap = SymmetricHeap::create({}, meet(directory, number, 2), 1 << 16);
        RANK_CHECK(heap, heap.error().to_string());
        const std::uint64_t base = (*heap)->base();
        const std::int32_t mine = 7 + number;
        std::int32_t seen = 0;
        RANK_CHECK((*heap)->write((*heap)->local(64), &mine, 4) && barrier((*heap)->rendezvous(), "written"),
                   "write");
        if (number == 0) {
            RANK_CHECK((*heap)->retire(true, "was given up") && (*heap)->base() == base, "retired elsewhere");
            const std::int32_t replayed = 99;
            RANK_CHECK((*heap)->write((*heap)->address(1, 64), &replayed, 4), "no memory stands in");
            RANK_CHECK((*heap)->read((*heap)->local(64), &seen, 4) && seen == replayed,
                       "it is somebody else's");
        }
        RANK_CHECK(barrier((*heap)->rendezvous(), "replayed"), "barrier");
        if (number == 0) return true;
        RANK_CHECK((*heap)->read((*heap)->local(64), &seen, 4) && seen == mine, "another rank wrote here");
        return true;
    });
}

TEST(Rendezvous, GivesAllRanksWhatOneHasPutFirst) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int number) {
        const auto store = meet(directory, number, 4);
        for (int key = 0; key < 50; ++key) {
            const auto first = store->put_first(fmt::format("first.{}", key), std::to_string(number));
            RANK_CHECK(first, first.error().to_string());
            const auto all = all_gather(*store, "first", *first);
            RANK_CHECK(all && std::set<Bytes>(all->begin(), all->end()).size() == 1, "two were first");
        }
        return true;
    });
}

}  // namespace
}  // namespace syncopate::runtime

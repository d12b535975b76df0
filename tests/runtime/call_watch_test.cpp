// Ranks that call different things: named on all of them, with what each of them calls, long before a deadline.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <thread>

#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "runtime/schedules.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::await;
using testing::direct_all_gather;
using testing::make_heap;
using testing::run_kernel;
using testing::run_ranks;
using testing::tell;
using testing::TemporaryDirectory;

using Op = std::unique_ptr<FusedOp>;

/// Longer than a test may take: what ends before was not ended by it.
constexpr std::int64_t kDeadlineMs = 3'000'000;

Result<Op> make(const std::shared_ptr<SymmetricHeap>& heap, const std::string& name, std::int64_t rows,
                bool pull = false) {
    const int size = heap->size();
    return FusedOp::create(heap, direct_all_gather(size, pull, {rows * size, 4}),
                           {.name = name, .deadline_ms = kDeadlineMs});
}

Status call(FusedOp& op) {
    if (Status begun = op.begin_call(); !begun) return begun;
    const bool ran = run_kernel(op, [](int) { return true; });
    return op.end_call(0, ran);
}

bool says(const Status& status, std::initializer_list<const char*> texts) {
    if (status || status.error().error_class != ErrorClass::usage) return false;
    for (const char* text : texts) {
        if (status.error().message.find(text) == std::string::npos) return false;
    }
    return true;
}

std::string told(const Status& status) { return status ? "no error" : status.error().to_string(); }

class RanksWhoseCallsDiffer : public ::testing::TestWithParam<bool> {};

TEST_P(RanksWhoseCallsDiffer, AreNamedWhereOneSetsUpWhatTheOthersDoNotCall) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        const Result<Op> known = make(*heap, "known", 8, GetParam());
        RANK_CHECK(known && call(**known) && call(**known), "calls that agree");
        const Status differs = [&]() -> Status {
            if (rank != 1) return call(**known);
            const Result<Op> other = make(*heap, "other", 16);
            return other ? Status(Done{}) : Status(other.error());
        }();
        RANK_CHECK(says(differs,
                        {"the ranks' calls differ: rank 0 calls op 'known'; A int32[24, 4]; rank 1: op-other",
                         "; rank 2 calls op 'known'"}) ||
                       says(differs, {"rank 1: op-other"}),
                   told(differs));
        RANK_CHECK((*known)->calls_differ(), "the op does not say so");
        // What each of them calls next is set up anew, and they meet where they should.
        const Result<Op> next = make(*heap, "next", 32);
        RANK_CHECK(next, next.error().to_string());
        const Status done = call(**next);
        RANK_CHECK(done, done.error().to_string());
        return (*next)->destroy().ok();
    });
}

TEST_P(RanksWhoseCallsDiffer, AreNamedWhereEachCallsAnotherKnownOp) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        const Result<Op> one = make(*heap, "one", 8, GetParam());
        const Result<Op> two = make(*heap, "two", 16, GetParam());
        RANK_CHECK(one && two && call(**one) && call(**two), "calls that agree");
        const Status differs = call(rank == 2 ? **two : **one);
        RANK_CHECK(
            says(differs, {"the ranks' calls differ: ", "rank 0 calls op 'one'", "rank 2 calls op 'two'"}),
            told(differs));
        return true;
    });
}

INSTANTIATE_TEST_SUITE_P(OnHost, RanksWhoseCallsDiffer, ::testing::Bool());

TEST(RanksWhoseCallsDiffer, AreNamedWhereThreeCallThreeOps) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        std::vector<Op> ops;
        for (int i = 0; i < 3; ++i) {
            Result<Op> op = make(*heap, "op" + std::to_string(i), 8 << i);
            RANK_CHECK(op && call(**op), "calls that agree");
            ops.push_back(std::move(op).value());
        }
        const Status differs = call(*ops[static_cast<std::size_t>(rank)]);
        RANK_CHECK(says(differs, {"the ranks' calls differ: rank 0 "}), told(differs));
        return true;
    });
}

TEST(RanksWhoseCallsDiffer, AreNotNamedByWhatAnEarlierDifferenceEnded) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        std::vector<Op> ops;
        for (int i = 0; i < 4; ++i) {
            Result<Op> op = make(*heap, "op" + std::to_string(i), 8 << i);
            RANK_CHECK(op && call(**op), "calls that agree");
            ops.push_back(std::move(op).value());
        }
        for (std::size_t pair = 0; pair < 4; pair += 2) {
            const Status differs = call(*ops[pair + static_cast<std::size_t>(rank)]);
            RANK_CHECK(says(differs, {"rank 0 calls op 'op", "rank 1 calls op 'op"}), told(differs));
            const bool names_the_first = told(differs).find("op0") != std::string::npos ||
                                         told(differs).find("op1") != std::string::npos;
            RANK_CHECK(names_the_first == (pair == 0), told(differs));
        }
        return true;
    });
}

TEST(RanksWhoseCallsDiffer, AreNamedWhereOneClosesWhatTheOthersCall) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        const Result<Op> op = make(*heap, "op", 8);
        RANK_CHECK(op && call(**op), "calls that agree");
        const Status differs = rank == 0 ? (*op)->destroy() : call(**op);
        RANK_CHECK(says(differs, {"rank 0: close of op 'op'; A int32[16, 4]; rank 1 calls op 'op'",
                                  "that is call 2 of rank 1, and rank 0 has made 1"}),
                   told(differs));
        if (rank == 1) RANK_CHECK((*op)->destroy(), "it closes it, too");
        RANK_CHECK((*heap)->bytes_allocated() == 0, "memory left");
        return true;
    });
}

TEST(RanksWhoseCallsDiffer, AreNamedWhereTheyMeetForDifferentThings) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        const auto differs = all_gather((*heap)->rendezvous(), rank == 1 ? "left" : "right", "");
        RANK_CHECK(!differs && (*heap)->rendezvous().calls_differ(), "they meet");
        RANK_CHECK(differs.error().message.find("the ranks' calls differ: rank 0: right; rank 1: left") == 0,
                   differs.error().message);
        const Status met = barrier((*heap)->rendezvous(), "again");
        RANK_CHECK(met && !(*heap)->rendezvous().calls_differ(), told(met));
        return true;
    });
}

TEST(RanksWhoseCallsDiffer, AreToldAlsoWhereTheyAreInACallWhileOthersMeetForDifferentThings) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        const Result<Op> known = make(*heap, "known", 8);
        RANK_CHECK(known && call(**known), "a call of all");
        const Status differs = [&]() -> Status {
            if (rank == 2) return call(**known);
            const Result<Op> other = make(*heap, rank == 0 ? "left" : "right", 16);
            return other ? Status(Done{}) : Status(other.error());
        }();
        RANK_CHECK(says(differs, {"rank 0: op-left; rank 1: op-right; rank 2 calls op 'known'"}),
                   told(differs));
        const Result<Op> next = make(*heap, "next", 32);
        RANK_CHECK(next && call(**next), "the next one");
        return true;
    });
}

// The event ended what was in progress; who comes later is told by whatever it calls first, and all go on from there.
TEST(RanksWhoseCallsDiffer, AreToldByTheirNextCallWhereTheyComeLate) {
    for (const bool known : {true, false}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int rank) {
            const auto heap = make_heap(directory, rank, 3);
            RANK_CHECK(heap, heap.error().to_string());
            std::vector<Op> ops;
            for (int i = 0; i < 3; ++i) {
                Result<Op> op = make(*heap, "op" + std::to_string(i), 8 << i);
                RANK_CHECK(op && call(**op), "calls that agree");
                ops.push_back(std::move(op).value());
            }
            if (rank == 2) {
                testing::await(directory, "told 0");
                testing::await(directory, "told 1");
            }
            const Status differs = [&]() -> Status {
                if (rank < 2 || known) return call(*ops[static_cast<std::size_t>(rank)]);
                const Result<Op> other = make(*heap, "new", 16);
                return other ? Status(Done{}) : Status(other.error());
            }();
            RANK_CHECK(says(differs, {"rank 0 calls op 'op0'", "; rank 1 calls op 'op1'",
                                      "; rank 2 has called neither"}),
                       told(differs));
            testing::tell(directory, "told " + std::to_string(rank));
            RANK_CHECK(ops[0]->calls_differ() && ops[1]->calls_differ() && !ops[2]->calls_differ(),
                       "the same ops have ended on all ranks");
            const Status done = call(*ops[2]);
            RANK_CHECK(done, done.error().to_string());
            const Result<Op> next = make(*heap, "next", 32);
            RANK_CHECK(next && call(**next), "the next one");
            return true;
        });
    }
}

TEST(RanksWhoseCallsDiffer, GoOnAfterEachOfSeveralTimes) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        for (int round = 0; round < 3; ++round) {
            const Result<Op> op = make(*heap, "op", 8);
            RANK_CHECK(op && call(**op), "a call of both");
            const Status differs = [&]() -> Status {
                if (rank == round % 2) return call(**op);
                return barrier((*heap)->rendezvous(), "round " + std::to_string(round));
            }();
            RANK_CHECK(says(differs, {"calls op 'op'", ": round "}), told(differs));
        }
        return barrier((*heap)->rendezvous(), "end").ok();
    });
}

// As a trial on all ranks that one of them cannot run: the others come once their calls have ended.
TEST(ARankThatFails, CallsNothingElse) {
    for (const bool gives_up : {true, false}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int rank) {
            const auto heap = make_heap(directory, rank, 3);
            RANK_CHECK(heap, heap.error().to_string());
            const auto op = FusedOp::create(*heap, direct_all_gather(3, false, {24, 4}),
                                            {.name = "op", .deadline_ms = gives_up ? kDeadlineMs : 2500});
            RANK_CHECK(op, op.error().to_string());
            const Status ran = rank == 1 ? Status(Error{"too little shared memory", {}}) : call(**op);
            if (rank == 1 && gives_up) (*op)->give_up();
            const auto all = all_gather((*heap)->rendezvous(), "run", ran ? "" : ran.error().message,
                                        kRendezvousTimeout, !ran.ok());
            RANK_CHECK(all, all.error().to_string());
            RANK_CHECK((*all)[1] == "too little shared memory" && !(*all)[0].empty(), told(ran));
            RANK_CHECK(!(*op)->calls_differ(), "they differ");
            const Result<Op> next = make(*heap, "default", 8);
            RANK_CHECK(next && call(**next), "what all take instead");
            return true;
        });
    }
}

int threads() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

TEST(TheWatch, EndsItsThreadWithTheLastOp) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        const int before = threads();
        for (int round = 0; round < 2; ++round) {
            {
                const Result<Op> one = make(*heap, "one", 8);
                const Result<Op> two = make(*heap, "two", 16);
                RANK_CHECK(one && two && call(**one), "a call");
                RANK_CHECK(threads() > before, "there is one");
            }
            // One that has been joined may still be listed for a moment.
            for (int look = 0; look < 10'000 && threads() != before; ++look)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            RANK_CHECK(threads() == before, "it is left");
        }
        return true;
    });
}

TEST(RanksWhoseCallsAgree, MayBeFarApartWhereTheySetUp) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        const Result<Op> one = make(*heap, "one", 8);
        RANK_CHECK(one, "set up");
        for (int round = 0; round < 3; ++round) {
            if (rank == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
            const Status done = call(**one);
            RANK_CHECK(done, told(done));
            if (rank == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
            const Result<Op> other = make(*heap, "other", 8);
            RANK_CHECK(other, other.error().to_string());
            const Status closed = (*other)->destroy();
            RANK_CHECK(closed, told(closed));
        }
        return true;
    });
}

TEST(Ranks, ThatAreAbsentFromACallAreAllNamed) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(4), [&](int rank) {
        const auto heap = make_heap(directory, rank, 4);
        RANK_CHECK(heap, heap.error().to_string());
        const auto op =
            FusedOp::create(*heap, direct_all_gather(4, false, {32, 4}), {.name = "op", .deadline_ms = 700});
        RANK_CHECK(op, op.error().to_string());
        if (rank == 0 || rank == 2) {
            const Status late = call(**op);
            RANK_CHECK(!late && late.error().error_class == ErrorClass::machine, told(late));
            RANK_CHECK(
                late.error().message.find("; ranks 1, 3 have not begun this call") != std::string::npos,
                told(late));
            tell(directory, "told-" + std::to_string(rank));
        } else {  // there, but not in the call
            await(directory, "told-0");
            await(directory, "told-2");
        }
        return true;
    });
}

// A rank that gave up waiting and came back meets those that come later.
TEST(AMeeting, TakesPlaceAfterOneThatWasGivenUp) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 2);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        if (rank == 0) {
            const Status alone = barrier(**rendezvous, "first", Milliseconds{50});
            RANK_CHECK(!alone, "nobody else was there");
            testing::tell(directory, "given up");
        } else {
            testing::await(directory, "given up");
        }
        const auto all = all_gather(**rendezvous, "second", std::to_string(rank));
        RANK_CHECK(all && (*all)[0] == "0" && (*all)[1] == "1", all ? "values" : all.error().to_string());
        return true;
    });
}

// Set-up is several meetings: who gave the first one up begins again there, and finds who comes late.
TEST(AMeeting, IsWhereALateRankIsMetByTheNextAttempt) {
    for (const bool comes_first : {false, true}) {
        const TemporaryDirectory directory;
        run_ranks(all_ranks(3), [&](int rank) {
            auto made = FileRendezvous::create(directory.path(), rank, 3);
            RANK_CHECK(made, made.error().to_string());
            const std::shared_ptr<Rendezvous> rendezvous = std::move(made).value();
            const auto set_up = [&](Milliseconds timeout) {
                return SymmetricHeap::create(Device{}, rendezvous, 4096, timeout);
            };
            if (rank != 2) {
                RANK_CHECK(!set_up(Milliseconds{150}), "nobody is late");
                testing::tell(directory, "gave up " + std::to_string(rank));
                if (comes_first) testing::await(directory, "came");
            } else {
                testing::await(directory, "gave up 0");
                testing::await(directory, "gave up 1");
                testing::tell(directory, "came");
            }
            const auto heap = set_up(Milliseconds{60'000});
            RANK_CHECK(heap, heap.error().to_string());
            const Result<Op> op = make(*heap, "op", 8);
            RANK_CHECK(op && call(**op), "a call");
            return true;
        });
    }
}

TEST(ClosingAnOp, WaitsAsLongAsItsCallsDo) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        const auto op = FusedOp::create(*heap, direct_all_gather(2, false, {16, 4}),
                                        {.name = "op", .deadline_ms = 2'000});
        RANK_CHECK(op && call(**op), "a call");
        if (rank == 1) {
            await(directory, "closed");
            return true;
        }
        const Status closed = (*op)->destroy();
        tell(directory, "closed");
        RANK_CHECK(!closed, "the other one does not close it");
        const std::string text = "did not come to 'close of op 'op'; A int32[16, 4]' within 2000 ms";
        RANK_CHECK(closed.error().message.find(text) != std::string::npos, told(closed));
        return true;
    });
}

TEST(AGroup, SaysHowFarApartItsRanksMayBe) {
    const TemporaryDirectory directory;
    run_ranks({0, 1}, [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 2);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        if (rank == 1) return true;
        (*rendezvous)->set_timeout(Milliseconds{120});
        const Status met = barrier(**rendezvous, "here");
        RANK_CHECK(!met && met.error().message.find("within 120 ms") != std::string::npos, told(met));
        return true;
    });
}

// Stopped for longer than the deadline is, with all its threads: what comes soon afterwards is in time.
TEST(AHostThatWasFrozen, HasNotWaitedMeanwhile) {
    const TemporaryDirectory directory;
    run_ranks({0}, [&](int) {
        std::atomic<bool> there{false};
        CallbackRendezvous only(
            0, 2, [](const std::string&, const Bytes&) {},
            [&](const std::string&, Milliseconds wait) -> Bytes {
                for (Milliseconds slept{0}; slept < wait; slept += Milliseconds{5}) {
                    if (there) return {"cmet\0\0", 6};  // its label, no caller
                    std::this_thread::sleep_for(Milliseconds{5});
                }
                throw std::runtime_error("nothing there");
            });
        const pid_t self = getpid();
        if (fork() == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            kill(self, SIGSTOP);
            std::this_thread::sleep_for(std::chrono::milliseconds(3000));
            kill(self, SIGCONT);
            _exit(0);
        }
        std::thread other([&] {
            auto last = std::chrono::steady_clock::now();
            for (auto now = last; now - last < std::chrono::seconds(2);
                 now = std::chrono::steady_clock::now()) {
                last = now;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            there = true;
        });
        const Status met = barrier(only, "met", Milliseconds{2500});
        other.join();
        RANK_CHECK(met, told(met));
        return true;
    });
}

bool says_of_the_machine(const Status& status, std::initializer_list<const char*> texts) {
    if (status || status.error().error_class != ErrorClass::machine) return false;
    return std::ranges::all_of(
        texts, [&](const char* text) { return status.error().message.find(text) != std::string::npos; });
}

/// On each of three ranks: an op that all have called once, then `work`. No meeting ends by its deadline.
void after_a_call(
    const std::function<bool(int rank, const std::shared_ptr<SymmetricHeap>& heap, FusedOp& known)>& work) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        const auto heap = make_heap(directory, rank, 3);
        RANK_CHECK(heap, heap.error().to_string());
        (*heap)->rendezvous().set_timeout(Milliseconds{kDeadlineMs});
        const Result<Op> known = make(*heap, "known", 8);
        RANK_CHECK(known && call(**known), "calls that agree");
        RANK_CHECK(barrier((*heap)->rendezvous(), "called"), "barrier");  // a fault ends calls under way
        return work(rank, *heap, **known);
    });
}

TEST(RanksThatHaveEnded, AreNamedByWhoCallsOnceMoreThanThey) {
    after_a_call([](int rank, const std::shared_ptr<SymmetricHeap>&, FusedOp& known) {
        if (rank != 0) return true;
        const Status late = call(known);
        RANK_CHECK(says_of_the_machine(late, {"op 'known': given up, as the process of rank ", " has ended"}),
                   told(late));
        return true;
    });
}

TEST(RanksThatHaveEnded, AreKnownByWhatTheyHaveSaidBeforeOfTheirKernel) {
    after_a_call([](int rank, const std::shared_ptr<SymmetricHeap>& heap, FusedOp& known) {
        if (rank == 0) {  // its kernel fails, and its process ends
            RANK_CHECK(known.begin_call(), "begins");
            return !known.end_call(0, false);
        }
        while (!heap->rendezvous().watch()->has_ended(0)) std::this_thread::yield();
        const Status given_up = call(known);
        RANK_CHECK(says_of_the_machine(given_up, {"its kernel did not run to its end"}), told(given_up));
        return true;
    });
}

TEST(RanksThatHaveEnded, AreNamedByWhoSetsUpWhatTheyDoNot) {
    after_a_call([](int rank, const std::shared_ptr<SymmetricHeap>& heap, FusedOp& known) {
        if (rank != 0) return true;
        const Result<Op> other = make(heap, "other", 16);
        const Status late = other ? Status(Done{}) : Status(other.error());
        RANK_CHECK(says_of_the_machine(late, {" of 3 cannot come to 'op-other", "ended"}), told(late));
        const Status closed = known.destroy();
        RANK_CHECK(says_of_the_machine(closed, {" of 3 cannot come to 'close of op 'known'", "ended"}),
                   told(closed));
        return true;
    });
}

TEST(RanksThatHaveEnded, AreNamedInAMeetingThatOthersHaveComeTo) {
    after_a_call([](int rank, const std::shared_ptr<SymmetricHeap>& heap, FusedOp&) {
        if (rank == 1) return true;
        const Status late = barrier(heap->rendezvous(), "together");
        RANK_CHECK(
            says_of_the_machine(late, {"rank 1 of 3 cannot come to 'together': its process has ended"}),
            told(late));
        return true;
    });
}

}  // namespace
}  // namespace syncopate::runtime

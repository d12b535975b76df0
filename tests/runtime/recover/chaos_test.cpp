// Ranks that are killed, stopped and paused at random in all phases (set-up, calls, kernels, recovery), by a seed: nobody
// computes wrong data, everybody ends or says why not, and those who are left go on as one group.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>

#include "runtime/recover/gathering_rank.hpp"

namespace syncopate::runtime {
namespace {

using testing::GatheringRank;
using testing::TemporaryDirectory;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDeadline = 1'000;  // ms, of calls
constexpr Milliseconds kToCome{1'500};
constexpr std::int32_t kFinish = 1;  // a bit of what a rank says: it has been told to come to an end

// How a rank ends.
constexpr int kRight = 0;    // with the group that its file names
constexpr int kLeftOut = 5;  // and told so
constexpr int kNoGroup = 6;  // some rank did not come to the first meeting
constexpr int kWrongData = 7;
constexpr int kTooLate = 8;  // an error came long after its deadline
constexpr int kLost = 9;     // another error

int fail(int code, int rank, const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", rank, what.c_str());
    return code;
}

/// Calls until all ranks of the group have been told to finish; after each error the group goes on.
int live(const TemporaryDirectory& directory, int number, int size) {
    auto met = FileRendezvous::create(directory.path(), number, size, "run", Milliseconds{4'000});
    if (!met) return kNoGroup;
    const std::shared_ptr<Rendezvous> group = std::move(met).value();
    group->set_timeout(kToCome);
    GatheringRank rank(group, kDeadline);
    std::vector<int> ranks = testing::all_ranks(size);
    bool made = false;
    int recoveries = 0;
    std::int32_t count = 0;  // since the group has gone on last
    for (;;) {
        const auto begun = Clock::now();
        Error error;
        if (!made) {
            if (Status done = rank.make(); done) {
                made = true;
                continue;
            } else {
                error = done.error();
            }
        } else {
            const bool finish = std::filesystem::exists(directory.path() / "finish");
            const auto word = [&](std::size_t of) { return (count * 64 + ranks[of]) * 2; };
            const auto said =
                rank.call(word(static_cast<std::size_t>(rank.group()->rank())) + (finish ? kFinish : 0));
            if (said) {
                bool all = true;
                for (std::size_t of = 0; of < said->size(); ++of) {
                    if (((*said)[of] & ~kFinish) != word(of))
                        return fail(kWrongData, number, "what was said is another call's");
                    all = all && ((*said)[of] & kFinish) != 0;
                }
                ++count;
                if (!all) continue;
                std::string list;
                for (const int one : ranks) list += fmt::format("{} ", one);
                std::ofstream(directory.path() / fmt::format("ended.{}", number))
                    << recoveries << " : " << list;
                return kRight;
            }
            error = said.error();
            if (error.error_class == ErrorClass::input) return fail(kWrongData, number, error.message);
            // Of a rank that was paused the clock says nothing; the parent knows.
            const auto most = Milliseconds{kDeadline + 1'500};
            if (Clock::now() - begun > most) {
                std::ofstream(directory.path() / fmt::format("late.{}", number))
                    << std::chrono::duration_cast<Milliseconds>(Clock::now() - begun).count();
            }
        }
        const Status recovered = rank.recover(kToCome);
        if (!recovered) {
            const bool left = recovered.error().message.find("without this rank") != std::string::npos;
            return left ? kLeftOut
                        : fail(kLost, number, recovered.error().to_string() + " after " + error.to_string());
        }
        ranks = rank.ranks();
        made = rank.renewed() && rank.op() != nullptr && rank.op()->retired().empty();
        count = 0;
        ++recoveries;
    }
}

struct Outcome {
    bool went_on = false;  ///< after a fault, to right results
    int late = 0;          ///< errors of ranks that were not paused, later than allowed
    std::string text;      ///< what is wrong
};

class Trial {
public:
    explicit Trial(unsigned seed) : random_(seed), size_(4 + static_cast<int>(random_() % 5)) {}

    Outcome run() {
        for (int rank = 0; rank < size_; ++rank) {
            std::fflush(nullptr);
            const pid_t pid = fork();
            if (pid == 0) _exit(live(directory_, rank, size_));
            pids_.push_back(pid);
        }
        const int events = 1 + static_cast<int>(random_() % 3);
        for (int event = 0; event < events; ++event) {
            // Soon: in set-up, or, after another one, where the others have not failed yet; later: in calls, in recovery.
            pause(random_() % 3 == 0 ? random_() % 60 : random_() % 2'500);
            strike();
        }
        pause(random_() % 1'500);
        for (const int rank : paused_) kill(pids_[static_cast<std::size_t>(rank)], SIGCONT);
        testing::tell(directory_, "finish");
        return judge();
    }

private:
    static void pause(std::uint64_t ms) {
        std::this_thread::sleep_for(Milliseconds(static_cast<std::int64_t>(ms)));
    }

    void strike() {
        const int victim = static_cast<int>(random_() % static_cast<unsigned>(size_));
        const pid_t pid = pids_[static_cast<std::size_t>(victim)];
        if (static_cast<int>(killed_.size()) + 1 >= size_ || killed_.contains(victim)) return;
        switch (random_() % 4) {
            case 0:
            case 1:
                kill(pid, SIGKILL);
                killed_.insert(victim);
                break;
            case 2:  // until the end
                kill(pid, SIGSTOP);
                paused_.insert(victim);
                break;
            default:
                kill(pid, SIGSTOP);
                paused_.insert(victim);
                pause(random_() % 1'500);
                kill(pid, SIGCONT);
        }
    }

    Outcome judge() {
        Outcome outcome;
        const auto end = Clock::now() + std::chrono::seconds(120);
        std::map<int, std::string> groups;
        for (int rank = 0; rank < size_; ++rank) {
            int status = 0;
            pid_t ended = 0;
            const pid_t pid = pids_[static_cast<std::size_t>(rank)];
            while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && Clock::now() < end) pause(2);
            if (ended == 0) {
                kill(pid, SIGKILL);
                waitpid(pid, &status, 0);
                outcome.text += fmt::format("rank {} hangs; ", rank);
                continue;
            }
            if (killed_.contains(rank)) continue;
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            if (code != kRight && code != kLeftOut && code != kNoGroup)
                outcome.text += fmt::format("rank {} ended with {}; ", rank, code);
            if (!paused_.contains(rank) &&
                std::filesystem::exists(directory_.path() / fmt::format("late.{}", rank)))
                ++outcome.late;
            if (code != kRight) continue;
            std::ifstream file(directory_.path() / fmt::format("ended.{}", rank));
            int recoveries = 0;
            std::string colon;
            file >> recoveries >> colon;
            std::getline(file, groups[rank]);
            outcome.went_on = outcome.went_on || recoveries > 0;
        }
        std::string those;
        for (const auto& [rank, group] : groups) those += fmt::format("{} ", rank);
        for (const auto& [rank, group] : groups) {
            // One that was killed after its last call is of the group, too.
            std::string members;
            std::istringstream words(group);
            for (int one = 0; words >> one;) {
                if (!killed_.contains(one) || groups.contains(one)) members += fmt::format("{} ", one);
            }
            if (members != those)
                outcome.text +=
                    fmt::format("rank {} ends in a group of {}, where {} end; ", rank, members, those);
        }
        return outcome;
    }

    TemporaryDirectory directory_;
    std::mt19937 random_;
    int size_;
    std::vector<pid_t> pids_;
    std::set<int> killed_;
    std::set<int> paused_;
};

TEST(Chaos, LeavesOneGroupThatComputesRight) {
    const bool sweeps = std::getenv("SYNCOPATE_SWEEP") != nullptr;
    const char* const first = std::getenv("SYNCOPATE_SEED");
    const unsigned seed = first == nullptr ? 1 : static_cast<unsigned>(std::atoi(first));
    const char* const asked = std::getenv("SYNCOPATE_TRIALS");  // 200 take a quarter of an hour
    const unsigned trials = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : sweeps ? 40 : 2;
    unsigned went_on = 0;
    int late = 0;
    for (unsigned trial = 0; trial < trials; ++trial) {
        const Outcome outcome = Trial(seed + trial).run();
        EXPECT_EQ(outcome.text, "") << "seed " << seed + trial;
        went_on += outcome.went_on ? 1 : 0;
        late += outcome.late;
        if (sweeps && trial % 20 == 19) {
            std::printf("%u trials, %u groups went on, %d late errors\n", trial + 1, went_on, late);
            std::fflush(stdout);
        }
    }
    if (!sweeps) return;
    std::printf("%u of %u groups went on; %d errors came later than the deadline and 1.5 s\n", went_on,
                trials, late);
    EXPECT_GE(went_on, trials / 2);
}

}  // namespace
}  // namespace syncopate::runtime

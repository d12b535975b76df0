// A mixture's first product beside what sends its rows, on ranks whose GPUs have room for few programs: which of them go
// on, and which wait for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/ops/program.hpp"

namespace syncopate::ops {
namespace {

/// When a stage that overlaps may take room from the one before it.
enum class Starts : std::uint8_t { when_all_run, at_once };

/// A call of all ranks, after many others: each has `room` programs at a time, and a stage that may start takes what is
/// free before the stages before it do. A program keeps its place until its slots are done.
class Played {
public:
    Played(const fuse::StagedProgram& program, const fuse::Schedule& schedule, std::int64_t room,
           Starts starts)
        : program_(program), schedule_(schedule), starts_(starts) {
        for (const fuse::RankSchedule& rank : schedule.ranks) {
            Rank& made = ranks_.emplace_back();
            made.free = room;
            for (const fuse::MadeChunk& chunk : rank.chunks) made.left.push_back(chunk.counting.size());
            for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) made.ended.push_back(0);
            made.running.resize(schedule.stages.size());
            made.started.resize(schedule.stages.size(), 0);
        }
        for (const fuse::RankSchedule& rank : schedule.ranks) post(rank.begin_posts);
    }

    /// Whether all of it ends.
    bool run() {
        for (bool went_on = true; went_on;) {
            went_on = false;
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
                went_on = start(rank) || go_on(rank) || went_on;
        }
        return std::ranges::all_of(
            ranks_, [&](const Rank& rank) { return rank.ended.back() == programs(rank.ended.size() - 1); });
    }

private:
    struct Rank {
        std::int64_t free = 0;
        std::vector<std::size_t> left;             ///< by chunk, slots to count
        std::vector<std::int64_t> started, ended;  ///< by stage, programs
        std::vector<std::vector<std::pair<std::int64_t, std::size_t>>>
            running{};  ///< its number, its next slot
        std::set<std::int32_t> posted{};
    };

    [[nodiscard]] std::int64_t programs(std::size_t stage) const {
        return program_.stages[stage].kernel.num_programs();
    }

    [[nodiscard]] bool may_start(const Rank& rank, std::size_t stage) const {
        if (rank.started[stage] == programs(stage)) return false;
        if (stage == 0) return true;
        if (!schedule_.stages[stage].overlaps) return rank.ended[stage - 1] == programs(stage - 1);
        const std::int64_t begun = rank.started[stage - 1];
        return starts_ == Starts::at_once ? begun > 0 : begun == programs(stage - 1);
    }

    bool start(std::size_t number) {
        Rank& rank = ranks_[number];
        bool any = false;
        for (std::size_t stage = schedule_.stages.size(); stage-- > 0;) {
            while (rank.free > 0 && may_start(rank, stage)) {
                --rank.free;
                rank.running[stage].emplace_back(rank.started[stage]++, 0);
                any = true;
            }
        }
        return any;
    }

    bool go_on(std::size_t number) {
        Rank& rank = ranks_[number];
        bool any = false;
        for (std::size_t stage = 0; stage < rank.running.size(); ++stage) {
            const auto slots = schedule_.slots_of(schedule_.ranks[number], stage);
            const auto first = static_cast<std::size_t>(slots.data() - schedule_.ranks[number].slots.data());
            for (std::size_t i = rank.running[stage].size(); i-- > 0;) {
                auto& [program, done] = rank.running[stage][i];
                for (;; ++done, any = true) {
                    const std::size_t slot =
                        static_cast<std::size_t>(program) + done * static_cast<std::size_t>(programs(stage));
                    if (slot >= slots.size()) {
                        rank.running[stage].erase(rank.running[stage].begin() +
                                                  static_cast<std::ptrdiff_t>(i));
                        ++rank.ended[stage];
                        ++rank.free;
                        any = true;
                        break;
                    }
                    if (!has_come(rank, slots[slot])) break;
                    count(number, first + slot);
                }
            }
        }
        return any;
    }

    static bool has_come(const Rank& rank, const fuse::Slot& slot) {
        return std::ranges::all_of(slot.waits, [&](const fuse::Wait& wait) {
            return wait.lag > 0 || rank.posted.contains(wait.signal);
        });
    }

    void count(std::size_t number, std::size_t slot) {
        const std::vector<fuse::MadeChunk>& chunks = schedule_.ranks[number].chunks;
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
            if (!chunks[chunk].counts(static_cast<std::int64_t>(slot)) || --ranks_[number].left[chunk] > 0)
                continue;
            post(chunks[chunk].posts);
        }
    }

    void post(const std::vector<fuse::Post>& posts) {
        for (const fuse::Post& one : posts)
            ranks_[static_cast<std::size_t>(one.rank)].posted.insert(one.signal);
    }

    const fuse::StagedProgram& program_;
    const fuse::Schedule& schedule_;
    Starts starts_;
    std::vector<Rank> ranks_;
};

bool ends(const std::string& more, int ranks, std::int64_t room, Starts starts = Starts::when_all_run) {
    const Strategy strategy = *strategy_from_json(
        R"({"tiles": [{"block_m": 16, "block_n": 128, "block_k": 128, "stages": 2}], "programs": 4})");
    const std::string spec = fmt::format("moe:T=64,E=8,topk=2,H=256,F=256{},ranks={}", more, ranks);
    const auto program = ops::program(*parse_problem(spec), strategy);
    EXPECT_TRUE(program) << program.error().to_string();
    const auto schedule = fuse::fuse(*program, fuse_options(strategy, fuse::Device::cuda));
    EXPECT_TRUE(schedule) << schedule.error().to_string();
    EXPECT_TRUE(schedule->stages[3].overlaps);
    return Played(*program, *schedule, room, starts).run();
}

TEST(MoeBeside, EndsHoweverFewProgramsAGpuHasRoomFor) {
    for (const char* more : {"", ",part=kept", ",dtype=fp8e4m3,scales=block"}) {
        for (const int ranks : {1, 2, 4}) {
            for (const std::int64_t room : {1, 2, 3, 7, 8, 9, 12, 100})
                EXPECT_TRUE(ends(more, ranks, room)) << more << ", " << ranks << " ranks, room " << room;
        }
    }
}

TEST(MoeBeside, WouldWaitForEverIfProgramsThatWaitTookTheRoomOfThoseThatSend) {
    EXPECT_FALSE(ends("", 2, 4, Starts::at_once));
    EXPECT_TRUE(ends("", 2, 100, Starts::at_once)) << "where there is room for all";
}

}  // namespace
}  // namespace syncopate::ops

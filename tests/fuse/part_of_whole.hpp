// Whether a part of a schedule, made alone, is what the whole one has of its ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/fuse/passes/heap.hpp"

namespace syncopate::fuse::test {

inline bool awaits_chunks(const Schedule& schedule, std::size_t stage) {
    using Kind = SignalMeaning::Kind;
    return std::ranges::any_of(schedule.ranks, [&](const RankSchedule& rank) {
        const auto of_op = [&](const Wait& wait) {
            const Kind kind = rank.signals[at(wait.signal)].kind;
            return kind != Kind::ready && kind != Kind::consumed;
        };
        return std::ranges::any_of(schedule.slots_of(rank, stage), [&](const Slot& slot) {
            return std::ranges::any_of(slot.waits, of_op) ||
                   std::ranges::any_of(slot.phases, [&](const Phase& phase) {
                       return std::ranges::any_of(phase.waits, of_op);
                   });
        });
    });
}

/// Makes the part of each node, and holds it against `whole`.
inline void expect_parts(const StagedProgram& program, const Options& options, const Schedule& whole) {
    const plan::Mesh& mesh = program.plan.mesh;
    const std::int32_t of_node = mesh.ranks_of_node();
    std::set<std::string> made_of;
    std::int64_t words = 0;
    for (std::int32_t first = 0; first < mesh.num_ranks(); first += of_node) {
        SCOPED_TRACE("node of rank " + std::to_string(first));
        auto part = fuse_part(program, options, first + of_node - 1);
        ASSERT_TRUE(part) << part.error().to_string();
        if (!part->part) {  // of collectives, or of stages that wait for each other's tiles
            ASSERT_EQ(to_json(*part), to_json(whole));
            continue;
        }
        EXPECT_EQ(part->part->first, first);
        EXPECT_EQ(part->part->end, first + of_node);
        made_of.insert(part->part->made_of);
        words = std::max(words, part->heap.control_words);
        EXPECT_EQ(part->heap.tensors, whole.heap.tensors);
        EXPECT_EQ(part->heap.control, whole.heap.control);
        EXPECT_EQ(part->heap.alignment, whole.heap.alignment);
        std::set<std::int32_t> between;
        for (const RankSchedule& rank : whole.ranks) {
            for (const Transfer& transfer : rank.transfers) {
                if (transfer.channel() != nullptr) between.insert({transfer.src_rank, transfer.dst_rank});
            }
        }
        EXPECT_EQ(part->part->channel_ranks, std::vector(between.begin(), between.end()));
        const bool can_wait = std::ranges::any_of(whole.ranks, [](const RankSchedule& rank) {
            return std::ranges::any_of(rank.chunks, [](const MadeChunk& made) { return !made.at_once; });
        });
        EXPECT_EQ(part->part->can_wait, can_wait);
        for (std::size_t stage = 0; stage < whole.stages.size(); ++stage) {
            EXPECT_EQ(part->produces(stage), whole.produces(stage));
            EXPECT_EQ(part->part->stages[stage].awaits, awaits_chunks(whole, stage));
            if (stage == 0 && whole.stores()) {
                EXPECT_EQ(part->most_stores(stage), whole.most_stores(stage));
            }
        }
        // Then all that is said of these ranks is the same text.
        Schedule own = whole;
        for (std::int32_t rank = 0; rank < mesh.num_ranks(); ++rank) {
            if (rank < first || rank >= first + of_node) own.ranks[at(rank)] = {};
        }
        part->part.reset();
        own.heap = part->heap;
        ASSERT_EQ(to_json(*part), to_json(own));
    }
    EXPECT_LE(made_of.size(), 1U) << "ranks take the parts of one schedule for those of several";
    if (!made_of.empty()) {
        EXPECT_EQ(words, whole.heap.control_words);
    }
}

}  // namespace syncopate::fuse::test

#include "syncopate/sync/tables.hpp"

#include <algorithm>

#include "syncopate/at.hpp"

namespace syncopate::sync {
namespace {

std::string name_of_input(const Link& link) { return link.lag == 0 ? link.tensor : guard_of(link.tensor); }

std::uint32_t word(std::size_t value) { return static_cast<std::uint32_t>(value); }

/// Inputs, each once: first those that are awaited before loads, then guards.
std::vector<std::string> inputs_of(const Synchronization& made, std::int32_t stage) {
    std::vector<std::string> inputs;
    for (const std::int32_t lag : {0, 1}) {
        for (const Link& link : made.links) {
            if (link.stage != stage || link.lag != lag) continue;
            if (std::ranges::find(inputs, name_of_input(link)) == inputs.end())
                inputs.push_back(name_of_input(link));
        }
    }
    return inputs;
}

StageTable table_of(const Chain& chain, const Synchronization& made, std::int32_t number,
                    const std::vector<std::uint32_t>& first_semaphore) {
    const ChainStage& stage = chain.stages[at(number)];
    const auto tiles = static_cast<std::size_t>(stage.num_blocks());
    StageTable table;
    table.inputs = inputs_of(made, number);
    std::vector<std::uint32_t> begins, entries, posted;
    for (const std::string& input : table.inputs) {
        for (std::size_t tile = 0; tile < tiles; ++tile) {
            begins.push_back(word(entries.size() / 4));
            for (const Link& link : made.links) {
                if (link.stage != number || name_of_input(link) != input) continue;
                for (const Wait& wait : link.waits[tile]) {
                    const std::vector<std::int32_t>& posts = made.arrays[at(wait.array)].posts;
                    entries.insert(entries.end(), {first_semaphore[at(wait.array)] +
                                                       word(static_cast<std::size_t>(wait.semaphore)),
                                                   static_cast<std::uint32_t>(wait.count),
                                                   static_cast<std::uint32_t>(posts[at(wait.semaphore)]),
                                                   static_cast<std::uint32_t>(wait.lag)});
                }
            }
        }
        begins.push_back(word(entries.size() / 4));
    }
    std::vector<std::uint32_t> post_begins;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        post_begins.push_back(word(posted.size()));
        for (std::size_t array = 0; array < made.arrays.size(); ++array) {
            if (made.arrays[array].stage != number || made.arrays[array].of_block[tile] < 0) continue;
            posted.push_back(first_semaphore[array] +
                             static_cast<std::uint32_t>(made.arrays[array].of_block[tile]));
        }
    }
    post_begins.push_back(word(posted.size()));

    StageArguments& to = table.arguments;
    to.tiles = to.draws = word(tiles);
    std::ranges::copy(stage.grid, to.grid);
    to.stage = static_cast<std::uint32_t>(number);
    to.ordered = stage.tickets ? 1 : 0;
    to.awaits = 1;
    const auto append = [&](const std::vector<std::uint32_t>& words) {
        const std::uint32_t at = word(table.words.size());
        table.words.insert(table.words.end(), words.begin(), words.end());
        return at;
    };
    const std::vector<std::int32_t>& order = made.orders[at(number)];
    append({order.begin(), order.end()});
    to.waits_at = append(begins);
    to.posts_at = append(post_begins);
    to.entries_at = append(entries);
    to.posted_at = append(posted);
    return table;
}

}  // namespace

std::string guard_of(const std::string& tensor) { return "guard of " + tensor; }

Tables make_tables(const Chain& chain, const Synchronization& synchronization) {
    Tables tables;
    std::vector<std::uint32_t> first_semaphore;
    for (const SemaphoreArray& array : synchronization.arrays) {
        first_semaphore.push_back(tables.num_semaphores);
        tables.num_semaphores += word(array.posts.size());
    }
    for (std::size_t stage = 0; stage < chain.stages.size(); ++stage)
        tables.stages.push_back(
            table_of(chain, synchronization, static_cast<std::int32_t>(stage), first_semaphore));
    return tables;
}

}  // namespace syncopate::sync

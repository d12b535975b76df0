#include "syncopate/emit/table.hpp"

#include <map>
#include <span>
#include <utility>

namespace syncopate::emit {
namespace {

void append_waits(std::vector<std::int32_t>& words, const std::vector<fuse::Wait>& waits) {
    for (const fuse::Wait& wait : waits) {
        words.push_back(control::word_of(wait.signal));
        words.push_back(wait.lag);
    }
}

/// What each slot's tile makes. Slots that make the same chunks share their records.
template <typename AppendPosts>
void append_makes(std::vector<std::int32_t>& words, const fuse::RankSchedule& schedule,
                  std::span<const fuse::Slot> slots, const AppendPosts& append_posts) {
    std::vector<std::pair<std::int32_t, std::int32_t>> posts;
    for (const fuse::MadeChunk& chunk : schedule.chunks) {
        const auto begin = static_cast<std::int32_t>(words.size());
        append_posts(chunk.posts);
        posts.emplace_back(begin, static_cast<std::int32_t>(words.size()));
    }
    words.resize((words.size() + 3) / 4 * 4, 0);
    const std::size_t makes = words.size();
    words[table::makes] = static_cast<std::int32_t>(makes);
    words.resize((makes + 2 * slots.size() + 3) / 4 * 4, 0);
    std::map<std::vector<std::int32_t>, std::pair<std::int32_t, std::int32_t>> known;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const std::vector<std::int32_t>& made = slots[slot].makes;
        const auto begin = static_cast<std::int32_t>(words.size());
        const auto end = begin + 4 * static_cast<std::int32_t>(made.size());
        const auto [found, is_new] = known.try_emplace(made, begin, end);
        if (is_new) {
            for (const std::int32_t chunk : made) {
                const auto index = static_cast<std::size_t>(chunk);
                words.insert(words.end(), {counter_of(schedule, chunk),
                                           static_cast<std::int32_t>(schedule.chunks[index].tiles),
                                           posts[index].first, posts[index].second});
            }
        }
        words[makes + 2 * slot] = found->second.first;
        words[makes + 2 * slot + 1] = found->second.second;
    }
}

}  // namespace

std::vector<std::int32_t> make_table(const fuse::RankSchedule& schedule, std::int32_t rank,
                                     std::int64_t heap_stride, std::int64_t num_programs) {
    const fuse::StageSlots all{0, static_cast<std::int64_t>(schedule.slots.size()), false};
    return make_table(schedule, all, true, rank, heap_stride, num_programs);
}

std::vector<std::int32_t> make_table(const fuse::RankSchedule& schedule, const fuse::StageSlots& stage,
                                     bool last, std::int32_t rank, std::int64_t heap_stride,
                                     std::int64_t num_programs) {
    const auto num_slots = static_cast<std::size_t>(stage.count);
    const std::span slots = std::span(schedule.slots).subspan(static_cast<std::size_t>(stage.first), num_slots);
    const std::vector<fuse::Post> none;
    const std::vector<fuse::Post>& kernel_posts = last ? schedule.kernel_posts : none;
    std::vector<std::int32_t> words(table::first_slot + table::slot_words * num_slots, 0);
    words[table::num_slots] = static_cast<std::int32_t>(num_slots);
    words[table::num_kernel_posts] = static_cast<std::int32_t>(kernel_posts.size());
    words[table::num_programs] = static_cast<std::int32_t>(num_programs);

    // Waits: those of a slot, then those of its phases, one after another.
    std::vector<std::vector<std::int32_t>> phase_wait_ends(num_slots);
    for (std::size_t slot = 0; slot < num_slots; ++slot) {
        const std::size_t record = table::first_slot + table::slot_words * slot;
        words[record] = static_cast<std::int32_t>(slots[slot].tile);
        words[record + 1] = static_cast<std::int32_t>(words.size());
        append_waits(words, slots[slot].waits);
        words[record + 2] = static_cast<std::int32_t>(words.size());
        for (const fuse::Phase& phase : slots[slot].phases) {
            append_waits(words, phase.waits);
            phase_wait_ends[slot].push_back(static_cast<std::int32_t>(words.size()));
        }
    }
    for (std::size_t slot = 0; slot < num_slots; ++slot) {
        const auto& phases = slots[slot].phases;
        if (phases.empty()) continue;
        const std::size_t record = table::first_slot + table::slot_words * slot;
        words.push_back(static_cast<std::int32_t>(phases.size()));
        words.push_back(0);
        words.push_back(0);  // where the first phase begins: iteration 0, and after the waits of the slot
        words.push_back(words[record + 2]);
        words[record + 3] = static_cast<std::int32_t>(words.size());
        for (std::size_t phase = 0; phase < phases.size(); ++phase) {
            words.push_back(static_cast<std::int32_t>(phases[phase].iteration_end));
            words.push_back(phase_wait_ends[slot][phase]);
        }
    }
    const auto append_posts = [&](const std::vector<fuse::Post>& posts) {
        for (const fuse::Post& post : posts) {
            const std::int64_t distance =
                (post.rank - rank) * heap_stride +
                std::int64_t{control::word_of(post.signal)} * static_cast<std::int64_t>(sizeof(std::int32_t));
            words.push_back(static_cast<std::int32_t>(static_cast<std::uint64_t>(distance) & 0xffffffffU));
            words.push_back(static_cast<std::int32_t>(distance >> 32));
        }
    };
    words[table::kernel_posts] = static_cast<std::int32_t>(words.size());
    append_posts(kernel_posts);
    if (!schedule.chunks.empty()) append_makes(words, schedule, slots, append_posts);
    return words;
}

}  // namespace syncopate::emit

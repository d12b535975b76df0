#include "syncopate/emit/table.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/launch.hpp"

namespace syncopate::emit {
namespace {

/// Whom the tiles of a made chunk tell: the stream of copies, the stream of sums, anyone by its posts.
struct Gates {
    bool copies = false;
    bool sums = false;
    bool told = false;
};

/// Where the word of a wait stands, and how many posts of a call it counts.
struct Counted {
    std::int32_t word = 0;
    std::int32_t posts = 1;
};
/// Signals whose waits count, not only look for the call's number.
using CountedSignals = std::map<std::int32_t, Counted>;

/// The chunks for whose tiles' own counts tiles wait, by the signal that they post: those of stages of one
/// rank that share nothing but tiles. Nobody has to count to the last tile there and pass that on.
CountedSignals counted_chunks(const fuse::Schedule& of_all, const fuse::RankSchedule& schedule,
                              std::int32_t rank) {
    CountedSignals chunks;
    // How many tiles a group has only a call knows.
    if (std::ranges::any_of(of_all.stages, [](const auto& stage) { return stage.most_slots > 0; }))
        return chunks;
    if (of_all.ranks.size() > 1 || !schedule.transfers.empty() || !schedule.end_waits.empty()) return chunks;
    for (std::size_t chunk = 0; chunk < schedule.chunks.size(); ++chunk) {
        const std::vector<fuse::Post>& posts = schedule.chunks[chunk].posts;
        if (posts.size() != 1 || posts.front().rank != rank) return {};
        chunks[posts.front().signal] = {
            counter_of(schedule, static_cast<std::int32_t>(chunk)) + control::gate,
            static_cast<std::int32_t>(schedule.chunks[chunk].counting.size())};
    }
    return chunks;
}

void append_waits(std::vector<std::int32_t>& words, const std::vector<fuse::Wait>& waits,
                  const CountedSignals& counted) {
    for (const fuse::Wait& wait : waits) {
        const auto found = counted.find(wait.signal);
        const Counted of = found == counted.end() ? Counted{control::word_of(wait.signal)} : found->second;
        words.push_back(of.word);
        words.push_back(wait.lag | ((of.posts - 1) << table::wait_count_shift));
    }
}

/// Who waits for each made chunk of `rank`.
std::vector<Gates> gates_of(const fuse::RankSchedule& schedule, std::int32_t rank,
                            const CountedSignals& counted) {
    if (!counted.empty()) return std::vector<Gates>(schedule.chunks.size(), Gates{.copies = true});
    const std::vector<bool> polled = fuse::polled_chunks(schedule, rank);
    std::vector<Gates> gates(schedule.chunks.size());
    for (std::size_t chunk = 0; chunk < gates.size(); ++chunk) gates[chunk].told = polled[chunk];
    for (const fuse::Transfer& transfer : schedule.transfers) {
        const fuse::StreamStep& step = transfer.step;
        for (const std::int32_t chunk : step.gates) {
            Gates& of_chunk = gates[at(chunk)];
            (step.launch == fuse::Launch::sums ? of_chunk.sums : of_chunk.copies) = true;
        }
    }
    return gates;
}

/// In what each slot's tile counts. Slots that count in the same chunks share their records.
template <typename AppendPosts>
void append_makes(std::vector<std::int32_t>& words, const fuse::RankSchedule& schedule, std::int32_t rank,
                  std::span<const fuse::Slot> slots, std::int64_t first_slot,
                  const CountedSignals& counted_by_tile, const AppendPosts& append_posts) {
    std::vector<std::pair<std::int32_t, std::int32_t>> posts;
    for (const fuse::MadeChunk& chunk : schedule.chunks) {
        const auto begin = static_cast<std::int32_t>(words.size());
        append_posts(chunk.posts);
        posts.emplace_back(begin, static_cast<std::int32_t>(words.size()));
    }
    const std::vector<Gates> gates = gates_of(schedule, rank, counted_by_tile);
    words.resize((words.size() + 3) / 4 * 4, 0);
    std::map<std::vector<std::int32_t>, std::pair<std::int32_t, std::int32_t>> known;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        std::vector<std::int32_t> counted = slots[slot].makes;
        std::erase_if(counted, [&](std::int32_t chunk) {
            return !schedule.chunks[at(chunk)].counts(first_slot + slot);
        });
        const auto begin = static_cast<std::int32_t>(words.size());
        const auto end = begin + table::made_words * static_cast<std::int32_t>(counted.size());
        const auto [found, is_new] = known.try_emplace(counted, begin, end);
        if (is_new) {
            for (const std::int32_t chunk : counted) {
                const auto index = static_cast<std::size_t>(chunk);
                std::array<std::int32_t, table::made_words> record{};
                record[table::made_counter] = counter_of(schedule, chunk);
                record[table::made_tiles] = static_cast<std::int32_t>(schedule.chunks[index].counting.size());
                record[table::made_posts] = posts[index].first;
                record[table::made_posts + 1] = posts[index].second;
                record[table::made_gates] = gates[index].copies ? 1 : 0;
                record[table::made_gates + 1] = gates[index].sums ? 1 : 0;
                record[table::made_told] = gates[index].told ? 1 : 0;
                words.insert(words.end(), record.begin(), record.end());
            }
        }
        const std::size_t record = table::first_slot + table::slot_words * slot + table::slot_makes;
        words[record] = found->second.first;
        const bool hurry = std::any_of(counted.begin(), counted.end(), [&](std::int32_t chunk) {
            return schedule.chunks[at(chunk)].at_once;
        });
        words[record + 1] = found->second.second | (hurry ? table::at_once : 0);
    }
}

void append_number(std::vector<std::int32_t>& words, std::int64_t number) {
    words.push_back(static_cast<std::int32_t>(static_cast<std::uint64_t>(number) & 0xffffffffU));
    words.push_back(static_cast<std::int32_t>(number >> 32));
}

/// Places in the heaps as a kernel's code takes them: in elements from its own place of a tensor, or in rows
/// from where the heap of the first rank of the node begins.
class Distances {
public:
    Distances(const fuse::Schedule& schedule, std::int32_t tensor, bool by_row, std::int32_t rank,
              std::int64_t heap_stride, std::span<const std::uint64_t> offsets)
        : tensor_(tensor),
          by_row_(by_row),
          rank_(rank),
          first_(schedule.mesh.node_of(rank) * schedule.mesh.ranks_of_node()),
          heap_stride_(heap_stride),
          offsets_(offsets) {
        const plan::Tensor& own = schedule.tensors[at(tensor)];
        element_ = static_cast<std::int64_t>(plan::size_of(own.dtype));
        const bool has_rows = !own.shape.empty() && plan::num_elements(own.whole()) > 0;
        row_elements_ = has_rows ? plan::num_elements(own.whole()) / own.shape[0] : 1;
    }

    [[nodiscard]] std::int64_t to(const fuse::Place& place) const {
        const auto offset = [&](std::int32_t tensor) {
            return static_cast<std::int64_t>(offsets_[at(tensor)]);
        };
        if (by_row_) {
            const std::int64_t bytes = (place.rank - first_) * heap_stride_ + offset(place.tensor);
            return bytes / (row_elements_ * element_) + place.rows;
        }
        const std::int64_t bytes =
            (place.rank - rank_) * heap_stride_ + offset(place.tensor) - offset(tensor_);
        return bytes / element_ + place.rows * row_elements_;
    }
    [[nodiscard]] std::int64_t to_own() const { return to({rank_, tensor_, 0}); }

private:
    std::int32_t tensor_;
    bool by_row_;
    std::int32_t rank_;
    std::int32_t first_;
    std::int64_t heap_stride_;
    std::span<const std::uint64_t> offsets_;
    std::int64_t element_ = 1;
    std::int64_t row_elements_ = 1;
};

/// Where each slot's tile is stored.
void append_stores(std::vector<std::int32_t>& words, const fuse::RankSchedule& schedule, std::int32_t copies,
                   const Distances& distances) {
    std::map<std::vector<std::int64_t>, std::int32_t> known;
    for (std::size_t slot = 0; slot < schedule.slots.size(); ++slot) {
        std::vector<std::int64_t> numbers;
        for (const fuse::Place& store : schedule.stores_of(schedule.slots[slot]))
            numbers.push_back(distances.to(store));
        if (numbers.empty()) numbers.push_back(distances.to_own());
        // A tile with fewer places is stored in the last one again: the same value, by the same program.
        numbers.resize(static_cast<std::size_t>(copies), numbers.back());
        const std::size_t record = table::first_slot + table::slot_words * slot + table::slot_store;
        if (copies == 1) {
            words[record] = static_cast<std::int32_t>(static_cast<std::uint64_t>(numbers[0]) & 0xffffffffU);
            words[record + 1] = static_cast<std::int32_t>(numbers[0] >> 32);
            continue;
        }
        const auto [found, is_new] = known.try_emplace(numbers, static_cast<std::int32_t>(words.size()));
        if (is_new) {
            for (const std::int64_t number : numbers) append_number(words, number);
        }
        words[record] = found->second;
    }
}

/// Where each slot's tile loads what is fetched inline; of what the rank itself was given: 1 if it does.
void append_loads(std::vector<std::int32_t>& words, const fuse::RankSchedule& schedule, const fuse::Reach& by,
                  const Distances& distances) {
    words.resize((words.size() + 1) / 2 * 2, 0);
    words[table::loads] = static_cast<std::int32_t>(words.size());
    for (const fuse::Slot& slot : schedule.slots) {
        const std::int64_t distance = slot.from ? distances.to(*slot.from) : distances.to_own();
        append_number(words, by.own ? std::int64_t{slot.from.has_value()} : distance);
    }
}

/// What the kernel's programs sum.
void append_sum(std::vector<std::int32_t>& words, const fuse::Schedule& schedule, std::int32_t rank,
                std::span<const std::uint64_t> offsets, const CountedSignals& counted) {
    const std::vector<fuse::Transfer>& transfers = schedule.ranks[at(rank)].transfers;
    const auto transfer = std::ranges::find_if(transfers, fuse::is_kernel_sum);
    if (transfer == transfers.end()) return;
    const auto begin = static_cast<std::int32_t>(words.size());
    append_waits(words, transfer->waits, counted);
    const auto end = static_cast<std::int32_t>(words.size());
    words.resize((words.size() + 3) / 4 * 4, 0);
    words[table::sum] = static_cast<std::int32_t>(words.size());

    std::vector<plan::Chunk> summands;
    const std::int64_t slots = transfer->src.region.front().size();
    for (std::int64_t slot = 0; slot <= slots; ++slot) {
        if (slot == transfer->sum()->own) summands.push_back(transfer->dst);
        if (slot == slots) break;
        summands.push_back(transfer->src);
        summands.back().region.front() = {slot, slot + 1};
    }
    const auto elements = static_cast<std::int32_t>(plan::num_elements(transfer->dst.region));
    words.insert(words.end(), {begin, end, elements, static_cast<std::int32_t>(summands.size())});
    // From the control block, whose offset is the last.
    const auto append_place = [&](const plan::Chunk& chunk) {
        const plan::Tensor& tensor = schedule.tensors[at(chunk.tensor)];
        const std::int64_t first = fuse::first_element(tensor, chunk.region);
        const auto item = static_cast<std::int64_t>(plan::size_of(tensor.dtype));
        const auto offset = static_cast<std::int64_t>(offsets[at(chunk.tensor)]);
        append_number(words, offset + first * item - static_cast<std::int64_t>(offsets.back()));
    };
    for (const plan::Chunk& summand : summands) append_place(summand);
}

/// The phases of each slot, by loop; `waits`: by slot and phase, where its waits begin and end.
void append_phases(std::vector<std::int32_t>& words, std::span<const fuse::Slot> slots, std::int32_t loops,
                   const std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>>& waits) {
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const std::vector<fuse::Phase>& phases = slots[slot].phases;
        if (phases.empty()) continue;
        const std::size_t head =
            static_cast<std::size_t>(loops) * static_cast<std::size_t>(table::pair_words);
        words.resize((words.size() + head + 3) / 4 * 4, 0);
        const std::size_t begin = words.size();
        words[table::first_slot + table::slot_words * slot + table::slot_phases] =
            static_cast<std::int32_t>(begin);
        for (std::int32_t loop = 0; loop < loops; ++loop) {
            const auto of_loop = std::ranges::equal_range(phases, loop, {}, &fuse::Phase::loop);
            const std::size_t at = begin - static_cast<std::size_t>(table::pair_words * (loop + 1));
            words[at] = static_cast<std::int32_t>(of_loop.begin() - phases.begin());
            words[at + 1] = static_cast<std::int32_t>(of_loop.end() - phases.begin());
        }
        for (std::size_t phase = 0; phase < phases.size(); ++phase) {
            words.push_back(static_cast<std::int32_t>(phases[phase].iteration_begin));
            words.push_back(static_cast<std::int32_t>(phases[phase].iteration_end));
            words.push_back(waits[slot][phase].first);
            words.push_back(waits[slot][phase].second);
        }
    }
}

/// The records of a stage's groups behind all else, and in those of what they make by how many it is made.
/// The slots before are made from them in each call. Of one group alone they are there already, as many as there
/// can be: where nobody makes others these are every call's, also after a reset, which puts back what is made here.
void append_groups(std::vector<std::int32_t>& words, const fuse::StageSlots& stage, std::size_t num_groups) {
    words.resize((words.size() + 3) / 4 * 4, 0);
    words[table::groups] = static_cast<std::int32_t>(words.size());
    words.insert(words.end(),
                 {static_cast<std::int32_t>(num_groups), static_cast<std::int32_t>(stage.most_slots), 0, 0});
    const auto begin = words.begin() + table::first_slot;
    const std::vector<std::int32_t> records(
        begin, begin + static_cast<std::ptrdiff_t>(table::slot_words * num_groups));
    for (std::size_t group = 0; group < num_groups; ++group) {
        const auto* const record = &records[table::slot_words * group];
        for (std::int32_t made = record[table::slot_makes];
             made < (record[table::slot_makes + 1] & ~table::at_once); made += table::made_words) {
            const auto at = static_cast<std::size_t>(made);
            words[at + table::made_groups] = words[at + table::made_tiles] == 1 ? 1 : 0;
        }
    }
    words.insert(words.end(), records.begin(), records.end());
    if (num_groups != 1) return;
    words[table::num_slots] = static_cast<std::int32_t>(stage.most_slots);
    for (std::int64_t slot = 0; slot < stage.most_slots; ++slot) {
        const auto made = words.begin() + table::first_slot + table::slot_words * slot;
        std::ranges::copy(records, made);
        made[table::slot_tile] = static_cast<std::int32_t>(slot);
    }
}

}  // namespace

std::vector<std::int32_t> make_table(const fuse::Schedule& of_all, std::int32_t rank,
                                     std::int64_t heap_stride, std::int64_t num_programs,
                                     std::span<const std::uint64_t> offsets, std::size_t stage) {
    const fuse::RankSchedule& schedule = of_all.ranks[at(rank)];
    const std::span<const fuse::Slot> slots = of_all.slots_of(schedule, stage);
    const std::size_t num_slots = slots.size();
    // Of every stage: where one starts beside the one before it, the call's last program to end may be of either.
    const std::vector<fuse::Post>& kernel_posts = schedule.kernel_posts;
    const std::size_t most = std::max(num_slots, static_cast<std::size_t>(of_all.stages[stage].most_slots));
    std::vector<std::int32_t> words(table::first_slot + table::slot_words * most, 0);
    words[table::num_slots] = static_cast<std::int32_t>(num_slots);
    words[table::num_kernel_posts] = static_cast<std::int32_t>(kernel_posts.size());
    words[table::num_programs] = static_cast<std::int32_t>(num_programs);
    words[table::loops] = of_all.stages[stage].loops;
    const fuse::HeadStart& head = of_all.stages[stage].head_start;
    words[table::head_start] = static_cast<std::int32_t>(head.programs);
    words[table::head_start + 1] = static_cast<std::int32_t>(head.rounds);
    for (std::size_t axis = 0; axis < of_all.stages[stage].own_grid.size(); ++axis)
        words[table::grid + axis] = static_cast<std::int32_t>(of_all.stages[stage].own_grid[axis]);

    const CountedSignals by_tile = counted_chunks(of_all, schedule, rank);
    CountedSignals counted = by_tile;
    for (const fuse::CountedSignal& of : schedule.counted)
        counted[of.signal] = {control::word_of(of.signal), of.posts};
    // Waits: those of a slot, then those of its phases, one after another.
    std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> phase_waits(num_slots);
    for (std::size_t slot = 0; slot < num_slots; ++slot) {
        const std::size_t record = table::first_slot + table::slot_words * slot;
        words[record + table::slot_tile] = static_cast<std::int32_t>(slots[slot].tile);
        words[record + table::slot_waits] = static_cast<std::int32_t>(words.size());
        append_waits(words, slots[slot].waits, counted);
        words[record + table::slot_waits + 1] = static_cast<std::int32_t>(words.size());
        for (const fuse::Phase& phase : slots[slot].phases) {
            const auto begin = static_cast<std::int32_t>(words.size());
            append_waits(words, phase.waits, counted);
            phase_waits[slot].emplace_back(begin, static_cast<std::int32_t>(words.size()));
        }
    }
    append_phases(words, slots, of_all.stages[stage].loops, phase_waits);
    const auto append_posts = [&](const std::vector<fuse::Post>& posts) {
        for (const fuse::Post& post : posts) {
            const std::int64_t distance =
                (post.rank - rank) * heap_stride +
                std::int64_t{control::word_of(post.signal)} * static_cast<std::int64_t>(sizeof(std::int32_t));
            append_number(words, distance);
        }
    };
    words[table::kernel_posts] = static_cast<std::int32_t>(words.size());
    append_posts(kernel_posts);
    if (!schedule.chunks.empty())
        append_makes(words, schedule, rank, slots, of_all.stages[stage].first, by_tile, append_posts);
    const auto distances = [&](const fuse::Reach& by) {
        return Distances(of_all, by.tensor, by.by_row, rank, heap_stride, offsets);
    };
    if (const auto& by = of_all.stages[stage].stores)
        append_stores(words, schedule, of_all.most_stores(stage), distances(*by));
    if (const auto& by = of_all.stages[stage].loads) append_loads(words, schedule, *by, distances(*by));
    append_sum(words, of_all, rank, offsets, counted);
    if (of_all.stages[stage].most_slots > 0) append_groups(words, of_all.stages[stage], num_slots);
    return words;
}

std::vector<std::int32_t> identity_table(std::int64_t num_tiles, std::int64_t num_programs) {
    std::vector<std::int32_t> words(
        static_cast<std::size_t>(table::first_slot + table::slot_words * num_tiles), 0);
    words[table::num_slots] = static_cast<std::int32_t>(num_tiles);
    words[table::num_programs] = static_cast<std::int32_t>(num_programs);
    for (std::size_t tile = 0; tile < static_cast<std::size_t>(num_tiles); ++tile) {
        words[table::first_slot + table::slot_words * tile + table::slot_tile] =
            static_cast<std::int32_t>(tile);
    }
    return words;
}

}  // namespace syncopate::emit

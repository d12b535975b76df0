#include "syncopate/fuse/passes/heap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/control_block.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::uint64_t kAlignment = 1024;  // of a tensor and of the control block
constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

/// Bytes from a tensor's place to the one for every other call, of those that have two (kernel_sums.hpp).
std::uint64_t turn_of(const plan::Tensor& tensor, std::uint64_t alignment) {
    return round_up(tensor.bytes(), alignment);
}

/// Bytes that the tensors take.
std::vector<std::uint64_t> rooms(const Schedule& schedule, std::uint64_t alignment) {
    std::vector<std::uint64_t> bytes;
    for (const plan::Tensor& tensor : schedule.tensors) bytes.push_back(tensor.bytes());
    for (const std::int32_t tensor : alternating_tensors(schedule)) {
        const auto index = static_cast<std::size_t>(tensor);
        bytes[index] += turn_of(schedule.tensors[index], alignment);
    }
    return bytes;
}

/// Words of the largest control block: signals, counters of made chunks, gates of relays, words of
/// collectives.
std::int64_t control_words(const Schedule& schedule) {
    const std::size_t joined = 2 * num_collectives(schedule) * schedule.ranks.size();
    std::size_t most = 0;
    for (const RankSchedule& rank : schedule.ranks)
        most = std::max(most, rank.signals.size() + rank.chunks.size() +
                                  static_cast<std::size_t>(rank.num_relays) + joined);
    return control::first_signal + control::signal_stride * static_cast<std::int64_t>(most);
}

}  // namespace

std::size_t num_collectives(const Schedule& schedule) {
    std::int64_t most = -1;
    for (const RankSchedule& rank : schedule.ranks) {
        for (const Transfer& transfer : rank.transfers) {
            if (const Collective* collective = transfer.collective())
                most = std::max<std::int64_t>(most, std::min(collective->number, 1 << 20));
        }
    }
    return static_cast<std::size_t>(most + 1);
}

std::vector<std::int32_t> tensors_by_row(const Schedule& schedule) {
    std::vector<std::int32_t> tensors;
    for (const std::optional<Reach>& reach : {schedule.stores(), schedule.loads()}) {
        if (reach && reach->by_row && !reach->own &&
            std::ranges::find(tensors, reach->tensor) == tensors.end())
            tensors.push_back(reach->tensor);
    }
    return tensors;
}

std::uint64_t bytes_of_row(const Schedule& schedule) {
    std::uint64_t row = 1;
    for (const std::int32_t index : tensors_by_row(schedule)) {
        const plan::Tensor& tensor = schedule.tensors[at(index)];
        if (tensor.bytes() > 0)
            row = std::lcm(row, tensor.bytes() / static_cast<std::uint64_t>(tensor.shape.front()));
    }
    return row;
}

Schedule lay_out_heap(Schedule schedule) {
    Heap heap;
    heap.alignment = std::lcm(bytes_of_row(schedule), kAlignment);
    for (const std::uint64_t bytes : rooms(schedule, heap.alignment)) {
        heap.tensors.push_back(round_up(heap.bytes, heap.alignment));
        heap.bytes = heap.tensors.back() + bytes;
    }
    heap.control = round_up(heap.bytes, kAlignment);
    heap.control_words = control_words(schedule);
    heap.bytes = heap.control + static_cast<std::uint64_t>(heap.control_words) * 4;
    schedule.heap = std::move(heap);
    return schedule;
}

std::uint64_t heap_bytes(const Schedule& schedule, std::uint64_t beside) {
    const std::uint64_t bytes = round_up(schedule.heap.bytes, kAlignment) + beside;
    return round_up(bytes, std::lcm(schedule.heap.alignment, kPage));
}

std::vector<std::uint64_t> in_turn(const Schedule& schedule, std::vector<std::uint64_t> offsets) {
    for (const std::int32_t tensor : alternating_tensors(schedule)) {
        const auto index = static_cast<std::size_t>(tensor);
        offsets[index] += turn_of(schedule.tensors[index], schedule.heap.alignment);
    }
    return offsets;
}

std::string heap_objection(const Schedule& schedule) {
    const Heap& heap = schedule.heap;
    if (heap.tensors.size() != schedule.tensors.size())
        return fmt::format("{} tensors have a place in the heap, of {}", heap.tensors.size(),
                           schedule.tensors.size());
    if (heap.alignment == 0 || heap.alignment % std::lcm(bytes_of_row(schedule), kAlignment) != 0)
        return fmt::format("an op cannot lie at multiples of {} bytes", heap.alignment);
    if (heap.control_words < control_words(schedule))
        return fmt::format("a control block of {} words is too small", heap.control_words);
    if (heap.control_words > std::int64_t{1} << 27) return "too many signals on one rank";
    const std::vector<std::uint64_t> rooms = fuse::rooms(schedule, heap.alignment);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // offset, bytes
    for (std::size_t i = 0; i < heap.tensors.size(); ++i) {
        if (heap.tensors[i] % heap.alignment != 0)
            return fmt::format("tensor {} does not lie at a multiple of {} bytes", schedule.tensors[i].name,
                               heap.alignment);
        places.emplace_back(heap.tensors[i], rooms[i]);
    }
    if (heap.control % kAlignment != 0) return "the control block does not lie at a multiple of 1024 bytes";
    places.emplace_back(heap.control, static_cast<std::uint64_t>(heap.control_words) * 4);
    std::ranges::sort(places);
    std::uint64_t end = 0;
    for (const auto& [offset, bytes] : places) {
        if (offset < end || bytes > heap.bytes || offset > heap.bytes - bytes)
            return fmt::format("the {} bytes at {} of the heap overlap others, or the end", bytes, offset);
        end = offset + bytes;
    }
    return {};
}

}  // namespace syncopate::fuse

// The schedule of one rank as the int32 table that the emitted kernel reads, and the words behind the signals
// of the control block beside it. Both are drawn in layout.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "syncopate/emit/layout.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::emit {

/// The word of the counter of made chunk `chunk`.
[[nodiscard]] inline std::int32_t counter_of(const fuse::RankSchedule& schedule, std::int32_t chunk) {
    return control::word_of(static_cast<std::int32_t>(schedule.signals.size()) + chunk);
}

/// The word of the gate that relay `relay` opens (fuse/passes/launch.hpp): they follow the counters.
[[nodiscard]] inline std::int32_t relay_gate_of(const fuse::RankSchedule& schedule, std::int32_t relay) {
    return counter_of(schedule, static_cast<std::int32_t>(schedule.chunks.size()) + relay);
}

/// Words by which the ranks of device host carry out collectives together (runtime/call/collective.hpp),
/// after the gates of relays: of collective `number`, whether rank `from` has joined, and has read. A control
/// block that a schedule with collectives needs has room for 2 words for each of `num_ranks` and each
/// collective.
[[nodiscard]] inline std::int32_t joined_word(const fuse::RankSchedule& schedule, std::int32_t number,
                                              std::int32_t num_ranks, std::int32_t from) {
    return relay_gate_of(schedule, schedule.num_relays + 2 * (number * num_ranks + from));
}

/// The table of `rank` for the schedule's stage `stage`. Kernel posts are in the last stage's only, as the
/// last program of all stages makes them; so `num_programs` is of all grids. The table may be rebuilt for
/// another schedule of the same kernel between calls, not during one. `heap_stride`: bytes from one rank's
/// heap to the next one's; a control block is at the same offset in every heap, so rank q's block is (q -
/// rank) * heap_stride bytes away. `offsets`: of the tensors in every heap, then of the control block; needed
/// where something goes inline.
[[nodiscard]] std::vector<std::int32_t> make_table(const fuse::Schedule& schedule, std::int32_t rank,
                                                   std::int64_t heap_stride, std::int64_t num_programs,
                                                   std::span<const std::uint64_t> offsets = {},
                                                   std::size_t stage = 0);

/// The table by which a kernel that follows one runs alone: every tile, in order, waiting for nothing and
/// posting nothing.
[[nodiscard]] std::vector<std::int32_t> identity_table(std::int64_t num_tiles, std::int64_t num_programs);

}  // namespace syncopate::emit

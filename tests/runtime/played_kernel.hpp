// A fused kernel played by the CPU: it does with a schedule's table what the emitted kernel does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/fork.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/runtime/host/table_player.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime::testing {

inline Result<std::shared_ptr<SymmetricHeap>> make_heap(const TemporaryDirectory& directory, int rank,
                                                        int size, std::uint64_t bytes = 1 << 20,
                                                        int ranks_of_node = 0) {
    auto rendezvous = FileRendezvous::create(directory.path(), rank, size);
    if (!rendezvous) return rendezvous.error();
    if (ranks_of_node > 0) (*rendezvous)->set_ranks_of_node(ranks_of_node);
    return SymmetricHeap::create({}, std::shared_ptr<Rendezvous>(std::move(rendezvous).value()), bytes);
}

/// What a rank puts into its part in a call: no two elements, ranks or calls alike.
inline std::int32_t tag(int rank, std::uint32_t call, std::int64_t element) {
    return static_cast<std::int32_t>((static_cast<std::uint32_t>(rank) + 1) * 0x0100'0000u + call * 0x1000u +
                                     static_cast<std::uint32_t>(element));
}

inline void post_tile(const FusedOp& op, std::int32_t slot) { post_slot(op, 0, slot); }
inline std::vector<std::int64_t> offsets_of(const FusedOp& op, std::int32_t slot) {
    return runtime::offsets_of(op, 0, slot);
}
inline std::int64_t load_number_of(const FusedOp& op, std::int32_t slot) {
    return runtime::load_number_of(op, 0, slot);
}

/// Whether the slot's tile loads what its rank was given (sy_reads_own).
inline bool reads_own(const FusedOp& op, std::int32_t slot) {
    return op.schedule().loads() && op.schedule().loads()->own && load_number_of(op, slot) != 0;
}

/// Elements from the kernel's own place to those that the slot's tile loads (sy_load_offset, sy_own_offset).
inline std::int64_t load_offset_of(const FusedOp& op, std::int32_t slot) {
    if (!op.schedule().loads()) return 0;
    if (!op.schedule().loads()->own) return load_number_of(op, slot);
    return reads_own(op, slot) ? op.own_place()->elements : 0;
}

/// What the emitted kernel does: slot by slot it waits as the table says, works, and at its end tells the
/// peers. Calls `tile(id)`, or `tile(id, slot)`, for each slot whose waits were over.
template <typename Tile>
bool run_kernel(const FusedOp& op, const Tile& tile) {
    const std::span<const std::int32_t> table = op.table();
    const HostControl control(op.control_address());
    const std::uint32_t epoch = control.load(emit::control::epoch);
    bool good = true;
    const auto at = [&](std::int32_t word) { return table[static_cast<std::size_t>(word)]; };
    for (std::int32_t slot = 0; slot < at(emit::table::num_slots); ++slot) {
        const std::int32_t record = emit::table::first_slot + emit::table::slot_words * slot;
        const std::int32_t waits = record + emit::table::slot_waits;
        for (std::int32_t wait = at(waits); wait < at(waits + 1); wait += emit::table::pair_words) {
            const std::int32_t signal =
                (at(wait) - emit::control::first_signal) / emit::control::signal_stride;
            const std::int32_t lag = at(wait + 1) & ((1 << emit::table::wait_count_shift) - 1);
            const auto posts = 1 + static_cast<std::uint32_t>(at(wait + 1) >> emit::table::wait_count_shift);
            const std::uint32_t target = (epoch - static_cast<std::uint32_t>(lag)) * posts;  // [P5]
            if (posts > 1 ? !control.until(control, at(wait), target)
                          : !control.wait({signal, lag}, epoch, slot))
                return false;
        }
        if constexpr (std::is_invocable_v<Tile, int, int>) {
            good = tile(at(record), slot) && good;
        } else {
            good = tile(at(record)) && good;
        }
        post_tile(op, slot);
    }
    if (control.faulty()) return good;
    for (std::int32_t i = 0; i < at(emit::table::num_kernel_posts); ++i) {
        const std::int32_t pair = at(emit::table::kernel_posts) + emit::table::pair_words * i;
        const std::int64_t distance = static_cast<std::int64_t>(static_cast<std::uint32_t>(at(pair))) |
                                      (static_cast<std::int64_t>(at(pair + 1)) << 32);
        HostControl(op.control_address() + static_cast<std::uint64_t>(distance)).store(0, epoch);
    }
    return good;
}

}  // namespace syncopate::runtime::testing

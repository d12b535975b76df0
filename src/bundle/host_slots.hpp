// Host slots: the tables of stages that a call makes (emit/layout.hpp, "groups"), as plain loops, for bundles for host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::bundle {

/// Where a stage's groups lie: of each where its rows begin, and how many it has.
struct HostGroups {
    std::vector<std::int64_t> begin;
    std::vector<std::int64_t> rows;
};

/// The record of each of so many groups; `first`: the number of the first one among those of all ranks.
[[nodiscard]] std::vector<const std::int32_t*> records_of(const std::int32_t* table, std::int64_t first,
                                                          std::int64_t count);

/// How a stage's groups are cut into slots. Their own numbers begin with `first`. A slot has `rows`; its tile is its first row
/// times `columns`, how many slots lie beside each other, plus its column.
struct SlotCut {
    std::int64_t first = 0;
    std::int64_t rows = 1;
    std::int64_t columns = 1;
};
/// The slots of a stage, from the records of its groups, group after group as `order` says. Fails, as a fault of ours, where the
/// table has no room for them.
[[nodiscard]] Status make_slots(std::int32_t* table, const HostGroups& groups, const SlotCut& cut,
                                std::span<const std::int64_t> order);
/// 0, 1, 2, …
[[nodiscard]] std::vector<std::int64_t> in_order(std::int64_t groups);
/// As moe_layout sends (kernels/moe.py): the first expert of each rank, the next rank's first, then the second.
[[nodiscard]] std::vector<std::int64_t> next_rank_first(std::int64_t rank, std::int64_t ranks,
                                                        std::int64_t own);

/// Of what calls have seen (ops::Seen) that of one more.
void tell_of_call(std::span<std::uint32_t> seen, std::int64_t over, std::uint32_t bad);

}  // namespace syncopate::bundle

// Attention over a sequence that is sharded over ranks: which rows each rank holds, whether K and V come at
// once or in passes, and the plan. Which kind is the quickest is told by tune/play/attention.hpp.
//
//     rows that end between tiles    a rank's tiles are its own; they run as the K and V that they see arrive
//     any other, or `bounded`        rows stay where they are, and K and V come a slice at a time, in passes
//                                    (plan/templates/attention_passes.hpp)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ops/program.hpp"
#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/plan/templates/attention_passes.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// How K and V go to the ranks that see them; the first ones leave rows of Q where they are.
inline constexpr std::array<std::string_view, 5> kAttentionKinds{"all_gather", "ring", "double_ring",
                                                                 "ulysses", "ulysses_ring"};

struct AttentionTask {
    plan::AttentionShape shape;    ///< heads as wide as the kernel's
    plan::Sequence sequence;       ///< its length is the shape's
    std::vector<plan::Rows> rows;  ///< by rank
    std::string kind;              ///< "all_gather", "ring", "double_ring", "ulysses" or "ulysses_ring"
    std::int32_t inner = 0;        ///< ranks of an inner ring, or of a group that exchanges heads
    std::int32_t split = 1;        ///< chunks into which each run of rows is cut to be sent
    std::int32_t parts = 0;        ///< of the heads, which are sent one after another; 0: attention_parts
    TileConfig tile;               ///< block_m rows of Q, block_n rows of K and V
    std::int32_t nodes = 1;        ///< on which the ranks are, alike, one node's after another's
    std::optional<std::int64_t> bounded;  ///< rows of K and V in the heap at once; 0: as two ranks hold
    bool gathered = false;  ///< another library brings all of K and V before: the plan moves nothing
};

/// What a problem "attention:S=…,H=…,…" and a strategy come to: of the kind "auto" the strategy's; where nobody has
/// chosen, all_gather. Fails (ErrorClass::usage) for heads that are too large.
[[nodiscard]] Result<AttentionTask> attention_task(const Problem& problem, const Strategy& strategy);

struct AttentionOutline {
    plan::Plan plan;
    Bindings bindings;
    /// Q and O are read and stored where each rank has them; the plan has neither.
    bool placed = false;
    std::int64_t together = 0;                    ///< heads of Q whose K and V come in one part; 0: all
    std::int32_t relays = 0;                      ///< multiprocessors that relays need (relays_of)
    std::optional<plan::AttentionPasses> passes;  ///< none: all at once
};

/// What goes over several nodes where nobody has chosen: rings in each node while K and V go from node to node, each
/// once a rank; of one rank a node a ring.
struct KindOverNodes {
    std::string kind;
    std::int32_t inner = 0;
};
[[nodiscard]] KindOverNodes kind_over_nodes(std::int32_t ranks, std::int32_t nodes);

/// Whether rows of Q stay where they are.
[[nodiscard]] bool circulates(std::string_view kind);

/// Why attention of that kind cannot be done; "" where it can.
[[nodiscard]] std::string attention_objection(std::string_view kind, std::int32_t ranks, std::int64_t heads,
                                              std::int32_t inner);

/// Multiprocessors that a persistent kernel leaves to the chunk engine, which tells copy streams what has come of what they
/// pass on: a program that finds none free begins when all has come, with all tiles that it was dealt still to do.
[[nodiscard]] std::int32_t relays_of(std::string_view kind, std::int32_t ranks);

/// In how many parts the heads of K and V of each of `group` ranks that exchange heads are sent: as many, at most 4, as leave
/// parts that are worth a transfer. One where windows or documents leave little to send.
[[nodiscard]] std::int32_t attention_parts(const plan::AttentionShape& shape, const plan::Sequence& sequence,
                                           const std::vector<plan::Rows>& rows, std::int32_t group);

/// The rows that a rank is taken to hold of a tensor that is sharded so: those of documents in whole tiles of
/// any kernel, where each rank then has some.
[[nodiscard]] std::vector<plan::Rows> usual_rows(const plan::Sequence& sequence, std::int32_t ranks,
                                                 plan::Sharding sharding);

/// The rows that attention takes: the usual ones; or cut at tiles of `block` rows where ranks then hold other
/// numbers of them, so that callers notice, but not if they have to be `even`. `group`: so many ranks
/// exchange heads, and share tiles.
[[nodiscard]] std::vector<plan::Rows> attention_rows(const plan::Sequence& sequence, std::int32_t ranks,
                                                     plan::Sharding sharding, std::int64_t block,
                                                     std::int32_t group, bool even);

/// Whether K and V come in passes, of a kind ("auto": of any that may).
[[nodiscard]] bool comes_in_passes(const AttentionTask& task);

/// Fails (ErrorClass::usage) where the kind cannot be done, and where heads would be exchanged in passes.
[[nodiscard]] Result<AttentionOutline> attention_outline(const AttentionTask& task);

}  // namespace syncopate::ops

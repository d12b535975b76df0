// Small plans that several tests change one thing of.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan::test {

inline Mesh ring_of(std::int32_t ranks) { return Mesh{{{"gpu", ranks}}}; }

/// Chunk of tensor 0.
inline Chunk box(std::initializer_list<Interval> region, std::int32_t tensor = 0) {
    return {tensor, Region(region)};
}

inline Op transfer(OpKind kind, std::int32_t peer, Chunk src, Chunk dst, std::vector<OpRef> after = {},
                   Reduce reduce = Reduce::none) {
    Op op;
    op.kind = kind;
    op.peer = peer;
    op.src = std::move(src);
    op.dst = std::move(dst);
    op.after = std::move(after);
    op.reduce = reduce;
    return op;
}

/// Pushes a chunk to the same place of the peer.
inline Op push(std::int32_t peer, const Chunk& chunk, std::vector<OpRef> after = {},
               Reduce reduce = Reduce::none) {
    return transfer(OpKind::push, peer, chunk, chunk, std::move(after), reduce);
}

inline Op pull(std::int32_t peer, const Chunk& chunk, std::vector<OpRef> after = {},
               Reduce reduce = Reduce::none) {
    return transfer(OpKind::pull, peer, chunk, chunk, std::move(after), reduce);
}

/// Three ranks, tensor A of 12 elements: rank 0 holds A[0:4], pushes it to rank 1, which passes it on to
/// rank 2.
inline Plan relay() {
    Plan plan;
    plan.mesh = ring_of(3);
    plan.tensors = {{"A", {12}, DType::fp32}};
    plan.initial = {{0, box({{0, 4}})}};
    plan.final = {{2, box({{0, 4}})}};
    plan.ranks = {{push(1, box({{0, 4}}))}, {push(2, box({{0, 4}}), {{0, 0}})}, {}};
    return plan;
}

/// Reduce-scatter by a ring of `ranks`: chunk c starts at rank c+1 and ends, summed over all, at rank c.
inline Plan ring_reduce_scatter(std::int32_t ranks) {
    Plan plan;
    plan.mesh = ring_of(ranks);
    plan.tensors = {{"C", {ranks}, DType::fp32}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        Holding mine{rank, box({{0, ranks}})};
        mine.partial = true;
        plan.produced.push_back(mine);
        Holding wanted{rank, box({{rank, rank + 1}})};
        wanted.of_all = true;
        plan.final.push_back(wanted);
        for (std::int32_t step = 0; step + 1 < ranks; ++step) {
            const std::int32_t chunk = (rank - 1 - step + 2 * ranks) % ranks;
            std::vector<OpRef> after;
            if (step > 0) after.push_back({(rank - 1 + ranks) % ranks, step - 1});
            plan.ranks[static_cast<std::size_t>(rank)].push_back(
                push((rank + 1) % ranks, box({{chunk, chunk + 1}}), after, Reduce::sum));
        }
    }
    return plan;
}

/// The findings as lines, for one-look comparison.
inline std::vector<std::string> lines(const std::vector<Finding>& findings) {
    std::vector<std::string> text;
    for (const Finding& finding : findings) text.push_back(finding.to_string());
    return text;
}

}  // namespace syncopate::plan::test

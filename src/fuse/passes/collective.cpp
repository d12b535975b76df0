#include "syncopate/fuse/passes/collective.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/plan/check/collectives.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::fuse {
namespace {

using plan::CollectiveKind;
using plan::OpRef;
using plan::Region;

/// Where box `inner` lies in the elements of `outer`, numbered row by row; nullopt unless it is one run.
std::optional<std::int64_t> run_in(const Region& outer, const Region& inner) {
    std::int64_t first = 0;
    bool whole = true;   // what is further in, of outer
    bool single = true;  // what is further out, of inner
    for (std::size_t axis = 0; axis < outer.size(); ++axis)
        first = first * outer[axis].size() + inner[axis].begin - outer[axis].begin;
    for (std::size_t axis = outer.size(); axis-- > 0;) {
        if (!whole && inner[axis].size() != 1) single = false;
        if (inner[axis] != outer[axis]) whole = false;
    }
    return single ? std::optional(first) : std::nullopt;
}

/// A part that one participant gives to another: runs of as many elements of both regions.
struct Piece {
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::int64_t count = 0;
    bool operator==(const Piece&) const = default;
};

/// `region` moved from the frame to where `at` lies there.
Region moved(Region region, const Region& at, const Region& place) {
    for (std::size_t axis = 0; axis < region.size(); ++axis) {
        region[axis].begin += place[axis].begin - at[axis].begin;
        region[axis].end += place[axis].begin - at[axis].begin;
    }
    return region;
}

/// What the library's call takes from participant `from` to `to` of `size`, of regions of `count` elements a
/// shard.
Piece expected(CollectiveKind kind, std::int64_t from, std::int64_t to, std::int64_t count) {
    switch (kind) {
        case CollectiveKind::all_gather: return {0, from * count, count};
        case CollectiveKind::reduce_scatter: return {to * count, 0, count};
        case CollectiveKind::all_to_all: return {to * count, from * count, count};
        default: return {0, 0, count};
    }
}

}  // namespace

Collectives collectives_of(const plan::Plan& plan) {
    Collectives result;
    std::int32_t number = 0;
    for (const plan::CollectiveGroup& group : plan::match_collectives(plan).groups) {
        const plan::Op& first = plan.op(group.front());
        Collective made{first.collective, first.reduce, number++, {}};
        const bool reduces =
            made.kind == CollectiveKind::all_reduce || made.kind == CollectiveKind::reduce_scatter;
        if (reduces && made.reduce == plan::Reduce::none) made.reduce = plan::Reduce::sum;
        for (const OpRef member : group)
            made.members.push_back({member, plan.op(member).src, plan.op(member).dst});
        for (const OpRef member : group) result.emplace(member, made);
    }
    return result;
}

bool has_collectives(const plan::Plan& plan) {
    return std::ranges::any_of(plan.ranks, [](const std::vector<plan::Op>& list) {
        return std::ranges::any_of(list,
                                   [](const plan::Op& op) { return op.kind == plan::OpKind::collective; });
    });
}

bool is_contiguous(const plan::Tensor& tensor, const plan::Region& region) {
    return run_in(tensor.whole(), region).has_value();
}

std::string collective_objection(const plan::Plan& plan, const Collective& collective) {
    const std::string name(plan::name_of(collective.kind));
    plan::CollectiveGroup group;
    for (const Collective::Member& member : collective.members) group.push_back(member.op);
    const auto layout = plan::layout_of(plan, group);
    if (!layout) return layout.error().message;
    const auto tensor = [&](const plan::Chunk& chunk) -> const plan::Tensor& {
        return plan.tensors[at(chunk.tensor)];
    };
    const plan::DType dtype = tensor(collective.members.front().src).dtype;
    if (layout->reduce != plan::Reduce::none && !can_reduce(dtype)) {
        return name + " of " + std::string(name_of(dtype)) +
               " is not carried out: it reduces bf16, fp16, fp32 or int32";
    }
    const std::string instead = "; expand it by a template (plan lower)";
    for (const Collective::Member& member : collective.members) {
        for (const plan::Chunk* chunk : {&member.src, &member.dst}) {
            if (is_contiguous(tensor(*chunk), chunk->region)) continue;
            return name + " moves contiguous memory, and " + tensor(*chunk).name + to_string(chunk->region) +
                   " is not" + instead;
        }
    }
    // A shard: what one participant gives to one other.
    const plan::Chunk& like = collective.kind == CollectiveKind::reduce_scatter
                                  ? collective.members.front().dst
                                  : collective.members.front().src;
    const auto size = static_cast<std::int64_t>(group.size());
    const std::int64_t whole = num_elements(like.region);
    const std::int64_t count = collective.kind == CollectiveKind::all_to_all ? whole / size : whole;
    std::map<OpRef, std::int64_t> position;
    for (std::size_t at = 0; at < group.size(); ++at) position[group[at]] = static_cast<std::int64_t>(at);
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Piece>> pieces;
    for (const plan::CollectivePart& source : layout->sources) {
        for (const plan::CollectivePart& target : layout->targets) {
            const auto common = intersect(source.at, target.at);
            if (!common) continue;
            const Collective::Member& from = collective.members[at(position[source.op])];
            const Collective::Member& to = collective.members[at(position[target.op])];
            const auto read = run_in(from.src.region, moved(*common, source.at, source.chunk.region));
            const auto written = run_in(to.dst.region, moved(*common, target.at, target.chunk.region));
            Piece piece{-1, -1, num_elements(*common)};
            if (read && written) piece = {*read, *written, piece.count};
            pieces[{position[source.op], position[target.op]}].push_back(piece);
        }
    }
    for (std::int64_t from = 0; from < size; ++from) {
        for (std::int64_t to = 0; to < size; ++to) {
            if (collective.kind == CollectiveKind::broadcast && from > 0) continue;
            if (pieces[{from, to}] == std::vector{expected(collective.kind, from, to, count)}) continue;
            const auto& members = collective.members;
            return name +
                   " takes shards of one size, one after another in the order of its ranks, and what rank " +
                   std::to_string(members[at(from)].op.rank) + " gives to rank " +
                   std::to_string(members[at(to)].op.rank) + " is not" + instead;
        }
    }
    return {};
}

plan::Plan with_participants(const plan::Plan& plan) {
    const Collectives collectives = collectives_of(plan);
    if (collectives.empty()) return plan;
    plan::Plan result = plan;
    const auto sort = [](std::vector<OpRef>& refs) {
        std::sort(refs.begin(), refs.end());
        refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
    };
    const auto touches = [&](OpRef ref, std::int32_t rank) {
        const plan::Op& op = plan.op(ref);
        return op.kind != plan::OpKind::collective &&
               (op.source_rank(ref.rank) == rank || op.destination_rank(ref.rank) == rank);
    };
    for (const auto& [ref, collective] : collectives) {
        plan::OpRefs& after = result.ranks[at(ref.rank)][at(ref.index)].after;
        for (const Collective::Member& member : collective.members) {
            for (const OpRef theirs : plan.op(member.op).after) {
                if (collective.kind == CollectiveKind::broadcast || touches(theirs, ref.rank))
                    after.push_back(theirs);
            }
        }
    }
    for (std::int32_t rank = 0; rank < result.num_ranks(); ++rank) {
        for (plan::Op& op : result.ranks[at(rank)]) {
            std::vector<OpRef> after;
            for (const OpRef ref : op.after) {
                const auto found = collectives.find(ref);
                bool any = false;
                if (found != collectives.end()) {
                    for (const Collective::Member& member : found->second.members) {
                        const std::int32_t at = member.op.rank;
                        if (at != rank && at != op.source_rank(rank) && at != op.destination_rank(rank))
                            continue;
                        after.push_back(member.op);
                        any = true;
                    }
                }
                if (!any) after.push_back(ref);
            }
            sort(after);
            op.after = after;
        }
    }
    return result;
}

Status check_collective_order(const plan::Plan& plan, const Graph& graph, const Placement& placement) {
    const Collectives collectives = collectives_of(plan);
    if (collectives.empty()) return Done{};
    // Events: an op, or all participants of a collective. Each comes after what any of its ops comes after,
    // or what a stream starts before it.
    std::vector<NodeId> event(placement.lanes.size());
    std::iota(event.begin(), event.end(), 0);
    for (const auto& [ref, collective] : collectives)
        event[at(graph.op(ref))] = graph.op(collective.members.front().op);
    const Followers followers(event.size(), [&](auto&& edge) {
        const auto add = [&](NodeId before, NodeId after) {
            const NodeId from = event[at(before)];
            const NodeId to = event[at(after)];
            if (from != to) edge(from, to);
        };
        for (NodeId op = 0; op < graph.num_ops(); ++op) {
            for (const NodeId before : placement.before[at(op)]) add(before, op);
            if (const NodeId before = placement.started_before[at(op)]; before != kNoNode) add(before, op);
        }
    });
    std::vector<bool> runs(event.size(), false);
    for (const NodeId id : topological_order(followers)) runs[at(id)] = true;
    for (const auto& [ref, collective] : collectives) {
        if (runs[at(event[static_cast<std::size_t>(graph.op(ref))])]) continue;
        return error_at(ref, std::string(plan::name_of(collective.kind)) +
                                 ": its ranks come to it and to other ops in orders that block each other; "
                                 "list collectives in one order on all ranks");
    }
    return Done{};
}

}  // namespace syncopate::fuse

#include "syncopate/plan/templates.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace syncopate::plan {
namespace {

Error usage(std::string message) { return Error{"all_gather: " + std::move(message), {}, ErrorClass::usage}; }

/// What is wrong with the arguments, or Done.
Status validate(const Mesh& mesh, const Tensor& tensor, const AllGatherOptions& options) {
    const std::int32_t ranks = mesh.num_ranks();
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (ranks < 1 || ranks > kMaxRanks)
        return usage(fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks));
    if (axes < 1 || axes > kMaxAxes)
        return usage(fmt::format("the tensor has {} axes; expected 1 to {}", axes, kMaxAxes));
    for (const std::int64_t size : tensor.shape) {
        if (size < 1)
            return usage(
                fmt::format("tensor {} has an axis of size {}; expected at least 1", tensor.name, size));
    }
    if (options.axis < 0 || options.axis >= axes) {
        return usage(fmt::format("axis {} is not an axis of tensor {}; expected 0 to {}", options.axis,
                                 tensor.name, axes - 1));
    }
    if (options.split < 1) return usage(fmt::format("split is {}; expected at least 1", options.split));
    if (options.minor_split < 1)
        return usage(fmt::format("minor_split is {}; expected at least 1", options.minor_split));
    if (options.minor_axis == -1) {
        if (options.minor_split != 1) return usage("minor_split needs minor_axis: the axis to cut along");
        return Done{};
    }
    if (options.minor_axis < 0 || options.minor_axis >= axes) {
        return usage(fmt::format("minor_axis {} is not an axis of tensor {}; expected 0 to {}",
                                 options.minor_axis, tensor.name, axes - 1));
    }
    if (options.minor_axis == options.axis) {
        return usage(
            fmt::format("minor_axis and axis are both {}; use split to cut shards finer", options.axis));
    }
    return Done{};
}

/// How many of `parts` intervals are not empty.
std::int64_t num_nonempty(const Interval& whole, std::int32_t parts) {
    return std::min<std::int64_t>(parts, whole.size());
}

/// split_evenly without the empty intervals at its end.
std::vector<Interval> split_nonempty(const Interval& whole, std::int32_t parts) {
    const auto useful = static_cast<std::int32_t>(num_nonempty(whole, parts));
    return useful == 0 ? std::vector<Interval>{} : split_evenly(whole.begin, whole.end, useful);
}

/// `region` with one axis replaced.
Region with_axis(Region region, std::int32_t axis, const Interval& interval) {
    region[static_cast<std::size_t>(axis)] = interval;
    return region;
}

}  // namespace

std::vector<Interval> split_evenly(std::int64_t begin, std::int64_t end, std::int32_t parts) {
    assert(begin <= end && parts >= 1);
    const std::int64_t base = (end - begin) / parts;
    const std::int64_t longer = (end - begin) % parts;
    std::vector<Interval> intervals;
    intervals.reserve(static_cast<std::size_t>(parts));
    for (std::int32_t part = 0; part < parts; ++part) {
        const std::int64_t next = begin + base + (part < longer ? 1 : 0);
        intervals.push_back({begin, next});
        begin = next;
    }
    return intervals;
}

Result<Plan> all_gather(const Mesh& mesh, const Tensor& tensor, const AllGatherOptions& options) {
    if (const Status valid = validate(mesh, tensor, options); !valid) return valid.error();
    const std::int32_t ranks = mesh.num_ranks();
    const Region whole = tensor.whole();
    const std::int64_t axis_size = tensor.shape[static_cast<std::size_t>(options.axis)];
    const std::vector<Interval> shards = split_evenly(0, axis_size, ranks);

    // Counted before anything is built: a split may be as large as an integer can be.
    std::int64_t ops = 0;
    for (const Interval& shard : shards) ops += num_nonempty(shard, options.split) * (ranks - 1);
    if (options.minor_axis >= 0) {
        const std::int64_t minor =
            num_nonempty(whole[static_cast<std::size_t>(options.minor_axis)], options.minor_split);
        if (__builtin_mul_overflow(ops, minor, &ops)) ops = kMaxOps + 1;
    }
    if (ops > kMaxOps) {
        return usage(fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
    }

    std::vector<std::vector<Interval>> chunks;  // of each rank's shard
    std::vector<Region> slices;                 // the tensor, cut along the minor axis
    if (ops > 0) {
        for (const Interval& shard : shards) chunks.push_back(split_nonempty(shard, options.split));
        if (options.minor_axis < 0) {
            slices = {whole};
        } else {
            const Interval minor = whole[static_cast<std::size_t>(options.minor_axis)];
            for (const Interval& slice : split_nonempty(minor, options.minor_split)) {
                slices.push_back(with_axis(whole, options.minor_axis, slice));
            }
        }
    }

    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {tensor};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const Interval& shard = shards[static_cast<std::size_t>(rank)];
        if (!shard.empty()) plan.initial.push_back({rank, {0, with_axis(whole, options.axis, shard)}});
        plan.final.push_back({rank, {0, whole}});

        std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        for (const Region& slice : slices) {
            for (std::int32_t offset = 1; offset < ranks; ++offset) {
                const std::int32_t peer = (rank + offset) % ranks;
                const std::int32_t source = options.pull ? peer : rank;
                for (const Interval& chunk : chunks[static_cast<std::size_t>(source)]) {
                    const Chunk moved{0, with_axis(slice, options.axis, chunk)};
                    Op& op = list.emplace_back();
                    op.kind = options.pull ? OpKind::pull : OpKind::push;
                    op.peer = peer;
                    op.src = moved;
                    op.dst = moved;
                    if (offset >= ranks - options.engine_peers) op.backend = Backend::ldst_dedicated;
                }
            }
        }
    }
    return plan;
}

}  // namespace syncopate::plan

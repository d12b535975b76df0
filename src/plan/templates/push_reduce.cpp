#include "syncopate/plan/templates/push_reduce.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/model/cut.hpp"

namespace syncopate::plan {
namespace {

Error usage(std::string message) { return Error{std::move(message), {}, ErrorClass::usage}; }

Status validate(const Mesh& mesh, const Tensor& tensor, std::int32_t axis, std::int32_t split_axis,
                std::int32_t split) {
    const std::int32_t ranks = mesh.num_ranks();
    if (ranks < 1 || ranks > kMaxRanks)
        return usage(fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks));
    if (const Status valid = judge(tensor); !valid) return valid;
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (axis < 0 || axis >= axes) {
        return usage(fmt::format("axis {} is not an axis of tensor {}; expected 0 to {}", axis, tensor.name,
                                 axes - 1));
    }
    if (split_axis < 0 || split_axis >= axes) {
        return usage(fmt::format("split axis {} is not an axis of tensor {}; expected 0 to {}", split_axis,
                                 tensor.name, axes - 1));
    }
    if (split < 1) return usage(fmt::format("split is {}; expected at least 1", split));
    const std::int64_t extent = tensor.shape[static_cast<std::size_t>(split_axis)];
    const std::int64_t chunks = axis == split_axis
                                    ? std::min<std::int64_t>(extent, std::int64_t{ranks} * split)
                                    : ranks * std::min<std::int64_t>(extent, split);
    if (chunks * ranks * 2 > kMaxOps)
        return usage(fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
    return Done{};
}

}  // namespace

Result<Plan> push_reduce(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options) {
    const std::int32_t split_axis = options.split_axis.value_or(options.axis);
    if (const Status valid = validate(mesh, tensor, options.axis, split_axis, options.split); !valid)
        return valid.error();
    if (options.reduce == Reduce::none) return usage("a reduction is sum or max");
    const std::int32_t ranks = mesh.num_ranks();
    if (options.pulled < 0 || options.pulled >= std::max(ranks, 1)) {
        return usage(fmt::format("{} of the contributions are pulled; expected 0 to {}", options.pulled,
                                 std::max(ranks, 1) - 1));
    }
    const auto axis = static_cast<std::size_t>(options.axis);
    std::vector<std::vector<Region>> chunks;  // of each rank's shard
    for (const Interval& shard : split_evenly(0, tensor.shape[axis], ranks)) {
        Region whole = tensor.whole();
        whole[axis] = shard;
        std::vector<Region>& parts = chunks.emplace_back();
        if (shard.empty()) continue;
        for (const Interval& part :
             split_nonempty(whole[static_cast<std::size_t>(split_axis)], options.split)) {
            parts.push_back(whole);
            parts.back()[static_cast<std::size_t>(split_axis)] = part;
        }
    }
    const std::size_t split = std::ranges::max(chunks, {}, &std::vector<Region>::size).size();

    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {tensor};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    // By rank: which ops reduce into each chunk of its shard.
    std::vector<std::vector<std::vector<OpRef>>> contributions;
    for (const std::vector<Region>& of_shard : chunks) contributions.emplace_back(of_shard.size());
    std::vector<std::pair<OpRef, std::size_t>> sends;  // of summed chunks
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const std::vector<Region>& own = chunks[static_cast<std::size_t>(rank)];
        plan.produced.push_back({.rank = rank, .chunk = {0, tensor.whole()}, .partial = true});
        if (options.all || !own.empty()) {
            const Region kept = options.all ? tensor.whole() : bounding_box(own.front(), own.back());
            plan.final.push_back({.rank = rank, .chunk = {0, kept}, .of_all = true});
        }
        std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        const auto add = [&](std::int32_t offset, std::size_t chunk) {
            const bool pull = offset >= ranks - options.pulled;
            // Where some are pushed the pulls keep that order: at offset k the contribution of rank p - k.
            const bool among_pushes = pull && options.pulled < ranks - 1;
            const std::int32_t peer = (among_pushes ? rank - offset + ranks : rank + offset) % ranks;
            const auto owner = static_cast<std::size_t>(pull ? rank : peer);
            if (chunk >= chunks[owner].size()) return;
            contributions[owner][chunk].push_back({rank, static_cast<std::int32_t>(list.size())});
            Op& op = list.emplace_back();
            op.kind = pull ? OpKind::pull : OpKind::push;
            op.peer = peer;
            op.src = op.dst = {0, chunks[owner][chunk]};
            op.reduce = options.reduce;
            const auto distance = static_cast<std::size_t>(offset - 1);
            if (distance < options.backends.size()) op.backend = options.backends[distance];
        };
        // Sends this rank's chunk on, once it is summed.
        const auto send = [&](std::size_t chunk) {
            if (!options.all || chunk >= own.size()) return;
            for (std::int32_t offset = 1; offset < ranks; ++offset) {
                sends.push_back({{rank, static_cast<std::int32_t>(list.size())}, chunk});
                Op& op = list.emplace_back();
                op.kind = OpKind::push;
                op.peer = (rank + offset) % ranks;
                op.src = op.dst = {0, own[chunk]};
            }
        };
        if (options.by_part) {
            // A chunk is summed when the contributions to the next one leave, and goes after them.
            for (std::size_t part = 0; part < split; ++part) {
                for (std::int32_t offset = 1; offset < ranks; ++offset) add(offset, part);
                if (part > 0) send(part - 1);
            }
            send(split - 1);
        } else {
            for (std::int32_t offset = 1; offset < ranks; ++offset) {
                for (std::size_t chunk = 0; chunk < split; ++chunk) add(offset, chunk);
            }
            for (std::size_t chunk = 0; chunk < split; ++chunk) send(chunk);
        }
    }
    for (const auto& [ref, chunk] : sends) {
        plan.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)].after =
            contributions[static_cast<std::size_t>(ref.rank)][chunk];
    }
    return plan;
}

Result<Plan> push_reduce_to_all(const Mesh& mesh, const Tensor& from, const std::string& to,
                                const PushReduceToAllOptions& options) {
    if (const Status valid = validate(mesh, from, 0, options.split_axis, options.split); !valid)
        return valid.error();
    if (options.reduce == Reduce::none) return usage("a reduction is sum or max");
    const std::int32_t ranks = mesh.num_ranks();
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {from, {to, from.shape, from.dtype}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    const auto axis = static_cast<std::size_t>(options.split_axis);
    const std::int64_t rows = options.rows.value_or(from.shape[0]);
    if (rows < 0 || rows > from.shape[0])
        return usage(
            fmt::format("{} rows of tensor {} are asked for, which has {}", rows, from.name, from.shape[0]));
    const std::vector<Interval> shares = split_evenly(0, rows, ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        plan.produced.push_back({.rank = rank, .chunk = {0, from.whole()}, .partial = true});
        const Interval share = options.all ? Interval{0, rows} : shares[static_cast<std::size_t>(rank)];
        const Region kept = with_axis(from.whole(), 0, share);
        if (!share.empty()) plan.final.push_back({.rank = rank, .chunk = {1, kept}, .of_all = true});
        std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        for (const Interval& part : split_nonempty(from.whole()[axis], options.split)) {
            const Region chunk = with_axis(from.whole(), axis, part);
            const auto own = static_cast<std::int32_t>(list.size());  // at all ranks alike
            for (std::int32_t offset = 0; offset < ranks; ++offset) {
                Op& op = list.emplace_back();
                op.kind = offset == 0 ? OpKind::local : OpKind::push;
                op.peer = (rank + offset) % ranks;
                op.src = {0, chunk};
                op.dst = {1, chunk};
                if (offset == 0) continue;
                op.reduce = options.reduce;
                op.after = {{op.peer, own}};
            }
        }
    }
    return plan;
}

Result<Plan> push_exchange(const Mesh& mesh, const Tensor& from, const std::string& to,
                           const PushExchangeOptions& options) {
    if (const Status valid = validate(mesh, from, 0, 0, options.split); !valid) return valid.error();
    const std::int32_t ranks = mesh.num_ranks();
    if (from.shape[0] % ranks != 0) {
        return usage(fmt::format("the first axis of tensor {}, {}, is no multiple of {} ranks", from.name,
                                 from.shape[0], ranks));
    }
    if ((options.transient || options.for_kernel) && options.produced)
        return usage("transient is for what is held initially and the kernel reads");
    const Cut cut{0, options.split, options.minor_axis, options.minor_split, options.minor_sizes};
    if (const Status valid = judge(cut, from); !valid) return valid.error();
    const std::int64_t block = from.shape[0] / ranks;
    const auto block_of = [&](std::int32_t rank) {
        return with_axis(from.whole(), 0, {rank * block, (rank + 1) * block});
    };
    const std::int32_t slices =
        cut.minor_axis < 0 ? 1 : cut.num_slices(from.shape[static_cast<std::size_t>(cut.minor_axis)]);
    if (cut.num_chunks(block_of(0)) > kMaxOps / ranks / ranks)
        return usage(fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {from, {to, from.shape, from.dtype}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        (options.produced ? plan.produced : plan.initial)
            .push_back({.rank = rank, .chunk = {0, from.whole()}, .partial = true});
        const bool kept = !options.transient && !options.for_kernel;
        for (std::int32_t source = 0; source < ranks && kept; ++source)
            plan.final.push_back({.rank = rank, .chunk = {1, block_of(source)}, .of = {source}});
        std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        const auto exchange = [&](std::int32_t peer, const Cut& by, std::int32_t slice) {
            const std::int32_t to_rank = options.transient ? rank : peer;
            const std::int32_t of_rank = options.transient ? peer : rank;
            const std::vector<Chunk> sources = by.chunks({0, block_of(to_rank)}, slice);
            const std::vector<Chunk> destinations = by.chunks({1, block_of(of_rank)}, slice);
            for (std::size_t part = 0; part < sources.size(); ++part) {
                Op& op = list.emplace_back();
                const OpKind moves = options.transient ? OpKind::pull : OpKind::push;
                op.kind = peer == rank ? OpKind::local : moves;
                op.peer = peer == rank ? -1 : peer;
                op.src = sources[part];
                op.dst = destinations[part];
            }
        };
        const auto exchange_own = [&] { exchange(rank, {0, options.split}, 0); };
        // The own block is made last, as it leaves for nowhere; of what is held it is used first.
        if (!options.produced) exchange_own();
        const std::int32_t peers = ranks - 1;
        for (std::int32_t step = 0; step < peers * slices; ++step) {
            const std::int32_t offset = 1 + (options.peer_by_peer ? step / slices : step % peers);
            exchange((rank + offset) % ranks, cut, options.peer_by_peer ? step % slices : step / peers);
        }
        if (options.produced) exchange_own();
    }
    return plan;
}

}  // namespace syncopate::plan

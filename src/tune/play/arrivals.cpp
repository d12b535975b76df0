// When what comes before a product is there.
#include <algorithm>
#include <map>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"
#include "syncopate/try.hpp"
#include "tune/play/transfer_plan.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {

using plan::Backend;

namespace {

/// Whether the chunk engine's blocks have all that they send of a shard [rows, K] at once on its way
/// (runtime::goes_at_once): its largest chunk.
bool goes_at_once(const Problem& problem, const ProductShape& shape, const Strategy& strategy) {
    const std::vector<std::int64_t> slices = slices_of(strategy.chunking, shape.k);
    const std::int64_t shard = (shape.m + problem.ranks - 1) / problem.ranks;
    const std::int64_t rows = (shard + strategy.chunking.rows - 1) / strategy.chunking.rows;
    const std::int64_t bytes =
        rows * *std::ranges::max_element(slices) * static_cast<std::int64_t>(plan::size_of(problem.dtype));
    const std::int64_t chunks =
        (problem.ranks - 1) * strategy.chunking.rows * static_cast<std::int64_t>(slices.size());
    const auto blocks = static_cast<std::uint64_t>(strategy.engine_blocks.value_or(1));
    return strategy.backend == Backend::ldst_dedicated &&
           static_cast<std::uint64_t>(bytes) <=
               runtime::device::bytes_at_once(blocks, static_cast<std::uint64_t>(chunks));
}

}  // namespace

Result<std::vector<Arriving>> arrivals(const Problem& problem, const ProductShape& shape,
                                       const Machine& machine, const Strategy& strategy, bool gathers) {
    if (problem.ranks == 1) return std::vector<Arriving>{};
    const Chunking& cut = strategy.chunking;
    SYNCOPATE_TAKE(plan::Plan made,
                   plan_of(problem, gathers ? "all_gather_matmul" : "all_to_all_matmul", shape, strategy));
    plan::Plan plan = std::move(made);
    send_all_by(plan, strategy.backend);
    auto timings = timings_for(plan);
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        for (std::size_t i = 0; i < plan.ranks[rank].size(); ++i) {
            if (plan.ranks[rank][i].kind == plan::OpKind::local)
                timings[rank][i].lasts_us = 0;  // is not copied
        }
    }
    plan::Topology links = links_for(machine, problem.ranks, strategy);
    const bool at_once = fuse::is_engine(strategy.backend) && goes_at_once(problem, shape, strategy);
    if (at_once) {
        // All chunks side by side, each by blocks of its own, which load their share before they store any.
        const double blocks = strategy.engine_blocks.value_or(1) * links.sm.gbps_per_block;
        const double link = links.links.empty() ? links.sm.gbps : links.links.front().gbps;
        if (blocks > 0) links.sm.gbps = link * blocks / (link + blocks);
        const auto sent = std::ranges::count_if(
            plan.ranks.front(), [](const plan::Op& op) { return op.kind != plan::OpKind::local; });
        links.sm.lanes = static_cast<std::int32_t>(sent);
        links.sm.gbps /= static_cast<double>(sent);
    } else if (!fuse::is_engine(strategy.backend)) {
        links.start_us += machine.rates.copies_us;
    } else {
        links.start_us += machine.rates.engine_walk_us;
        // Warps that load and store share the chunks in flight; bulk copies of one alone keep a link busy.
        if (strategy.backend == Backend::ldst_dedicated && plan.ranks.front().size() > 1)
            links.sm.gbps /= kEngineLanes;
    }
    SYNCOPATE_TAKE(const plan::Simulation simulation,
                   plan::simulate(plan, links, {.posts = true, .timings = std::move(timings)}));
    const std::vector<std::int64_t> extents = slices_of(cut, shape.k);
    std::vector<std::int64_t> begins(extents.size(), 0);
    for (std::size_t s = 1; s < extents.size(); ++s) begins[s] = begins[s - 1] + extents[s - 1];
    // What comes to rank 0; all ranks are alike.
    const double last = latest(simulation);
    std::map<std::int64_t, Arriving> chunks;  // by first row
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        for (std::size_t i = 0; i < plan.ranks[rank].size(); ++i) {
            const plan::Op& op = plan.ranks[rank][i];
            if (op.kind == plan::OpKind::local || op.destination_rank(static_cast<std::int32_t>(rank)) != 0)
                continue;
            const plan::Region& box = op.dst.region;
            Arriving& chunk = chunks[box[0].begin];
            chunk.rows = {box[0].begin, box[0].end};
            chunk.slices.resize(extents.size(), 0);
            const auto slice = std::lower_bound(begins.begin(), begins.end(), box[1].begin) - begins.begin();
            double& time = chunk.slices[at(
                std::min<std::ptrdiff_t>(slice, static_cast<std::ptrdiff_t>(extents.size()) - 1))];
            time = std::max(time, at_once ? last : simulation.ops[rank][i].end_us);  // side by side
        }
    }
    std::vector<Arriving> all;
    for (auto& [row, chunk] : chunks) all.push_back(std::move(chunk));
    return all;
}

}  // namespace syncopate::tune

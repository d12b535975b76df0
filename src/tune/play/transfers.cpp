#include "tune/play/transfers.hpp"

#include <algorithm>

#include "syncopate/fuse/model/backend.hpp"
#include "tune/play/transfer_plan.hpp"

namespace syncopate::tune {

using plan::Backend;

Rows rows_of_rank(std::int64_t m, std::int32_t ranks, std::int32_t rank) {
    const std::int64_t base = m / ranks;
    const std::int64_t extra = m % ranks;
    const std::int64_t first = rank * base + std::min<std::int64_t>(rank, extra);
    return {first, first + base + (rank < extra ? 1 : 0)};
}

std::vector<Rows> parts_of(Rows range, std::int32_t parts) {
    std::vector<Rows> made;
    for (std::int32_t part = 0; part < parts; ++part) {
        const Rows rows = rows_of_rank(range.end - range.begin, parts, part);
        if (rows.begin < rows.end) made.push_back({range.begin + rows.begin, range.begin + rows.end});
    }
    return made;
}

std::vector<std::int64_t> slices_of(const Chunking& chunking, std::int64_t k) {
    if (!chunking.slices.empty()) return chunking.slices;
    std::vector<std::int64_t> extents;
    for (const Rows& slice : parts_of({0, k}, chunking.num_slices))
        extents.push_back(slice.end - slice.begin);
    return extents;
}

plan::Topology links_for(const Machine& machine, std::int32_t ranks, const Strategy& strategy,
                         std::int32_t nodes) {
    plan::Topology links = machine.topology;
    const std::int32_t places = ranks / nodes;
    if (links.num_devices() < places) {
        const plan::LinkOptions option{
            .gbps = links.links.empty() ? machine.rates.memory_gbps : links.links.front().gbps,
            .latency_us = links.links.empty() ? 0 : links.links.front().latency_us};
        plan::Topology larger = plan::switch_topology(places, option);
        larger.copy_engine = links.copy_engine;
        larger.sm = links.sm;
        larger.local_gbps = links.local_gbps;
        larger.local_us = links.local_us;
        larger.start_us = links.start_us;
        links = std::move(larger);
    }
    if (nodes > 1 && machine.rates.network_gbps > 0)
        links = plan::nodes_topology(
            links, nodes, places,
            {.gbps = machine.rates.network_gbps, .latency_us = machine.rates.network_us});
    if (fuse::is_engine(strategy.backend)) {
        links.sm.blocks = 0;
        links.sm.lanes = kEngineLanes;
        links.start_us += machine.rates.engine_us;
        links.sm.gbps = machine.rates.engine_gbps.at(strategy.engine_blocks.value_or(0));
        // Fewer blocks than were measured.
        const double blocks = strategy.engine_blocks.value_or(0) * links.sm.gbps_per_block;
        if (blocks > 0) links.sm.gbps = std::min(links.sm.gbps, blocks);
        // So much for all ops on their way.
        for (plan::Link& link : links.links) link.gbps = std::min(link.gbps, links.sm.gbps);
        if (strategy.backend == Backend::ldst_dedicated) links.sm.gbps *= machine.rates.engine_ldst;
    }
    return links;
}

double library_collective_us(const Rates& rates, OperatorRow::Kind kind, double mib) {
    using Kind = OperatorRow::Kind;
    switch (kind) {
        case Kind::gathers: return rates.library_gather_us.along(mib);
        case Kind::scatters: return rates.library_scatter_us.along(mib);
        case Kind::reduces: return rates.library_reduce_us.along(mib);
        case Kind::exchanges:
        case Kind::sends: return rates.library_exchange_us.along(mib);
        case Kind::block:
        case Kind::other: break;
    }
    return 0;
}

}  // namespace syncopate::tune

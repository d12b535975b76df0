#include "tune/play/transfers.hpp"

#include <algorithm>

#include "syncopate/fuse/model/backend.hpp"
#include "tune/play/memory.hpp"

namespace syncopate::tune {

using plan::Backend;

std::vector<std::int64_t> slices_of(const Chunking& chunking, std::int64_t k) {
    if (!chunking.slices.empty()) return chunking.slices;
    std::vector<std::int64_t> extents;
    for (std::int32_t slice = 0; slice < chunking.num_slices; ++slice)  // the first ones longer by one
        extents.push_back(k / chunking.num_slices + (slice < k % chunking.num_slices ? 1 : 0));
    return extents;
}

bool stores_at_owners(OperatorRow::Kind kind, const Strategy& strategy) {
    using Kind = OperatorRow::Kind;
    const bool sends = kind == Kind::scatters || kind == Kind::reduces || kind == Kind::sends;
    return sends && !strategy.one_step &&
           (strategy.backend == Backend::tma_inline || strategy.stored > 0 || strategy.kernel_sums);
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

double local_copy_us(const Machine& machine, double bytes) {
    return machine.topology.local_us + over(bytes, machine.topology.local_gbps);
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

#include <fmt/format.h>

#include "kernel/triton/sites/sites.hpp"

namespace syncopate::kernel::triton {
namespace {

std::string describe(const TileIdSite& site) {
    std::string names;
    for (const std::string& variable : site.variables)
        names += (names.empty() ? "`" : ", `") + variable + "`";
    const std::string guards = site.guards_reads && site.guards_writes ? "loads and stores"
                               : site.guards_reads                     ? "loads"
                                                                       : "stores";
    switch (site.kind) {
        case TileIdSite::Kind::rebind:
            return fmt::format("{} set on line {}; {} follow from it", names, site.anchor.line, guards);
        case TileIdSite::Kind::rebind_grid:
            return fmt::format("{} set up to line {}; {} follow from them", names, site.anchor.line, guards);
        case TileIdSite::Kind::entry:
            return fmt::format("taken at the entry, line {}, for {} uses; {} follow from it",
                               site.anchor.line, site.program_ids.size(), guards);
        case TileIdSite::Kind::use:
            return fmt::format("{} used on line {}, column {}; {} follow from it", names, site.anchor.line,
                               site.anchor.column, guards);
    }
    return {};
}

std::string describe(const Loop& loop, const LoopSite& site) {
    std::string text = fmt::format("line {}, {} iterations", site.header.line, loop.trips);
    for (const LoopSlice& slice : loop.slices) {
        text += fmt::format("; {}[axis {}] from {} by {}, {} each", slice.param, slice.dim, slice.base,
                            slice.step, slice.extent);
    }
    return text;
}

}  // namespace

std::vector<std::string> places_of(const Kernel& kernel) {
    const Sites& sites = text_of(kernel).sites;
    std::vector<std::string> places;
    for (const TileIdSite& site : sites.tile_ids) places.push_back("tile id: " + describe(site));
    if (kernel.persistent) places.push_back(fmt::format("tile loop: line {}", sites.tile_loop_header.line));
    for (std::size_t loop = 0; loop < kernel.loops.size(); ++loop)
        places.push_back((kernel.loops.size() == 1 ? "reduction: " : "loop: ") +
                         describe(kernel.loops[loop], sites.loops[loop]));
    if (sites.last_store.line > 0)
        places.push_back(fmt::format("last store: line {}", sites.last_store.line));
    if (sites.early_return) places.emplace_back("returns early on some path");
    return places;
}

}  // namespace syncopate::kernel::triton

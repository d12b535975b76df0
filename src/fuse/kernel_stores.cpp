#include "fuse/kernel_stores.hpp"

#include <algorithm>
#include <string_view>

#include "syncopate/kernel/tile_boxes.hpp"

namespace syncopate::fuse {

using plan::Backend;
using plan::Region;

const kernel::Param* writer_of(const Program& program, std::int32_t tensor) {
    for (const auto& [name, bound] : program.bindings) {
        const kernel::Param* param = program.kernel.find_param(name);
        if (param != nullptr && param->written && program.plan.find_tensor(bound) == tensor) return param;
    }
    return nullptr;
}

namespace {

std::string line_of(const kernel::SourceRange& range) { return " (line " + std::to_string(range.line) + ")"; }

}  // namespace

std::string objection_to_stores(const kernel::Kernel& kernel, const kernel::Param& param, Backend backend) {
    const bool by_row = backend == Backend::tma_inline;
    const std::string form = by_row ? param.name + ".store([…], …)" : "tl.store(…)";
    bool any = false;
    for (const kernel::StoreSite& site : kernel.sites.stores) {
        if (site.param != param.name) continue;
        any = true;
        if (site.call.begin < kernel.sites.body.begin || site.call.end > kernel.sites.body.end)
            return param.name + " is stored in a helper" + line_of(site.call) +
                   "; write the store in the kernel";
        const std::string_view text =
            std::string_view(kernel.source).substr(site.call.begin, site.call.end - site.call.begin);
        const std::string_view callee = text.substr(0, text.find('('));
        const bool by_pointer =
            callee == "tl.store" || callee == "triton.language.store" || callee == "store";
        const bool fits = by_row ? callee == param.name + ".store" : by_pointer;
        const bool shared = std::count_if(kernel.sites.stores.begin(), kernel.sites.stores.end(),
                                          [&](const auto& s) { return s.call.begin == site.call.begin; }) > 1;
        if (!fits || shared)
            return "a store of " + param.name + line_of(site.call) + " is not of the form " + form;
    }
    return any ? "" : "no store of " + param.name + " was found";
}

std::string objection_to_tiles(const Program& program, const kernel::Param& param, const plan::Chunk& source,
                               Backend backend) {
    const auto argument = program.kernel.arguments.tensors.find(param.name);
    const std::int64_t rows =
        argument == program.kernel.arguments.tensors.end() || argument->second.block.empty()
            ? 0
            : argument->second.block.front();
    for (const kernel::Tile& tile : program.kernel.tiles) {
        const std::vector<Region> boxes = kernel::boxes_written(tile, param.name);
        if (std::none_of(boxes.begin(), boxes.end(),
                         [&](const Region& box) { return overlaps(box, source.region); }))
            continue;
        for (const Region& box : boxes) {
            if (!contains(source.region, box)) {
                return "tile " + std::to_string(tile.id) + " writes " + to_string(box) +
                       ", not all of which is in the source: cut the source where tiles end";
            }
            // The descriptor spans all heaps, so that it does not clip rows where the tensor ends.
            if (backend == Backend::tma_inline && box.front().size() % std::max<std::int64_t>(rows, 1) != 0) {
                return "tile " + std::to_string(tile.id) + " writes " + std::to_string(box.front().size()) +
                       " rows, and the descriptor stores " + std::to_string(rows) + " at a time";
            }
        }
    }
    return {};
}

}  // namespace syncopate::fuse

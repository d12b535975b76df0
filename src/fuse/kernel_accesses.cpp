#include "fuse/kernel_accesses.hpp"

#include <algorithm>
#include <string_view>

namespace syncopate::fuse {

using kernel::AccessSite;
using plan::Backend;
using plan::Region;

namespace {

std::string line_of(const kernel::SourceRange& range) { return " (line " + std::to_string(range.line) + ")"; }

const std::vector<AccessSite>& sites_of(const kernel::Kernel& kernel, Access access) {
    return access == Access::load ? kernel.sites.loads : kernel.sites.stores;
}

/// The words of a message about a load or a store.
struct Words {
    explicit Words(Access access)
        : call(access == Access::load ? "load" : "store"),
          calls(call + "s"),
          done(access == Access::load ? "loaded" : "stored") {}
    std::string call, calls, done;
};

bool lies_in(const kernel::SourceRange& inner, const kernel::SourceRange& outer) {
    return outer.begin <= inner.begin && inner.end <= outer.end;
}

}  // namespace

const kernel::Param* writer_of(const Program& program, std::int32_t tensor) {
    for (const auto& [name, bound] : program.bindings) {
        const kernel::Param* param = program.kernel.find_param(name);
        if (param != nullptr && param->written && program.plan.find_tensor(bound) == tensor) return param;
    }
    return nullptr;
}

const kernel::Param* only_param(const Program& program, std::int32_t tensor) {
    const kernel::Param* only = nullptr;
    for (const auto& [name, bound] : program.bindings) {
        if (program.plan.find_tensor(bound) != tensor) continue;
        if (only != nullptr) return nullptr;
        only = program.kernel.find_param(name);
    }
    return only;
}

std::string objection_to_calls(const kernel::Kernel& kernel, const kernel::Param& param, Backend backend,
                               Access access) {
    const Words words(access);
    const bool by_row = backend == Backend::tma_inline;
    const AccessSite::Form wanted = by_row ? AccessSite::Form::descriptor : AccessSite::Form::pointers;
    const std::string form = by_row ? "DESCRIPTOR." + words.call + "([…])" : "tl." + words.call + "(…)";
    const std::vector<AccessSite>& sites = sites_of(kernel, access);
    bool any = false;
    for (const AccessSite& site : sites) {
        if (site.param != param.name) continue;
        any = true;
        if (!lies_in(site.call, kernel.sites.body) ||
            (site.made.end > 0 && !lies_in(site.made, kernel.sites.body)))
            return param.name + " is " + words.done + " in a helper" + line_of(site.call) + "; write the " +
                   words.call + ", and what makes its descriptor, in the kernel";
        if (site.form != wanted && site.form != AccessSite::Form::other) {
            return words.calls + " of " + param.name + line_of(site.call) + " go through " +
                   (by_row ? "pointers: use ldst_inline" : "a descriptor: use tma_inline");
        }
        const std::string_view text =
            std::string_view(kernel.source).substr(site.call.begin, site.call.end - site.call.begin);
        const std::string_view callee = text.substr(0, text.find('('));
        const bool written_out = by_row ? callee.ends_with("." + words.call)
                                        : callee == "tl." + words.call || callee == words.call ||
                                              callee == "triton.language." + words.call;
        const bool shared = std::ranges::count_if(sites, [&](const AccessSite& other) {
                                return other.call.begin == site.call.begin;
                            }) > 1;
        if (site.form != wanted || !written_out || shared)
            return "a " + words.call + " of " + param.name + line_of(site.call) + " is not of the form " +
                   form + (site.form == wanted ? "" : " of the whole tensor");
    }
    return any ? "" : "no " + words.call + " of " + param.name + " was found";
}

std::string objection_to_rows(const kernel::Kernel& kernel, const kernel::Tile& tile,
                              const kernel::Param& param, const Region& box, Access access) {
    for (const AccessSite& site : sites_of(kernel, access)) {
        if (site.param != param.name || site.rows == 0 || box.front().size() % site.rows == 0) continue;
        return "tile " + std::to_string(tile.id) + (access == Access::load ? " reads " : " writes ") +
               std::to_string(box.front().size()) + " rows, and the descriptor " + Words(access).calls + " " +
               std::to_string(site.rows) + " at a time";
    }
    return {};
}

std::optional<std::int64_t> rows_between(const plan::Plan& plan, const plan::Chunk& from,
                                         const plan::Chunk& to) {
    const std::vector<std::int64_t>& source = plan.tensors[static_cast<std::size_t>(from.tensor)].shape;
    const std::vector<std::int64_t>& target = plan.tensors[static_cast<std::size_t>(to.tensor)].shape;
    const std::size_t extra =
        target.size() - source.size();  // a staging tensor has its slots before the rest
    if (source.empty() || target.size() < source.size() || extra > 1) return std::nullopt;
    if (extra == 1 && to.region[0].size() != 1) return std::nullopt;
    for (std::size_t axis = 0; axis < source.size(); ++axis) {
        const plan::Interval& here = from.region[axis];
        const plan::Interval& there = to.region[axis + extra];
        if (here.size() != there.size()) return std::nullopt;
        if (axis > 0 && (source[axis] != target[axis + extra] || here.begin != there.begin))
            return std::nullopt;
    }
    const std::int64_t slot = extra == 1 ? to.region[0].begin * target[1] : 0;
    return slot + to.region[extra].begin - from.region[0].begin;
}

bool is_made(const plan::Plan& plan, std::int32_t rank, const plan::Chunk& chunk, bool all) {
    return std::ranges::any_of(plan.produced, [&](const plan::Holding& held) {
        return held.rank == rank && held.chunk.tensor == chunk.tensor &&
               (all ? contains(held.chunk.region, chunk.region) : overlaps(held.chunk.region, chunk.region));
    });
}

}  // namespace syncopate::fuse

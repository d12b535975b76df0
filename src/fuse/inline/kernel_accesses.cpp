#include "fuse/inline/kernel_accesses.hpp"

#include <algorithm>
#include <ranges>
#include <string>

#include "syncopate/at.hpp"

namespace syncopate::fuse {

using kernel::ParamAccess;
using plan::Backend;
using plan::Region;
using By = ParamAccess::By;

namespace {

/// The places where the kernel loads, or stores, through a parameter.
auto accesses_of(const kernel::Kernel& kernel, const kernel::Param& param, Access access) {
    return std::views::filter(kernel.accesses, [&param, stores = access == Access::store](const auto& one) {
        return one.stores == stores && one.param == param.name;
    });
}

}  // namespace

const kernel::Param* writer_of(const BoundKernel& program, std::int32_t tensor) {
    for (const auto& [name, bound] : program.bindings) {
        const kernel::Param* param = program.kernel.find_param(name);
        if (param != nullptr && param->written && program.plan.find_tensor(bound) == tensor) return param;
    }
    return nullptr;
}

const kernel::Param* only_param(const BoundKernel& program, std::int32_t tensor) {
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
    const std::string call = access == Access::load ? "load" : "store";
    const By wanted = backend == Backend::tma_inline ? By::descriptor : By::pointers;
    bool any = false;
    for (const ParamAccess& one : accesses_of(kernel, param, access)) {
        any = true;
        if (one.by != wanted && one.by != By::other) {
            return call + "s of " + param.name + " (line " + std::to_string(one.line) + ") go through " +
                   (wanted == By::descriptor ? "pointers: use ldst_inline" : "a descriptor: use tma_inline");
        }
        if (!one.fixed.empty()) return one.fixed;
    }
    return any ? "" : "no " + call + " of " + param.name + " was found";
}

std::string objection_to_rows(const kernel::Kernel& kernel, const kernel::Tile& tile,
                              const kernel::Param& param, const Region& box, Access access) {
    for (const ParamAccess& one : accesses_of(kernel, param, access)) {
        if (one.rows == 0 || box.front().size() % one.rows == 0) continue;
        const bool loads = access == Access::load;
        return "tile " + std::to_string(tile.id) + (loads ? " reads " : " writes ") +
               std::to_string(box.front().size()) + " rows, and the descriptor " +
               (loads ? "loads " : "stores ") + std::to_string(one.rows) + " at a time";
    }
    return {};
}

std::optional<std::int64_t> rows_between(const plan::Plan& plan, const plan::Chunk& from,
                                         const plan::Chunk& to) {
    const std::vector<std::int64_t>& source = plan.tensors[at(from.tensor)].shape;
    const std::vector<std::int64_t>& target = plan.tensors[at(to.tensor)].shape;
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

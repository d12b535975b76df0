#include "syncopate/fuse/assign.hpp"

#include <algorithm>
#include <string>

namespace syncopate::fuse {
namespace {

using plan::Backend;

constexpr std::int32_t kCopyEngineLevels = 3;

/// Nested loops that walk `extents` in both tensors, merging an axis into the one before it where both are
/// contiguous.
std::int32_t levels_of(const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& src_shape,
                       const std::vector<std::int64_t>& dst_shape) {
    std::int32_t levels = 1;  // the contiguous run
    bool whole = true;        // every axis further in is covered whole by the run so far
    for (std::size_t axis = extents.size(); axis-- > 0;) {
        if (extents[axis] != 1 && !whole) {
            ++levels;
            whole = true;  // the next axis out merges with this one if this one is whole
        }
        if (extents[axis] != src_shape[axis] || extents[axis] != dst_shape[axis]) whole = false;
    }
    return levels;
}

/// What fuse/lower.hpp adds.
bool is_sum(const plan::Op& op) { return op.kind == plan::OpKind::local && op.reduce != plan::Reduce::none; }

std::vector<std::int64_t> extents_of(const plan::Region& region) {
    std::vector<std::int64_t> extents;
    extents.reserve(region.size());
    for (const plan::Interval& interval : region) extents.push_back(interval.size());
    return extents;
}

/// Why `backend` cannot carry out the op on `device`; empty if it can.
std::string objection(const plan::Plan& plan, plan::OpRef ref, Backend backend, Device device,
                      const InlineObjection& kernel) {
    const plan::Op& op = plan.op(ref);
    if (op.kind == plan::OpKind::collective) {
        return "collective " + std::string(name_of(op.collective)) +
               " is not carried out yet: use a template that expands it into push and pull ops";
    }
    if (is_inline(backend) && !is_sum(op)) {
        return kernel ? kernel(ref, backend)
                      : std::string(name_of(backend)) + " needs a kernel that stores what is sent";
    }
    if (is_sum(op)) {
        const Backend only = device == Device::host ? Backend::host : Backend::ldst_dedicated;
        if (backend == only) return {};
        return "a sum of contributions goes by " + std::string(name_of(only)) + ", not " +
               std::string(name_of(backend));
    }
    if (device == Device::host) {
        if (backend == Backend::host) return {};
        return "backend " + std::string(name_of(backend)) +
               " does not exist on device host: use \"host\" or \"auto\"";
    }
    if (backend == Backend::host) return "backend host does not exist on device cuda: use \"auto\"";
    if (backend != Backend::copy_engine && lane_of(backend) != Backend::tma_dedicated) {
        return "backend " + std::string(name_of(backend)) +
               " is not built yet: use \"copy_engine\", \"tma_dedicated\", \"ldst_dedicated\" or \"auto\"";
    }
    if (op.reduce != plan::Reduce::none) {
        return std::string(name_of(backend)) + " cannot reduce (" + std::string(name_of(op.reduce)) + ")";
    }
    const std::int32_t levels = strided_levels(plan, op.src, op.dst);
    if (levels == 0) {
        return std::string(name_of(backend)) + " copies between regions of the same extents, not from " +
               to_string(op.src.region) + " to " + to_string(op.dst.region);
    }
    if (levels > kCopyEngineLevels) {
        return std::string(name_of(backend)) + " copies boxes of at most three strided levels; " +
               to_string(op.src.region) + " has " + std::to_string(levels) +
               ": split the op along its first axis";
    }
    return {};
}

Error error_at(plan::OpRef ref, std::string message) {
    Error error{std::move(message)};
    error.location.rank = ref.rank;
    error.location.op = ref.index;
    return error;
}

}  // namespace

std::string_view name_of(Device device) { return device == Device::host ? "host" : "cuda"; }

std::int32_t strided_levels(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst) {
    std::vector<std::int64_t> src_shape = plan.tensors[src.tensor].shape;
    std::vector<std::int64_t> dst_shape = plan.tensors[dst.tensor].shape;
    std::vector<std::int64_t> src_extents = extents_of(src.region);
    std::vector<std::int64_t> dst_extents = extents_of(dst.region);
    // A slot of a staging tensor has an axis more, of extent 1.
    while (dst_extents.size() > src_extents.size() && dst_extents.front() == 1) {
        dst_extents.erase(dst_extents.begin());
        dst_shape.erase(dst_shape.begin());
    }
    if (src_extents == dst_extents) return levels_of(src_extents, src_shape, dst_shape);
    const bool contiguous = levels_of(src_extents, src_shape, src_shape) == 1 &&
                            levels_of(dst_extents, dst_shape, dst_shape) == 1 &&
                            num_elements(src.region) == num_elements(dst.region);
    return contiguous ? 1 : 0;
}

Result<std::vector<Backend>> legal_backends(const plan::Plan& plan, plan::OpRef ref, Device device,
                                            const InlineObjection& kernel) {
    const plan::Op& op = plan.op(ref);
    const Backend backend = device == Device::host ? Backend::host
                            : is_sum(op)           ? Backend::ldst_dedicated
                                                   : Backend::copy_engine;
    std::string why = objection(plan, ref, backend, device, kernel);
    if (!why.empty()) return error_at(ref, std::move(why));
    std::vector<Backend> legal{backend};
    for (const Backend other :
         {Backend::tma_dedicated, Backend::ldst_dedicated, Backend::tma_inline, Backend::ldst_inline}) {
        if (other != backend && objection(plan, ref, other, device, kernel).empty()) legal.push_back(other);
    }
    return legal;
}

Result<Backends> assign(const plan::Plan& plan, Device device, Backend preferred,
                        const InlineObjection& kernel) {
    Backends backends(plan.ranks.size());
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        backends[rank].reserve(plan.ranks[rank].size());
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(plan.ranks[rank].size()); ++index) {
            const plan::OpRef ref{rank, index};
            const plan::Op& op = plan.op(ref);
            if (op.backend == Backend::automatic) {
                const auto legal = legal_backends(plan, ref, device, kernel);
                if (!legal) return legal.error();
                const bool can = std::find(legal->begin(), legal->end(), preferred) != legal->end();
                backends[rank].push_back(can ? preferred : legal->front());
            } else {
                std::string why = objection(plan, ref, op.backend, device, kernel);
                if (!why.empty()) return error_at(ref, std::move(why));
                backends[rank].push_back(op.backend);
            }
        }
    }
    return backends;
}

}  // namespace syncopate::fuse

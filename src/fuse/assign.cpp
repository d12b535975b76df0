#include "syncopate/fuse/assign.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "syncopate/fuse/collective.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/sum_stores.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;

constexpr std::int32_t kCopyEngineLevels = 3;
// Of what sums store at peers, beside the kernel, and of a rank's last sum, when little of the kernel is left
// (bench/results/gemm_ar_2xH200_…).
constexpr std::int64_t kMostBytesStoredBySums = std::int64_t{4} << 20;
constexpr std::int64_t kMostBytesStoredByTheLast = std::int64_t{32} << 20;

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

std::vector<std::int64_t> extents_of(const plan::Region& region) {
    std::vector<std::int64_t> extents;
    extents.reserve(region.size());
    for (const plan::Interval& interval : region) extents.push_back(interval.size());
    return extents;
}

/// Why a copy of the two regions is not one of three strided levels; empty if it is.
std::string level_objection(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst,
                            Backend backend) {
    const std::int32_t levels = strided_levels(plan, src, dst);
    if (levels == 0) {
        return std::string(name_of(backend)) + " copies between regions of the same extents, not from " +
               to_string(src.region) + " to " + to_string(dst.region);
    }
    if (levels > kCopyEngineLevels) {
        return std::string(name_of(backend)) + " copies boxes of at most three strided levels; " +
               to_string(src.region) + " has " + std::to_string(levels) +
               ": split the op along its first axis";
    }
    return {};
}

/// The first axis of the slots of a staging tensor, and of a slot in it, left aside.
struct Box {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> extents;
    std::int64_t first = 0;  ///< element
};

Box box_of(const plan::Plan& plan, const plan::Chunk& chunk, std::size_t axes) {
    Box box{plan.tensors[chunk.tensor].shape, extents_of(chunk.region)};
    for (std::size_t axis = 0; axis < box.shape.size(); ++axis)
        box.first = box.first * box.shape[axis] + chunk.region[axis].begin;
    while (box.extents.size() > axes) {
        box.extents.erase(box.extents.begin());
        box.shape.erase(box.shape.begin());
    }
    return box;
}

/// What of the box is no multiple of 16 bytes: its first byte, its runs, or a stride from run to run.
std::string odd_part(const Box& box, const std::vector<std::int64_t>& other_shape, std::int64_t element) {
    constexpr std::int64_t kUnit = 16;
    const auto odd = [&](std::int64_t elements) { return elements * element % kUnit != 0; };
    if (odd(box.first)) return "begins at byte " + std::to_string(box.first * element);
    std::int64_t run = 1;     // elements that are contiguous on both sides
    std::int64_t stride = 1;  // of the axis
    bool whole = true;
    for (std::size_t axis = box.extents.size(); axis-- > 0;) {
        if (box.extents[axis] != 1) {
            if (whole) {
                run *= box.extents[axis];
            } else if (odd(stride)) {
                return "has rows " + std::to_string(stride * element) + " bytes apart";
            }
            whole = whole && box.extents[axis] == box.shape[axis] && box.extents[axis] == other_shape[axis];
        } else if (box.shape[axis] != 1 || other_shape[axis] != 1) {
            whole = false;
        }
        stride *= box.shape[axis];
    }
    if (odd(run)) return "has rows of " + std::to_string(run * element) + " bytes";
    return {};
}

/// Why a sum or a transfer cannot go by `backend` on `device`; empty if it can.
std::string objection(const plan::Plan& plan, plan::OpRef ref, Backend backend, Device device,
                      const InlineObjection& kernel) {
    const plan::Op& op = plan.op(ref);
    if (is_inline(backend)) {
        if (is_sum(op)) return "a sum of contributions is not done by " + std::string(name_of(backend));
        return kernel ? kernel(ref, backend)
                      : std::string(name_of(backend)) +
                            " needs a kernel that stores what is sent, or loads what is fetched";
    }
    if (lane_of(backend) == Backend::tma_dedicated) {
        if (op.reduce != plan::Reduce::none && !is_sum(op))
            return std::string(name_of(backend)) + " cannot reduce (" + std::string(name_of(op.reduce)) +
                   ") into another rank: its contributions are staged first";
        return engine_objection(plan, op.src, op.dst, backend);
    }
    if (device == Device::host) {
        if (backend == Backend::host) return {};
        return "backend " + std::string(name_of(backend)) +
               " does not exist on device host: use \"host\", \"tma_dedicated\", \"ldst_dedicated\" or "
               "\"auto\"";
    }
    if (backend == Backend::host) return "backend host does not exist on device cuda: use \"auto\"";
    if (backend != Backend::copy_engine) {
        return "backend " + std::string(name_of(backend)) +
               " is for collectives: use \"copy_engine\", \"tma_dedicated\", \"ldst_dedicated\" or \"auto\"";
    }
    if (is_sum(op)) return {};
    if (op.reduce != plan::Reduce::none)
        return std::string(name_of(backend)) + " cannot reduce (" + std::string(name_of(op.reduce)) + ")";
    return level_objection(plan, op.src, op.dst, backend);
}

/// What each collective goes by; fails where it cannot.
class CollectiveBackends {
public:
    CollectiveBackends(const plan::Plan& plan, Device device)
        : plan_(plan), device_(device), collectives_(collectives_of(plan)) {}

    Result<Backend> of(plan::OpRef ref) {
        const Backend named = plan_.op(ref).backend;
        const auto found = collectives_.find(ref);
        if (found == collectives_.end()) return error_at(ref, "a collective without its other participants");
        const auto [why, is_new] = why_.try_emplace(found->second.number);
        if (is_new) why->second = collective_objection(plan_, found->second);
        if (!why->second.empty()) return error_at(ref, why->second);
        if (device_ == Device::host) return named == Backend::nccl ? named : Backend::host;
        if (named == Backend::host)
            return error_at(ref, "backend host does not exist on device cuda: use \"auto\"");
        return Backend::nccl;
    }

private:
    const plan::Plan& plan_;
    Device device_;
    Collectives collectives_;
    std::map<std::int32_t, std::string> why_;  ///< by number: the objection
};

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

std::string engine_objection(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst,
                             Backend backend) {
    plan::Chunk slot = src;  // of a sum: its first
    if (src.region.size() > dst.region.size()) slot.region.front().end = slot.region.front().begin + 1;
    const bool is_slot = slot.region.size() > dst.region.size();
    if (std::string why = level_objection(plan, is_slot ? dst : slot, is_slot ? slot : dst, backend);
        !why.empty())
        return why;
    const std::size_t axes = std::min(slot.region.size(), dst.region.size());
    const Box from = box_of(plan, slot, axes);
    const Box to = box_of(plan, dst, axes);
    const auto element = static_cast<std::int64_t>(size_of(plan.tensors[dst.tensor].dtype));
    const bool alike = from.extents == to.extents;  // else both are contiguous
    const auto say = [&](const plan::Chunk& chunk, const Box& box, const Box& other) -> std::string {
        const std::string odd = odd_part(box, alike ? other.shape : box.shape, element);
        if (odd.empty()) return {};
        return std::string(name_of(backend)) + " moves multiples of 16 bytes, and " +
               plan.tensors[chunk.tensor].name + to_string(chunk.region) + " " + odd +
               ": use copy_engine or auto";
    };
    if (std::string why = say(src, from, to); !why.empty()) return why;
    if (std::string why = say(dst, to, from); !why.empty()) return why;
    if (src.region.size() > dst.region.size() && src.region.front().size() > 1) {
        const std::vector<std::int64_t>& staging = plan.tensors[src.tensor].shape;
        std::int64_t slot_bytes = element;
        for (std::size_t axis = 1; axis < staging.size(); ++axis) slot_bytes *= staging[axis];
        if (slot_bytes % 16 != 0) {
            return std::string(name_of(backend)) + " moves multiples of 16 bytes, and the slots of " +
                   plan.tensors[src.tensor].name + " are " + std::to_string(slot_bytes) +
                   " bytes apart: use copy_engine or auto";
        }
    }
    return {};
}

Result<std::vector<Backend>> legal_backends(const plan::Plan& plan, plan::OpRef ref, Device device,
                                            const InlineObjection& kernel) {
    if (plan.op(ref).kind == plan::OpKind::collective) {
        const auto backend = CollectiveBackends(plan, device).of(ref);
        if (!backend) return backend.error();
        return std::vector<Backend>{*backend};
    }
    const Backend best = device == Device::host ? Backend::host : Backend::copy_engine;
    std::string why = objection(plan, ref, best, device, kernel);
    if (!why.empty()) return error_at(ref, std::move(why));
    std::vector<Backend> legal{best};
    for (const Backend other :
         {Backend::tma_dedicated, Backend::ldst_dedicated, Backend::tma_inline, Backend::ldst_inline}) {
        if (objection(plan, ref, other, device, kernel).empty()) legal.push_back(other);
    }
    return legal;
}

namespace {

constexpr std::array kInline{Backend::tma_inline, Backend::ldst_inline};

/// A copy within a rank costs nothing where the tile that makes it can be stored there in the first place, or
/// the tiles that read it can read what the rank was given. One tensor's tiles only, as a kernel sends one
/// inline and fetches one: the one that the plan itself names so, else the first.
class LocalCopies {
public:
    LocalCopies(const plan::Plan& plan, const InlineObjection& kernel, const InlineObjection& own,
                Backend preferred)
        : plan_(plan), kernel_(kernel), own_(own), preferred_(preferred) {
        for (const std::vector<plan::Op>& list : plan.ranks) {
            for (const plan::Op& op : list) {
                const plan::OpRef ref{static_cast<std::int32_t>(&list - plan.ranks.data()),
                                      static_cast<std::int32_t>(&op - list.data())};
                if (!is_inline(op.backend)) continue;
                if (is_fetched(plan, ref)) {
                    fetches_ = true;
                } else {
                    stored_ = op.src.tensor;
                }
            }
        }
    }
    std::optional<Backend> of(plan::OpRef ref) {
        const plan::Op& op = plan_.op(ref);
        if (op.kind != plan::OpKind::local || op.reduce != plan::Reduce::none) return std::nullopt;
        return is_fetched(plan_, ref) ? read(ref) : stored(ref);
    }

private:
    std::optional<Backend> stored(plan::OpRef ref) {
        const std::int32_t tensor = plan_.op(ref).src.tensor;
        if (!kernel_ || preferred_ != Backend::automatic || (stored_ && *stored_ != tensor))
            return std::nullopt;
        for (const Backend backend : kInline) {
            if (!kernel_(ref, backend).empty()) continue;
            stored_ = tensor;
            return backend;
        }
        return std::nullopt;
    }
    std::optional<Backend> read(plan::OpRef ref) {
        const std::int32_t tensor = plan_.op(ref).dst.tensor;
        if (!own_ || is_inline(preferred_) || fetches_ || (read_ && *read_ != tensor)) return std::nullopt;
        for (const Backend backend : kInline) {
            if (!own_(ref, backend).empty()) continue;
            read_ = tensor;
            return backend;
        }
        return std::nullopt;
    }

    const plan::Plan& plan_;
    const InlineObjection& kernel_;
    const InlineObjection& own_;
    Backend preferred_;
    bool fetches_ = false;  ///< the plan itself names what tiles fetch
    std::optional<std::int32_t> stored_;
    std::optional<std::int32_t> read_;
};

/// Whether what the op sends, which only sums make, is best stored at the peer by the sum. `last`: of the
/// rank's sums.
bool sum_should_store(const plan::Plan& plan, const plan::Op& op, Backend preferred, bool last) {
    const bool by_engine = lane_of(plan.op(op.after.front()).backend) == Backend::tma_dedicated;
    if (by_engine) return preferred == Backend::automatic || lane_of(preferred) == Backend::tma_dedicated;
    if (preferred == Backend::ldst_inline) return true;
    return (preferred == Backend::automatic || is_inline(preferred)) &&
           plan.bytes(op.src) <= (last ? kMostBytesStoredByTheLast : kMostBytesStoredBySums);
}

}  // namespace

Result<Backends> assign(const plan::Plan& plan, Device device, Backend preferred,
                        const InlineObjection& kernel, const InlineObjection& own) {
    Backends backends(plan.ranks.size());
    LocalCopies locals(plan, kernel, own, preferred);
    CollectiveBackends collectives(plan, device);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        backends[rank].reserve(plan.ranks[rank].size());
        std::vector<plan::OpRef> last_sums;  // that something follows
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(plan.ranks[rank].size()); ++index) {
            if (follows_sums(plan, {rank, index})) last_sums = plan.ranks[rank][index].after;
        }
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(plan.ranks[rank].size()); ++index) {
            const plan::OpRef ref{rank, index};
            const plan::Op& op = plan.op(ref);
            if (op.kind == plan::OpKind::collective) {
                const auto backend = collectives.of(ref);
                if (!backend) return backend.error();
                backends[rank].push_back(*backend);
            } else if (op.backend == Backend::automatic) {
                const Backend best = device == Device::host ? Backend::host : Backend::copy_engine;
                if (const auto inlined = locals.of(ref)) {
                    backends[rank].push_back(*inlined);
                    continue;
                }
                if (kernel && plan.num_ranks() <= kMostSumStores + 1 && follows_sums(plan, ref) &&
                    sum_should_store(plan, op, preferred, op.after == last_sums) &&
                    objection(plan, ref, Backend::ldst_inline, device, kernel).empty()) {
                    backends[rank].push_back(Backend::ldst_inline);
                    continue;
                }
                const bool can = preferred != Backend::automatic &&
                                 objection(plan, ref, preferred, device, kernel).empty();
                std::string why = can ? std::string() : objection(plan, ref, best, device, kernel);
                if (!why.empty()) return error_at(ref, std::move(why));
                backends[rank].push_back(can ? preferred : best);
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

// Outputs that end before the kernel's masks do. With an inferred grid the programs that would store outside of a tensor
// are left out, and all looks well: programs beyond the grid are run as probes, as far as that is cheap.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"

namespace syncopate::kernel::triton {

/// What probes may cost together: some times what the launch's first and last program do, of which one is the
/// dearest in most kernels.
void Analysis::allow_probes() {
    constexpr std::int64_t kLeast = 1 << 12, kTimes = 48;
    Findings& found = evaluator_.found;
    const std::size_t touched = found.touched.size(), tiles = found.tiles.size();
    std::int64_t dearest = 0;
    for (const auto& id : {std::array<std::int64_t, 3>{},
                           std::array<std::int64_t, 3>{grid_[0] - 1, grid_[1] - 1, grid_[2] - 1}}) {
        const std::int64_t before = evaluator_.steps();
        (void)evaluator_.run(id, grid_);
        dearest = std::max(dearest, evaluator_.steps() - before);
    }
    found.touched.resize(touched);
    found.tiles.resize(tiles);
    probing_ = std::max(kLeast, kTimes * dearest);
}

/// Whether the program at `id` surely stores to memory outside of the tensor (true), or nothing to it (false). Where the
/// analysis has failed, one that divides by zero is none: it is in a group of tiles that has no rows left.
std::optional<bool> Analysis::leaves_at(const std::array<std::int64_t, 3>& id, std::int32_t memory) {
    if (probing_ < 1) return std::nullopt;
    Findings& found = evaluator_.found;
    const std::size_t touched = found.touched.size(), tiles = found.tiles.size();
    const std::int64_t before = evaluator_.steps();
    evaluator_.allow_steps(probing_);
    const Status status = evaluator_.run(id, {id[0] + 1, id[1] + 1, id[2] + 1});
    evaluator_.allow_steps(0);
    probing_ -= evaluator_.steps() - before;
    const auto all = std::span(found.touched).subspan(touched);
    const auto stores = [&](const Touch& touch) {
        return touch.write && !touch.shadow && touch.param == memory;
    };
    const bool any = std::ranges::any_of(all, stores);
    const bool leaves =
        std::ranges::any_of(all, [&](const Touch& touch) { return stores(touch) && touch.leaves; });
    found.touched.resize(touched);
    found.tiles.resize(tiles);
    if (!status && evaluator_.arithmetic_error && fails_) return false;
    return status && (leaves || !any) ? std::optional(leaves) : std::nullopt;
}

/// Whether a store to the tensor is masked.
bool Analysis::has_mask(std::int32_t memory) const {
    return std::ranges::any_of(evaluator_.found.accesses, [&](const auto& access) {
        const auto& [call, of] = access.first;
        const bool named = std::ranges::any_of(call->keywords, [](const auto& word) {
            return word.first == "mask" && word.second->text != "None";
        });
        return of == memory && access.second.stores && (named || call->kids.size() > 2);
    });
}

/// How many programs along an axis the kernel's masks, or its tile counts, let store to a tensor, where the grid that was found has
/// fewer since the tensor ends before; 0: it does not, or no mask ends them.
std::int64_t Analysis::masked_extent(std::int32_t memory, std::size_t axis) {
    std::array<std::int64_t, 3> id{};
    const auto leaves = [&](std::int64_t at) {
        id[axis] = at;
        return leaves_at(id, memory);
    };
    std::int64_t leaving = grid_[axis], beyond = 2 * leaving;
    if (leaves(leaving) != true) return 0;
    // Groups of tiles end by a division by zero rather than by a mask.
    if (axis == 0 && counted_ > leaving && has_mask(memory)) return counted_;
    for (;; beyond *= 2) {
        if (beyond > effort_.programs) return 0;
        const auto there = leaves(beyond);
        if (!there) return 0;
        if (!*there) break;
        leaving = beyond;
    }
    while (beyond - leaving > 1) {
        const std::int64_t middle = leaving + (beyond - leaving) / 2;
        (leaves(middle).value_or(false) ? leaving : beyond) = middle;
    }
    return probing_ > 0 ? beyond : 0;
}

/// What speaks for a tensor that is too small, or a number that is too large: with an inferred grid the programs
/// that would store outside of it are left out, and all looks well.
std::string Analysis::ends_early(std::int32_t memory) {
    if (arguments_.grid || persistent_) return {};
    if (probing_ < 0) allow_probes();
    const std::string grid =
        std::to_string(grid_[0]) + "," + std::to_string(grid_[1]) + "," + std::to_string(grid_[2]);
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (!used_[axis]) continue;
        const std::int64_t extent = masked_extent(memory, axis);
        if (extent == 0) continue;
        return tensor_text(memory) + " ends behind " + std::to_string(grid_[axis]) +
               (grid_[axis] == 1 ? " program" : " programs") + " along axis " + "xyz"[axis] +
               ", and the kernel's masks let " + std::to_string(extent) +
               " store: give the shapes and the numbers of one launch, or --grid " + grid +
               " if it has no more programs";
    }
    return {};
}

}  // namespace syncopate::kernel::triton

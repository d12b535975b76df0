#include "sync/validate.hpp"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::sync {
namespace {

using Complaint = std::optional<std::string>;

bool is_within(std::int64_t value, std::int64_t least, std::int64_t most) {
    return value >= least && value <= most;
}

/// Whether an end that the range has is an expression that nothing was read into.
bool has_empty_end(const affine::Range& range) {
    return (range.begin && range.begin->is_empty()) || (range.end && range.end->is_empty());
}

Complaint of_grid(const ChainStage& stage) {
    for (const std::int64_t count : stage.grid) {
        if (!is_within(count, 1, kMostBlocks))
            return fmt::format("its grid has {} blocks along an axis; expected 1 to {}", count, kMostBlocks);
    }
    if (stage.grid[0] * stage.grid[1] > kMostBlocks || stage.num_blocks() > kMostBlocks)
        return fmt::format("its grid is more than {} blocks", kMostBlocks);
    return std::nullopt;
}

Complaint of_order(const ChainStage& stage) {
    const Order& order = stage.order;
    if (order.kind == OrderKind::grouped && !is_within(order.rows, 1, kMostBlocks))
        return fmt::format("its order has groups of {} rows; expected 1 to {}", order.rows, kMostBlocks);
    if (order.kind != OrderKind::custom) return std::nullopt;
    const std::int64_t blocks = stage.num_blocks();
    std::vector<bool> seen(static_cast<std::size_t>(blocks), false);
    for (const std::int32_t tile : order.tiles) {
        if (!is_within(tile, 0, blocks - 1))
            return fmt::format("its order has tile {}; there are 0 to {}", tile, blocks - 1);
        if (seen[at(tile)]) return fmt::format("its order has tile {} twice", tile);
        seen[at(tile)] = true;
    }
    if (order.tiles.size() != seen.size())
        return fmt::format("its order has {} of {} tiles", order.tiles.size(), blocks);
    return std::nullopt;
}

Complaint of_policy(const Policy& policy) {
    if (!is_within(policy.stride, 0, kMostBlocks))
        return fmt::format("a stride of {} blocks; expected 0 to {}", policy.stride, kMostBlocks);
    if (!is_within(policy.group, 0, kMostBlocks))
        return fmt::format("groups of {} blocks; expected 0 to {}", policy.group, kMostBlocks);
    if (policy.count && !is_within(*policy.count, 0, kMostBlocks))
        return fmt::format("a count of {} posts; expected 0 to {}", *policy.count, kMostBlocks);
    if (policy.kind != PolicyKind::custom) return std::nullopt;
    if (!policy.semaphore || policy.semaphore->is_empty()) return "a custom policy without a semaphore";
    if (policy.awaited && has_empty_end(*policy.awaited))
        return "an awaited range of which an end is an empty expression";
    return std::nullopt;
}

class Validator {
public:
    explicit Validator(const Chain& chain) : chain_(chain) {}

    [[nodiscard]] std::optional<Malformed> find() const {
        const auto count = static_cast<std::int64_t>(chain_.stages.size());
        if (!is_within(count, 1, kMostStages))
            return Malformed{-1, -1, fmt::format("it has {} stages; expected 1 to {}", count, kMostStages)};
        for (const auto& [name, extents] : chain_.tensors) {
            if (Complaint why = of_tensor(name, extents)) return Malformed{-1, -1, *std::move(why)};
        }
        std::set<std::string> names;
        std::int64_t blocks = 0;
        for (std::size_t at = 0; at < chain_.stages.size(); ++at) {
            const ChainStage& stage = chain_.stages[at];
            Complaint why = of_stage(stage);
            if (!why && !names.insert(stage.name).second) why = "another stage has its name";
            if (!why && (blocks += stage.num_blocks()) > kMostBlocks)
                why = fmt::format("it takes the chain above {} blocks", kMostBlocks);
            if (why) return Malformed{static_cast<std::int32_t>(at), -1, *std::move(why)};
        }
        return std::nullopt;
    }

private:
    using Boxes = std::map<std::string, std::vector<BoxText>>;

    static Complaint of_tensor(const std::string& name, const std::vector<std::int64_t>& extents) {
        if (name.empty()) return "a tensor has no name";
        if (!is_within(static_cast<std::int64_t>(extents.size()), 0, kMostAxes))
            return fmt::format("tensor {} has {} axes; expected at most {}", name, extents.size(), kMostAxes);
        for (const std::int64_t extent : extents) {
            if (!is_within(extent, 1, kLargestExtent))
                return fmt::format("tensor {} has an extent of {}; expected 1 to {}", name, extent,
                                   kLargestExtent);
        }
        return std::nullopt;
    }

    [[nodiscard]] Complaint of_stage(const ChainStage& stage) const {
        if (stage.name.empty()) return "it has no name";
        if (Complaint why = of_grid(stage)) return why;
        if (Complaint why = of_order(stage)) return why;
        if (Complaint why = of_boxes(stage.reads)) return why;
        if (Complaint why = of_boxes(stage.writes)) return why;
        for (const std::string& tensor : stage.adds) {
            if (!stage.writes.contains(tensor))
                return fmt::format("it adds to {}, which it does not write", tensor);
        }
        if (Complaint why = of_policies(stage.waits, stage.reads, "waits for", "read")) return why;
        if (Complaint why = of_policies(stage.guards, stage.writes, "guards", "write")) return why;
        for (const std::string& tensor : stage.early) {
            if (!stage.reads.contains(tensor))
                return fmt::format("it reads {} early, which it does not read", tensor);
            if (stage.waits.contains(tensor))
                return fmt::format("it reads {} early, for which it also waits", tensor);
        }
        return std::nullopt;
    }

    [[nodiscard]] Complaint of_boxes(const Boxes& all) const {
        for (const auto& [tensor, boxes] : all) {
            const auto found = chain_.tensors.find(tensor);
            if (found == chain_.tensors.end())
                return fmt::format("it touches {}, which is not among the tensors", tensor);
            if (boxes.size() > static_cast<std::size_t>(kMostBoxes))
                return fmt::format("it touches {} boxes of {}; expected at most {}", boxes.size(), tensor,
                                   kMostBoxes);
            for (const BoxText& box : boxes) {
                if (box.size() != found->second.size())
                    return fmt::format("a box of {} has {} ranges; the tensor has {} axes", tensor,
                                       box.size(), found->second.size());
                for (const affine::Range& range : box) {
                    if (range.single && !range.begin)
                        return fmt::format("a range of {} is one element, and says not which", tensor);
                    if (has_empty_end(range))
                        return fmt::format("an end of a range of {} is an empty expression", tensor);
                }
            }
        }
        return std::nullopt;
    }

    [[nodiscard]] static Complaint of_policies(const std::map<std::string, Policy>& policies,
                                               const Boxes& touched, std::string_view does,
                                               std::string_view verb) {
        for (const auto& [tensor, policy] : policies) {
            if (!touched.contains(tensor))
                return fmt::format("it {} {}, which it does not {}", does, tensor, verb);
            if (Complaint why = of_policy(policy))
                return fmt::format("it {} {} by {}", does, tensor, *std::move(why));
        }
        return std::nullopt;
    }

    const Chain& chain_;
};

}  // namespace

std::optional<Malformed> find_malformed(const Chain& chain) { return Validator(chain).find(); }

}  // namespace syncopate::sync

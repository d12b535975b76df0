#include "syncopate/sync/generate.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "sync/block_values.hpp"
#include "sync/groups.hpp"
#include "sync/orders.hpp"
#include "sync/overlaps.hpp"
#include "sync/validate.hpp"
#include "syncopate/at.hpp"

namespace syncopate::sync {
namespace {

constexpr std::int64_t kMostWaits = std::int64_t{1} << 25;  // what takes about a GiB

class Generator {
public:
    explicit Generator(const Chain& chain) : chain_(chain) {}

    Generated run() && {
        if (std::optional<Malformed> found = find_malformed(chain_)) {
            made_.malformed.push_back(*std::move(found));
            return std::move(made_);
        }
        find_boxes();
        if (!made_.malformed.empty()) return std::move(made_);
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) find_needs(stage);
        if (!made_.malformed.empty()) return std::move(made_);
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) find_order(stage);
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) {
            add_inputs(stage);
            add_guards(stage);
        }
        return std::move(made_);
    }

private:
    void find_boxes() {
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) {
            for (const auto& [tensor, extents] : chain_.tensors) {
                Result<Footprints> found = footprints(chain_, chain_.stages[stage], tensor);
                if (!found) {
                    made_.malformed.push_back({static_cast<std::int32_t>(stage), -1, found.error().message});
                    return;
                }
                made_.boxes.push_back(*std::move(found));
            }
        }
    }

    [[nodiscard]] const Footprints& boxes(std::size_t stage, const std::string& tensor) const {
        const auto at = std::distance(chain_.tensors.begin(), chain_.tensors.find(tensor));
        return made_.boxes[stage * chain_.tensors.size() + static_cast<std::size_t>(at)];
    }

    /// An input of a stage and a stage that writes it.
    struct Need {
        std::string tensor;
        std::size_t from;
        Overlaps blocks;  ///< of the producer, by block of the consumer
    };

    /// Overlaps, of which too many are no chain that is judged.
    Overlaps listed(std::size_t stage, const std::string& tensor, const BlockBoxes& mine,
                    const BlockBoxes& others) {
        Overlaps made = overlaps(mine, others);
        if (made.cut_off) refuse_size(stage, tensor, kMostListed, "pairs of blocks that share elements");
        return made;
    }

    void refuse_size(std::size_t stage, const std::string& tensor, std::int64_t most, std::string_view what) {
        made_.malformed.push_back(
            {static_cast<std::int32_t>(stage), -1,
             fmt::format("too large to judge: {} takes the chain above {} {}", tensor, most, what)});
    }

    void find_needs(std::size_t stage) {
        std::vector<Need>& needs = needs_.emplace_back();
        for (const auto& [tensor, texts] : chain_.stages[stage].reads) {
            for (std::size_t from = 0; from < stage; ++from) {
                if (!chain_.stages[from].writes.contains(tensor)) continue;
                needs.push_back(
                    {tensor, from,
                     listed(stage, tensor, boxes(stage, tensor).reads, boxes(from, tensor).writes)});
            }
        }
    }

    // --- orders ---

    void find_order(std::size_t at) {
        const ChainStage& stage = chain_.stages[at];
        Order order = stage.order;
        if (order.kind != OrderKind::automatic) {
            made_.synchronization.orders.push_back(tiles_in_order(stage, order));
            made_.synchronization.order_kinds.push_back(order.kind);
            return;
        }
        std::vector<std::int32_t> best;
        double least = std::numeric_limits<double>::infinity();
        for (const OrderKind kind : {OrderKind::identity, OrderKind::transposed, OrderKind::grouped}) {
            order.kind = kind;
            std::vector<std::int32_t> tiles = tiles_in_order(stage, order);
            const double cost = mean_completion(at, tiles);
            if (cost < least) {
                least = cost;
                best = std::move(tiles);
                made_.synchronization.order_kinds.resize(at);
                made_.synchronization.order_kinds.push_back(kind);
            }
        }
        const std::vector<std::int32_t> by_kind = best;
        const std::vector<double> arrivals = expected_arrivals(at);
        std::ranges::stable_sort(best, {},
                                 [&](std::int32_t tile) { return arrivals[static_cast<std::size_t>(tile)]; });
        if (best != by_kind) made_.synchronization.order_kinds.back() = OrderKind::custom;
        made_.synchronization.orders.push_back(std::move(best));
    }

    /// The mean place of the last tile that each class of a consumer's blocks needs: what is needed together
    /// should be made together.
    [[nodiscard]] double mean_completion(std::size_t at, const std::vector<std::int32_t>& tiles) const {
        const std::vector<std::int32_t> places = places_in(tiles);
        double sum = 0;
        double classes = 0;
        for (std::size_t consumer = at + 1; consumer < needs_.size(); ++consumer) {
            for (const Need& need : needs_[consumer]) {
                if (need.from != at) continue;
                for (const std::vector<std::int32_t>& blocks : need.blocks.blocks) {
                    std::int32_t last = 0;
                    for (const std::int32_t block : blocks)
                        last = std::max(last, places[static_cast<std::size_t>(block)]);
                    sum += last;
                    classes += 1;
                }
            }
        }
        return classes == 0 ? 0 : sum / classes;
    }

    /// By tile: when the last of what it needs is made, as a part of its producer's time.
    [[nodiscard]] std::vector<double> expected_arrivals(std::size_t at) const {
        std::vector<double> arrivals(static_cast<std::size_t>(chain_.stages[at].num_blocks()), 0);
        for (const Need& need : needs_[at]) {
            const std::vector<std::int32_t> places = places_in(made_.synchronization.orders[need.from]);
            const auto total = static_cast<double>(places.size()) + 1;
            std::vector<double> of_class;
            for (const std::vector<std::int32_t>& blocks : need.blocks.blocks) {
                double& arrival = of_class.emplace_back(0);
                for (const std::int32_t block : blocks) {
                    const double place = (places[static_cast<std::size_t>(block)] + 1) / total;
                    // A producer that ends later makes all that it makes later.
                    arrival = std::max(arrival, static_cast<double>(need.from) + place);
                }
            }
            for (std::size_t tile = 0; tile < arrivals.size(); ++tile) {
                const auto own = static_cast<std::size_t>(need.blocks.class_of[tile]);
                arrivals[tile] = std::max(arrivals[tile], of_class[own]);
            }
        }
        return arrivals;
    }

    // --- waits ---

    void add_inputs(std::size_t stage) {
        const ChainStage& of = chain_.stages[stage];
        for (const auto& [tensor, texts] : of.reads) {
            if (of.is_early(tensor)) continue;
            const auto found = of.waits.find(tensor);
            const Policy policy = found == of.waits.end() ? Policy{} : found->second;
            bool any = false;
            for (const Need& need : needs_[stage]) {
                if (need.tensor != tensor) continue;
                any = true;
                add_link(stage, tensor, need.from, 0, policy, need.blocks);
                if (!made_.malformed.empty()) return;
            }
            if (of.writes.contains(tensor)) {
                any = true;
                const Overlaps within = earlier_tiles(stage, tensor);
                if (policy.kind != PolicyKind::automatic || !all_empty(within))
                    add_link(stage, tensor, stage, 0, policy, within);
            }
            if (!any && policy.kind != PolicyKind::automatic && policy.kind != PolicyKind::none) {
                made_.malformed.push_back(
                    {static_cast<std::int32_t>(stage), -1,
                     fmt::format("waits for {}, which no stage before it writes", tensor)});
            }
        }
    }

    static bool all_empty(const Overlaps& needs) {
        return std::ranges::all_of(needs.blocks, [](const auto& blocks) { return blocks.empty(); });
    }

    /// What a stage's tiles read of what its own earlier tiles write, each tile a class of its own.
    [[nodiscard]] Overlaps earlier_tiles(std::size_t stage, const std::string& tensor) {
        const Overlaps all = listed(stage, tensor, boxes(stage, tensor).reads, boxes(stage, tensor).writes);
        const std::vector<std::int32_t> places = places_in(made_.synchronization.orders[stage]);
        Overlaps made;
        made.class_of.resize(places.size());
        std::iota(made.class_of.begin(), made.class_of.end(), 0);
        made.blocks.resize(places.size());
        for (std::size_t tile = 0; tile < all.class_of.size() && made.listed <= kMostListed; ++tile) {
            std::ranges::copy_if(all.of(static_cast<std::int64_t>(tile)),
                                 std::back_inserter(made.blocks[tile]),
                                 [&](std::int32_t other) { return places[at(other)] < places[tile]; });
            made.listed += static_cast<std::int64_t>(made.blocks[tile].size());
        }
        if (made.listed > kMostListed)
            refuse_size(stage, tensor, kMostListed, "pairs of blocks that share elements");
        return made;
    }

    void add_guards(std::size_t stage) {
        for (const auto& [tensor, policy] : chain_.stages[stage].guards) {
            for (std::size_t reader = 0; reader < chain_.stages.size(); ++reader) {
                if (!chain_.stages[reader].reads.contains(tensor)) continue;
                add_link(stage, tensor, reader, 1, policy,
                         listed(stage, tensor, boxes(stage, tensor).writes, boxes(reader, tensor).reads));
            }
        }
    }

    void malformed_link(const Link& link, std::int64_t block, const std::string& what) {
        made_.malformed.push_back(
            {link.stage, block,
             fmt::format("{} of {}: {}", link.lag == 0 ? "the wait" : "the guard", link.tensor, what)});
    }

    void add_link(std::size_t stage, const std::string& tensor, std::size_t from, std::int32_t lag,
                  const Policy& policy, const Overlaps& needs) {
        if (!made_.malformed.empty()) return;
        const ChainStage& producer = chain_.stages[from];
        Link link;
        link.stage = static_cast<std::int32_t>(stage);
        link.tensor = tensor;
        link.from = static_cast<std::int32_t>(from);
        link.policy = link.found = policy.kind;
        link.lag = lag;
        link.waits.resize(static_cast<std::size_t>(chain_.stages[stage].num_blocks()));
        if (policy.kind == PolicyKind::none) {
            made_.synchronization.links.push_back(std::move(link));
            return;
        }
        Groups groups;
        if (policy.kind == PolicyKind::automatic) {
            groups = groups_by_need(needs, producer);
            link.found = recognise(groups, producer);
        } else if (policy.kind == PolicyKind::custom) {
            Result<Groups> made = groups_as_written(policy, producer);
            if (!made) return malformed_link(link, -1, made.error().message);
            groups = *std::move(made);
        } else {
            groups = groups_of(policy, producer);
        }
        link.array = array_of(from, std::move(groups));
        const bool filled = policy.kind == PolicyKind::custom ? await_as_written(policy, stage, link)
                                                              : await_what_is_needed(policy, needs, link);
        if (filled && within_posts(link)) made_.synchronization.links.push_back(std::move(link));
    }

    /// A guard is judged here: the call before has made all its posts, or never will.
    bool within_posts(const Link& link) {
        if (link.lag == 0) return true;
        const std::vector<std::int32_t>& posts = made_.synchronization.arrays[at(link.array)].posts;
        for (std::size_t block = 0; block < link.waits.size(); ++block) {
            for (const Wait& wait : link.waits[block]) {
                const auto semaphore = static_cast<std::size_t>(wait.semaphore);
                const std::int32_t made = semaphore < posts.size() ? posts[semaphore] : 0;
                if (wait.count <= made) continue;
                malformed_link(link, static_cast<std::int64_t>(block),
                               fmt::format("it awaits {} posts on semaphore {}, and a call makes {}",
                                           wait.count, wait.semaphore, made));
                return false;
            }
        }
        return true;
    }

    std::int32_t array_of(std::size_t stage, Groups groups) {
        std::vector<SemaphoreArray>& arrays = made_.synchronization.arrays;
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (arrays[i].stage == static_cast<std::int32_t>(stage) && arrays[i].of_block == groups)
                return static_cast<std::int32_t>(i);
        }
        SemaphoreArray made{static_cast<std::int32_t>(stage), std::move(groups), {}};
        for (const std::int32_t semaphore : made.of_block) {
            if (semaphore < 0) continue;
            if (static_cast<std::size_t>(semaphore) >= made.posts.size())
                made.posts.resize(static_cast<std::size_t>(semaphore) + 1, 0);
            ++made.posts[at(semaphore)];
        }
        arrays.push_back(std::move(made));
        return static_cast<std::int32_t>(arrays.size()) - 1;
    }

    /// Posts that semaphore `semaphore` of the link's array is awaited for.
    [[nodiscard]] std::int32_t count_of(const Policy& policy, const Link& link,
                                        std::int64_t semaphore) const {
        if (policy.count) return static_cast<std::int32_t>(*policy.count);
        const SemaphoreArray& array = made_.synchronization.arrays[at(link.array)];
        if (semaphore >= static_cast<std::int64_t>(array.posts.size())) return 1;
        return std::max(array.posts[at(semaphore)], 1);
    }

    /// So many waits more. False: the chain has too many.
    bool counted(const Link& link, std::size_t waits) {
        waits_ += static_cast<std::int64_t>(waits);
        if (waits_ <= kMostWaits) return true;
        refuse_size(static_cast<std::size_t>(link.stage), link.tensor, kMostWaits, "waits");
        return false;
    }

    bool await_what_is_needed(const Policy& policy, const Overlaps& needs, Link& link) {
        const std::vector<std::int32_t>& of_block = made_.synchronization.arrays[at(link.array)].of_block;
        std::vector<std::vector<Wait>> by_class;
        for (const std::vector<std::int32_t>& blocks : needs.blocks) {
            std::set<std::int32_t> semaphores;
            for (const std::int32_t block : blocks) semaphores.insert(of_block[at(block)]);
            std::vector<Wait>& waits = by_class.emplace_back();
            for (const std::int32_t semaphore : semaphores)
                waits.push_back({link.array, semaphore, count_of(policy, link, semaphore), link.lag});
        }
        for (const std::int32_t of : needs.class_of) {
            if (!counted(link, by_class[at(of)].size())) return false;
        }
        for (std::size_t block = 0; block < link.waits.size(); ++block)
            link.waits[block] = by_class[at(needs.class_of[block])];
        return true;
    }

    bool await_as_written(const Policy& policy, std::size_t stage, Link& link) {
        const BlockExpression own(*policy.semaphore);
        std::optional<BlockExpression> first, last;
        if (policy.awaited) {
            if (policy.awaited->begin) first.emplace(*policy.awaited->begin);
            if (policy.awaited->end) last.emplace(*policy.awaited->end);
        }
        const auto all = static_cast<std::int64_t>(made_.synchronization.arrays[at(link.array)].posts.size());
        for (std::int64_t block = 0; block < chain_.stages[stage].num_blocks(); ++block) {
            const Block at = chain_.stages[stage].block(block);
            Result<std::int64_t> begin =
                policy.awaited ? (first ? first->at(at) : std::int64_t{0}) : own.at(at);
            if (!begin) return malformed_link(link, block, begin.error().message), false;
            Result<std::int64_t> end = *begin + 1;
            if (policy.awaited && !policy.awaited->single)
                end = last ? last->at(at) : Result<std::int64_t>(all);
            if (!end) return malformed_link(link, block, end.error().message), false;
            if (*begin < 0 || *end > kMostBlocks) {
                malformed_link(link, block,
                               fmt::format("it awaits semaphores {} to {}; they are numbered from 0 to {}",
                                           *begin, *end - 1, kMostBlocks - 1));
                return false;
            }
            if (*end > *begin && !counted(link, static_cast<std::size_t>(*end - *begin))) return false;
            for (std::int64_t semaphore = *begin; semaphore < *end; ++semaphore) {
                link.waits[static_cast<std::size_t>(block)].push_back(
                    {link.array, static_cast<std::int32_t>(semaphore), count_of(policy, link, semaphore),
                     link.lag});
            }
        }
        return true;
    }

    const Chain& chain_;
    Generated made_;
    std::int64_t waits_ = 0;                ///< of all links
    std::vector<std::vector<Need>> needs_;  ///< by stage
};

}  // namespace

std::vector<Wait> Synchronization::waits_of(std::int32_t stage, std::int64_t block) const {
    std::vector<Wait> waits;
    for (const Link& link : links) {
        if (link.stage != stage) continue;
        const std::vector<Wait>& of = link.waits[at(block)];
        waits.insert(waits.end(), of.begin(), of.end());
    }
    std::ranges::sort(waits);
    const auto repeated = std::ranges::unique(waits);
    waits.erase(repeated.begin(), repeated.end());
    return waits;
}

Generated generate(const Chain& chain) { return Generator(chain).run(); }

}  // namespace syncopate::sync

#include "plan/check/chain_clocks.hpp"

#include <algorithm>

#include "syncopate/at.hpp"

namespace syncopate::plan {

ChainClocks::ChainClocks(const EventGraph& graph, const Followers& followers,
                         std::span<const std::int32_t> topological, Budget& budget)
    : graph_(graph), followers_(followers), topological_(topological), budget_(budget) {
    const auto count = at(graph.num_events());
    position_.resize(count);
    remaining_.resize(count);
    for (std::size_t i = 0; i < topological.size(); ++i)
        position_[at(topological[i])] = static_cast<std::int32_t>(i);
    for (std::int32_t event = 0; event < graph.num_events(); ++event)
        remaining_[at(event)] = static_cast<std::int32_t>(followers(event).size());
    make_chains(topological);
    const std::size_t bytes = blocks_ * sizeof(Block);
    feasible_ = widest_front(topological) <= kMaxBytes / std::max<std::size_t>(bytes, 1);
    if (feasible_) slot_.assign(count, -1);
}

/// An event goes on a chain that one of its waits is the end of so far, or begins a new one.
void ChainClocks::make_chains(std::span<const std::int32_t> topological) {
    chain_.resize(topological.size());
    number_.resize(topological.size());
    std::vector<std::int32_t> last;  // event of each chain
    for (const std::int32_t event : topological) {
        std::int32_t chain = -1;
        for (const std::int32_t earlier : graph_.waits(event)) {
            if (last[at(chain_[at(earlier)])] != earlier) continue;
            chain = chain_[at(earlier)];
            break;
        }
        if (chain < 0) {
            chain = static_cast<std::int32_t>(last.size());
            last.push_back(event);
            number_[at(event)] = 1;
        } else {
            number_[at(event)] = number_[at(last[at(chain)])] + 1;
            last[at(chain)] = event;
        }
        chain_[at(event)] = chain;
    }
    blocks_ = (last.size() + kBlock - 1) / kBlock;
}

/// The most clocks that are alive at once.
std::size_t ChainClocks::widest_front(std::span<const std::int32_t> topological) const {
    std::vector<std::int32_t> remaining = remaining_;
    std::size_t alive = 0;
    std::size_t widest = 0;
    for (const std::int32_t event : topological) {
        widest = std::max(widest, ++alive);
        for (const std::int32_t earlier : graph_.waits(event)) {
            if (--remaining[at(earlier)] == 0) --alive;
        }
        if (followers_(event).empty()) --alive;
    }
    return widest;
}

void ChainClocks::advance(std::int32_t position) {
    for (; swept_ < position && !budget_.exhausted(); ++swept_) {
        const std::int32_t event = topological_[at(swept_)];
        const auto waits = graph_.waits(event);
        if (!followers_(event).empty()) {
            if (free_slots_.empty()) {
                free_slots_.push_back(static_cast<std::int32_t>(clocks_.size() / blocks_));
                clocks_.resize(clocks_.size() + blocks_);
            }
            const std::int32_t slot = free_slots_.back();
            free_slots_.pop_back();
            slot_[at(event)] = slot;
            Block* const mine = &clocks_[at(slot) * blocks_];
            std::fill(mine, mine + blocks_, Block{});
            for (const std::int32_t earlier : waits) {
                const Block* const other = &clocks_[at(slot_[at(earlier)]) * blocks_];
                for (std::size_t block = 0; block < blocks_; ++block) {
                    for (std::size_t i = 0; i < kBlock; ++i)
                        mine[block].seen[i] = std::max(mine[block].seen[i], other[block].seen[i]);
                }
                budget_.spend(static_cast<std::int64_t>(blocks_));
            }
            mine[at(chain_[at(event)]) / kBlock].seen[at(chain_[at(event)]) % kBlock] = number_[at(event)];
        }
        for (const std::int32_t earlier : waits) {
            if (--remaining_[at(earlier)] > 0) continue;
            free_slots_.push_back(slot_[at(earlier)]);
            slot_[at(earlier)] = -1;
        }
    }
}

bool ChainClocks::sees(std::int32_t event, std::int32_t first) const {
    const Block* const clock = &clocks_[at(slot_[at(event)]) * blocks_];
    const std::size_t chain = at(chain_[at(first)]);
    return clock[chain / kBlock].seen[chain % kBlock] >= number_[at(first)];
}

std::optional<bool> ChainClocks::before(std::int32_t first, std::int32_t second, std::int32_t now) {
    advance(position_[at(now)]);
    if (budget_.exhausted()) return true;
    if (second == now) {  // its own clock is yet to be made, from these
        const auto waits = graph_.waits(second);
        return std::any_of(waits.begin(), waits.end(),
                           [&](std::int32_t earlier) { return sees(earlier, first); });
    }
    if (slot_[at(second)] < 0) return std::nullopt;
    return sees(second, first);
}

}  // namespace syncopate::plan

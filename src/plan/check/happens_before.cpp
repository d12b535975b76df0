#include "plan/check/happens_before.hpp"

#include <algorithm>

#include "syncopate/at.hpp"

namespace syncopate::plan {

HappensBefore::HappensBefore(const EventGraph& graph, const Followers& followers,
                             std::span<const std::int32_t> topological, Budget& budget)
    : graph_(graph), followers_(followers), budget_(budget), topological_(topological) {
    const auto count = static_cast<std::size_t>(graph.num_events());
    labels_.resize(count);
    backward_.visited.assign(count, 0);
    forward_.visited.assign(count, 0);
    for (const std::int32_t event : topological) {
        for (const std::int32_t earlier : graph.waits(event)) {
            labels_[at(event)].level = std::max(labels_[at(event)].level, labels_[at(earlier)].level + 1);
        }
    }
    for (std::size_t search = 0; search < kSearches; ++search) label(topological, search);
}

void HappensBefore::label(std::span<const std::int32_t> topological, std::size_t search) {
    // The searches differ in where they begin and which follower they try first: rising, falling, and by a
    // hash of the event.
    const auto nth = [&](std::int32_t event, std::size_t n) {
        const auto next = followers_(event);
        if (search == 0) return next[n];
        if (search == 1) return next[next.size() - 1 - n];
        return next[(n + static_cast<std::uint32_t>(event) * 0x9e3779b9U) % next.size()];
    };
    std::int32_t left = 0;  // events that the search has left
    std::vector<Side::Frame> stack;
    const auto enter = [&](std::int32_t event) {
        Interval& mine = labels_[at(event)].searches[search];
        mine.tree = mine.lowest = left;
        mine.rank = -2;  // on the stack
        stack.push_back({event, 0});
    };
    for (std::size_t i = 0; i < topological.size(); ++i) {
        const std::int32_t root = search == 1 ? topological[topological.size() - 1 - i] : topological[i];
        if (!graph_.waits(root).empty()) continue;
        enter(root);
        while (!stack.empty()) {
            auto& [event, next] = stack.back();
            Interval& mine = labels_[at(event)].searches[search];
            if (next < followers_(event).size()) {
                const std::int32_t follower = nth(event, next++);
                const Interval& other = labels_[at(follower)].searches[search];
                if (other.rank == -1) {
                    enter(follower);
                } else {
                    mine.lowest = std::min(mine.lowest, other.lowest);
                }
                continue;
            }
            mine.rank = left++;
            const std::int32_t lowest = mine.lowest;
            stack.pop_back();
            if (!stack.empty()) {
                std::int32_t& above = labels_[at(stack.back().event)].searches[search].lowest;
                above = std::min(above, lowest);
            }
        }
    }
}

HappensBefore::Guess HappensBefore::guess(std::int32_t first, std::int32_t second) const {
    const Label& a = labels_[at(first)];
    const Label& b = labels_[at(second)];
    if (b.level <= a.level) return Guess::no;
    bool yes = false;
    for (std::size_t i = 0; i < kSearches; ++i) {
        const Interval& mine = a.searches[i];
        const Interval& other = b.searches[i];
        if (other.rank > mine.rank || other.lowest < mine.lowest) return Guess::no;
        yes |= other.rank >= mine.tree;
    }
    return yes ? Guess::yes : Guess::open;
}

HappensBefore::Step HappensBefore::advance(Side& side, std::int32_t goal) {
    const bool back = &side == &backward_;
    auto& [event, next] = side.stack.back();
    const std::span<const std::int32_t> neighbours = back ? graph_.waits(event) : followers_(event);
    if (next == neighbours.size()) {
        side.stack.pop_back();
        return side.stack.empty() ? Step::exhausted : Step::going;
    }
    const std::int32_t here = neighbours[next++];
    if (here == goal) return Step::found;
    if (side.visited[at(here)] == search_) return Step::going;
    side.visited[at(here)] = search_;
    const Guess guessed = back ? guess(goal, here) : guess(here, goal);
    if (guessed == Guess::open) side.stack.push_back({here, 0});
    return guessed == Guess::yes ? Step::found : Step::going;
}

bool HappensBefore::before(std::int32_t first, std::int32_t second) {
    budget_.spend();
    if (first == second) return false;
    if (const Guess guessed = guess(first, second); guessed != Guess::open) return guessed == Guess::yes;
    const auto waits = graph_.waits(second);
    if (std::binary_search(waits.begin(), waits.end(), first)) return true;
    if (clocks_) {
        if (const std::optional<bool> answer = ask_clocks(first, second)) return *answer;
    }
    return search(first, second);
}

bool HappensBefore::search(std::int32_t first, std::int32_t second) {
    if (++search_ == 0) {  // the stamps have gone round
        std::fill(backward_.visited.begin(), backward_.visited.end(), 0);
        std::fill(forward_.visited.begin(), forward_.visited.end(), 0);
        search_ = 1;
    }
    backward_.stack.assign(1, {second, 0});
    forward_.stack.assign(1, {first, 0});
    for (std::int64_t edges = 0; !budget_.exhausted(); ++edges) {
        budget_.spend(2);
        for (const Step step : {advance(backward_, first), advance(forward_, second)}) {
            if (step != Step::going) return step == Step::found;
        }
        if (edges != kLongSearch || ++long_searches_ < kManySearches) continue;
        if (const std::optional<bool> answer = ask_clocks(first, second)) return *answer;
    }
    return true;
}

std::optional<bool> HappensBefore::ask_clocks(std::int32_t first, std::int32_t second) {
    if (now_ < 0) return std::nullopt;
    if (!clocks_) clocks_.emplace(graph_, followers_, topological_, budget_);
    if (!clocks_->feasible()) return std::nullopt;
    return clocks_->before(first, second, now_);
}

}  // namespace syncopate::plan

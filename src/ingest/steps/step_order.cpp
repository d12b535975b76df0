#include "ingest/steps/step_order.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::ingest {

std::string describe(const Step& step) { return fmt::format("rank {} {}", step.rank, step.origin.place); }

StepOrder::StepOrder(const Schedule& schedule) : steps_(schedule.steps) {
    const std::size_t count = steps_.size();
    const auto follows_in_worker = [&](std::size_t step) {
        return step > 0 && steps_[step].worker == steps_[step - 1].worker;
    };
    begin_.assign(count + 1, 0);
    for (std::size_t step = 0; step < count; ++step) begin_[step + 1] += follows_in_worker(step) ? 1 : 0;
    for (const Edge& edge : schedule.edges) ++begin_[at(edge.after) + 1];
    for (std::size_t step = 0; step < count; ++step) begin_[step + 1] += begin_[step];
    waits_.resize(begin_.back());
    std::vector<std::size_t> fill(begin_.begin(), begin_.end() - 1);
    for (std::size_t step = 0; step < count; ++step) {
        if (follows_in_worker(step)) {
            waits_[fill[step]++] = {static_cast<std::int32_t>(step) - 1, Edge::Kind::data};
        }
    }
    for (const Edge& edge : schedule.edges) waits_[fill[at(edge.after)]++] = {edge.before, edge.kind};

    topological_ = topological_order(Followers(count, [&](auto&& edge) {
        for (std::size_t step = 0; step < count; ++step) {
            const auto after = static_cast<std::int32_t>(step);
            for (const Wait& wait : incoming(after)) edge(wait.step, after);
        }
    }));
    level_.assign(count, 0);
    for (const std::int32_t step : topological_) {
        for (const Wait& wait : incoming(step))
            level_[at(step)] = std::max(level_[at(step)], level_[at(wait.step)] + 1);
    }
    visited_.assign(count, 0);
}

std::span<const StepOrder::Wait> StepOrder::incoming(std::int32_t step) const {
    return std::span<const Wait>(waits_).subspan(begin_[at(step)], begin_[at(step) + 1] - begin_[at(step)]);
}

std::vector<std::int32_t> StepOrder::waits(std::int32_t step, bool messages) const {
    std::vector<std::int32_t> steps;
    for (const Wait& wait : incoming(step)) {
        if (messages || wait.kind != Edge::Kind::message) steps.push_back(wait.step);
    }
    return steps;
}

std::vector<std::int32_t> StepOrder::cycle() const {
    std::vector<bool> stuck(steps_.size(), true);
    for (const std::int32_t step : topological_) stuck[at(step)] = false;
    // Every stuck step waits for a stuck one: going back from any of them comes round.
    auto step = static_cast<std::int32_t>(std::find(stuck.begin(), stuck.end(), true) - stuck.begin());
    std::vector<std::int32_t> path;
    std::vector<std::int32_t> place(steps_.size(), -1);
    while (place[at(step)] < 0) {
        place[at(step)] = static_cast<std::int32_t>(path.size());
        path.push_back(step);
        const auto waits = incoming(step);
        step = std::find_if(waits.begin(), waits.end(), [&](const Wait& wait) {
                   return stuck[at(wait.step)];
               })->step;
    }
    path.erase(path.begin(), path.begin() + place[at(step)]);
    return path;
}

std::optional<bool> StepOrder::before(std::int32_t first, std::int32_t second) {
    const std::int32_t floor = level_[at(first)];
    const std::int32_t worker = steps_[at(first)].worker;
    if (level_[at(second)] <= floor) return false;
    if (steps_[at(second)].worker == worker) return true;
    ++search_;
    stack_.assign(1, second);
    while (!stack_.empty()) {
        const std::int32_t step = stack_.back();
        stack_.pop_back();
        for (const Wait& wait : incoming(step)) {
            if (++looks_ > kMaxLooks) return std::nullopt;
            if (wait.kind == Edge::Kind::order || level_[at(wait.step)] < floor) continue;
            if (steps_[at(wait.step)].worker == worker) {
                if (wait.step >= first) return true;
                continue;
            }
            if (visited_[at(wait.step)] == search_) continue;
            visited_[at(wait.step)] = search_;
            stack_.push_back(wait.step);
        }
    }
    return false;
}

}  // namespace syncopate::ingest

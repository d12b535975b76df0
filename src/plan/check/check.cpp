#include "syncopate/plan/check/check.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::plan {

std::string_view name_of(Finding::Kind kind) {
    static constexpr std::array<std::string_view, 8> kNames{"malformed",
                                                            "cycle",
                                                            "early_read",
                                                            "write_race",
                                                            "overwrite",
                                                            "duplicate_contribution",
                                                            "missing_contribution",
                                                            "final_not_reached"};
    return kNames[at(kind)];
}

std::string Finding::to_string() const {
    Location where;
    where.rank = rank;
    where.op = op;
    const std::string place = where.to_string();
    return fmt::format("{}{}{}: {}", place, place.empty() ? "" : ": ", name_of(kind), message);
}

std::string to_string(const Plan& plan, const Chunk& chunk) {
    return region_text(plan.tensors[at(chunk.tensor)], chunk.region);
}

std::vector<std::size_t> key_axes(const Plan& plan) {
    std::vector<std::vector<std::unordered_set<std::int64_t>>> begins;  // by tensor, by axis
    std::vector<std::vector<std::int64_t>> last;                        // likewise: what was added last
    for (const Tensor& tensor : plan.tensors) {
        begins.emplace_back(tensor.shape.size());
        last.emplace_back(tensor.shape.size(), -1);
    }
    const auto add = [&](const Chunk& chunk) {
        auto& by_axis = begins[at(chunk.tensor)];
        for (std::size_t axis = 0; axis < by_axis.size(); ++axis) {
            const std::int64_t begin = chunk.region[axis].begin;
            if (std::exchange(last[at(chunk.tensor)][axis], begin) != begin) by_axis[axis].insert(begin);
        }
    };
    for (const std::vector<Op>& ops : plan.ranks) {
        for (const Op& op : ops) {
            add(op.src);
            add(op.dst);
        }
    }
    std::vector<std::size_t> axes;
    for (const auto& by_axis : begins) {
        const auto most = std::max_element(by_axis.begin(), by_axis.end(),
                                           [](const auto& a, const auto& b) { return a.size() < b.size(); });
        axes.push_back(static_cast<std::size_t>(most - by_axis.begin()));
    }
    return axes;
}

namespace {
constexpr std::size_t kManyFindings = 1000;
}

std::vector<Finding> check(const Plan& plan) {
    std::vector<Finding> findings = check_outline(plan);
    if (!findings.empty()) return findings;
    const auto add = [&](std::vector<Finding> more) {
        std::move(more.begin(), more.end(), std::back_inserter(findings));
    };
    const CollectiveMatch collectives = match_collectives(plan);
    const EventGraph graph(plan, collectives.groups);
    const Followers followers = followers_of(graph);
    const std::vector<std::int32_t> order = topological_order(followers);
    Budget budget(steps_to_check(entries_of(plan)));
    add(check_malformed(plan, collectives, budget));
    add(check_cycles(plan, graph, order));
    if (findings.empty()) {
        const std::vector<std::size_t> axes = key_axes(plan);
        const Cells cells(plan, graph, axes, budget);
        add(check_order(plan, graph, followers, order, axes, cells, budget));
        if (findings.size() < kManyFindings) {
            add(check_result(plan, graph, order, axes, cells, budget));
        } else {
            findings.push_back({Finding::Kind::final_not_reached, -1, -1,
                                fmt::format("not looked at, nor what is summed twice or missing: {} ops are "
                                            "out of order, and what ranks hold at the end follows from the "
                                            "order; mend these first",
                                            findings.size())});
        }
    }
    if (budget.exhausted()) {
        findings.push_back({Finding::Kind::malformed, -1, -1,
                            "too intricate to verify: its regions overlap, or its waits cross, in more ways "
                            "than check follows; use larger or aligned chunks, or wait for an op that itself "
                            "waits for many"});
    }
    std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
        return std::tie(a.kind, a.rank, a.op) < std::tie(b.kind, b.rank, b.op);
    });
    return findings;
}

}  // namespace syncopate::plan

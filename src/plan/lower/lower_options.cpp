// What is asked of lower_collectives, and whether it can be had.
#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/lower/lower_collective.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr std::array<std::string_view, 3> kLowerings{"direct", "template", "synth"};

/// What the options say of synthesis, whether or not the plan has a collective for it.
Status judge_synthesis(const LowerOptions& options, const Plan& plan) {
    const auto synthesises = [](const LowerRule& rule) { return rule.with == Lowering::synthesised; };
    const bool some = options.with == Lowering::synthesised ||
                      std::any_of(options.rules.begin(), options.rules.end(), synthesises);
    const bool all = options.with == Lowering::synthesised &&
                     std::none_of(options.rules.begin(), options.rules.end(),
                                  [](const LowerRule& rule) { return rule.with == Lowering::templated; });
    if (options.split < (all ? 0 : 1)) {
        return usage_error(fmt::format("split is {}; expected at least 1{}", options.split,
                                       all ? ", or 0 for as many as are fastest" : ""));
    }
    if (!some) {
        if (!options.topology && options.seed == 0) return Done{};
        return usage_error(
            "a topology and a seed are for collectives that are synthesised; lower some with synth");
    }
    if (!options.topology) return usage_error("synth needs a topology: the machine to find transfers for");
    if (options.pull) return usage_error("pull is for templates: what is synthesised is pushed");
    if (plan.num_ranks() > options.topology->num_devices()) {
        return usage_error(fmt::format("the plan has {} ranks, but topology {} has {} devices",
                                       plan.num_ranks(), options.topology->name,
                                       options.topology->num_devices()));
    }
    return Done{};
}

/// "2:5": rank and index.
std::optional<OpRef> op_from(std::string_view text) {
    OpRef ref;
    const char* const end = text.data() + text.size();
    const auto rank = std::from_chars(text.data(), end, ref.rank);
    if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':') return std::nullopt;
    const auto index = std::from_chars(rank.ptr + 1, end, ref.index);
    if (index.ec != std::errc() || index.ptr != end || ref.rank < 0 || ref.index < 0) return std::nullopt;
    return ref;
}

}  // namespace

std::string_view name_of(Lowering lowering) { return kLowerings[at(lowering)]; }

std::optional<Lowering> lowering_from(std::string_view name) {
    const auto* const found = std::find(kLowerings.begin(), kLowerings.end(), name);
    if (found == kLowerings.end()) return std::nullopt;
    return static_cast<Lowering>(found - kLowerings.begin());
}

Result<LowerRule> parse_lower_rule(std::string_view text) {
    const std::size_t sign = text.find('=');
    const std::string_view which = sign == text.npos ? "" : text.substr(0, sign);
    const std::string_view way = sign == text.npos ? text : text.substr(sign + 1);
    LowerRule rule;
    const std::optional<Lowering> with = lowering_from(way);
    if (!with) {
        return usage_error(fmt::format("collectives cannot be lowered by \"{}\"; expected {}", way,
                                       fmt::join(kLowerings, ", ")));
    }
    rule.with = *with;
    if (sign == text.npos) return rule;
    rule.op = op_from(which);
    std::vector<std::string_view> kinds;
    for (std::size_t i = 0; i < kNumCollectiveKinds; ++i) {
        kinds.push_back(name_of(static_cast<CollectiveKind>(i)));
        if (kinds.back() == which) rule.kind = static_cast<CollectiveKind>(i);
    }
    if (!rule.op && !rule.kind) {
        return usage_error(
            fmt::format("\"{}\" names no collectives; expected RANK:INDEX of an op, or one of {}", which,
                        fmt::join(kinds, ", ")));
    }
    return rule;
}

Lowering lowering_for(const Plan& plan, const CollectiveGroup& members, const LowerOptions& options) {
    Lowering with = options.with;
    for (const LowerRule& rule : options.rules) {
        const bool fits = rule.op ? std::find(members.begin(), members.end(), *rule.op) != members.end()
                                  : !rule.kind || *rule.kind == plan.op(members.front()).collective;
        if (fits) with = rule.with;
    }
    return with;
}

Algorithm algorithm_for(CollectiveKind kind, const LowerOptions& options) {
    const std::vector<Algorithm>& known = find_template(kind)->algorithms;
    const bool has = std::find(known.begin(), known.end(), options.algorithm) != known.end();
    return has ? options.algorithm : known.front();
}

Status judge(const LowerOptions& options, const std::vector<CollectiveGroup>& groups, const Plan& plan) {
    SYNCOPATE_TRY(judge_synthesis(options, plan));
    for (const LowerRule& rule : options.rules) {
        const auto has = [&](const CollectiveGroup& group) {
            return std::find(group.begin(), group.end(), *rule.op) != group.end();
        };
        if (rule.op && std::none_of(groups.begin(), groups.end(), has)) {
            return usage_error(
                fmt::format("op {} of rank {} is no collective of the plan", rule.op->index, rule.op->rank));
        }
    }
    if (options.algorithm == Algorithm::automatic || groups.empty()) return Done{};
    std::vector<std::string_view> kinds;
    for (const CollectiveGroup& group : groups) {
        if (lowering_for(plan, group, options) != Lowering::templated) continue;
        const CollectiveKind kind = plan.op(group.front()).collective;
        if (algorithm_for(kind, options) == options.algorithm) return Done{};
        if (std::find(kinds.begin(), kinds.end(), name_of(kind)) == kinds.end())
            kinds.push_back(name_of(kind));
    }
    return usage_error(fmt::format(
        "no collective of the plan that a template lowers has the algorithm \"{}\"; there are: {}",
        name_of(options.algorithm), kinds.empty() ? "none" : fmt::format("{}", fmt::join(kinds, ", "))));
}

}  // namespace syncopate::plan

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/templates/template_setup.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// What a member's op reads and writes.
struct Ends {
    Chunk src;
    Chunk dst;
};

Ends ends_of(const Setup& setup, CollectiveKind kind, std::int32_t member, std::int32_t to_axis) {
    switch (kind) {
        case CollectiveKind::all_gather: return {setup.shard(member), setup.whole()};
        case CollectiveKind::reduce_scatter: return {setup.whole(), setup.shard(member)};
        case CollectiveKind::all_to_all: {
            const std::vector<Interval> columns =
                split_evenly(0, setup.tensor.shape[at(to_axis)], setup.size());
            return {setup.shard(member), {0, with_axis(setup.whole().region, to_axis, columns[at(member)])}};
        }
        default: return {setup.whole(), setup.whole()};
    }
}

}  // namespace

Result<Plan> make_collective(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                             const TemplateOptions& options) {
    const auto usage = [&](std::string message) {
        return usage_error(fmt::format("{}: {}", name, std::move(message)));
    };
    const Template* found = find_template(name);
    if (found == nullptr) return make_plan(name, mesh, tensor, options);  // which says so
    if (!found->collective) return usage("no library has it; lower it by the template");
    const TemplateOptions kept{.axis = options.axis,
                               .over = options.over,
                               .group = options.group,
                               .produced = options.produced,
                               .to_axis = options.to_axis,
                               .root = options.root,
                               .reduce = options.reduce};
    if (options != kept) {
        return usage(
            "a library executes the op in its own way; of the options only axis, over, group, produced, "
            "to_axis, root and reduce fit it");
    }
    const CollectiveKind kind = *found->collective;
    SYNCOPATE_TAKE(Setup prepared, prepare(name, mesh, tensor, options));
    Setup& setup = prepared;
    std::int32_t to_axis = 0;
    if (kind == CollectiveKind::all_to_all) {
        SYNCOPATE_TAKE(const std::int32_t axis, all_to_all_axis(tensor, options));
        to_axis = axis;
    }
    const std::int32_t root = options.root;
    if (root < 0 || root >= setup.size()) {
        return usage(
            fmt::format("root is {}; among {} ranks expected 0 to {}", root, setup.size(), setup.size() - 1));
    }
    const bool reduces = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < setup.size(); ++member) {
            const Ends ends = ends_of(setup, kind, member, to_axis);
            if (is_empty(ends.src.region) || is_empty(ends.dst.region)) {
                return usage(fmt::format(
                    "rank {} would have nothing, and an op has to move something; lower it by the template",
                    team.rank(member)));
            }
            if (kind != CollectiveKind::broadcast || member == root)
                setup.start(team.rank(member), ends.src, reduces);
            if (reduces) {
                setup.end_reduced(team, team.rank(member), ends.dst);
            } else {
                setup.end(team.rank(member), ends.dst);
            }
        }
    }
    Result<Plan> plan = setup.finish(true);
    if (!plan) return plan;
    for (const Team& team : setup.teams) {
        std::vector<std::int32_t> ranks = team.ranks;
        // A broadcast comes from the first rank listed.
        std::rotate(ranks.begin(), ranks.begin() + root, ranks.end());
        for (std::int32_t member = 0; member < setup.size(); ++member) {
            Ends ends = ends_of(setup, kind, member, to_axis);
            Op& op = plan->ranks[at(team.rank(member))].emplace_back();
            op.kind = OpKind::collective;
            op.collective = kind;
            op.src = std::move(ends.src);
            op.dst = std::move(ends.dst);
            op.ranks = ranks;
            if (reduces) op.reduce = options.reduce;
        }
    }
    return plan;
}

}  // namespace syncopate::plan

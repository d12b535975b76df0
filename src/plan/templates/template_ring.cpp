#include "syncopate/plan/templates/ring.hpp"
#include "syncopate/try.hpp"

#include <fmt/format.h>

#include "plan/templates/template_setup.hpp"

namespace syncopate::plan {

Result<Plan> ring(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare("ring", mesh, tensor, options));
    Setup& setup = prepared;
    const std::int32_t n = setup.size();
    if (options.steps < -1 || options.steps >= n) {
        return usage_error(fmt::format("ring: steps is {}; among {} ranks expected 0 to {}, or -1 for all",
                                       options.steps, n, n - 1));
    }
    const std::int32_t steps = options.steps == -1 ? n - 1 : options.steps;
    SYNCOPATE_TRY(setup.bounded(setup.shard_regions(), steps));

    const Gather data{[&](std::int32_t member) { return setup.shard(member); },
                      [&](std::int32_t, std::int32_t piece) { return setup.shard(piece); }};
    const bool both_ways = setup.options.algorithm == Algorithm::bidirectional;
    const std::int32_t right = both_ways ? (steps + 1) / 2 : steps;
    const std::int32_t left = both_ways ? steps / 2 : 0;
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < n; ++member) {
            setup.start(team.rank(member), setup.shard(member));
            for (std::int32_t hop = -left; hop <= right; ++hop)
                setup.end(team.rank(member), setup.shard((member - hop + n) % n));
        }
        gather_ring(setup.script(team), data, right, left);
    }
    return setup.finish();
}

}  // namespace syncopate::plan

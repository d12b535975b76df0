#include "syncopate/plan/templates/reduce_scatter.hpp"
#include "syncopate/try.hpp"

#include "plan/templates/template_setup.hpp"

namespace syncopate::plan {

Result<Plan> reduce_scatter(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare("reduce_scatter", mesh, tensor, options));
    Setup& setup = prepared;
    const std::int32_t n = setup.size();
    SYNCOPATE_TRY(setup.bounded(setup.shard_regions(), n - 1));

    const auto shard = [&](std::int32_t, std::int32_t piece) { return setup.shard(piece); };
    const Reduction data{shard, shard, options.reduce};
    const Algorithm algorithm = setup.options.algorithm;
    const Team& any = setup.teams.front();
    Slots slots = setup.shard_slots(
        algorithm == Algorithm::hierarchical ? std::int64_t{any.outer()} * (any.inner - 1) : n - 1);
    Slots outer_slots = setup.shard_slots(any.outer() - 1, ".node-staging");
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < n; ++member) {
            setup.start(team.rank(member), setup.whole(), true);
            setup.end_reduced(team, team.rank(member), setup.shard(member));
        }
        const Script script = setup.script(team);
        switch (algorithm) {
            case Algorithm::ring: reduce_ring(script, data); break;
            case Algorithm::hierarchical: reduce_hierarchical(script, data, slots, outer_slots); break;
            default: reduce_direct(script, data, slots); break;
        }
    }
    return setup.finish();
}

}  // namespace syncopate::plan

#include "syncopate/plan/templates/all_reduce.hpp"
#include "syncopate/try.hpp"

#include "plan/templates/template_setup.hpp"

namespace syncopate::plan {

Result<Plan> all_reduce(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare("all_reduce", mesh, tensor, options));
    Setup& setup = prepared;
    const std::int32_t n = setup.size();
    const Algorithm algorithm = setup.options.algorithm;
    const bool one_shot = algorithm == Algorithm::one_shot;
    const std::vector<Region> pieces =
        one_shot ? std::vector<Region>(static_cast<std::size_t>(n), setup.whole().region)
                 : setup.shard_regions();
    SYNCOPATE_TRY(setup.bounded(pieces, n - 1));

    const auto piece_of = [&](std::int32_t, std::int32_t piece) {
        return one_shot ? setup.whole() : setup.shard(piece);
    };
    const Reduction reduction{piece_of, piece_of, options.reduce};
    const Gather result{[&](std::int32_t member) { return setup.shard(member); }, piece_of};
    const Team& any = setup.teams.front();
    Slots slots = one_shot ? setup.whole_slots(n - 1)
                           : setup.shard_slots(algorithm == Algorithm::hierarchical
                                                   ? std::int64_t{any.outer()} * (any.inner - 1)
                                                   : n - 1);
    Slots outer_slots = setup.shard_slots(any.outer() - 1, ".node-staging");
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < n; ++member) {
            setup.start(team.rank(member), setup.whole(), true);
            setup.end_reduced(team, team.rank(member), setup.whole());
        }
        Script script = setup.script(team);
        script.paced = true;
        switch (algorithm) {
            case Algorithm::one_shot: reduce_direct(script, reduction, slots); break;
            case Algorithm::ring:
                reduce_ring(script, reduction);
                gather_ring(script, result, n - 1, 0);
                break;
            case Algorithm::hierarchical:
                reduce_hierarchical(script, reduction, slots, outer_slots);
                gather_hierarchical(script, result);
                break;
            default:
                reduce_direct(script, reduction, slots);
                gather_direct(script, result);
                break;
        }
    }
    return setup.finish();
}

}  // namespace syncopate::plan

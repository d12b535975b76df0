#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/ring.hpp"
#include "syncopate/try.hpp"

#include "plan/templates/template_setup.hpp"

namespace syncopate::plan {
namespace {

/// By the template of this name.
Result<Plan> gathered(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                      const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare(name, mesh, tensor, options));
    Setup& setup = prepared;
    const std::int32_t n = setup.size();
    SYNCOPATE_TRY(setup.bounded(setup.shard_regions(), n - 1));

    const Gather data{[&](std::int32_t member) { return setup.shard(member); },
                      [&](std::int32_t, std::int32_t piece) { return setup.shard(piece); }};
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < n; ++member) {
            setup.start(team.rank(member), setup.shard(member));
            setup.end(team.rank(member), setup.whole());
        }
        const Script script = setup.script(team);
        switch (setup.options.algorithm) {
            case Algorithm::ring: gather_ring(script, data, n - 1, 0); break;
            case Algorithm::bidirectional: gather_ring(script, data, n / 2, (n - 1) / 2); break;
            case Algorithm::double_ring: gather_double_ring(script, data); break;
            case Algorithm::hierarchical: gather_hierarchical(script, data); break;
            default: gather_direct(script, data, options.peer_by_peer); break;
        }
    }
    // Direct, nothing that is read is ever written; hierarchical, transfers name what has brought what they pass on.
    return setup.finish(setup.options.algorithm == Algorithm::direct ||
                        setup.options.algorithm == Algorithm::hierarchical);
}

}  // namespace

Result<Plan> all_gather(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    return gathered("all_gather", mesh, tensor, options);
}

Result<Plan> double_ring(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    return gathered("double_ring", mesh, tensor, options);
}

}  // namespace syncopate::plan

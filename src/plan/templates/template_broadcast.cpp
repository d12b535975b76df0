#include "syncopate/plan/templates/broadcast.hpp"
#include "syncopate/try.hpp"

#include <fmt/format.h>

#include "plan/templates/template_setup.hpp"

namespace syncopate::plan {

Result<Plan> broadcast(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare("broadcast", mesh, tensor, options));
    Setup& setup = prepared;
    const std::int32_t n = setup.size();
    const std::int32_t root = options.root;
    if (root < 0 || root >= n) {
        return usage_error(
            fmt::format("broadcast: root is {}; among {} ranks expected 0 to {}", root, n, n - 1));
    }
    SYNCOPATE_TRY(setup.bounded({setup.whole().region}, n - 1));

    const Gather data{[&](std::int32_t) { return setup.whole(); },
                      [&](std::int32_t, std::int32_t) { return setup.whole(); }};
    for (const Team& team : setup.teams) {
        setup.start(team.rank(root), setup.whole());
        for (const std::int32_t rank : team.ranks) setup.end(rank, setup.whole());
        const Script script = setup.script(team);
        switch (setup.options.algorithm) {
            case Algorithm::chain: broadcast_chain(script, data, root); break;
            case Algorithm::tree: broadcast_tree(script, data, root); break;
            default: broadcast_direct(script, data, root); break;
        }
    }
    return setup.finish();
}

}  // namespace syncopate::plan

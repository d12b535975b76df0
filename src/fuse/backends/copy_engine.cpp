// copy_engine: one 3D copy a transfer, in copy streams; a sum is a kernel of its own in a stream beside them.
#include "fuse/backends/rows.hpp"
#include "syncopate/fuse/model/strided.hpp"

namespace syncopate::fuse {

BackendTraits copy_engine_row() {
    return {.backend = plan::Backend::copy_engine,
            .on_cuda = true,
            .lane = LaneKind::copies,
            .in_order = true,
            .objection = [](const Carrying& asked) -> std::string {
                const plan::Op& op = asked.plan.op(asked.ref);
                if (is_sum(op)) return {};
                if (op.reduce != plan::Reduce::none) {
                    return std::string(name_of(asked.backend)) + " cannot reduce (" +
                           std::string(name_of(op.reduce)) + ")";
                }
                return level_objection(asked.plan, op.src, op.dst, asked.backend);
            }};
}

}  // namespace syncopate::fuse

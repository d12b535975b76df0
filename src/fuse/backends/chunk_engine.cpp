// tma_dedicated, ldst_dedicated: the chunk engine copies and sums on multiprocessors of its own, by bulk
// copies or by loads and stores. On device host the CPU interprets its table.
#include "fuse/backends/rows.hpp"
#include "syncopate/fuse/model/strided.hpp"

namespace syncopate::fuse {

BackendTraits chunk_engine_row(plan::Backend method) {
    return {.backend = method,
            .on_host = true,
            .on_cuda = true,
            .lane = LaneKind::engine,
            .objection = [](const Carrying& asked) {
                const plan::Op& op = asked.plan.op(asked.ref);
                if (op.reduce != plan::Reduce::none && !is_sum(op)) {
                    return std::string(name_of(asked.backend)) + " cannot reduce (" +
                           std::string(name_of(op.reduce)) +
                           ") into another rank: its contributions are staged first";
                }
                return engine_objection(asked.plan, op.src, op.dst, asked.backend);
            }};
}

}  // namespace syncopate::fuse

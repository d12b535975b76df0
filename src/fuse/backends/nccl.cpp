// nccl: a library carries out whole collectives; assign.cpp asks collective_objection for these.
#include "fuse/backends/rows.hpp"

namespace syncopate::fuse {

BackendTraits nccl_row() {
    return {.backend = plan::Backend::nccl,
            .on_cuda = true,
            .lane = LaneKind::library,
            .in_order = true,
            .objection = [](const Carrying& asked) {
                return "backend " + std::string(name_of(asked.backend)) +
                       " is for collectives: use \"copy_engine\", \"tma_dedicated\", \"ldst_dedicated\" or "
                       "\"auto\"";
            }};
}

}  // namespace syncopate::fuse

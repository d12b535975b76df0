// channel: sends and receives of two ranks of different nodes (passes/channel.hpp), into which lower has made what
// goes there. By NCCL on cuda, over sockets on host.
#include "fuse/backends/rows.hpp"

namespace syncopate::fuse {

BackendTraits channel_row() {
    return {.backend = plan::Backend::channel,
            .on_host = true,
            .on_cuda = true,
            .lane = LaneKind::channel,
            .in_order = true,
            .objection = [](const Carrying& asked) -> std::string {
                // assign names it for sides, and nothing else does
                const bool is_local = asked.plan.op(asked.ref).kind == plan::OpKind::local;
                if (is_local && asked.named == asked.backend) return {};
                return "assign alone names it";  // of others plan::check has said so
            }};
}

}  // namespace syncopate::fuse

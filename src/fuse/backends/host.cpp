// host: the CPU copies and sums, in threads of device host.
#include "fuse/backends/rows.hpp"

namespace syncopate::fuse {

BackendTraits host_row() {
    return {.backend = plan::Backend::host,
            .on_host = true,
            .lane = LaneKind::host,
            .objection = [](const Carrying&) { return std::string(); }};
}

}  // namespace syncopate::fuse

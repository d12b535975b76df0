// tma_inline, ldst_inline: tiles store at the destination, or load from the source, by a descriptor or by
// pointers; by ldst_inline a sum may, too. Whether they can is a question to the kernel and the sum
// (assign.cpp).
#include "fuse/backends/rows.hpp"

namespace syncopate::fuse {

BackendTraits inline_row(plan::Backend access) {
    return {.backend = access,
            .on_host = true,
            .on_cuda = true,
            .lane = LaneKind::inlined,
            .objection = [](const Carrying& asked) {
                const std::string name(name_of(asked.backend));
                return asked.kernel
                           ? asked.kernel(asked.ref, asked.backend)
                           : name + " needs a kernel that stores what is sent, or loads what is fetched";
            }};
}

}  // namespace syncopate::fuse

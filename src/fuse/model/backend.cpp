#include "syncopate/fuse/model/backend.hpp"

#include <algorithm>
#include <array>

#include "fuse/backends/rows.hpp"

namespace syncopate::fuse {

std::string_view name_of(Device device) { return device == Device::host ? "host" : "cuda"; }

std::span<const BackendTraits> backend_rows() {
    using plan::Backend;
    static const std::array rows{copy_engine_row(),
                                 chunk_engine_row(Backend::tma_dedicated),
                                 chunk_engine_row(Backend::ldst_dedicated),
                                 inline_row(Backend::tma_inline),
                                 inline_row(Backend::ldst_inline),
                                 nccl_row(),
                                 host_row(),
                                 channel_row()};
    return rows;
}

const BackendTraits& traits_of(plan::Backend backend) {
    static const auto rows = [] {
        std::array<const BackendTraits*, plan::kNumBackends> by_backend{};
        for (const BackendTraits& row : backend_rows())
            by_backend[static_cast<std::size_t>(row.backend)] = &row;
        return by_backend;
    }();
    return *rows[static_cast<std::size_t>(backend)];
}

std::string backend_objection(const Carrying& asked, Device device) {
    const BackendTraits& row = traits_of(asked.backend);
    if (row.on(device)) return row.objection(asked);
    const std::string missing = "backend " + std::string(name_of(asked.backend)) +
                                " does not exist on device " + std::string(name_of(device)) + ": use ";
    if (device == Device::cuda) return missing + "\"auto\"";
    return missing + "\"host\", \"tma_dedicated\", \"ldst_dedicated\" or \"auto\"";
}

}  // namespace syncopate::fuse

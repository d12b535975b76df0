// From the transfers of one rank that go by tma_dedicated or ldst_dedicated to the chunk engine's table
// (engine_format.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/transfer.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime {

/// How kernels name the type of what they sum, and back; nullopt of a type that is not summed.
[[nodiscard]] std::optional<device::SumType> sum_type_of(plan::DType dtype);
[[nodiscard]] plan::DType dtype_of(device::SumType type);

struct EngineTable {
    std::vector<device::EngineOp> ops;
    std::vector<device::EngineSource> sources;
    std::vector<device::WaitEntry> waits;
    std::vector<std::uint64_t> posts;   ///< addresses
    std::vector<std::uint64_t> copies;  ///< distances
    std::uint32_t num_counters = 0;
    std::uint32_t num_pieces = 0;
    std::int32_t shifted_tensor = -1;  ///< of which copies read what EngineOp::shifted is about; -1: none

    [[nodiscard]] bool empty() const { return ops.empty(); }
};

/// The kernel for a table of nothing but sums by loads and stores, of one type (sum_engine.cu).
[[nodiscard]] std::string sum_engine_name(const EngineTable& table);

/// `transfers`: those of `schedule`, by the same index, with their addresses; `control`: of the rank's
/// control block; `streams`: of `schedule`, whose relays come in at their steps' places. A wait that the
/// call's begin has surely seen is left out. Fails, with rank and op, on an
/// address, a pitch or a size that is no multiple of 16 bytes, on a sum of a type that is not summed or of
/// more boxes than a warp's shared memory holds units, and on a table of more than 2^31 pieces.
[[nodiscard]] Result<EngineTable> make_engine_table(const fuse::RankSchedule& schedule,
                                                    const std::vector<PreparedTransfer>& transfers,
                                                    std::uint64_t control);

}  // namespace syncopate::runtime

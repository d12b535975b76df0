// Backends: one row each says on which devices it exists, in which lane its transfers run, what it may carry
// out and by whom that is done. To add one: its name (plan/model/plan.hpp), a file in src/fuse/backends/ that
// fills a row, a line in the list of backend.cpp, and an executor in runtime/ where no existing one does it.
//
//   backend         host  cuda  lane     in order  what its row refuses
//   --------------  ----  ----  -------  --------  ------------------------------------------------
//   copy_engine     -     yes   copies   yes       more than three strided levels (sums: none)
//   tma_dedicated   yes   yes   engine   no        what is no multiple of 16 bytes
//   ldst_dedicated  yes   yes   engine   no        the same
//   tma_inline      yes   yes   inlined  -         what no descriptor of the kernel stores or loads
//   ldst_inline     yes   yes   inlined  -         what no pointers, and no sum, store or load
//   nccl            -     yes   library  yes       all but collectives
//   host            yes   -     host     no        nothing
//   channel         yes   yes   channel  yes       all but what goes from node to node
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

enum class Device : std::uint8_t { host, cuda };
[[nodiscard]] std::string_view name_of(Device device);

/// What runs a backend's transfers on a rank.
enum class LaneKind : std::uint8_t {
    copies,   ///< copy streams
    sums,     ///< kernels that add up contributions, in a stream of their own
    engine,   ///< the chunk engine
    library,  ///< collectives of a library
    host,     ///< threads of device host
    channel,  ///< sends and receives between nodes, round by round (channel.hpp)
    inlined,  ///< no lane: somebody who reads or writes the data anyway goes to where it is
};

/// Why the kernel cannot carry out an op by an inline backend; empty if it can.
using InlineObjection = std::function<std::string(plan::OpRef, plan::Backend)>;

/// What a row is asked about: an op of a lowered plan.
struct Carrying {
    const plan::Plan& plan;
    plan::OpRef ref;
    plan::Backend backend;
    plan::Backend named;            ///< of the op, or what follows from how it was lowered (name_implied)
    const InlineObjection& kernel;  ///< may be null
};

struct BackendTraits {
    plan::Backend backend = plan::Backend::automatic;
    bool on_host = false;
    bool on_cuda = false;
    LaneKind lane = LaneKind::host;
    bool in_order = false;  ///< a transfer ends before the next one of its lane begins
    /// Why it cannot carry out the op, on a device that has it; empty if it can.
    std::string (*objection)(const Carrying& asked) = nullptr;

    [[nodiscard]] bool on(Device device) const { return device == Device::host ? on_host : on_cuda; }
};

/// All rows, in the order in which they are offered.
[[nodiscard]] std::span<const BackendTraits> backend_rows();
/// The row of a backend; not of `automatic`.
[[nodiscard]] const BackendTraits& traits_of(plan::Backend backend);

/// Why `backend` cannot carry out the op on `device`; empty if it can.
[[nodiscard]] std::string backend_objection(const Carrying& asked, Device device);

/// Whether somebody who reads or writes the data anyway carries it out: tiles (inline.hpp, inline_reads.hpp)
/// or a sum (sum_stores.hpp).
[[nodiscard]] inline bool is_inline(plan::Backend backend) {
    return backend != plan::Backend::automatic && traits_of(backend).lane == LaneKind::inlined;
}
/// Whether the chunk engine carries it out.
[[nodiscard]] inline bool is_engine(plan::Backend backend) {
    return backend != plan::Backend::automatic && traits_of(backend).lane == LaneKind::engine;
}

/// Whether the op of a lowered plan adds up contributions (lower.hpp).
[[nodiscard]] inline bool is_sum(const plan::Op& op) {
    return op.kind == plan::OpKind::local && op.reduce != plan::Reduce::none;
}

}  // namespace syncopate::fuse

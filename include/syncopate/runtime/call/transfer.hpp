// A transfer of the schedule with addresses instead of ranks, signals and regions: what its executor goes by.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/call/collective.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

/// One side of what goes between nodes (fuse::Channel).
struct PreparedSide {
    bool sends = false;
    int peer = 0;
    std::int32_t number = 0;
    std::int32_t round = 0;
    bool ends_round = false;   ///< it is its rank's last of the round, in the order of the list
    std::int32_t signal = -1;  ///< of this rank, by which a fault names it
    std::uint64_t bytes = 0;
    /// From this rank's memory to a block of so many bytes, at 0, in the order in which they go.
    std::vector<StridedCopy> copies;

    [[nodiscard]] bool is_contiguous() const { return copies.size() == 1 && copies.front().contiguous(); }
    /// Those by way of a block at that address: into it of what is sent, else out of it.
    [[nodiscard]] std::vector<StridedCopy> copies_by(std::uint64_t block) const {
        std::vector<StridedCopy> made = copies;
        for (StridedCopy& copy : made) {
            copy.dst += block;
            if (sends) continue;
            std::swap(copy.src, copy.dst);
            std::swap(copy.src_pitch, copy.dst_pitch);
            std::swap(copy.src_plane, copy.dst_plane);
        }
        return made;
    }
};

struct PreparedTransfer {
    using Copies = std::vector<StridedCopy>;  ///< of one box; none where it is empty

    std::variant<Copies, PreparedSum, PreparedCollective, PreparedSide> work{};
    std::vector<fuse::Wait> waits{};          ///< on the executing rank's control block
    std::vector<std::uint64_t> post_words{};  ///< addresses of the words to set to the epoch
    Executor executor = Executor::cpu;

    /// Replaces what it copies; false where it copies nothing.
    [[nodiscard]] bool set_copies(Copies copies) {
        Copies* own = std::get_if<Copies>(&work);
        if (own == nullptr || own->empty()) return false;
        *own = std::move(copies);
        return true;
    }

    /// What it does, if it is that; else null.
    [[nodiscard]] const Copies* copies() const { return std::get_if<Copies>(&work); }
    [[nodiscard]] PreparedSum* sum() { return std::get_if<PreparedSum>(&work); }
    [[nodiscard]] const PreparedSum* sum() const { return std::get_if<PreparedSum>(&work); }
    [[nodiscard]] const PreparedCollective* collective() const {
        return std::get_if<PreparedCollective>(&work);
    }
    [[nodiscard]] const PreparedSide* side() const { return std::get_if<PreparedSide>(&work); }
};

}  // namespace syncopate::runtime

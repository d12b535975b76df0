// A transfer of the schedule with addresses instead of ranks, signals and regions: the step of a call that an executor
// carries out, whichever it is.
#pragma once

#include <cstddef>
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

/// What a stream waits for before a step [P22]: a word that has reached `value`, or, of a relay, that is not 0. Whoever
/// passes sets it back to 0.
struct Gate {
    std::int32_t word = 0;  ///< of this rank's control block
    std::uint32_t value = 0;
    bool relay = false;
};

struct PreparedTransfer {
    using Copies = std::vector<StridedCopy>;  ///< of one box; none where it is empty

    std::variant<Copies, PreparedSum, PreparedCollective, PreparedSide> work{};
    std::vector<fuse::Wait> waits{};          ///< on the executing rank's control block
    std::vector<std::uint64_t> post_words{};  ///< addresses of the words to set to the epoch
    Executor executor = Executor::cpu;
    std::size_t index = 0;      ///< in the schedule
    fuse::StreamStep step{};    ///< as a stream carries it out
    std::vector<Gate> gates{};  ///< the step's

    /// Replaces what it copies; false where it copies nothing.
    [[nodiscard]] bool set_copies(Copies copies) {
        Copies* own = std::get_if<Copies>(&work);
        if (own == nullptr || own->empty()) return false;
        *own = std::move(copies);
        return true;
    }

    /// It moves nothing, and tells nobody.
    [[nodiscard]] bool does_nothing() const {
        return copies() != nullptr && copies()->empty() && post_words.empty();
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

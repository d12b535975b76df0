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

struct PreparedTransfer {
    using Copies = std::vector<StridedCopy>;  ///< of one box; none where it is empty

    std::variant<Copies, PreparedSum, PreparedCollective> work{};
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
};

}  // namespace syncopate::runtime

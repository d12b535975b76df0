// From what blocks await and post to the words that their kernels read (format.hpp draws them).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/format.hpp"
#include "syncopate/sync/generate.hpp"

namespace syncopate::sync {

/// Of one stage. Addresses in `arguments` are not filled.
struct StageTable {
    std::vector<std::uint32_t> words;
    StageArguments arguments{};
    /// By number what it awaits: tensors that it reads, then guard_of those that it guards.
    std::vector<std::string> inputs;
};

/// What stands for the guard of an output among a stage's inputs.
[[nodiscard]] std::string guard_of(const std::string& tensor);

struct Tables {
    std::vector<StageTable> stages;
    std::uint32_t num_semaphores = 0;
};

/// Of a chain that check.hpp has found right.
[[nodiscard]] Tables make_tables(const Chain& chain, const Synchronization& synchronization);

}  // namespace syncopate::sync

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
    std::vector<std::string>
        inputs;  ///< tensors by number: those that it reads and awaits, then "guard of T"
};

struct Tables {
    std::vector<StageTable> stages;
    std::uint32_t num_semaphores = 0;
};

/// Of a chain that check.hpp has found right.
[[nodiscard]] Tables make_tables(const Chain& chain, const Synchronization& synchronization);

}  // namespace syncopate::sync

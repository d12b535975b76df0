// A checker of chains that tries everything: every start of a block that tickets and the launch rule allow,
// every number of resident blocks, every interleaving of what they do. It knows nothing of how check.hpp
// proves things, and takes from the generator only which semaphores blocks post and await.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/generate.hpp"

namespace syncopate::sync::test {

/// Elements of all tensors that a block touches, as bits.
struct Touched {
    std::uint64_t early = 0;  ///< read before its waits
    std::uint64_t reads = 0;  ///< read after them
    std::uint64_t writes = 0;
    bool adds = false;  ///< what it writes it adds to, as other blocks of its stage may
};

struct Tried {
    bool early_read = false;
    bool deadlock = false;
    bool overwrite = false;
    std::size_t states = 0;
    bool complete = true;  ///< false: more states than allowed
};

/// `touched`: by stage and block. `calls`: how many follow each other.
[[nodiscard]] Tried try_everything(const Chain& chain, const Synchronization& synchronization,
                                   const std::vector<std::vector<Touched>>& touched, std::int32_t calls,
                                   std::size_t most_states);

}  // namespace syncopate::sync::test

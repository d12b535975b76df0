// Memory: what a rank's tiles read of it, and what the device's cache spares them. Tiles that begin together
// read the same blocks of an operand once; one that begins later finds a block as far as not too much else
// has been read since the last one began.
//
//      tile 0   | block 0 of b ──────────► |            both begin at once: block 0 comes once
//      tile 1   | block 0 of b ──────────► |
//      tile 2                    … | block 0 of b       later: again, unless the cache still holds it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::tune {

/// µs; a rate of 0 takes for ever.
[[nodiscard]] double over(double bytes, double gbps);

/// Of a box of the tensor behind a parameter; of one that is not given, at two bytes an element.
[[nodiscard]] double bytes_of(const kernel::Kernel& kernel, std::string_view param, const plan::Region& box);

/// A box of an operand that one or more tiles read.
struct Block {
    std::int32_t number = 0;
    double bytes = 0;
};
struct Blocks {
    std::vector<std::vector<Block>> of_tile;
    std::int32_t count = 0;
};
[[nodiscard]] Blocks blocks_of(const kernel::Kernel& kernel);
/// Of tiles that stand for several of a product: the rows of a_desc that each reads. Blocks of `columns` come before
/// them.
[[nodiscard]] Blocks blocks_of_runs(const kernel::Kernel& kernel, std::int32_t columns);

/// What part of its loop a tile takes: [from, from + share) of it.
struct LoopPart {
    double from = 0;
    double share = 1;
};

class Memory {
public:
    /// `phased`: tiles take parts of their loops, each at a time of its own.
    Memory(std::int32_t blocks, double gbps, double cache_bytes, bool phased);
    /// A tile begins that part of its loop now, for `us`, and reads its part of the blocks. It finds there what
    /// tiles in step with it read, of which `since` says which they are: others run away from it.
    void read(std::span<const Block> blocks, LoopPart part, double now, double us, double since = 0);
    [[nodiscard]] double bytes() const { return asked_; }  ///< that had to come from memory
    [[nodiscard]] double once() const { return once_; }    ///< of all blocks that were read, each once

private:
    double gbps_;
    double cache_bytes_;
    std::size_t slices_;  ///< of a loop
    double asked_ = 0;
    double free_ = 0;  ///< when all of it has come
    double once_ = 0;
    std::vector<double> since_;  ///< by block and slice: of who began it last
    std::vector<double> last_;   ///< by block and slice: bytes that had come when it was last begun
};

}  // namespace syncopate::tune

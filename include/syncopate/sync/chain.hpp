// A chain: kernels on one GPU, launched one after another, of which later ones read what earlier ones write.
// Each stage states its grid and, for each block (x, y, z), the boxes of the tensors that it touches; each
// input says how its tiles are awaited. docs/sync.md has the words and the JSON (schema syncopate.chain/1).
//
//      stage "up"    grid 8 × 2          stage "down"  grid 4 × 2
//      writes Y      +--+--+-- … --+     reads Y       +------- … ----+
//                    |  |  |       |                   |    row y     |  waits: 8 posts on semaphore y
//                    +--+--+-- … --+                   +------- … ----+
//
// What a block does, in this order: it starts; it reads its `early` inputs; it passes all its waits; it reads
// the other inputs and writes; it completes and posts. Blocks of a stage take tiles by tickets, in the
// stage's order (ChainStage::tickets), else in any. A stage's first block starts after every block of the
// stage before it has started (the launch rule, launch.hpp), unless `Chain::launch` says that nothing orders
// them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/affine.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"

namespace syncopate::sync {

/// Which blocks of a producer share a semaphore. Which semaphores a consumer's block awaits follows from what
/// it reads, but for `custom`.
enum class PolicyKind : std::uint8_t {
    none,         ///< nothing is awaited
    tile,         ///< each block has its own
    row,          ///< one for each y: all x and z (a GEMM's row of tiles, with its splits of K)
    strided,      ///< blocks x, x + stride, x + 2 · stride, …: gate and up halves
    consecutive,  ///< `group` blocks along x: the thirds of Q, K and V
    halo,         ///< each block has its own; a consumer awaits its neighbours, too
    batched,      ///< one for each y and z: a row of one item of a batch
    automatic,    ///< "auto": blocks that the same consumers need (generate.hpp)
    custom,       ///< as written
};
[[nodiscard]] std::string_view name_of(PolicyKind kind);

struct Policy {
    PolicyKind kind = PolicyKind::automatic;
    std::int64_t stride = 0;  ///< strided: blocks; 0: half of the producer's x, rounded up
    std::int64_t group = 0;   ///< consecutive: blocks; 0: a third of the producer's x, rounded up
    /// Posts that make a semaphore complete; nullopt: as many as blocks post it.
    std::optional<std::int64_t> count{};
    /// custom: the semaphore that the producer's block (x, y, z) posts.
    std::optional<affine::Expression> semaphore{};
    /// custom: the semaphores that the consumer's block (x, y, z) awaits; nullopt: `semaphore` of its own
    /// coordinates.
    std::optional<affine::Range> awaited{};
};

/// In which order a stage's blocks take its tiles.
enum class OrderKind : std::uint8_t {
    identity,    ///< x fastest, then y, then z
    transposed,  ///< y fastest, then x, then z
    grouped,     ///< `rows` of y at a time: y fastest within, then x
    automatic,   ///< "auto": as the producers' tiles complete (generate.hpp)
    custom,      ///< as listed
};
[[nodiscard]] std::string_view name_of(OrderKind kind);

struct Order {
    OrderKind kind = OrderKind::identity;
    std::int64_t rows = 8;              ///< grouped
    std::vector<std::int32_t> tiles{};  ///< custom: a permutation of the blocks' linear numbers, x fastest
};

/// One range an axis, of a tensor, in the coordinates x, y, z of a block. What lies outside of the tensor is
/// cut off, as a kernel's masks do.
using BoxText = std::vector<affine::Range>;

struct ChainStage {
    std::string name;
    std::array<std::int64_t, 3> grid{1, 1, 1};
    Order order{};
    /// Blocks take a ticket each when they start, and run the tiles in the order. False: the hardware hands
    /// out the tiles, in any order.
    bool tickets = true;
    std::map<std::string, std::vector<BoxText>> reads{};   ///< by tensor
    std::map<std::string, std::vector<BoxText>> writes{};  ///< by tensor
    /// Outputs that blocks add to, by atomics or another reduction: several blocks may write one element.
    std::vector<std::string> adds{};
    std::map<std::string, Policy> waits{};  ///< by tensor; one that is not here: auto
    /// Inputs that are read before the stage's waits: an operand B that no stage of the chain writes.
    std::vector<std::string> early{};
    /// Outputs that are written once their readers of the call before have done with them, by tensor. For
    /// chains whose calls overlap.
    std::map<std::string, Policy> guards{};

    [[nodiscard]] std::int64_t num_blocks() const { return grid[0] * grid[1] * grid[2]; }
    [[nodiscard]] std::array<std::int64_t, 3> block(std::int64_t linear) const {
        return {linear % grid[0], linear / grid[0] % grid[1], linear / (grid[0] * grid[1])};
    }
    [[nodiscard]] bool is_early(const std::string& tensor) const;
    [[nodiscard]] bool is_added_to(const std::string& tensor) const;
};

struct Chain {
    enum class Start : std::uint8_t {
        after_start,  ///< a stage starts after every block of the one before has started
        any,          ///< nothing orders them: streams side by side
    };
    enum class Calls : std::uint8_t {
        ordered,     ///< a call starts when the one before has ended
        overlapped,  ///< its first stage starts as any other stage does, after the last one of the call
                     ///< before
    };
    std::map<std::string, std::vector<std::int64_t>> tensors{};  ///< extents
    std::vector<ChainStage> stages{};                            ///< in launch order
    Start launch = Start::after_start;
    Calls calls = Calls::ordered;
};

/// Blocks of all stages together; what is larger is refused.
inline constexpr std::int64_t kMostBlocks = 1 << 20;

/// Reads a chain. Fails at the line and column of what is malformed.
[[nodiscard]] Result<Chain> chain_from_json(std::string_view text, const std::string& file_name);

/// The boxes that each block of a stage touches of one tensor, clipped to it, empty ones left out.
struct Footprints {
    std::vector<std::vector<plan::Region>> reads, writes;  ///< by block
};

/// Of `tensor`, in a chain that is well formed (check() says whether it is). Fails where a range cannot be
/// evaluated, naming stage, tensor and block.
[[nodiscard]] Result<Footprints> footprints(const Chain& chain, const ChainStage& stage,
                                            const std::string& tensor);

}  // namespace syncopate::sync

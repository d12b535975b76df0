// The chunk engine's table: what a rank's engine does in one call, as data. engine_table.hpp makes it,
// src/runtime/cuda/engine/engine.cu carries it out on a GPU, host_engine.hpp with the CPU. Plain C++17: nvcc
// reads it too.
//
//   ops      | 0: copy | 1: sum of 3 | 2: copy | …      in the order in which they are begun
//               │   │       │
//               │   │       └ sources  | slot 0 | own | slot 1 |   of a sum: in the order of adding
//               │   └──────── posts    | word | word | …           set to the epoch when the op is done
//               └──────────── waits    | word, lag | …             each must reach epoch - lag before
//
// A sum may be stored at other ranks as well (fuse/inline/sum_stores.hpp): `copies` holds, for each of these, how
// far its memory is from the destination, in bytes.
//
// Copies of one tensor, which the caller may have elsewhere than in the heap, can be told how far that is
// from there (`shifted`), so that nobody has to copy it into the heap first; the table stays the same.
//
// An op moves a box: planes of rows of bytes, rows numbered through all planes. It is cut into pieces; a warp
// does one at a time:
//
//      |‹---- row_bytes ----›|                          |‹ row_bytes ›|
//      | 0      | 1      | 2 |  row 0                   | 0           |  row 0
//      | 3      | 4      | 5 |  row 1                   | 0           |  row 1
//      |‹part  ›|                                       | 1           |  row 2   (rows_per_piece = 2)
//      wide rows: parts_per_row pieces each             narrow rows: some rows a piece
//
// Pieces are numbered through the whole table; piece p is done by warp p mod (all warps), so each warp walks
// the table from its begin to its end and meets the ops in order:
//
//      op 0 | 0 1 2 3 4 |  op 1 | 5 6 |  op 2 | 7 8 9 …          4 warps: warp 1 does 1, 5, 9
//
// What is done is counted in the op's counter; the op is done in call `epoch` when that has reached
// epoch * expected, and then one more warp posts [P7, P23]. An op of no bytes has one piece of no rows: it waits
// and posts like any other. So does a relay (fuse/passes/launch.hpp), whose post is a gate that a stream of
// this rank waits for [P22].
//
// Addresses, pitches, planes and row_bytes are multiples of 16 bytes.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SYNCOPATE_ENGINE_SHARED __host__ __device__ inline
#else
#define SYNCOPATE_ENGINE_SHARED inline
#endif

namespace syncopate::runtime::device {

struct WaitEntry {
    std::uint64_t word;  ///< address
    std::uint32_t lag;
    std::int32_t signal;  ///< for the fault word
};

/// How the engine moves the bytes of an op.
enum class EngineMethod : std::uint32_t {
    bulk,  ///< bulk copies through shared memory (tma_dedicated)
    ldst,  ///< loads and stores of 16 bytes a thread (ldst_dedicated)
};

enum class EngineReduce : std::uint32_t { none, sum, max };

enum SumType : std::int32_t { kSumBf16 = 0, kSumFp16 = 1, kSumFp32 = 2, kSumInt32 = 3 };

constexpr std::int32_t kMostSumCopies = 15;  ///< of one sum: fuse::kMostSumStores

constexpr std::uint32_t kEngineWarps = 12;  ///< of a block, that move bytes; one more posts, one counts
constexpr std::uint32_t kEngineThreads = 32 * (kEngineWarps + 2);
constexpr std::uint32_t kBlockEngineThreads = 1024;  ///< of a block that does an op with all its threads
constexpr std::uint32_t kEngineLoadsAtOnce = 8;      ///< of a unit each, that a thread of it has on their way
constexpr std::uint32_t kEngineUnit = 16;            ///< bytes that everything is a multiple of

/// Of each of `ops` copies, what an even share of `blocks` such blocks has on its way at once; 0: some copy
/// has no block of its own, or there is none.
constexpr std::uint64_t bytes_at_once(std::uint64_t blocks, std::uint64_t ops) {
    return ops == 0 ? 0 : blocks / ops * kBlockEngineThreads * kEngineUnit * kEngineLoadsAtOnce;
}

constexpr std::uint32_t kEngineStages = 2;  ///< of a warp: one piece is loaded while another is stored
constexpr std::uint32_t kEnginePieceBytes = 8 * 1024;  ///< a stage's part of shared memory
constexpr std::uint32_t kEngineLdstBytes = 16 * 1024;  ///< what a warp copies at a time by loads and stores
constexpr std::uint32_t kEngineSumBytes = 4 * 1024;    ///< what a warp sums at a time by loads and stores
constexpr std::uint32_t kEngineTableEntries = 192;     ///< so many ops are read from shared memory
constexpr std::uint32_t kEngineBlockCounters = 1024;   ///< so many counters have a word there, too

/// A box to read: its first byte, bytes from row to row and from plane to plane.
struct EngineSource {
    std::uint64_t address;
    std::uint64_t pitch;
    std::uint64_t plane;
};

struct EngineOp {
    EngineSource source;  ///< of a copy
    EngineSource dst;
    std::uint64_t row_bytes;
    std::uint32_t num_rows;        ///< of all planes
    std::uint32_t rows_per_plane;  ///< at least 1
    std::uint32_t part_bytes;      ///< of a row, in a piece
    std::uint32_t parts_per_row;   ///< at least 1
    std::uint32_t rows_per_piece;  ///< 1 when there are more parts than one
    std::uint32_t last_piece;      ///< past the op's last one
    std::uint32_t num_pieces;
    std::uint32_t first_source;   ///< of a sum
    std::uint32_t num_sources;    ///< of a sum: at least 1
    std::uint32_t first_copy;     ///< of a sum
    std::uint32_t num_copies;     ///< of a sum: at most kMostSumCopies
    std::uint32_t expected;       ///< pieces of all ops that count together; 0: nothing is posted
    std::uint32_t first_counted;  ///< the first of these pieces
    std::uint32_t counter;
    std::uint32_t first_post;
    std::uint32_t num_posts;
    std::uint32_t first_wait;
    std::uint32_t num_waits;
    EngineMethod method;
    EngineReduce reduce;  ///< none: a copy
    std::int32_t type;    ///< SumType, of a sum
    std::int32_t where;   ///< for the fault word
    std::uint32_t opens;  ///< 1: a relay; what it posts are gates of this rank's streams, also after a fault
    std::uint32_t shifted;  ///< 1: a copy of what the caller may have elsewhere, which each call says
};

/// What an op's posts say in call `epoch`. A gate that is open is not 0, whatever the call's number.
SYNCOPATE_ENGINE_SHARED std::uint32_t posted(const EngineOp& op, std::uint32_t epoch) {
    return op.opens != 0 ? 1 : epoch;
}

/// What a warp does at a time: `bytes` from `column` on of each of `rows` rows.
struct EnginePiece {
    std::uint32_t row;
    std::uint32_t rows;
    std::uint64_t column;
    std::uint32_t bytes;
};

/// Piece `piece` of the table, which must be one of `op`.
SYNCOPATE_ENGINE_SHARED EnginePiece piece_of(const EngineOp& op, std::uint32_t piece) {
    const std::uint32_t at = piece - (op.last_piece - op.num_pieces);
    if (op.parts_per_row > 1) {
        const std::uint32_t row = at / op.parts_per_row;
        const std::uint64_t column = static_cast<std::uint64_t>(at - row * op.parts_per_row) * op.part_bytes;
        const std::uint64_t rest = op.row_bytes - column;
        return {row, 1, column, rest < op.part_bytes ? static_cast<std::uint32_t>(rest) : op.part_bytes};
    }
    const std::uint32_t row = at * op.rows_per_piece;
    const std::uint32_t rest = op.num_rows - row;
    return {row, rest < op.rows_per_piece ? rest : op.rows_per_piece, 0,
            static_cast<std::uint32_t>(op.row_bytes)};
}

/// The first byte of row `row` of a box of op `op`.
SYNCOPATE_ENGINE_SHARED std::uint64_t row_address(const EngineOp& op, const EngineSource& box,
                                                  std::uint32_t row) {
    if (op.rows_per_plane == op.num_rows) return box.address + row * box.pitch;
    const std::uint32_t plane = row / op.rows_per_plane;
    return box.address + plane * box.plane + (row - plane * op.rows_per_plane) * box.pitch;
}

/// The first byte of row `row` that a copy reads; `shift`: how far from the heap the caller has that,
/// in bytes modulo 2^64.
SYNCOPATE_ENGINE_SHARED std::uint64_t source_row(const EngineOp& op, std::uint32_t row, std::uint64_t shift) {
    return row_address(op, op.source, row) + (op.shifted != 0 ? shift : 0);
}

}  // namespace syncopate::runtime::device

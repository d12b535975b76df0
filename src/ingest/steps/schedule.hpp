// What the readers of two-sided and signal-driven formats have in common: workers that run steps in order,
// edges between steps of different workers, and the data that moves at them. weave() makes a plan of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/ingest/ingest.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::ingest {

/// Rows of a tensor in the memory of one rank. Rows are positions along axis 0; the other axes are whole.
struct Span {
    std::int32_t rank = 0;
    std::int32_t tensor = 0;
    plan::Interval rows;
    bool operator==(const Span&) const = default;
};

/// When memory is touched: at a step, and there in a phase. Phases of one step follow each other; touches in
/// one phase of one step are in no order.
struct When {
    std::int32_t step = 0;
    std::int32_t phase = 0;
    bool operator==(const When&) const = default;
};

/// Data that goes from `src` to `dst`, which have the same number of rows. A message of a two-sided format is
/// read when it is sent and written when it is received; a one-sided transfer does both at one step.
struct Move {
    plan::OpKind kind = plan::OpKind::local;
    Span src;
    Span dst;
    When read;
    When written;
    plan::Reduce reduce = plan::Reduce::none;
    std::int32_t fifo = -1;  ///< messages of one connection have one number, and come in its order; -1: none

    [[nodiscard]] std::int32_t owner() const { return kind == plan::OpKind::pull ? dst.rank : src.rank; }
    [[nodiscard]] std::int32_t peer() const { return kind == plan::OpKind::pull ? src.rank : dst.rank; }
};

/// A step runs after the one before it in its worker.
struct Step {
    std::int32_t rank = 0;
    std::int32_t worker = 0;  ///< over all ranks; the steps of a worker have consecutive numbers
    Origin origin;
};

/// One step after another one of a different worker.
struct Edge {
    enum class Kind : std::uint8_t {
        data,     ///< what the first has done is seen by the second
        message,  ///< the same, from a send to its receive: the move says so already
        order,    ///< the second runs later, but may not see the data (a relaxed signal)
    };
    std::int32_t before = 0;
    std::int32_t after = 0;
    Kind kind = Kind::data;
};

struct Schedule {
    std::vector<Step> steps;
    std::vector<Edge> edges;
    std::vector<Move> moves;  ///< those of one connection in its order
};

/// "rank 3 tb 2 step 1"
[[nodiscard]] std::string describe(const Step& step);

/// Limits that every reader shares.
inline constexpr std::int64_t kMaxSteps = 1 << 20;     ///< of a file
inline constexpr std::int64_t kMaxMoves = 1 << 20;     ///< of a file
inline constexpr std::int32_t kMaxImportRanks = 1024;  ///< of a file
inline constexpr std::int64_t kMaxChunks = 1 << 20;    ///< of a buffer

}  // namespace syncopate::ingest

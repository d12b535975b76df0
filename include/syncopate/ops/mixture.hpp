// Mixture: how a mixture of experts cuts tokens, for the kernels' callers, and what its Gluon kernel takes. The
// kernels are given the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"

namespace syncopate::ops {

/// Scratch of the kernels (parameters.hpp), int32 of all calls so far, alike on all ranks: how many rows over the bound came in one
/// call to the rank to which most did, at most; how many ids of all ranks named no expert; and in how many calls there were such
/// rows, and such ids. The last three only rise, modulo 2^32, and nobody but the kernels writes them: a reader keeps what it knew.
inline constexpr const char* kSeen = "seen";
enum Seen : std::size_t { kOver, kBad, kCallsOver, kCallsBad, kSeenWords };

/// An id of what fills a call up: it adds nothing, and is no error.
inline constexpr std::int64_t kNoRoute = -1;

/// Tokens of a tile of the kernels that go token by token: every program has a tile, and no tile many tokens.
[[nodiscard]] std::int64_t mixture_block(std::int64_t tokens, std::int64_t programs);

/// How a rank's rows are sent to their experts: `programs`, each of so many `rows` at a time. Few rows by many programs, beside which
/// the first product starts; many by few, `apart`: with as many threads as fill their multiprocessors (Python's mixture_stages.py), so that what they send,
/// which waits for the link, holds up no loads of that product, whose programs on the other multiprocessors take its tiles in turns.
struct MixtureSending {
    std::int64_t rows = 0;
    std::int64_t programs = 0;
    bool apart = false;
};
[[nodiscard]] MixtureSending mixture_sending(std::int64_t routes, std::int64_t row_bytes,
                                             std::int64_t programs);
/// Of a problem's own rows, by a complete strategy.
[[nodiscard]] MixtureSending mixture_sending(const Problem& problem, const Strategy& strategy);

/// Why no program of the problem can be made by the strategy, where the problem itself is one that can (problem_objection); "" where
/// one can. A strategy may come from a file: what passes here overflows no number of a table.
[[nodiscard]] std::string mixture_strategy_objection(const Problem& problem, const Strategy& strategy);

/// Why the Gluon kernel (kernels/gluon_moe.py) does not make the first product by this tile; "" where it does.
[[nodiscard]] std::string mixture_gluon_objection(const Problem& problem, const TileConfig& tile);

}  // namespace syncopate::ops

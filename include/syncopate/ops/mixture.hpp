// Mixture: how a mixture of experts cuts tokens, for the kernels' callers. The kernels are given the same.
#pragma once

#include <cstdint>

namespace syncopate::ops {

/// Tokens of a tile of the kernels that go token by token: every program has a tile, and no tile many tokens.
[[nodiscard]] std::int64_t mixture_block(std::int64_t tokens, std::int64_t programs);

}  // namespace syncopate::ops

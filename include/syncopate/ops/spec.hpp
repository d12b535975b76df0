// SPEC of the command that runs an operator: a problem (problem.hpp), and behind it what else is asked for.
//
//     matmul_all_reduce:M=4096,N=8192,K=3584,split=2,backend=tma_inline     of its strategy, by the keys of its row
//     attention:S=4096,kind=ring,window=128,cu_seqlens=0:137:4096           of the call, by the row's `call`
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

struct Spec {
    Problem problem;
    std::optional<Strategy> strategy;  ///< the default one as it is asked for; none: nothing is
    std::vector<Word> call;            ///< whole numbers, or several with : between
};

/// Fails as parse_problem does. A key of the strategy that is 0 asks for nothing.
[[nodiscard]] Result<Spec> parse_spec(std::string_view text, std::int32_t ranks = 1,
                                      std::int32_t num_sms = 0);

}  // namespace syncopate::ops

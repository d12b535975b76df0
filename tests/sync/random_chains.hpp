// Small random chains, right and wrong ones, with what their blocks touch as this file itself works it out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exhaustive.hpp"

namespace syncopate::sync::test {

struct RandomChain {
    std::string text;                           ///< JSON
    std::vector<std::vector<Touched>> touched;  ///< by stage and block
    std::int32_t blocks = 0;                    ///< of one call
    bool all_automatic = false;                 ///< no policy, order or launch that could be wrong
};

[[nodiscard]] RandomChain random_chain(std::uint64_t seed);

}  // namespace syncopate::sync::test

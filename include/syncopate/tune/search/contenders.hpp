// Contenders: what a search for a problem's fastest strategy tries, and in which order.
//
//     default, unfused, then all others by the estimate
//     default, unfused, then variations of the default                  with `vary`
#pragma once

#include <span>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/search/search.hpp"

namespace syncopate::tune {

/// Complete strategies, each once; the first two are the baselines: what is taken where nothing was tuned, and
/// the unfused pair. On the host all have small tiles, so that a small problem has several of them. `vary`:
/// texts as of variations() (ops/varied.hpp). Fails for such a text, and for a problem that is not estimated.
[[nodiscard]] Result<std::vector<Contender>> contenders(const Problem& problem, const Machine& machine,
                                                        const ChooseOptions& options,
                                                        std::span<const std::string> vary = {});

}  // namespace syncopate::tune

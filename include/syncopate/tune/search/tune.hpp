// Tune: a search (search.hpp) over ranks that meet in a rendezvous, with a store (store.hpp) that keeps what
// it finds.
//
//     rank 0    store ─► earlier trials ─┐                                     ┌─► trials, winner ─► store
//     all ranks                          └─► share ─► search, in lockstep ─────┘
#pragma once

#include <span>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/tune/search/search.hpp"
#include "syncopate/tune/store/results.hpp"
#include "syncopate/tune/store/store.hpp"

namespace syncopate::tune {

struct Tuned {
    TuningResult result;
    std::string winner;       ///< the contender's name
    std::size_t resumed = 0;  ///< trials that an earlier search had made
    bool in_time = true;
    std::string instead{};  ///< as of SearchResult
};

/// Collective over the ranks of `rendezvous`. Of `measuring`, `agree` and `record` are set here. The first
/// baseline is the default strategy; `unfused` is the place of the unfused pair among `contenders`, or -1.
/// `store` is rank 0's, the others give none. `again`: what an earlier search has measured is forgotten.
/// Fails as find_fastest does; a store that cannot be written is no failure.
[[nodiscard]] Result<Tuned> tune_problem(const ResultKey& key, std::span<const Contender> contenders,
                                         std::ptrdiff_t unfused, const SearchOptions& options,
                                         Measuring measuring, runtime::Rendezvous& rendezvous,
                                         StoreFile* store, bool again = false);

/// The maximum over ranks of each value, on all ranks. Collective; fails where ranks give different numbers
/// of values.
[[nodiscard]] Result<std::vector<double>> largest(runtime::Rendezvous& rendezvous,
                                                  const std::vector<double>& values);

/// Rank 0's text, on all ranks. Collective.
[[nodiscard]] Result<std::string> share(runtime::Rendezvous& rendezvous, const std::string& text);

}  // namespace syncopate::tune

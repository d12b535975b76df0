// Results of tuning, as the store keeps them (store.hpp), and as a file that other machines can read.
//
//     {"schema": "syncopate.tuning/1", "results": [
//       {"kernel": "9f2c…", "device": "NVIDIA H200", "versions": "syncopate 0.1.0, triton 3.6.0,
//       torch 2.11.0", "ranks": 8,
//        "family": "all_gather_matmul:N=3584,K=8192,dtype=bf16", "rows": 4096,
//        "strategy": {…}, "us": 331.2, "default_us": 340.9, "unfused_us": 402.5, "when": 1790000000,
//        "trials": [{"name": "…", "strategy": {…}, "estimate_us": 330.0, "us": 335.0, "ratio": 0.98,
//        "rounds": 12,
//                    "refused": ""}]}]}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// What a result is about. Equal keys, equal results, as far as a machine repeats itself.
struct ResultKey {
    std::string kernel;     ///< hash of the kernel's source
    std::string device;     ///< "NVIDIA H200", "host"
    std::string versions;   ///< of what compiles and runs the kernel
    std::string family;     ///< the problem without its rows and ranks
    std::int64_t rows = 0;  ///< M; 0 where the problem has none
    std::int32_t ranks = 1;
    bool operator==(const ResultKey&) const = default;
};

/// What a result depends on besides its problem.
struct Scope {
    std::string kernel;    ///< hash of the kernels' sources, and of the device code that is emitted into them
    std::string device;    ///< "NVIDIA H200", "host"
    std::string versions;  ///< "syncopate 0.1.0, triton 3.6.0, torch 2.11.0"
};

/// Where a problem's result is kept. Its rows are M, or the sequence's length where it has no M; its family
/// is the rest of its key, without ranks and multiprocessors: "all_gather_matmul:N=3584,K=8192,dtype=bf16".
[[nodiscard]] ResultKey key_of(const Problem& problem, const Scope& scope);

/// One strategy that a search looked at. Times are µs of a call, medians of the maximum over ranks.
struct Trial {
    std::string name;         ///< for people
    std::string strategy;     ///< JSON
    double estimate_us = 0;   ///< 0: there is none
    double us = 0;            ///< 0: it was not measured
    double ratio = 0;         ///< to the default, measured in the same rounds: a clock's drift cancels out
    std::int32_t rounds = 0;  ///< that it was measured
    std::string refused;      ///< why it cannot run here; "" where it can
    bool operator==(const Trial&) const = default;
};

/// The winner of a search.
struct TuningResult {
    ResultKey key;
    std::string strategy;  ///< JSON
    double us = 0;
    double default_us = 0;      ///< of the strategy that is taken without tuning, in the same rounds
    double unfused_us = 0;      ///< of the product and the collective one after the other; 0: not measured
    std::int64_t when = 0;      ///< seconds since 1970, UTC
    std::vector<Trial> trials;  ///< all that the search looked at
    bool operator==(const TuningResult&) const = default;
};

/// The file above; results in the order given.
[[nodiscard]] std::string results_to_json(const std::vector<TuningResult>& results);
/// Strict. Fails with the place: "FILE:5:97: results[3].us is -1; expected 0 to …".
[[nodiscard]] Result<std::vector<TuningResult>> results_from_json(std::string_view text,
                                                                  const std::string& file_name);

}  // namespace syncopate::tune

// Chains as text, for the tests of sync/.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/check.hpp"

namespace syncopate::sync::test {

/// A product of `rows` × 8 tiles whose rows of tiles a second one reads. `stages` goes into the first stage,
/// `down` into the second, `chain` into the chain: each begins with a comma or is empty.
inline std::string products(const std::string& down, const std::string& up = "",
                            const std::string& chain = "") {
    return R"({"schema": "syncopate.chain/1", "tensors": {"X": [256, 512], "Y": [256, 1024], "Z": [256, 512]})" +
           chain + R"(,
 "stages": [
  {"name": "up", "grid": [8, 2], "reads": {"X": ["128*y:128*y+128", "0:512"]},
   "writes": {"Y": ["128*y:128*y+128", "128*x:128*x+128"]})" +
           up + R"(},
  {"name": "down", "grid": [4, 2], "reads": {"Y": ["128*y:128*y+128", "0:1024"]},
   "writes": {"Z": ["128*y:128*y+128", "128*x:128*x+128"]})" +
           down + "}]}";
}

inline Verdict judged(const std::string& text) {
    const Result<Chain> chain = chain_from_json(text, "chain.json");
    if (!chain) {
        ADD_FAILURE() << chain.error().to_string();
        return {};
    }
    return check(*chain);
}

/// "" where nothing is wrong, else the findings, a line each.
inline std::string findings(const std::string& text) {
    std::string lines;
    for (const Finding& finding : judged(text).findings) lines += finding.to_string() + "\n";
    return lines;
}

/// The kinds of all findings, each once.
inline std::vector<std::string> kinds(const Verdict& verdict) {
    std::vector<std::string> all;
    for (const Finding& finding : verdict.findings) all.emplace_back(name_of(finding.kind));
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    return all;
}
inline std::vector<std::string> kinds(const std::string& text) { return kinds(judged(text)); }

}  // namespace syncopate::sync::test

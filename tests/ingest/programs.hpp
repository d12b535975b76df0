// Small tensor programs, and what tests look at in their candidates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/ingest/hlo/hlo.hpp"
#include "syncopate/ingest/stablehlo/stablehlo.hpp"
#include "syncopate/plan/check/check.hpp"

namespace syncopate::ingest::test {

/// The candidates in HLO text; a failed reader is a failed test.
inline std::vector<Candidate> candidates(std::string_view text) {
    const Result<TensorProgram> program = read_hlo(text, "p.hlo");
    EXPECT_TRUE(program) << program.error().to_string();
    return program ? list_candidates(*program) : std::vector<Candidate>{};
}

inline std::vector<Candidate> stablehlo_candidates(std::string_view text) {
    const Result<TensorProgram> program = read_stablehlo(text, "p.mlir");
    EXPECT_TRUE(program) << program.error().to_string();
    return program ? list_candidates(*program) : std::vector<Candidate>{};
}

/// "feeds d lhs 0 (1) M8 N4 K2": side, axis, role, sizes.
inline std::string text_of(const DotUse& dot) {
    const char* const side = dot.side == DotUse::Side::lhs   ? "lhs"
                             : dot.side == DotUse::Side::rhs ? "rhs"
                                                             : "result";
    const char* const role = dot.role == DotUse::Role::rows         ? "rows"
                             : dot.role == DotUse::Role::columns    ? "columns"
                             : dot.role == DotUse::Role::contracted ? "contracted"
                             : dot.role == DotUse::Role::batch      ? "batch"
                                                                    : "unknown";
    return fmt::format("{} {} {} {} {} M{} N{} K{}", dot.feeds ? "feeds" : "drains", dot.name, side, dot.axis,
                       role, dot.m, dot.n, dot.k);
}

/// All dots of a candidate.
inline std::vector<std::string> dots(const Candidate& candidate) {
    std::vector<std::string> texts;
    for (const Exchange& exchange : candidate.exchanges) {
        for (const DotUse& dot : exchange.dots) texts.push_back(text_of(dot));
    }
    return texts;
}

/// What check says of the candidate's plan, one line a finding; the error if there is no plan.
inline std::vector<std::string> findings(const Candidate& candidate) {
    const Result<plan::Plan> plan = plan_of(candidate);
    if (!plan) return {plan.error().to_string()};
    std::vector<std::string> lines;
    for (const plan::Finding& finding : plan::check(*plan)) lines.push_back(finding.to_string());
    return lines;
}

using Lines = std::vector<std::string>;

}  // namespace syncopate::ingest::test

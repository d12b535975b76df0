// A problem as Python has it: with torch's dtypes, and the device that it runs on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <variant>

#include "syncopate/ops/problem.hpp"

namespace syncopate::bindings {

/// Nothing of it is looked at before problem() is asked for.
struct ProblemValue {
    std::string op;
    std::int64_t m = 0, n = 0, k = 0;
    nanobind::object dtype;  ///< torch's
    std::int32_t ranks = 1;
    std::int32_t num_sms = 4;
    std::string device = "cuda";
    std::int64_t f = 0;
    nanobind::object out = nanobind::none();
    std::string scales;
    std::int32_t nodes = 1;

    [[nodiscard]] nanobind::object out_dtype() const;
    /// As parse_problem reads it. TypeError for what is no dtype of torch's, ValueError for one that has no name.
    [[nodiscard]] std::string key() const;
    bool operator==(const ProblemValue& other) const;
};

/// What a function takes for a problem: it, or its key.
using GivenProblem = std::variant<ProblemValue, std::string>;
[[nodiscard]] std::string key_of(const GivenProblem& given);
[[nodiscard]] ops::Problem problem_of(const GivenProblem& given);

}  // namespace syncopate::bindings

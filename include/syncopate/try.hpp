// Early returns of what failed, in functions that return a Result.
//
//     SYNCOPATE_TRY(write(plan, file));                    a Status: nothing but whether it went well
//     SYNCOPATE_TAKE(const Plan plan, read_plan(file));    declares the value
#pragma once

#include <utility>

#include "syncopate/result.hpp"

#define SYNCOPATE_JOIN_TOKENS(first, second) first##second
#define SYNCOPATE_JOIN(first, second) SYNCOPATE_JOIN_TOKENS(first, second)

/// Returns the error of a Result, if it is one.
#define SYNCOPATE_TRY(...)                                            \
    do {                                                              \
        if (auto tried = (__VA_ARGS__); !tried) return tried.error(); \
    } while (false)

/// Declares `declared`, a type and a name, as the value of a Result, or returns its error. Two statements: in a block
/// of its own where an `if` or a loop has no braces.
#define SYNCOPATE_TAKE(declared, ...)                                                             \
    auto SYNCOPATE_JOIN(taken_in_, __LINE__) = (__VA_ARGS__);                                     \
    if (!SYNCOPATE_JOIN(taken_in_, __LINE__)) return SYNCOPATE_JOIN(taken_in_, __LINE__).error(); \
    declared = std::move(SYNCOPATE_JOIN(taken_in_, __LINE__)).value()

// An operator on the command line: its SPEC, and how it is done.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tools {

inline constexpr std::int32_t kUsualRanks = 8;

struct OperatorArguments {
    std::string spec;
    std::int32_t ranks = 0;  ///< 0: those of the spec, else kUsualRanks
    std::string strategy;    ///< JSON, or @FILE; "": the one that is chosen
    std::string machine;     ///< a name or a file; "": the nearest known one
};

/// Adds --op, --strategy and --machine, and --ranks where the command has none.
void add_operator_options(CLI::App& command, OperatorArguments& arguments);

/// Of a command's options those that --op leaves no choice of.
void exclude_all_but(const std::vector<std::string>& allowed, const std::vector<CLI::Option*>& options,
                     CLI::Option& op);

/// The problem of a SPEC. Ends the program where there is none.
[[nodiscard]] tune::Problem problem_of(const OperatorArguments& arguments);

/// The machine that is named, or the nearest known one for the problem; says on standard error where it has
/// fewer GPUs, and gives the problem its multiprocessors.
[[nodiscard]] tune::Machine machine_of(const std::string& name, tune::Problem& problem);

/// An operator, and the complete strategy by which it is a fused program: as given, else as chosen, else,
/// where that fuses nothing, the default one. What was taken is said on standard error.
struct OperatorTask {
    tune::Problem problem;
    tune::Strategy strategy;
    tune::Machine machine;
};
[[nodiscard]] OperatorTask task_of(const OperatorArguments& arguments);

}  // namespace syncopate::tools

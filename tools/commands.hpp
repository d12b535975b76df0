// The subcommands of `syncopate`, one file per group, and how a callback ends the command: by returning (exit
// 0), or by throwing Exit. Exit codes are those of ErrorClass (result.hpp).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::tools {

/// Thrown by a callback to end the command with this exit code; whoever throws has already said why.
struct Exit {
    int code = 0;
};

/// Prints "error: LOCATION: MESSAGE" to standard error and throws Exit with the code of the error's class.
[[noreturn]] void fail(const Error& error);

/// An option's number within bounds; NaN is within none.
CLI::Validator between(double least, double most);

/// An option's text that is not empty; `expected` says what it should be.
CLI::Validator filled(const std::string& expected);

/// Of an unsigned option: digits, below 2^64. CLI11 takes -1, and clamps.
CLI::Validator whole_number();
inline constexpr const char* kFile = "a file name, or -";

/// Standard output has place for one answer: fails where a file of "-" and the flag `other` are both given.
void refuse_two_answers(const std::string& option, const std::string& file, bool given,
                        const std::string& other);

/// "-:NAME", a kernel in standard input, is no option: such words begin with kInput while CLI11 has them.
inline constexpr char kInput = '\x01';
void keep_standard_input(std::vector<std::string>& words);
std::string as_given(std::string word);

/// The value; where there is none, fails with the error.
template <typename T>
T take(Result<T> result) {
    if (!result) fail(result.error());
    return *std::move(result);
}

/// plan make|lower; part of register_plan_commands.
void register_plan_make_commands(CLI::App& plan);

void register_plan_commands(CLI::App& app);        ///< plan make|import|check|show|simulate
void register_plan_import(CLI::App& group);        ///< plan import, into the group "plan"
void register_simulate_commands(CLI::App& group);  ///< plan simulate|topology
void register_synth_command(CLI::App& group);      ///< plan synth
void register_kernel_commands(CLI::App& app);      ///< kernel show
/// fuse. `then`: the words after each --then, one further stage each.
void register_fuse_commands(CLI::App& app, std::vector<std::vector<std::string>> then);
void register_run_commands(CLI::App& app);     ///< run
void register_tune_commands(CLI::App& app);    ///< tune
void register_bench_commands(CLI::App& app);   ///< bench
void register_sync_commands(CLI::App& app);    ///< sync check
void register_bundle_commands(CLI::App& app);  ///< compile; bundle show, check and run

}  // namespace syncopate::tools

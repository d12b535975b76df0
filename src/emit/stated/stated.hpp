// Stated kernels as a language: kernel/stated/ takes the statement. Nothing is rewritten: the kernel follows
// a schedule's table by itself, so the fused file is the user's.
#pragma once

#include "syncopate/emit/language.hpp"
#include "syncopate/kernel/stated/statement.hpp"

namespace syncopate::emit::stated {

/// The user's file. Fails where the kernel lacks a parameter by which it would be given the schedule.
[[nodiscard]] Result<std::string> keep(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                                       std::size_t stage);

[[nodiscard]] const std::string& original(const kernel::Kernel& kernel);

inline constexpr Language kStated{
    .name = kernel::stated::kLanguage,
    .suffix = kernel::stated::kSuffix,
    .analyse = kernel::stated::analyse,
    // A statement says itself what its tiles are.
    .analyse_as =
        [](const std::string& source, std::string file, const std::string& name,
           const kernel::Arguments& arguments,
           kernel::Tiles) { return kernel::stated::analyse(source, std::move(file), name, arguments); },
    .explain = kernel::stated::analyse_and_explain,
    .imported_files = kernel::stated::imported_files,
    .emit = keep,
    .warnings = [](const kernel::Kernel& kernel, const auto&) { return kernel.warnings; },
    .original = original};

}  // namespace syncopate::emit::stated

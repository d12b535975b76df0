// Triton as a language of kernels: kernel/triton/ reads it, this folder writes it.
#pragma once

#include "syncopate/emit/language.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"

namespace syncopate::emit::triton {

/// The user's file with the added lines that emit.hpp shows.
[[nodiscard]] Result<std::string> rewrite(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                                          std::size_t stage);

[[nodiscard]] inline const std::string& original(const kernel::Kernel& kernel) {
    return kernel::triton::text_of(kernel).source;
}

inline constexpr Language kTriton{.name = kernel::triton::kLanguage,
                                  .suffix = ".py",
                                  .analyse = kernel::triton::analyse,
                                  .analyse_as = kernel::triton::analyse_as,
                                  .explain = kernel::triton::analyse_and_explain,
                                  .imported_files = kernel::triton::imported_files,
                                  .emit = rewrite,
                                  .warnings = kernel::triton::warnings_of,
                                  .original = original};

}  // namespace syncopate::emit::triton

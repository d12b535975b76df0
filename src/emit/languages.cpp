#include <algorithm>
#include <array>

#include "emit/triton/triton.hpp"
#include "syncopate/emit/emit.hpp"
#include "syncopate/emit/language.hpp"

namespace syncopate::emit {
namespace {

constexpr std::array kLanguages{triton::kTriton};

}  // namespace

std::span<const Language> languages() { return kLanguages; }

const Language& language_of(std::string_view file) {
    const auto found = std::ranges::find_if(
        kLanguages, [&](const Language& language) { return file.ends_with(language.suffix); });
    return found == kLanguages.end() ? kLanguages.front() : *found;
}

Result<const Language*> language_of(const kernel::Kernel& kernel) {
    const std::string_view name = kernel.origin ? kernel.origin->language() : "";
    const auto found = std::ranges::find(kLanguages, name, &Language::name);
    if (found != kLanguages.end()) return &*found;
    std::string known;
    for (const Language& language : kLanguages)
        known += (known.empty() ? "" : ", ") + std::string(language.name);
    return Error{"kernel " + kernel.name + " has no source in a language that can be emitted: " + known};
}

Result<std::string> emit(const fuse::BoundKernel& program, const fuse::Schedule& schedule) {
    return emit(program, schedule, 0);
}

Result<std::string> emit(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                         std::size_t stage) {
    const Result<const Language*> language = language_of(program.kernel);
    if (!language) return language.error();
    return (*language)->emit(program, schedule, stage);
}

}  // namespace syncopate::emit

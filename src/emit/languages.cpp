#include <algorithm>
#include <array>

#include "emit/stated/stated.hpp"
#include "emit/triton/triton.hpp"
#include "syncopate/emit/emit.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit {
namespace {

constexpr std::array kLanguages{triton::kTriton, stated::kStated};

}  // namespace

std::span<const Language> languages() { return kLanguages; }

const Language& language_of(std::string_view file) {
    const auto found = std::ranges::find_if(
        kLanguages, [&](const Language& language) { return file.ends_with(language.suffix); });
    return found == kLanguages.end() ? kLanguages.front() : *found;
}

std::string suffix_of(std::string_view file) {
    const std::size_t name =
        file.find_last_of('/') == std::string_view::npos ? 0 : file.find_last_of('/') + 1;
    const std::size_t dot = file.find_last_of('.');
    const bool has_one = dot != std::string_view::npos && dot > name && dot + 1 < file.size();
    return std::string(has_one ? file.substr(dot) : languages().front().suffix);
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
    SYNCOPATE_TAKE(const Language* language, language_of(program.kernel));
    return language->emit(program, schedule, stage);
}

}  // namespace syncopate::emit

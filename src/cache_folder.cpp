#include "syncopate/cache_folder.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace syncopate {
namespace {

std::filesystem::path named(const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? std::filesystem::path() : std::filesystem::path(value);
}

}  // namespace

std::filesystem::path cache_folder() {
    if (std::filesystem::path own = named("SYNCOPATE_CACHE_DIR"); !own.empty()) return own;
    if (const std::filesystem::path cache = named("XDG_CACHE_HOME"); !cache.empty())
        return cache / "syncopate";
    std::filesystem::path home = named("HOME");
    if (const passwd* user = home.empty() ? ::getpwuid(::getuid()) : nullptr; user != nullptr)
        home = user->pw_dir;
    return home.empty() ? home : home / ".cache" / "syncopate";
}

}  // namespace syncopate

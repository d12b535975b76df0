#include "syncopate/cache_folder.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace syncopate {
namespace {

std::filesystem::path named(const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? std::filesystem::path() : std::filesystem::path(value);
}

Error of_folder(const std::filesystem::path& folder, const std::string& what) {
    return machine_error(folder.string() + ": " + what);
}

/// Whether others than this user and root can change what is in the folder; `level`: of so many folders above the
/// one that holds what is executed: whether they can put another folder in its place.
Status refuse_others(const std::filesystem::path& folder, int level) {
    struct stat about{};
    if (::stat(folder.c_str(), &about) != 0) return of_folder(folder, std::strerror(errno));
    const bool open = (about.st_mode & (level > 1 ? S_IWOTH : S_IWGRP | S_IWOTH)) != 0;
    if (open && (level == 0 || (about.st_mode & S_ISVTX) == 0))
        return of_folder(folder, "other users may write there, and what is kept is executed (chmod go-w)");
    if (level < 2 && about.st_uid != ::geteuid() && about.st_uid != 0)
        return of_folder(
            folder,
            fmt::format("it belongs to another user (uid {}), and what is kept is executed", about.st_uid));
    return Done{};
}

}  // namespace

Status make_folder(const std::filesystem::path& folder) {
    std::error_code failure;
    if (std::filesystem::is_directory(folder, failure)) return Done{};
    if (const std::filesystem::path above = folder.parent_path(); !above.empty() && above != folder) {
        if (Status made = make_folder(above); !made) return made;
    }
    if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return Done{};
    return of_folder(folder, std::strerror(errno));
}

Status make_private_folder(const std::filesystem::path& folder) {
    if (Status made = make_folder(folder); !made) return made;
    std::error_code failure;
    // Where links lead is looked at, too: each folder above is one of the path as it really is.
    std::filesystem::path at = std::filesystem::canonical(folder, failure);
    if (failure) return of_folder(folder, failure.message());
    for (int level = 0;; ++level) {
        if (Status fine = refuse_others(at, level); !fine) return fine;
        if (!at.has_relative_path()) return Done{};
        at = at.parent_path();
    }
}

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

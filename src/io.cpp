#include "syncopate/io.hpp"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace syncopate {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 32;

/// Owns a file descriptor.
class File {
public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    [[nodiscard]] int get() const { return descriptor_; }
    [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
    /// False if closing reports a write that failed late.
    [[nodiscard]] bool close() { return ::close(std::exchange(descriptor_, -1)) == 0; }

private:
    int descriptor_;
};

Error failure(const std::string& path, const char* what, int error) {
    return Error{fmt::format("cannot be {}: {}", what, std::strerror(error)), {path}};
}

Result<std::string> read_all(int descriptor, const std::string& path) {
    std::string text;
    struct stat status{};
    if (::fstat(descriptor, &status) == 0) {
        if (S_ISDIR(status.st_mode)) return Error{"is a directory; expected a file", {path}};
        if (S_ISREG(status.st_mode)) text.reserve(static_cast<std::size_t>(status.st_size) + 1);
    }
    constexpr std::size_t kStep = std::size_t{1} << 20;
    for (;;) {
        const std::size_t before = text.size();
        text.resize(before + kStep);
        const ssize_t count = ::read(descriptor, text.data() + before, kStep);
        text.resize(before + (count > 0 ? static_cast<std::size_t>(count) : 0));
        if (count == 0) return text;
        if (count < 0 && errno != EINTR) return failure(path, "read", errno);
        if (text.size() > kLargestFile) return Error{"is longer than 4 GiB", {path}};
    }
}

bool write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(descriptor, text.data(), text.size());
        if (count < 0) {
            if (errno == EINTR) continue;
            return false;
        }
        text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

/// Opens a new file beside `target` and names it in `path`: the kernel gives it what permissions new files
/// have.
int open_beside(const std::string& target, std::string& path) {
    constexpr std::uint32_t kAttempts = 100;
    std::uint32_t start =
        0;  // by getrandom: what std::random_device calls is newer than the C library of many
    if (::getrandom(&start, sizeof(start), 0) < 0) start = static_cast<std::uint32_t>(::getpid());
    for (std::uint32_t attempt = 0; attempt < kAttempts; ++attempt) {
        path = fmt::format("{}.{:08x}", target, start + attempt);
        const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
    if (path == "-") {
        // What is empty since it has been read would be taken for an empty file.
        static std::atomic<bool> taken = false;
        Result<std::string> text = read_all(STDIN_FILENO, path);
        if (text && text->empty() && taken)
            return Error{"standard input has been read: only one file can be -"};
        taken = true;
        return text;
    }
    if (path.empty()) return Error{"the name of a file is empty"};
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) return failure(path, "opened", errno);
    return read_all(file.get(), path);
}

Status write_file_atomically(const std::string& path, std::string_view text) {
    if (path == "-") {
        if (!write_all(STDOUT_FILENO, text)) return failure("standard output", "written", errno);
        return Done{};
    }
    struct stat existing{};
    const bool exists = ::stat(path.c_str(), &existing) == 0;
    if (exists && S_ISDIR(existing.st_mode)) return Error{"is a directory; expected a file to write", {path}};
    if (exists && !S_ISREG(existing.st_mode)) {
        File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        if (!file.is_open() || !write_all(file.get(), text) || !file.close())
            return failure(path, "written", errno);
        return Done{};
    }

    std::string target = path;
    if (exists) {
        std::error_code error;
        target = std::filesystem::canonical(path, error).string();
        if (error) return failure(path, "resolved", error.value());
    }
    std::string temporary;
    File file(open_beside(target, temporary));
    if (!file.is_open()) return failure(path, "written", errno);
    const bool as_before = !exists || ::fchmod(file.get(), existing.st_mode & 07777) == 0;
    if (as_before && write_all(file.get(), text) && file.close() &&
        ::rename(temporary.c_str(), target.c_str()) == 0) {
        return Done{};
    }
    const int error = errno;
    ::unlink(temporary.c_str());
    return failure(path, "written", error);
}

Status sync_to_disk(const std::string& path) {
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    // A file system that knows no such thing says EINVAL.
    if (!file.is_open() || (::fsync(file.get()) != 0 && errno != EINVAL)) return failure(path, "kept", errno);
    return Done{};
}

}  // namespace syncopate

#include "runtime/heap/process.hpp"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/heap/fields.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::runtime {

namespace {

// Fields of /proc/PID/stat, of which the third is the first one here.
constexpr std::size_t kState = 0;
constexpr std::size_t kThreads = 20 - 3;
constexpr std::size_t kStart = 22 - 3;

/// Those after the name; `text` holds them. Empty when there is no such process.
std::vector<std::string_view> stat_of(long pid, std::string& text) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    if (!std::getline(file, text)) return {};
    // The name in parentheses may hold spaces and parentheses itself.
    const std::size_t end = text.rfind(')');
    if (end == std::string::npos) return {};
    std::vector<std::string_view> fields = fields_of(std::string_view(text).substr(end + 1));
    if (fields.size() <= kStart) fields.clear();
    return fields;
}

}  // namespace

std::optional<std::uint64_t> start_time_of(long pid) {
    std::string text;
    const std::vector<std::string_view> fields = stat_of(pid, text);
    return fields.empty() ? std::nullopt : whole_number<std::uint64_t>(fields[kStart]);
}

ProcessName ProcessName::own() {
    const std::int64_t pid = getpid();
    return {pid, start_time_of(pid).value_or(0), std::hash<std::string>{}(pid_namespace())};
}

bool ProcessName::has_ended() const {
    if (pid == 0 || start == 0 || space != std::hash<std::string>{}(pid_namespace())) return false;
    std::string text;
    const std::vector<std::string_view> fields = stat_of(pid, text);
    if (fields.empty() || whole_number<std::uint64_t>(fields[kStart]) != start) return true;
    // Nobody has asked for its exit code yet. Its first thread may have ended before others.
    return (fields[kState] == "Z" || fields[kState] == "X") && fields[kThreads] == "1";
}

std::uint32_t forks() {
    static std::atomic<std::uint32_t> count{0};
    static const int counted = pthread_atfork(nullptr, nullptr, [] { ++count; });
    (void)counted;
    return count.load(std::memory_order_relaxed);
}

std::string pid_namespace() {
    std::array<char, 128> link{};
    const ssize_t length = readlink("/proc/self/ns/pid", link.data(), link.size());
    return length > 0 ? std::string(link.data(), static_cast<std::size_t>(length)) : std::string();
}

std::string random_hex(int bytes) {
    std::string raw(static_cast<std::size_t>(bytes), '\0');
    if (getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size())) {
        // Not since Linux 3.17. Not std::random_device: what it calls is newer than the C library of many.
        std::mt19937_64 random(
            static_cast<std::uint64_t>(getpid()) ^
            static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
        for (char& byte : raw) byte = static_cast<char>(random());
    }
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const char byte : raw) {
        text += kDigits[(static_cast<unsigned char>(byte) >> 4) & 15];
        text += kDigits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
}

}  // namespace syncopate::runtime

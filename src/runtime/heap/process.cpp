#include "runtime/heap/process.hpp"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/heap/fields.hpp"

namespace syncopate::runtime {

std::optional<std::uint64_t> start_time_of(long pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return std::nullopt;
    // The name in parentheses may hold spaces and parentheses itself; field 3 follows the last one.
    const std::size_t end = text.rfind(')');
    if (end == std::string::npos) return std::nullopt;
    const std::vector<std::string_view> fields = fields_of(std::string_view(text).substr(end + 1));
    constexpr std::size_t kStart = 22 - 3;
    return fields.size() > kStart ? number_from<std::uint64_t>(fields[kStart]) : std::nullopt;
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

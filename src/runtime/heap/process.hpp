// Which process wrote something: a pid alone is reused, a pid with its start time is not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace syncopate::runtime {

/// Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); nullopt when there is
/// none.
std::optional<std::uint64_t> start_time_of(long pid);
/// Identifies the pid namespace of this process; "" when unknown.
std::string pid_namespace();
/// A process of this machine, as other ones may ask for it.
struct ProcessName {
    std::int64_t pid = 0;  ///< 0: of nobody, who has not ended either
    std::uint64_t start = 0;
    std::uint64_t space =
        0;  ///< digest of its pid namespace: one of another cannot be looked up, and is believed
    static ProcessName own();
    /// Whether it has ended, its parent may not know it yet.
    [[nodiscard]] bool has_ended() const;
};
/// Of how many forks, since the first such question, this process is the child: what was made under another
/// number was made by a parent.
std::uint32_t forks();
/// `bytes` random bytes from the kernel, as hexadecimal text.
std::string random_hex(int bytes);

}  // namespace syncopate::runtime

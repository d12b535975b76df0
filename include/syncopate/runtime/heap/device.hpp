// Where a rank's memory and kernels live.
#pragma once

#include <cstdint>
#include <string>

namespace syncopate::runtime {

struct Device {
    enum class Kind : std::uint8_t {
        host,  ///< shared memory of this machine; kernels run in Triton's interpreter or in C++
        cuda,  ///< a GPU
    };
    Kind kind = Kind::host;
    int ordinal = 0;  ///< cuda: the device's number in this process; several ranks may name the same one

    bool operator==(const Device&) const = default;
    /// "host" or "cuda:1"
    [[nodiscard]] std::string to_string() const {
        return kind == Kind::host ? "host" : "cuda:" + std::to_string(ordinal);
    }
};

}  // namespace syncopate::runtime

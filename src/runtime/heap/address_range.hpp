// The addresses at which a process maps all ranks' memory: one range for all ranks that are threads of it. The rank
// that comes first reserves it and leaves it here under a name; the others take it by that name, which the ranks have
// told each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace syncopate::runtime {

/// Gives the addresses back, and what is still mapped there, when its last user is gone.
class AddressRange {
public:
    AddressRange() = default;
    AddressRange(const AddressRange&) = delete;
    AddressRange& operator=(const AddressRange&) = delete;
    virtual ~AddressRange() = default;
    [[nodiscard]] virtual std::uint64_t base() const = 0;
};

/// Names the process: of two ranks with the same name one is a thread beside the other.
[[nodiscard]] std::string process_name();

/// Leaves `range` for the threads beside this one, until the result is gone.
[[nodiscard]] std::shared_ptr<void> offer_range(const std::string& name, std::shared_ptr<AddressRange> range);
/// Null where there is none of that name.
[[nodiscard]] std::shared_ptr<AddressRange> offered_range(const std::string& name);

}  // namespace syncopate::runtime

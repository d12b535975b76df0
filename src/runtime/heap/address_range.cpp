#include "runtime/heap/address_range.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "runtime/heap/process.hpp"

namespace syncopate::runtime {
namespace {

struct Offers {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<AddressRange>> ranges;
};

Offers& offers() {
    static Offers* const only = new Offers;  // a thread may outlive what has static storage
    return *only;
}

}  // namespace

std::string process_name() {
    static const std::string nonce =
        random_hex(8);  // a pid alone is reused, and another one's in a container
    return fmt::format("{}.{}", getpid(), nonce);
}

std::shared_ptr<void> offer_range(const std::string& name, std::shared_ptr<AddressRange> range) {
    Offers& all = offers();
    const std::lock_guard lock(all.mutex);
    all.ranges[name] = std::move(range);
    return {&all, [name](void*) {
                std::shared_ptr<AddressRange> dropped;  // after the lock
                Offers& left = offers();
                const std::lock_guard inner(left.mutex);
                dropped = std::move(left.ranges[name]);
                left.ranges.erase(name);
            }};
}

std::shared_ptr<AddressRange> offered_range(const std::string& name) {
    Offers& all = offers();
    const std::lock_guard lock(all.mutex);
    const auto found = all.ranges.find(name);
    return found == all.ranges.end() ? nullptr : found->second;
}

}  // namespace syncopate::runtime

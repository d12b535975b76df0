#include "syncopate/runtime/host/host_mover.hpp"

#include <algorithm>
#include <chrono>

#include "runtime/signals/turns.hpp"
#include "syncopate/runtime/host/host_collective.hpp"

namespace syncopate::runtime {

void HostMover::perform(const PreparedTransfer& transfer, std::uint32_t epoch, std::int32_t where) {
    delay();
    if (const PreparedCollective* collective = transfer.collective()) {
        if (!collect_on_host(*collective, control_, epoch, where)) return;
    }
    if (const PreparedSum* sum = transfer.sum()) sum_on_host(*sum);
    if (const PreparedTransfer::Copies* copies = transfer.copies()) copy(*copies);
    delay();
    if (control_.faulty()) return;  // [P30]; else it posts, behind the data [P21]
    for (const std::uint64_t word : transfer.post_words) HostControl(word).store(0, epoch);
}

void HostMover::copy(const PreparedTransfer::Copies& copies) {
    for (const StridedCopy& copy : copies) {
        if (max_delay_us_ == 0 || copy.height < 2) {
            copy_on_host(copy);
            continue;
        }
        // The lower rows first, then the upper ones: a reader that does not wait sees a torn chunk.
        const std::uint64_t cut = 1 + random_() % (copy.height - 1);
        StridedCopy part = copy;
        part.height = copy.height - cut;
        part.src += cut * copy.src_pitch;
        part.dst += cut * copy.dst_pitch;
        copy_on_host(part);
        delay();
        part = copy;
        part.height = cut;
        copy_on_host(part);
    }
}

void HostMover::delay() {
    if (max_delay_us_ <= 0) return;
    // Most pauses are short, some are long: that is how machines stall.
    const auto longest = static_cast<std::uint64_t>(
        random_() % 8 == 0 ? max_delay_us_ : std::max<std::int64_t>(max_delay_us_ / 8, 1));
    sleep_on_host(std::chrono::microseconds(random_() % (longest + 1)));
}

}  // namespace syncopate::runtime

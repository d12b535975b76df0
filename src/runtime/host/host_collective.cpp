#include "syncopate/runtime/host/host_collective.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/signals/turns.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/runtime/call/reduction.hpp"

namespace syncopate::runtime {
namespace {

using plan::CollectiveKind;

const std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

/// What this rank ends with, read from the participants' memory.
std::vector<std::byte> gather(const PreparedCollective& c) {
    const std::size_t shard = c.count * plan::size_of(c.dtype);
    const std::size_t own = c.position * shard;
    std::vector<std::byte> result;
    Turns* const turns = Turns::of_thread();
    const auto append = [&](std::uint64_t from) {
        if (turns != nullptr) turns->read(from, shard);
        result.insert(result.end(), bytes_at(from), bytes_at(from) + shard);
    };
    switch (c.kind) {
        case CollectiveKind::all_gather:
            for (const std::uint64_t from : c.src) append(from);
            break;
        case CollectiveKind::all_to_all:
            for (const std::uint64_t from : c.src) append(from + own);
            break;
        case CollectiveKind::reduce_scatter:
        case CollectiveKind::all_reduce: {
            std::vector<const std::byte*> from;
            for (const std::uint64_t source : c.src) {
                from.push_back(bytes_at(source + (c.kind == CollectiveKind::reduce_scatter ? own : 0)));
                if (turns != nullptr) turns->read(reinterpret_cast<std::uint64_t>(from.back()), shard);
            }
            result.resize(shard);
            reduce_elements(c.dtype, c.reduce, from, result.data(), c.count);
            break;
        }
        default: append(c.src.front());
    }
    return result;
}

}  // namespace

// By words of its own [P8], within the deadline [P28].
bool collect_on_host(const PreparedCollective& c, const HostControl& control, std::uint32_t epoch,
                     std::int32_t where) {
    const auto meet = [&](std::int32_t phase) {
        for (const std::uint64_t word : c.joined)
            HostControl(word).store(phase * emit::control::signal_stride, epoch);
        return std::ranges::all_of(c.joined_signal, [&](std::int32_t signal) {
            return control.wait({signal + phase, 0}, epoch, where);
        });
    };
    if (!meet(0)) return false;
    const std::vector<std::byte> result = gather(c);
    if (!meet(1)) return false;
    if (Turns* const turns = Turns::of_thread()) turns->write(c.dst, result.size());
    std::memcpy(reinterpret_cast<void*>(c.dst), result.data(), result.size());
    return true;
}

}  // namespace syncopate::runtime

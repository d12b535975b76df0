#include "syncopate/runtime/host/host_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/signals/turns.hpp"
#include "syncopate/runtime/call/reduction.hpp"

namespace syncopate::runtime {
namespace {

using device::EngineOp;
using device::EnginePiece;
using device::EngineSource;

const std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

}  // namespace

HostEngine::HostEngine(EngineTable table, HostControl control, const HostEngineOptions& options)
    : table_(std::move(table)), control_(control), options_(options), finished_(table_.num_counters) {
    counts_ = HostControl(reinterpret_cast<std::uint64_t>(finished_.data()));
    if (table_.empty()) return;
    options_.num_warps = std::max(options_.num_warps, 1u);
    for (std::uint32_t thread = 0; thread <= options_.num_warps; ++thread)
        random_.emplace_back(options_.seed * 1'000'003 + thread);
    workers_.make(options_.num_warps + 1, [this](std::size_t worker, std::uint32_t epoch) {
        if (worker < options_.num_warps) {
            move(static_cast<std::uint32_t>(worker), epoch);
        } else {
            post(epoch);
        }
    });
}

bool HostEngine::shift_sources(std::int32_t tensor, std::uint64_t distance) {
    if (table_.shifted_tensor < 0 || table_.shifted_tensor != tensor) return false;
    shift_ = distance;
    return true;
}

void HostEngine::move(std::uint32_t warp, std::uint32_t epoch) {
    std::size_t index = 0;
    bool entered = false;  // its waits are over
    for (std::uint32_t piece = warp;; piece += options_.num_warps) {
        while (piece >= table_.ops[index].last_piece) {
            if (++index == table_.ops.size()) return;
            entered = false;
        }
        const EngineOp& op = table_.ops[index];
        for (std::uint32_t i = 0; !entered && i < op.num_waits; ++i) {
            const device::WaitEntry& wait = table_.waits[op.first_wait + i];
            if (!control_.wait({wait.signal, static_cast<std::int32_t>(wait.lag)}, epoch, op.where)) return;
        }
        entered = true;
        if (control_.faulty()) return;
        delay(warp);
        perform(op, device::piece_of(op, piece));
        (void)counts_.add(static_cast<std::int32_t>(op.counter), 1);
    }
}

void HostEngine::post(std::uint32_t epoch) {
    if (post_ops(epoch)) return;
    for (const EngineOp& op : table_.ops) {  // the streams that wait for relays go on
        if (op.opens != 0) HostControl(table_.posts[op.first_post]).store(0, device::posted(op, epoch));
    }
}

// [P7, P23]
bool HostEngine::post_ops(std::uint32_t epoch) {
    for (const EngineOp& op : table_.ops) {
        if (op.num_posts == 0) continue;
        if (!control_.until(counts_, static_cast<std::int32_t>(op.counter), epoch * op.expected))
            return false;
        delay(options_.num_warps);
        if (control_.faulty()) return false;  // [P30]
        const auto index = static_cast<std::uint32_t>(&op - table_.ops.data());
        const auto count = static_cast<std::uint32_t>(table_.ops.size());
        for (std::uint32_t i = 0; i < op.num_posts; ++i) {
            const HostControl word(table_.posts[op.first_post + i]);
            if (options_.counted_blocks == 0)
                word.store(0, device::posted(op, epoch));
            else  // all blocks of the op at once [P5]
                (void)word.add(0, (options_.counted_blocks - index + count - 1) / count);
        }
    }
    return true;
}

void HostEngine::perform(const EngineOp& op, const EnginePiece& piece) const {
    std::vector<const std::byte*> from(op.num_sources);
    Turns* const turns = Turns::of_thread();
    for (std::uint32_t row = piece.row; row < piece.row + piece.rows; ++row) {
        const std::uint64_t to_address = row_address(op, op.dst, row) + piece.column;
        auto* to = reinterpret_cast<std::byte*>(to_address);
        if (op.reduce == device::EngineReduce::none) {
            const std::uint64_t source = source_row(op, row, shift_) + piece.column;
            if (turns != nullptr) turns->copy({.src = source, .dst = to_address, .width = piece.bytes});
            std::memcpy(to, bytes_at(source), piece.bytes);
            continue;
        }
        for (std::uint32_t i = 0; i < op.num_sources; ++i)
            from[i] = bytes_at(row_address(op, table_.sources[op.first_source + i], row) + piece.column);
        if (turns != nullptr) {
            for (const std::byte* source : from)
                turns->read(reinterpret_cast<std::uint64_t>(source), piece.bytes);
            turns->write(to_address, piece.bytes);
            for (std::uint32_t i = 0; i < op.num_copies; ++i)
                turns->write(to_address + table_.copies[op.first_copy + i], piece.bytes);
        }
        const plan::DType dtype = dtype_of(static_cast<device::SumType>(op.type));
        reduce_elements(dtype, op.reduce == device::EngineReduce::max ? plan::Reduce::max : plan::Reduce::sum,
                        from, to, piece.bytes / plan::size_of(dtype));
        for (std::uint32_t i = 0; i < op.num_copies; ++i)
            std::memcpy(to + table_.copies[op.first_copy + i], to, piece.bytes);
    }
}

void HostEngine::delay(std::uint32_t thread) {
    if (options_.max_delay_us <= 0) return;
    const auto most = static_cast<std::uint64_t>(options_.max_delay_us) + 1;
    sleep_on_host(std::chrono::microseconds(random_[thread]() % most));
}

}  // namespace syncopate::runtime

#include "syncopate/runtime/signals/fault.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/emit/table.hpp"

namespace syncopate::runtime {
namespace {

namespace word = emit::control;

std::string name_of_chunk(const fuse::Schedule& schedule, const plan::Chunk& chunk) {
    const bool known = chunk.tensor >= 0 && static_cast<std::size_t>(chunk.tensor) < schedule.tensors.size();
    return (known ? schedule.tensors[at(chunk.tensor)].name : "?") + plan::to_string(chunk.region);
}

const fuse::Transfer* find_transfer(const fuse::Schedule& schedule, plan::OpRef op) {
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        for (const fuse::Transfer& transfer : rank.transfers) {
            if (transfer.op == op) return &transfer;
        }
    }
    return nullptr;
}

/// "push, op 0 of rank 2"
std::string name_of_op(const fuse::Transfer& transfer) {
    const char* kind = transfer.sum() != nullptr       ? "sum"
                       : transfer.channel() != nullptr ? transfer.channel()->sends ? "send" : "receive"
                       : transfer.src_rank == transfer.dst_rank ? "local"
                       : transfer.op.rank == transfer.src_rank  ? "push"
                                                                : "pull";
    return fmt::format("{}, op {} of rank {}", kind, transfer.op.index, transfer.op.rank);
}

bool is_staged(const fuse::Transfer& transfer) {
    return transfer.dst.region.size() > transfer.src.region.size();
}

/// Of a word after those of signals, chunks and relays: emit::joined_word.
std::string describe_joining(const fuse::Schedule& schedule, int rank, int signal) {
    const fuse::RankSchedule& own = schedule.ranks[at(rank)];
    const auto size = static_cast<int>(schedule.ranks.size());
    const int place = (word::word_of(signal) - emit::joined_word(own, 0, size, 0)) / word::signal_stride;
    for (const fuse::Transfer& transfer : own.transfers) {
        const fuse::Collective* collective = transfer.collective();
        if (place < 0 || collective == nullptr || collective->number != place / 2 / size) continue;
        return fmt::format("rank {} has not {} {} (op {} of rank {})", place / 2 % size,
                           place % 2 == 0 ? "joined" : "read its part of", plan::name_of(collective->kind),
                           transfer.op.index, rank);
    }
    return fmt::format("signal {} is unknown", signal);
}

/// What the tiles of `op`'s rank store here themselves, by the signal that they post.
std::string describe_stored(const fuse::Schedule& schedule, int rank, int signal, plan::OpRef op) {
    for (const fuse::MadeChunk& chunk : schedule.ranks[at(op.rank)].chunks) {
        if (std::ranges::find(chunk.posts, fuse::Post{rank, signal}) == chunk.posts.end()) continue;
        return fmt::format("chunk {} from rank {}'s kernel (op {}) has not arrived",
                           name_of_chunk(schedule, chunk.chunk), op.rank, op.index);
    }
    return fmt::format("op {} of rank {} has not signalled", op.index, op.rank);
}

}  // namespace

FaultRecord FaultRecord::from_words(const std::uint32_t* words) {
    // On a GPU hosts may have written over the first one, which its claim still says.
    const std::uint32_t claim = words[word::fault_claim];
    const bool claimed = words[word::fault] != 0 && claim != 0 && claim != word::claiming;
    return {.fault = words[claimed ? word::fault_claim : word::fault],
            .seen = words[word::fault_seen],
            .awaited = words[word::fault_epoch],
            .where = static_cast<std::int32_t>(words[word::fault_where]),
            // A kernel that ends after its fault goes on to the next call's number.
            .epoch = words[words[word::fault_call] != 0 ? word::fault_call : word::epoch]};
}

std::string describe_missing(const fuse::Schedule& schedule, int rank, int signal) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= schedule.ranks.size())
        return fmt::format("signal {}", signal);
    const std::vector<fuse::SignalMeaning>& signals = schedule.ranks[at(rank)].signals;
    if (signal < 0) return fmt::format("signal {} is unknown", signal);
    const std::vector<fuse::MadeChunk>& chunks = schedule.ranks[at(rank)].chunks;
    const std::size_t beyond =
        static_cast<std::size_t>(signal) - std::min<std::size_t>(signal, signals.size());
    // The counter of a chunk, for which tiles wait themselves.
    if (static_cast<std::size_t>(signal) >= signals.size() && beyond < chunks.size())
        return fmt::format("chunk {} has not been made by rank {}'s kernel",
                           name_of_chunk(schedule, chunks[beyond].chunk), rank);
    if (static_cast<std::size_t>(signal) >= signals.size()) return describe_joining(schedule, rank, signal);
    const fuse::SignalMeaning& meaning = signals[at(signal)];
    const fuse::Transfer* transfer = meaning.op.index >= 0 ? find_transfer(schedule, meaning.op) : nullptr;
    using Kind = fuse::SignalMeaning::Kind;
    switch (meaning.kind) {
        case Kind::arrived:
            if (transfer == nullptr) return describe_stored(schedule, rank, signal, meaning.op);
            if (const fuse::Collective* collective = transfer->collective())
                return fmt::format(
                    "{} (op {} of rank {}) has not ended: one of its ranks may not have joined",
                    plan::name_of(collective->kind), meaning.op.index, meaning.op.rank);
            // A contribution arrives in a slot of a staging tensor: then it is named as it was sent.
            return fmt::format("chunk {} from rank {} ({}) has not arrived",
                               name_of_chunk(schedule, is_staged(*transfer) ? transfer->src : transfer->dst),
                               transfer->src_rank, name_of_op(*transfer));
        case Kind::fetched:
            if (transfer == nullptr) break;
            return fmt::format("chunk {} has not been fetched by rank {} ({})",
                               name_of_chunk(schedule, transfer->src), transfer->dst_rank,
                               name_of_op(*transfer));
        case Kind::consumed:
            return fmt::format("rank {} has not finished reading what was sent to it", meaning.op.rank);
        case Kind::made: {
            const auto maker = static_cast<std::size_t>(meaning.op.rank);
            const auto chunk = static_cast<std::size_t>(meaning.op.index);
            if (maker >= schedule.ranks.size() || chunk >= schedule.ranks[maker].chunks.size()) break;
            return fmt::format("chunk {} has not been made by rank {}'s kernel",
                               name_of_chunk(schedule, schedule.ranks[maker].chunks[chunk].chunk),
                               meaning.op.rank);
        }
        case Kind::ready: return fmt::format("rank {} has not begun the call", meaning.op.rank);
    }
    return fmt::format("op {} of rank {} has not signalled", meaning.op.index, meaning.op.rank);
}

Error fault_error(const fuse::Schedule& schedule, int rank, const std::string& called,
                  const FaultRecord& record, std::int64_t deadline_ms) {
    Error error{.error_class = ErrorClass::machine};
    error.location.rank = rank;
    if (record.of_peer() && record.peer() == rank) {
        error.message = fmt::format(
            "{}, call {}: its kernel did not run to its end; the op takes no more calls, make a new one",
            called, record.epoch);
        return error;
    }
    if (record.of_peer()) {
        error.message = fmt::format("{}, call {}: given up because rank {} reported a fault", called,
                                    record.epoch, record.peer());
        return error;
    }
    const auto& signals = schedule.ranks[at(rank)].signals;
    if (static_cast<std::size_t>(record.signal()) < signals.size()) {
        const fuse::SignalMeaning& meaning = signals[at(record.signal())];
        const bool of_own_op = meaning.op.rank == rank && meaning.kind != fuse::SignalMeaning::Kind::made;
        error.location.op = of_own_op ? meaning.op.index : -1;
    }
    std::string where = fmt::format("at slot {}", record.where);
    if (record.where == word::at_begin) where = "before the kernel";
    if (record.where == word::at_end) where = "after the kernel";
    if (record.where <= word::first_transfer)
        where = fmt::format("before transfer {}", word::first_transfer - record.where);
    error.message = fmt::format("{}, call {}: {} within {} ms (signal {} is {}, awaited {}, {})", called,
                                record.epoch, describe_missing(schedule, rank, record.signal()), deadline_ms,
                                record.signal(), record.seen, record.awaited, where);
    return error;
}

}  // namespace syncopate::runtime

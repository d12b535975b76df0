#include "ingest/steps/buffers.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

constexpr std::int64_t kDefaultRows = 1024;

plan::Chunk chunk_of(const plan::Plan& plan, const Span& span) {
    plan::Chunk chunk{span.tensor, plan.tensors[at(span.tensor)].whole()};
    chunk.region.front() = span.rows;
    return chunk;
}

}  // namespace

std::optional<Buffer> buffer_from(std::string_view name) {
    if (name == "i") return Buffer::input;
    if (name == "o") return Buffer::output;
    if (name == "s") return Buffer::scratch;
    return std::nullopt;
}

std::string_view name_of(Buffer buffer) {
    switch (buffer) {
        case Buffer::input: return "input";
        case Buffer::output: return "output";
        case Buffer::scratch: return "scratch";
    }
    return "";
}

Result<Buffers> Buffers::make(const BufferSizes& sizes, const std::optional<plan::Tensor>& tensor,
                              plan::Plan& plan) {
    Buffers made;
    made.sizes_ = sizes;
    const std::int64_t input = sizes.input * made.ranks_behind(Buffer::input);
    const std::int64_t output = sizes.output * made.ranks_behind(Buffer::output);
    const std::int64_t chunks = std::max(input, output);
    plan::Tensor whole = tensor.value_or(plan::Tensor{"data", {chunks * kDefaultRows * sizes.granularity}});
    if (whole.shape.front() % chunks != 0) {
        return usage_error(
            fmt::format("the plan cuts axis 0 of {} into {} chunks; {} rows are no multiple of that",
                        whole.name, chunks, whole.shape.front()));
    }
    made.name_ = whole.name;
    made.rows_ = whole.shape.front() / chunks;
    plan.mesh = {{{"gpu", sizes.ranks}}};
    const auto add = [&](std::string name, std::int64_t size) {
        plan::Tensor next = whole;
        next.name = std::move(name);
        next.shape.front() = std::max<std::int64_t>(size, 1) * made.rows_;
        plan.tensors.push_back(std::move(next));
    };
    if (sizes.in_place) {
        add(whole.name, chunks);
    } else {
        add(whole.name + ".input", input);
        add(whole.name + ".output", output);
    }
    if (sizes.scratch > 0) add(whole.name + ".scratch", sizes.scratch);
    made.hold_and_ask(plan);
    return made;
}

/// How many ranks' buffers lie behind one another in the tensor: all, or one.
std::int64_t Buffers::ranks_behind(Buffer buffer) const {
    const bool apart = sizes_.collective == Collective::all_to_all ||
                       (sizes_.collective == Collective::all_gather && buffer == Buffer::input) ||
                       (sizes_.collective == Collective::reduce_scatter && buffer == Buffer::output);
    return apart && buffer != Buffer::scratch ? sizes_.ranks : 1;
}

std::int64_t Buffers::chunks(Buffer buffer) const {
    switch (buffer) {
        case Buffer::input: return sizes_.input;
        case Buffer::output: return sizes_.output;
        case Buffer::scratch: return sizes_.scratch;
    }
    return 0;
}

Span Buffers::span(std::int32_t rank, Buffer buffer, std::int64_t index, std::int64_t count) const {
    std::int32_t tensor = 0;
    if (buffer == Buffer::scratch) tensor = sizes_.in_place ? 1 : 2;
    if (buffer == Buffer::output && !sizes_.in_place) tensor = 1;
    if (ranks_behind(buffer) > 1) index += rank * chunks(buffer);
    return {rank, tensor, {index * rows_, (index + count) * rows_}};
}

void Buffers::hold_and_ask(plan::Plan& plan) {
    const Collective kind = sizes_.collective;
    const bool reduces = kind == Collective::all_reduce || kind == Collective::reduce_scatter;
    // What ranks hold in one place of a tensor, and is not known to be equal, are contributions.
    const bool partial = reduces || kind == Collective::other;
    // A tensor cannot end with another value than it had: an exchange in place is not asked for in the plan.
    const bool exchanged_in_place = kind == Collective::all_to_all && sizes_.in_place;
    for (std::int32_t rank = 0; rank < sizes_.ranks; ++rank) {
        if (sizes_.input > 0) {
            const Span where = span(rank, Buffer::input, 0, sizes_.input);
            plan.initial.push_back({rank, chunk_of(plan, where), partial});
            held_.push_back({where, where.rows.begin});
        }
        if (kind == Collective::other) continue;
        const Span where = span(rank, Buffer::output, 0, sizes_.output);
        if (!exchanged_in_place) plan.final.push_back({rank, chunk_of(plan, where), false, reduces});
        if (kind != Collective::all_to_all) {
            wanted_.push_back({where, where.rows.begin});
            continue;
        }
        const std::int64_t share = sizes_.output / sizes_.ranks;
        for (std::int32_t from = 0; from < sizes_.ranks; ++from) {
            const Span sent = span(from, Buffer::input, rank * share, share);
            wanted_.push_back({span(rank, Buffer::output, from * share, share), sent.rows.begin});
        }
    }
}

}  // namespace syncopate::ingest

#include "buffers.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace syncopate::ingest {
namespace {

constexpr std::int64_t kDefaultRows = 1024;

plan::Chunk chunk_of(const plan::Plan& plan, const Span& span) {
    plan::Chunk chunk{span.tensor, plan.tensors[static_cast<std::size_t>(span.tensor)].whole()};
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
    const std::int64_t chunks = std::max(sizes.input, sizes.output);
    plan::Tensor whole = tensor.value_or(plan::Tensor{"data", {chunks * kDefaultRows * sizes.granularity}});
    if (whole.shape.front() % chunks != 0) {
        return Error{
            fmt::format("the plan cuts axis 0 of {} into {} chunks, and {} rows are no multiple of that",
                        whole.name, chunks, whole.shape.front()),
            {},
            ErrorClass::usage};
    }
    made.name_ = whole.name;
    made.rows_ = whole.shape.front() / chunks;
    plan.mesh = {{{"gpu", sizes.ranks}}};
    const auto add = [&](std::string name, std::int64_t size) {
        plan::Tensor next = whole;
        next.name = std::move(name);
        next.shape.front() = size * made.rows_;
        plan.tensors.push_back(std::move(next));
    };
    if (sizes.in_place) {
        add(whole.name, chunks);
    } else {
        add(whole.name + ".input", std::max<std::int64_t>(sizes.input, 1));
        add(whole.name + ".output", std::max<std::int64_t>(sizes.output, 1));
    }
    if (sizes.scratch > 0) add(whole.name + ".scratch", sizes.scratch);
    made.hold_initially(plan);
    made.ask_finally(plan);
    return made;
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
    if (buffer == Buffer::scratch) {
        tensor = sizes_.in_place ? 1 : 2;
    } else if (!sizes_.in_place) {
        tensor = buffer == Buffer::input ? 0 : 1;
    } else if (sizes_.collective == Collective::all_gather && buffer == Buffer::input) {
        index += rank * sizes_.input;
    } else if (sizes_.collective == Collective::reduce_scatter && buffer == Buffer::output) {
        index += rank * sizes_.output;
    }
    return {rank, tensor, {index * rows_, (index + count) * rows_}};
}

void Buffers::hold_initially(plan::Plan& plan) {
    if (sizes_.input == 0) return;
    for (std::int32_t rank = 0; rank < sizes_.ranks; ++rank) {
        const Span where = span(rank, Buffer::input, 0, sizes_.input);
        // In place, a gathered tensor is one array of which each rank holds a part. Otherwise ranks hold
        // different things in the same place, which a plan tells apart as contributions.
        const bool value = sizes_.in_place && sizes_.collective == Collective::all_gather;
        plan.initial.push_back({rank, chunk_of(plan, where), !value});
        held_.push_back({where, value ? where.rows.begin : 0});
    }
}

void Buffers::ask_finally(plan::Plan& plan) {
    const auto ask = [&](const Span& where, bool of_all, std::vector<std::int32_t> of, std::int64_t from) {
        plan.final.push_back({where.rank, chunk_of(plan, where), false, of_all, std::move(of)});
        wanted_.push_back({where, from});
    };
    for (std::int32_t rank = 0; rank < sizes_.ranks; ++rank) {
        const std::int64_t share = sizes_.output / sizes_.ranks;  // of a gathered or exchanged output
        switch (sizes_.collective) {
            case Collective::other: break;
            case Collective::all_reduce:
                ask(span(rank, Buffer::output, 0, sizes_.output), true, {}, 0);
                break;
            case Collective::reduce_scatter:
                ask(span(rank, Buffer::output, 0, sizes_.output), true, {}, rank * sizes_.output * rows_);
                break;
            case Collective::all_gather:
                if (sizes_.in_place) {
                    ask(span(rank, Buffer::output, 0, sizes_.output), false, {}, 0);
                    break;
                }
                for (std::int32_t from = 0; from < sizes_.ranks; ++from)
                    ask(span(rank, Buffer::output, from * share, share), false, {from}, 0);
                break;
            case Collective::all_to_all:
                for (std::int32_t from = 0; from < sizes_.ranks; ++from)
                    ask(span(rank, Buffer::output, from * share, share), false, {from}, rank * share * rows_);
                break;
        }
    }
}

}  // namespace syncopate::ingest

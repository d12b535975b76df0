#include "runtime/call/call_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

class CallPlanning {
public:
    CallPlanning(const SymmetricHeap& heap, const fuse::Schedule& schedule, const OpMemory& memory)
        : heap_(heap), schedule_(schedule), mine_(schedule.ranks[at(heap.rank())]), memory_(memory) {}

    Result<CallPlan> run() {
        plan_ = {.rank = heap_.rank(),
                 .first_rank = heap_.first_mapped(),
                 .num_ranks = heap_.num_mapped(),
                 .first_control = heap_.address(0, memory_.control_offset),
                 .heap_stride = heap_.stride(),
                 .begin_waits = mine_.begin_waits,
                 .engine_blocks = static_cast<unsigned>(schedule_.engine_blocks),
                 .end_waits = mine_.end_waits};
        plan_.begin_posts = words_of(mine_.begin_posts);
        plan_.end_posts = words_of(mine_.end_posts);
        for (const fuse::Transfer& transfer : mine_.transfers) {
            PreparedTransfer prepared{.waits = transfer.waits,
                                      .post_words = words_of(transfer.posts),
                                      .executor = executor_of(transfer),
                                      .index = plan_.transfers.size(),
                                      .step = transfer.step,
                                      .gates = gates_of(transfer.step)};
            if (Status filled = fill(prepared, transfer); !filled)
                return error_at(transfer.op, filled.error().message);
            plan_.transfers.push_back(std::move(prepared));
        }
        return std::move(plan_);
    }

private:
    /// What the transfer does: copies, a sum, or its part in a collective.
    Status fill(PreparedTransfer& prepared, const fuse::Transfer& transfer) const {
        if (const fuse::Collective* collective = transfer.collective()) {
            std::vector<std::uint64_t> tensors;
            for (const std::uint64_t offset : memory_.tensor_offsets)
                tensors.push_back(heap_.address(0, offset));
            prepared.work = prepare_collective(*collective, schedule_, heap_.rank(), tensors,
                                               plan_.first_control, plan_.heap_stride);
            return Done{};
        }
        if (transfer.sum() != nullptr) {
            SYNCOPATE_TAKE(PreparedSum sum, sum_of(transfer));
            prepared.work = std::move(sum);
            return Done{};
        }
        if (transfer.channel() != nullptr) {
            SYNCOPATE_TAKE(PreparedSide side, side_of(transfer));
            prepared.work = std::move(side);
            return Done{};
        }
        SYNCOPATE_TAKE(
            std::vector<StridedCopy> copies,
            copies_between(box_of(transfer.src_rank, transfer.src), box_of(transfer.dst_rank, transfer.dst),
                           plan::size_of(dtype_of(transfer.src))));
        prepared.work = std::move(copies);
        return Done{};
    }

    [[nodiscard]] Result<PreparedSide> side_of(const fuse::Transfer& transfer) const {
        const fuse::Channel& channel = *transfer.channel();
        const BoxView box = box_of(heap_.rank(), channel.sends ? transfer.src : transfer.dst);
        BoxView block{0, box.shape, std::vector<std::int64_t>(box.shape.size(), 1)};
        for (std::size_t axis = box.shape.size(); axis-- > 1;)
            block.strides[axis - 1] = block.strides[axis] * box.shape[axis];
        const std::size_t item = plan::size_of(dtype_of(transfer.dst));
        SYNCOPATE_TAKE(std::vector<StridedCopy> copies, copies_between(box, block, item));
        PreparedSide side{.sends = channel.sends,
                          .peer = channel.sends ? transfer.dst_rank : transfer.src_rank,
                          .number = channel.number,
                          .round = channel.round,
                          .copies = std::move(copies)};
        for (const StridedCopy& copy : side.copies) side.bytes += copy.bytes();
        const auto is_own = [&](const fuse::SignalMeaning& meaning) { return meaning.op == transfer.op; };
        const auto signal = std::ranges::find_if(mine_.signals, is_own);
        side.signal = static_cast<std::int32_t>(signal - mine_.signals.begin());
        const fuse::Transfer* const next = &transfer + 1;
        const bool last = next == mine_.transfers.data() + mine_.transfers.size();
        side.ends_round = last || next->channel() == nullptr || next->channel()->round != channel.round;
        return side;
    }

    [[nodiscard]] Result<PreparedSum> sum_of(const fuse::Transfer& transfer) const {
        const fuse::Sum& work = *transfer.sum();
        const BoxView destination = box_of(heap_.rank(), transfer.dst);
        std::vector<BoxView> sources;
        for (const fuse::Source& source : work.sources) {
            BoxView& box = sources.emplace_back(box_of(source.rank, source.chunk));
            if (box.shape.size() == destination.shape.size() + 1) box = first_slot(box);  // staged
        }
        const plan::DType dtype = dtype_of(transfer.dst);
        Result<PreparedSum> sum =
            sources.empty()
                ? prepare_sum(box_of(heap_.rank(), transfer.src), destination, dtype, work.reduce, work.own)
                : prepare_sum(sources, destination, dtype, work.reduce, work.own);
        if (!sum) return sum;
        for (const std::int32_t peer : work.peers)
            sum->copies.push_back(box_of(peer, transfer.dst).address - destination.address);
        return sum;
    }

    [[nodiscard]] std::vector<Gate> gates_of(const fuse::StreamStep& step) const {
        const std::int32_t of_sums = step.launch == fuse::Launch::sums ? 1 : 0;
        std::vector<Gate> gates;
        for (const std::int32_t chunk : step.gates) {
            const std::int32_t word = emit::counter_of(mine_, chunk) + emit::control::gate + of_sums;
            gates.push_back({word, static_cast<std::uint32_t>(mine_.chunks[at(chunk)].counting.size())});
        }
        if (step.relay >= 0) gates.push_back({.word = emit::relay_gate_of(mine_, step.relay), .relay = true});
        return gates;
    }

    [[nodiscard]] std::vector<std::uint64_t> words_of(const std::vector<fuse::Post>& posts) const {
        std::vector<std::uint64_t> words;
        for (const fuse::Post& post : posts) {
            words.push_back(plan_.control_of(post.rank) +
                            static_cast<std::uint64_t>(emit::control::word_of(post.signal)) * 4);
        }
        return words;
    }

    [[nodiscard]] BoxView box_of(int rank, const plan::Chunk& chunk) const {
        return memory_.box_of(heap_, schedule_, rank, chunk);
    }

    [[nodiscard]] plan::DType dtype_of(const plan::Chunk& chunk) const {
        return schedule_.tensors[at(chunk.tensor)].dtype;
    }

    const SymmetricHeap& heap_;
    const fuse::Schedule& schedule_;
    const fuse::RankSchedule& mine_;
    const OpMemory& memory_;
    CallPlan plan_;
};

}  // namespace

Result<CallPlan> make_call_plan(const SymmetricHeap& heap, const fuse::Schedule& schedule,
                                const OpMemory& memory) {
    return CallPlanning(heap, schedule, memory).run();
}

}  // namespace syncopate::runtime

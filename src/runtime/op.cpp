#include "syncopate/runtime/op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "runtime/call_executor.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/collective.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/runtime/engine_table.hpp"

namespace syncopate::runtime {
namespace {

constexpr std::uint64_t kTensorAlignment = 1024;
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 31;    // a coordinate has 32 bits
constexpr std::int64_t kLineWords = 32;                        // that memory moves at a time
constexpr std::int64_t kMostOwnWords = std::int64_t{1} << 20;  // of all blocks of an engine

Error at_op(plan::OpRef op, std::string message) {
    return Error{std::move(message), {.rank = op.rank, .op = op.index}};
}

Status check_chunk(const fuse::Schedule& schedule, plan::OpRef op, const plan::Chunk& chunk) {
    if (chunk.tensor < 0 || static_cast<std::size_t>(chunk.tensor) >= schedule.tensors.size()) {
        return at_op(op, fmt::format("there is no tensor {}", chunk.tensor));
    }
    const plan::Tensor& tensor = schedule.tensors[static_cast<std::size_t>(chunk.tensor)];
    if (chunk.region.size() != tensor.shape.size() || !plan::contains(tensor.whole(), chunk.region)) {
        return at_op(
            op, fmt::format("region {} is not in tensor {}", plan::to_string(chunk.region), tensor.name));
    }
    return Done{};
}

Status check_sum(const fuse::Schedule& schedule, const fuse::Transfer& sum, int rank, int size) {
    if (sum.src_rank != rank || sum.dst_rank != rank) {
        return at_op(sum.op,
                     fmt::format("it sums ({}) over ranks: contributions are staged first (fuse does)",
                                 plan::name_of(sum.reduce)));
    }
    const auto source = static_cast<std::size_t>(sum.src.tensor);
    if (source < schedule.tensors.size() && !fuse::can_reduce(schedule.tensors[source].dtype)) {
        return at_op(sum.op, fmt::format("elements of type {} are not reduced",
                                         plan::name_of(schedule.tensors[source].dtype)));
    }
    if (!sum.sources.empty()) {
        if (sum.own > static_cast<std::int64_t>(sum.sources.size()))
            return at_op(sum.op, "its own content comes after more contributions than there are");
        if (sum.sources.size() > fuse::kMostSumSources && !is_by_engine(sum)) {
            return at_op(sum.op, fmt::format("only the chunk engine sums more than {} contributions where "
                                             "they are",
                                             fuse::kMostSumSources));
        }
        for (const fuse::Source& read : sum.sources) {
            if (read.rank < 0 || read.rank >= size)
                return at_op(sum.op, fmt::format("there is no rank {}", read.rank));
            if (Status good = check_chunk(schedule, sum.op, read.chunk); !good) return good;
            if (schedule.tensors[static_cast<std::size_t>(read.chunk.tensor)].dtype !=
                schedule.tensors[static_cast<std::size_t>(sum.dst.tensor)].dtype)
                return at_op(sum.op, "its sources and the destination differ in dtype");
            const plan::Region& region = read.chunk.region;
            const std::size_t axes = sum.dst.region.size();
            const bool in_slot = region.size() == axes + 1 && region.front().size() == 1;
            if (region.size() != axes && !in_slot) {
                return at_op(sum.op, fmt::format("{} is no contribution to {}", plan::to_string(region),
                                                 plan::to_string(sum.dst.region)));
            }
        }
        return Done{};
    }
    if (sum.src.region.size() != sum.dst.region.size() + 1 || sum.src.region.front().size() < 1 ||
        sum.own > sum.src.region.front().size()) {
        return at_op(sum.op, fmt::format("{} is no list of slots to sum into {}",
                                         plan::to_string(sum.src.region), plan::to_string(sum.dst.region)));
    }
    for (const fuse::TileSum& tile : sum.tiles) {
        const bool good = schedule.summed && schedule.num_stages() == 1 && sum.dst.region.size() == 2 &&
                          sum.own >= 0 && !is_by_engine(sum) && sum.reduce == plan::Reduce::sum &&
                          tile.slot >= 0 && tile.slot < schedule.num_slots && tile.region.size() == 2 &&
                          plan::contains(sum.dst.region, tile.region) &&
                          sum.src.region[1].size() == sum.dst.region[0].size() &&
                          sum.src.region[2].size() == sum.dst.region[1].size();
        if (!good) return at_op(sum.op, fmt::format("slot {} cannot do this sum", tile.slot));
    }
    return Done{};
}

/// How many collectives the ranks of the schedule take part in: their numbers are below.
std::size_t num_collectives(const fuse::Schedule& schedule) {
    std::int64_t most = -1;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        for (const fuse::Transfer& transfer : rank.transfers) {
            if (transfer.collective)
                most = std::max<std::int64_t>(most, std::min(transfer.collective->number, 1 << 20));
        }
    }
    return static_cast<std::size_t>(most + 1);
}

/// A kernel may store only within the tensors of the op.
Status check_stores(const fuse::Schedule& schedule, const fuse::RankSchedule& rank) {
    const auto rows_of = [&](std::int32_t tensor) {
        const std::vector<std::int64_t>& shape = schedule.tensors[static_cast<std::size_t>(tensor)].shape;
        const std::vector<std::int64_t>& own =
            schedule.tensors[static_cast<std::size_t>(schedule.stores->tensor)].shape;
        std::int64_t rows = 1;
        for (std::size_t axis = 0; axis + own.size() < shape.size() + 1; ++axis) rows *= shape[axis];
        return rows;
    };
    for (const fuse::MadeChunk& chunk : rank.chunks) {
        for (const fuse::Place& store : chunk.stores) {
            const plan::Interval rows =
                chunk.chunk.region.empty() ? plan::Interval{0, 1} : chunk.chunk.region[0];
            if (!schedule.stores || chunk.chunk.tensor != schedule.stores->tensor ||
                schedule.tensors[static_cast<std::size_t>(store.tensor)].dtype !=
                    schedule.tensors[static_cast<std::size_t>(chunk.chunk.tensor)].dtype ||
                rows.begin + store.rows < 0 || rows.end + store.rows > rows_of(store.tensor)) {
                return Error{fmt::format("the stores of chunk {} do not lie in the schedule's tensors",
                                         plan::to_string(chunk.chunk.region))};
            }
        }
    }
    return Done{};
}

/// A kernel may load only from tensors of the op that are like its own.
Status check_loads(const fuse::Schedule& schedule, const fuse::RankSchedule& rank) {
    for (const fuse::Slot& slot : rank.slots) {
        if (!slot.from) continue;
        const plan::Tensor& own = schedule.tensors[static_cast<std::size_t>(schedule.loads->tensor)];
        const plan::Tensor& there = schedule.tensors[static_cast<std::size_t>(slot.from->tensor)];
        const bool alike = own.dtype == there.dtype && !own.shape.empty() &&
                           own.shape.size() == there.shape.size() &&
                           std::equal(own.shape.begin() + 1, own.shape.end(), there.shape.begin() + 1);
        if (!alike || slot.from->rows <= -own.shape[0] || slot.from->rows >= there.shape[0]) {
            return Error{fmt::format("tile {} would load {} rows further on in tensor {}, which is not in it",
                                     slot.tile, slot.from->rows, there.name)};
        }
    }
    return Done{};
}

/// Contiguous regions, of sizes that fit the kind, and this rank among those that take part.
Status check_collective(const fuse::Schedule& schedule, const fuse::Transfer& transfer, int rank) {
    const fuse::Collective& collective = *transfer.collective;
    const auto size = static_cast<std::int64_t>(collective.members.size());
    bool takes_part = false;
    std::int64_t src = -1;  // elements
    std::int64_t dst = -1;
    for (const fuse::Collective::Member& member : collective.members) {
        takes_part = takes_part || member.op == transfer.op;
        for (const plan::Chunk* chunk : {&member.src, &member.dst}) {
            if (Status good = check_chunk(schedule, transfer.op, *chunk); !good) return good;
            if (fuse::is_contiguous(schedule.tensors[static_cast<std::size_t>(chunk->tensor)], chunk->region))
                continue;
            return at_op(transfer.op, fmt::format("a collective moves contiguous regions, not {}",
                                                  plan::to_string(chunk->region)));
        }
        const std::int64_t from = plan::num_elements(member.src.region);
        const std::int64_t to = plan::num_elements(member.dst.region);
        if (src >= 0 && (from != src || to != dst)) return at_op(transfer.op, "shards of several sizes");
        src = from;
        dst = to;
    }
    using enum plan::CollectiveKind;
    const bool fits = collective.kind == all_gather       ? dst == size * src
                      : collective.kind == reduce_scatter ? src == size * dst
                      : collective.kind == all_to_all     ? src == dst && src % size == 0
                                                          : src == dst;
    const bool known =
        collective.number >= 0 && static_cast<std::size_t>(collective.number) < num_collectives(schedule);
    if (takes_part && fits && known && transfer.op.rank == rank) return Done{};
    return at_op(transfer.op, fmt::format("its regions or ranks make no {}", plan::name_of(collective.kind)));
}

/// Everything that the executors index by: after this they need no checks of their own.
Status check_schedule(const fuse::Schedule& schedule, int rank, int size) {
    if (static_cast<int>(schedule.ranks.size()) != size) {
        return Error{
            fmt::format("the schedule is for {} ranks, this run has {}", schedule.ranks.size(), size)};
    }
    for (const plan::Tensor& tensor : schedule.tensors) {
        const bool sane = std::ranges::all_of(tensor.shape, [](std::int64_t extent) { return extent >= 0; });
        if (!sane || plan::num_elements(tensor.whole()) > (std::int64_t{1} << 42)) {
            return Error{fmt::format("tensor {} has no sensible size", tensor.name)};
        }
    }
    const fuse::RankSchedule& mine = schedule.ranks[static_cast<std::size_t>(rank)];
    const auto check_posts = [&](const std::vector<fuse::Post>& posts) -> Status {
        for (const fuse::Post& post : posts) {
            if (post.rank < 0 || post.rank >= size || post.signal < 0 ||
                static_cast<std::size_t>(post.signal) >=
                    schedule.ranks[static_cast<std::size_t>(post.rank)].signals.size()) {
                return Error{fmt::format("a post to signal {} of rank {}, which has none such", post.signal,
                                         post.rank),
                             {.rank = rank}};
            }
        }
        return Done{};
    };
    const auto check_waits = [&](const std::vector<fuse::Wait>& waits) -> Status {
        for (const fuse::Wait& wait : waits) {
            if (wait.signal < 0 || static_cast<std::size_t>(wait.signal) >= mine.signals.size() ||
                wait.lag < 0) {
                return Error{fmt::format("a wait for signal {} (lag {}), of which there is none", wait.signal,
                                         wait.lag),
                             {.rank = rank}};
            }
        }
        return Done{};
    };
    for (const auto* posts : {&mine.begin_posts, &mine.kernel_posts, &mine.end_posts}) {
        if (Status good = check_posts(*posts); !good) return good;
    }
    for (const fuse::MadeChunk& chunk : mine.chunks) {
        if (Status good = check_posts(chunk.posts); !good) return good;
        if (Status good = check_chunk(schedule, {rank, -1}, chunk.chunk); !good) return good;
    }
    if (Status good = check_stores(schedule, mine); !good) return good;
    if (Status good = check_loads(schedule, mine); !good) return good;
    for (const auto* waits : {&mine.begin_waits, &mine.end_waits}) {
        if (Status good = check_waits(*waits); !good) return good;
    }
    for (const fuse::Transfer& transfer : mine.transfers) {
        for (const std::int32_t end : {transfer.src_rank, transfer.dst_rank}) {
            if (end < 0 || end >= size) return at_op(transfer.op, fmt::format("there is no rank {}", end));
        }
        if (transfer.reduce != plan::Reduce::none) {
            if (Status good = check_chunk(schedule, transfer.op, transfer.dst); !good) return good;
            if (Status good = check_sum(schedule, transfer, rank, size); !good) return good;
        }
        for (const plan::Chunk* chunk : {&transfer.src, &transfer.dst}) {
            if (Status good = check_chunk(schedule, transfer.op, *chunk); !good) return good;
        }
        if (schedule.tensors[static_cast<std::size_t>(transfer.src.tensor)].dtype !=
            schedule.tensors[static_cast<std::size_t>(transfer.dst.tensor)].dtype) {
            return at_op(transfer.op, "the source and the destination differ in dtype");
        }
        if (schedule.plain && (transfer.collective || !is_by_engine(transfer)))
            return at_op(transfer.op, "only the chunk engine follows a kernel that is left as it is");
        if (transfer.collective) {
            if (Status good = check_collective(schedule, transfer, rank); !good) return good;
        }
        if (Status good = check_posts(transfer.posts); !good) return good;
        if (Status good = check_waits(transfer.waits); !good) return good;
    }
    return Done{};
}

std::uint64_t bytes_of(const plan::Tensor& tensor) {
    return static_cast<std::uint64_t>(plan::num_elements(tensor.whole())) * plan::size_of(tensor.dtype);
}

/// What all ranks must have in common.
Bytes fingerprint(const fuse::Schedule& schedule, const std::vector<std::uint64_t>& offsets,
                  std::uint64_t control, std::int64_t control_words) {
    std::string text =
        fmt::format("{} slots, control block of {} words at {}", schedule.num_slots, control_words, control);
    for (std::size_t i = 0; i < schedule.tensors.size(); ++i) {
        text +=
            fmt::format("; {} {}{} at {}", schedule.tensors[i].name, plan::name_of(schedule.tensors[i].dtype),
                        plan::to_string(schedule.tensors[i].whole()), offsets[i]);
    }
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        text += fmt::format("; {} {}", rank.signals.size(), rank.transfers.size());
    }
    return text;
}

/// Whether two boxes of one shape lie in the same memory. Strides of axes of one element mean nothing.
bool same_place(const BoxView& a, const BoxView& b) {
    bool same = a.address == b.address;
    for (std::size_t i = 0; i < b.shape.size(); ++i)
        same = same && (b.shape[i] == 1 || a.strides[i] == b.strides[i]);
    return same;
}

/// The box of `part`, which lies in `whole`, where `view` is that of `whole`.
BoxView part_of(const BoxView& view, const plan::Region& whole, const plan::Region& part,
                std::size_t element) {
    BoxView box = view;
    for (std::size_t axis = 0; axis < whole.size(); ++axis) {
        const std::int64_t skipped = part[axis].begin - whole[axis].begin;
        box.shape[axis] = part[axis].size();
        box.address += static_cast<std::uint64_t>(skipped * view.strides[axis]) * element;
    }
    return box;
}

/// Pointers to the copies of all `entries`: a handful on the stack; more would need an allocation.
template <typename Entries>
class CopyList {
public:
    explicit CopyList(const Entries& entries) {
        for (const auto& [key, entry] : entries) {
            for (const StridedCopy& copy : entry.copies) {
                if (count_ < kOnStack) few_[count_] = &copy;
                if (count_ == kOnStack) many_.assign(few_, few_ + kOnStack);
                if (count_ >= kOnStack) many_.push_back(&copy);
                ++count_;
            }
        }
    }
    [[nodiscard]] std::span<const StridedCopy* const> all() const {
        if (count_ <= kOnStack) return {few_, count_};
        return many_;
    }

private:
    static constexpr std::size_t kOnStack = 64;
    const StridedCopy* few_[kOnStack];
    std::vector<const StridedCopy*> many_;
    std::size_t count_ = 0;
};

}  // namespace

FusedOp::FusedOp(std::shared_ptr<SymmetricHeap> heap, const fuse::Schedule& schedule, const Options& options)
    : heap_(std::move(heap)), schedule_(schedule), options_(options) {}

FusedOp::~FusedOp() = default;

Status FusedOp::allocate() {
    const auto row = static_cast<std::uint64_t>(emit::bytes_of_row(schedule_));
    if (row > 1 && (heap_->stride() % row != 0 ||
                    heap_->stride() / row * static_cast<std::uint64_t>(heap_->size()) > kMostRows)) {
        return Error{fmt::format("op '{}': its kernel addresses rows of {} bytes in all ranks' heaps, which "
                                 "are {} bytes apart; "
                                 "create the heap with a multiple of {} bytes, and at most {} rows in all",
                                 options_.name, row, heap_->stride(), std::lcm(row, std::uint64_t{2} << 20),
                                 kMostRows),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    for (const plan::Tensor& tensor : schedule_.tensors) {
        Result<std::uint64_t> offset =
            heap_->allocate(bytes_of(tensor), std::lcm(row, std::uint64_t{kTensorAlignment}));
        if (!offset) {
            Error error = offset.error();
            error.message = fmt::format("op '{}', tensor {}: {}", options_.name, tensor.name, error.message);
            return error;
        }
        tensor_offsets_.push_back(*offset);
    }
    fetched_by_tiles_.assign(schedule_.tensors.size(), false);
    for (const fuse::RankSchedule& schedule : schedule_.ranks) {
        for (const fuse::Slot& slot : schedule.slots) {
            if (slot.from && slot.from->rank == rank())
                fetched_by_tiles_[static_cast<std::size_t>(slot.from->tensor)] = true;
        }
    }
    std::size_t num_signals = 0;  // and counters of made chunks, gates of sums and relays, which follow them
    const auto gates_of = [&](const fuse::RankSchedule& schedule) {
        const auto number = static_cast<std::int32_t>(&schedule - schedule_.ranks.data());
        const fuse::StreamPlan streams = fuse::plan_streams(schedule, number);
        return static_cast<std::size_t>(streams.num_relays) + static_cast<std::size_t>(streams.num_tile_sums);
    };
    for (const fuse::RankSchedule& rank : schedule_.ranks)
        num_signals = std::max(num_signals, rank.signals.size() + rank.chunks.size() + gates_of(rank) +
                                                2 * num_collectives(schedule_) * schedule_.ranks.size());
    if (num_signals > 1u << 24) return Error{fmt::format("{} signals on one rank are too many", num_signals)};
    control_words_ = emit::control::size_in_words(static_cast<std::int32_t>(num_signals));
    if (heap_->device().kind == Device::Kind::cuda && signals_by_block(schedule_)) {
        // Each block of the engine has words of its own, where those of all take little room.
        const std::int64_t blocks = std::clamp(options_.engine_blocks, 1, kMostEngineBlocks);
        const std::int64_t apart = (control_words_ + kLineWords - 1) / kLineWords * kLineWords;
        if (apart * blocks <= kMostOwnWords) {
            own_words_ = apart;
            control_words_ = apart * blocks;
        }
    }
    Result<std::uint64_t> offset = heap_->allocate(static_cast<std::uint64_t>(control_words_) * 4, 1024);
    if (!offset) return offset.error();
    control_offset_ = *offset;

    std::vector<std::uint32_t> words(static_cast<std::size_t>(control_words_), 0);
    words[emit::control::deadline_ms] = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(options_.deadline_ms, 0, std::numeric_limits<std::int32_t>::max()));
    words[emit::control::rank] = static_cast<std::uint32_t>(rank());
    words[emit::control::epoch] = heap_->device().kind == Device::Kind::cuda ? 1 : 0;
    return heap_->write(control_address(), words.data(), words.size() * 4);
}

void FusedOp::make_tables() {
    constexpr std::size_t kAlignment = 64;  // words: a table begins at a multiple of 256 bytes
    std::vector<std::uint64_t> offsets = tensor_offsets_;
    offsets.push_back(control_offset_);
    for (std::size_t stage = 0; stage < schedule_.num_stages(); ++stage) {
        const std::vector<std::int32_t> table =
            emit::make_table(schedule_, rank(), static_cast<std::int64_t>(heap_->stride()),
                             options_.num_programs, offsets, stage);
        stage_begin_.push_back(table_.size());
        table_.insert(table_.end(), table.begin(), table.end());
        table_[stage_begin_.back() + emit::table::patience_ns] =
            static_cast<std::int32_t>(std::clamp<std::int64_t>(options_.patience_us, 0, 2'000'000) * 1000);
        if (stage + 1 < schedule_.num_stages())
            table_.resize((table_.size() + kAlignment - 1) / kAlignment * kAlignment, 0);
    }
    stage_begin_.push_back(table_.size());
}

Result<std::unique_ptr<FusedOp>> FusedOp::create(std::shared_ptr<SymmetricHeap> heap,
                                                 const fuse::Schedule& schedule, const Options& options) {
    if (heap == nullptr) return Error{"an op needs a heap", {}, ErrorClass::usage};
    const int rank = heap->rank();
    std::unique_ptr<FusedOp> op(new FusedOp(heap, schedule, options));
    // From here on a failure is shared: every rank goes through the same two exchanges.
    Status made = check_schedule(schedule, rank, heap->size());
    if (made) made = op->allocate();
    const auto undo = [&] {
        for (const std::uint64_t offset : op->tensor_offsets_) heap->free(offset);
        if (op->control_words_ > 0) heap->free(op->control_offset_);
    };
    Result<std::vector<Bytes>> all =
        agree(heap->rendezvous(), fmt::format("op-{}", options.name),
              made ? Result<Bytes>(
                         fingerprint(schedule, op->tensor_offsets_, op->control_offset_, op->control_words_))
                   : Result<Bytes>(made.error()),
              options.timeout);
    if (!all) {
        undo();
        return all.error();
    }
    for (std::size_t other = 0; other < all->size(); ++other) {
        if ((*all)[other] == (*all)[static_cast<std::size_t>(rank)]) continue;
        undo();
        return Error{
            fmt::format(
                "op '{}': rank {} makes another op than rank {} ({} | {}); ranks must make the same ops in "
                "the same order",
                options.name, other, rank, (*all)[other], (*all)[static_cast<std::size_t>(rank)]),
            {.rank = rank}};
    }

    const fuse::RankSchedule& mine = schedule.ranks[static_cast<std::size_t>(rank)];
    CallPlan plan{.rank = rank,
                  .num_ranks = heap->size(),
                  .first_control = heap->address(0, op->control_offset_),
                  .heap_stride = heap->stride(),
                  .begin_waits = mine.begin_waits,
                  .end_waits = mine.end_waits,
                  .streams = fuse::plan_streams(mine, rank)};
    const auto words_of = [&](const std::vector<fuse::Post>& posts) {
        std::vector<std::uint64_t> words;
        for (const fuse::Post& post : posts) {
            words.push_back(plan.control_of(post.rank) +
                            static_cast<std::uint64_t>(emit::control::word_of(post.signal)) * 4);
        }
        return words;
    };
    const auto box_of = [&](int where, const plan::Chunk& chunk) {
        const auto tensor = static_cast<std::size_t>(chunk.tensor);
        return view_of(schedule.tensors[tensor], chunk.region,
                       heap->address(where, op->tensor_offsets_[tensor]));
    };
    op->make_tables();
    plan.begin_posts = words_of(mine.begin_posts);
    plan.end_posts = words_of(mine.end_posts);
    plan.plain = schedule.plain;
    plan.own_words = static_cast<std::uint64_t>(op->own_words_) * 4;
    if (schedule.plain) {
        std::vector<fuse::Post> then = mine.kernel_posts;
        for (const fuse::MadeChunk& chunk : mine.chunks)
            then.insert(then.end(), chunk.posts.begin(), chunk.posts.end());
        plan.made_posts = words_of(then);
    }
    Status ready = Done{};
    for (const fuse::Transfer& transfer : mine.transfers) {
        if (transfer.reduce != plan::Reduce::none) {
            const plan::DType dtype = schedule.tensors[static_cast<std::size_t>(transfer.dst.tensor)].dtype;
            const BoxView destination = box_of(rank, transfer.dst);
            if (!transfer.tiles.empty()) {
                PreparedSum sum =
                    prepare_tile_sum(box_of(rank, transfer.src), destination, transfer.dst.region, dtype,
                                     transfer.tiles, transfer.own, op->table_);
                if (const fuse::StreamStep& step = plan.streams.steps[plan.transfers.size()]; step.gated) {
                    const std::int32_t word = emit::sum_gate_of(mine, step.tile_sum);
                    sum.by_tiles->gate = reinterpret_cast<std::uint32_t*>(
                        plan.control() + 4 * static_cast<std::uint64_t>(word));
                }
                plan.transfers.push_back({.sum = std::move(sum),
                                          .waits = transfer.waits,
                                          .post_words = words_of(transfer.posts),
                                          .by_stream = transfer.backend == plan::Backend::copy_engine});
                continue;
            }
            std::vector<BoxView> sources;
            for (const fuse::Source& source : transfer.sources) {
                BoxView& box = sources.emplace_back(box_of(source.rank, source.chunk));
                if (box.shape.size() == destination.shape.size() + 1) box = first_slot(box);  // staged
            }
            Result<PreparedSum> sum =
                sources.empty() ? prepare_sum(box_of(rank, transfer.src), destination, dtype, transfer.reduce,
                                              transfer.own)
                                : prepare_sum(sources, destination, dtype, transfer.reduce, transfer.own);
            if (!sum) {
                ready = at_op(transfer.op, sum.error().message);
                break;
            }
            for (const std::int32_t peer : transfer.peers)
                sum->copies.push_back(box_of(peer, transfer.dst).address - destination.address);
            plan.transfers.push_back({.sum = std::move(sum).value(),
                                      .waits = transfer.waits,
                                      .post_words = words_of(transfer.posts),
                                      .by_engine = is_by_engine(transfer),
                                      .by_stream = transfer.backend == plan::Backend::copy_engine});
            continue;
        }
        if (transfer.collective) {
            std::vector<std::uint64_t> tensors;
            for (const std::uint64_t offset : op->tensor_offsets_)
                tensors.push_back(heap->address(0, offset));
            plan.transfers.push_back(
                {.waits = transfer.waits,
                 .post_words = words_of(transfer.posts),
                 .by_stream = transfer.backend == plan::Backend::nccl,
                 .collective = prepare_collective(*transfer.collective, schedule, rank, tensors,
                                                  plan.first_control, plan.heap_stride)});
            continue;
        }
        Result<std::vector<StridedCopy>> copies = copies_between(
            box_of(transfer.src_rank, transfer.src), box_of(transfer.dst_rank, transfer.dst),
            plan::size_of(schedule.tensors[static_cast<std::size_t>(transfer.src.tensor)].dtype));
        if (!copies) {
            ready = at_op(transfer.op, copies.error().message);
            break;
        }
        plan.transfers.push_back({.copies = std::move(copies).value(),
                                  .waits = transfer.waits,
                                  .post_words = words_of(transfer.posts),
                                  .by_engine = is_by_engine(transfer),
                                  .by_stream = transfer.backend == plan::Backend::copy_engine});
    }
    if (ready) {
        Result<std::unique_ptr<CallExecutor>> executor =
            heap->device().kind == Device::Kind::host
                ? make_host_calls(std::move(plan), op->table_, mine, options)
                : make_cuda_calls(std::move(plan), op->table_, *heap, schedule, options);
        if (executor) {
            op->executor_ = std::move(executor).value();
        } else {
            ready = executor.error();
        }
    }
    // All control blocks are set up before anyone begins a call.
    Result<std::vector<Bytes>> done =
        agree(heap->rendezvous(), fmt::format("op-{}-ready", options.name),
              ready ? Result<Bytes>("") : Result<Bytes>(ready.error()), options.timeout);
    if (!done) {
        op->executor_.reset();
        undo();
        return done.error();
    }
    return op;
}

Result<std::uint64_t> FusedOp::tensor_offset(std::string_view name) const {
    for (std::size_t i = 0; i < schedule_.tensors.size(); ++i) {
        if (schedule_.tensors[i].name == name) return tensor_offsets_[i];
    }
    return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
}

Result<std::uint64_t> FusedOp::tensor_address(std::string_view name, int of_rank) const {
    Result<std::uint64_t> offset = tensor_offset(name);
    if (!offset) return offset;
    if (of_rank < 0 || of_rank >= heap_->size()) return Error{fmt::format("there is no rank {}", of_rank)};
    return heap_->address(of_rank, *offset);
}

FusedOp::FlatView FusedOp::flat_view() const {
    const std::uint64_t begin = heap_->address(0, 0);
    return FlatView{begin, heap_->address(heap_->size() - 1, 0) + heap_->stride() - begin};
}

Result<std::uint64_t> FusedOp::tensor_address(std::string_view name) const {
    return tensor_address(name, rank());
}

Result<std::uint64_t> FusedOp::tensor_bytes(std::string_view name) const {
    for (const plan::Tensor& tensor : schedule_.tensors) {
        if (tensor.name == name) return bytes_of(tensor);
    }
    return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
}

std::uint64_t FusedOp::control_address() const { return control_address(rank()); }
std::uint64_t FusedOp::control_address(int of_rank) const { return heap_->address(of_rank, control_offset_); }
std::uint64_t FusedOp::table_address(std::size_t stage) const {
    return executor_->table_address() + 4 * stage_begin_[stage];
}

std::span<const std::int32_t> FusedOp::table(std::size_t stage) const {
    return std::span(table_).subspan(stage_begin_[stage], stage_begin_[stage + 1] - stage_begin_[stage]);
}

Status FusedOp::set_num_programs(std::int64_t num_programs) {
    if (num_programs < 1 || num_programs > std::numeric_limits<std::int32_t>::max()) {
        return Error{
            fmt::format("a grid of {} programs makes no sense", num_programs), {}, ErrorClass::usage};
    }
    for (std::size_t stage = 0; stage < schedule_.num_stages(); ++stage) {
        const std::size_t word = stage_begin_[stage] + emit::table::num_programs;
        if (table_[word] == num_programs) continue;
        table_[word] = static_cast<std::int32_t>(num_programs);
        if (Status written = executor_->write_table_word(word, table_[word]); !written) return written;
    }
    return Done{};
}

Result<FusedOp::Place> FusedOp::place_of(std::string_view name, const plan::Region& region,
                                         std::span<const std::int64_t> strides, const char* what) const {
    const auto tensor = std::ranges::find(schedule_.tensors, name, &plan::Tensor::name);
    if (tensor == schedule_.tensors.end())
        return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
    if (region.size() != tensor->shape.size() || !plan::contains(tensor->whole(), region)) {
        return Error{fmt::format("op '{}': region {} is not in tensor {}", options_.name,
                                 plan::to_string(region), name)};
    }
    if (strides.size() != region.size()) {
        return Error{fmt::format("op '{}', {} {}: {} strides for {} axes", options_.name, what, name,
                                 strides.size(), region.size())};
    }
    if (!strides.empty() && region.back().size() > 1 && strides.back() != 1) {
        return Error{fmt::format(
            "op '{}', {} {}: its last stride is {}, not 1; make it contiguous along its last axis",
            options_.name, what, name, strides.back())};
    }
    Place place{.tensor = &*tensor};
    place.key.first = static_cast<std::int32_t>(tensor - schedule_.tensors.begin());
    for (const plan::Interval& interval : region)
        place.key.second.insert(place.key.second.end(), {interval.begin, interval.end});
    place.box =
        view_of(*tensor, region, heap_->local(tensor_offsets_[static_cast<std::size_t>(place.key.first)]));
    return place;
}

Status FusedOp::set_input(std::string_view name, const plan::Region& region, std::uint64_t address,
                          std::span<const std::int64_t> strides) {
    Result<Place> place = place_of(name, region, strides, "input");
    if (!place) return place.error();
    Input& input = inputs_[place->key];
    if (input.address == address && std::ranges::equal(input.strides, strides)) return Done{};

    const BoxView from{address, place->box.shape, {strides.begin(), strides.end()}};
    input.address = address;
    input.strides.assign(strides.begin(), strides.end());
    input.copies.clear();
    Result<std::vector<StridedCopy>> copies =
        copies_between(from, place->box, plan::size_of(place->tensor->dtype));
    if (!copies) {
        input.address = 0;
        return copies.error();
    }
    const bool unread = redirect_sources(place->key.first, region, from);
    if (!unread && !same_place(from, place->box)) input.copies = std::move(copies).value();
    return Done{};
}

bool FusedOp::redirect_sources(std::int32_t tensor, const plan::Region& region, const BoxView& from) {
    bool all =
        options_.kept_tensors && !fetched_by_tiles_[static_cast<std::size_t>(tensor)] &&
        std::ranges::find(*options_.kept_tensors, schedule_.tensors[static_cast<std::size_t>(tensor)].name) ==
            options_.kept_tensors->end();
    const auto reads = [&](const fuse::Transfer& transfer) {
        return transfer.src_rank == rank() && transfer.src.tensor == tensor &&
               plan::overlaps(transfer.src.region, region);
    };
    for (std::size_t other = 0; other < schedule_.ranks.size(); ++other) {
        if (other == static_cast<std::size_t>(rank())) continue;
        all = all && std::ranges::none_of(schedule_.ranks[other].transfers, reads);
    }
    const std::vector<fuse::Transfer>& transfers =
        schedule_.ranks[static_cast<std::size_t>(rank())].transfers;
    const std::size_t element = plan::size_of(schedule_.tensors[static_cast<std::size_t>(tensor)].dtype);
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const fuse::Transfer& transfer = transfers[index];
        if (!reads(transfer)) continue;
        const bool done = plan::contains(region, transfer.src.region) &&
                          !is_written(tensor, transfer.src.region) &&
                          send_from(index, part_of(from, region, transfer.src.region, element));
        if (!done) send_from_heap(index);  // it may have read the input before
        all = all && done;
    }
    return all;
}

bool FusedOp::send_from(std::size_t index, const BoxView& source) {
    const fuse::Transfer& transfer = schedule_.ranks[static_cast<std::size_t>(rank())].transfers[index];
    const auto target = static_cast<std::size_t>(transfer.dst.tensor);
    Result<std::vector<StridedCopy>> copies =
        copies_between(source,
                       view_of(schedule_.tensors[target], transfer.dst.region,
                               heap_->address(transfer.dst_rank, tensor_offsets_[target])),
                       plan::size_of(schedule_.tensors[target].dtype));
    return copies && executor_->set_copies(index, std::move(copies).value());
}

void FusedOp::send_from_heap(std::size_t index) {
    const fuse::Transfer& transfer = schedule_.ranks[static_cast<std::size_t>(rank())].transfers[index];
    const auto tensor = static_cast<std::size_t>(transfer.src.tensor);
    send_from(index,
              view_of(schedule_.tensors[tensor], transfer.src.region, heap_->local(tensor_offsets_[tensor])));
}

void FusedOp::clear_inputs() {
    const std::vector<fuse::Transfer>& transfers =
        schedule_.ranks[static_cast<std::size_t>(rank())].transfers;
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const fuse::Transfer& transfer = transfers[index];
        const bool reads =
            transfer.src_rank == rank() && !transfer.collective && transfer.reduce == plan::Reduce::none &&
            std::ranges::any_of(inputs_,
                                [&](const auto& input) { return input.first.first == transfer.src.tensor; });
        if (reads) send_from_heap(index);
    }
    inputs_.clear();
}

bool FusedOp::is_written(std::int32_t tensor, const plan::Region& region) const {
    const auto meets = [&](const plan::Chunk& chunk) {
        return chunk.tensor == tensor && plan::overlaps(chunk.region, region);
    };
    const auto& chunks = schedule_.ranks[static_cast<std::size_t>(rank())].chunks;
    if (std::ranges::any_of(chunks, [&](const fuse::MadeChunk& made) { return meets(made.chunk); }))
        return true;
    for (const fuse::RankSchedule& other : schedule_.ranks) {
        for (const fuse::Transfer& transfer : other.transfers) {
            if (transfer.dst_rank == rank() && meets(transfer.dst)) return true;
        }
    }
    return false;
}

Status FusedOp::set_input(std::string_view name, std::uint64_t address,
                          std::span<const std::int64_t> strides) {
    if (!options_.initial) {
        return Error{fmt::format("op '{}', input {}: it is not said which region rank {} holds; give it, or "
                                 "OpOptions::initial",
                                 options_.name, name, rank()),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    std::optional<plan::Region> box;
    for (const plan::Chunk& chunk : *options_.initial) {
        if (chunk.tensor < 0 || static_cast<std::size_t>(chunk.tensor) >= schedule_.tensors.size()) continue;
        if (schedule_.tensors[static_cast<std::size_t>(chunk.tensor)].name != name) continue;
        if (box && box->size() != chunk.region.size()) continue;
        box = box ? plan::bounding_box(*box, chunk.region) : chunk.region;
    }
    if (!box) return Done{};
    return set_input(name, *box, address, strides);
}

Status FusedOp::set_output(std::string_view name, const plan::Region& region, std::uint64_t address,
                           std::span<const std::int64_t> strides) {
    Result<Place> place = place_of(name, region, strides, "output");
    if (!place) return place.error();
    Input& output = outputs_[place->key];
    if (output.address == address && std::ranges::equal(output.strides, strides)) return Done{};
    const BoxView to{address, place->box.shape, {strides.begin(), strides.end()}};
    output.address = address;
    output.strides.assign(strides.begin(), strides.end());
    output.copies.clear();
    const std::size_t element = plan::size_of(place->tensor->dtype);
    Result<std::vector<StridedCopy>> copies = copies_between(place->box, to, element);
    if (!copies) {
        output.address = 0;
        return copies.error();
    }
    const bool in_place = same_place(to, place->box);
    if (redirect_sums(place->key.first, region, to, in_place) || in_place) return Done{};
    output.copies = std::move(copies).value();
    return Done{};
}

bool FusedOp::redirect_sums(std::int32_t tensor, const plan::Region& region, const BoxView& to,
                            bool in_place) {
    const std::vector<fuse::Transfer>& transfers =
        schedule_.ranks[static_cast<std::size_t>(rank())].transfers;
    const std::size_t element = plan::size_of(schedule_.tensors[static_cast<std::size_t>(tensor)].dtype);
    std::vector<plan::Region> missing{region};
    bool all = true;
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const fuse::Transfer& sum = transfers[index];
        PreparedSum* prepared = executor_->sum_of(index);
        if (prepared == nullptr || sum.dst.tensor != tensor || !plan::overlaps(sum.dst.region, region))
            continue;
        prepared->bring_home();
        if (in_place) continue;
        // Only what is wholly of the output, and read by nobody else, need not be in the heap.
        bool good = plan::contains(region, sum.dst.region) && !is_sent(tensor, sum.dst.region);
        if (good) {
            const auto staging = static_cast<std::size_t>(sum.src.tensor);
            good = redirect(
                *prepared,
                view_of(schedule_.tensors[staging], sum.src.region, heap_->local(tensor_offsets_[staging])),
                part_of(to, region, sum.dst.region, element));
        }
        all = all && good;
        plan::take(missing, sum.dst.region);
    }
    if (in_place || (all && missing.empty() && tile_sums_agree())) return true;
    // Not all of it: then everything is copied at the end, from the heap.
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        PreparedSum* prepared = executor_->sum_of(index);
        if (prepared == nullptr || transfers[index].dst.tensor != tensor) continue;
        if (plan::overlaps(transfers[index].dst.region, region)) prepared->bring_home();
    }
    return false;
}

template <typename Visit>
void FusedOp::for_tile_sums(const Visit& visit) const {
    const std::vector<fuse::Transfer>& transfers =
        schedule_.ranks[static_cast<std::size_t>(rank())].transfers;
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const PreparedSum* sum = transfers[index].tiles.empty() ? nullptr : executor_->sum_of(index);
        if (sum == nullptr || !sum->by_tiles) continue;
        const plan::Region& region = transfers[index].dst.region;
        const std::uint64_t before = static_cast<std::uint64_t>(region[0].begin) * sum->by_tiles->out_pitch +
                                     static_cast<std::uint64_t>(region[1].begin) * plan::size_of(sum->dtype);
        visit(*sum->by_tiles, before);
    }
}

std::optional<FusedOp::SumPlace> FusedOp::sum_place() const {
    if (!schedule_.summed) return std::nullopt;
    const auto tensor =
        static_cast<std::size_t>(*schedule_.summed);  // on a rank without sums any place will do
    SumPlace place{heap_->local(tensor_offsets_[tensor]),
                   static_cast<std::uint64_t>(schedule_.tensors[tensor].shape[1]) *
                       plan::size_of(schedule_.tensors[tensor].dtype)};
    for_tile_sums(
        [&](const TileRows& rows, std::uint64_t before) { place = {rows.out - before, rows.out_pitch}; });
    return place;
}

bool FusedOp::tile_sums_agree() const {
    const std::optional<SumPlace> place = sum_place();
    bool agree = true;
    for_tile_sums([&](const TileRows& rows, std::uint64_t before) {
        agree = agree && rows.out_pitch == place->pitch && rows.out - before == place->address;
    });
    return agree;
}

bool FusedOp::is_sent(std::int32_t tensor, const plan::Region& region) const {
    for (const fuse::RankSchedule& other : schedule_.ranks) {
        for (const fuse::Transfer& transfer : other.transfers) {
            if (transfer.src_rank == rank() && transfer.src.tensor == tensor &&
                plan::overlaps(transfer.src.region, region))
                return true;
        }
    }
    return false;
}

Error FusedOp::error_of(const FaultRecord& record) const {
    if (!record.of_peer() || record.peer() >= heap_->size()) {
        return fault_error(schedule_, rank(), options_.name, record, options_.deadline_ms);
    }
    // The other rank's control block says what it waited for.
    Error error = fault_error(schedule_, rank(), options_.name, record, options_.deadline_ms);
    std::uint32_t words[control::num_header_words] = {};
    if (heap_->read(control_address(record.peer()), words, sizeof(words))) {
        const FaultRecord theirs = FaultRecord::from_words(words);
        if (theirs.any() && !theirs.of_peer()) {
            const Error cause =
                fault_error(schedule_, record.peer(), options_.name, theirs, options_.deadline_ms);
            error.message = cause.message + fmt::format("; so found on rank {}", record.peer());
            error.location = cause.location;
        }
    }
    return error;
}

Status FusedOp::begin_call(CudaStream stream) {
    if (destroyed_)
        return Error{fmt::format("op '{}' has been destroyed", options_.name), {}, ErrorClass::usage};
    if (calling_) {
        return Error{fmt::format("op '{}': begin_call twice without end_call", options_.name),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    const CopyList copies(inputs_);
    const Status begun = executor_->begin(stream, copies.all());
    if (begun) {
        calling_ = true;
        return begun;
    }
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : begun;
}

Status FusedOp::call(CudaKernel& kernel, Grid grid, CudaStream stream, const KernelArguments& arguments) {
    const Launch only{&kernel, grid, &arguments};
    return call(std::span(&only, 1), stream);
}

Status FusedOp::call(std::span<const Launch> stages, CudaStream stream) {
    if (stages.size() != schedule_.num_stages()) {
        return Error{fmt::format("op '{}': it has {} stages, {} kernels were given", options_.name,
                                 schedule_.num_stages(), stages.size()),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    if (Status begun = begin_call(stream); !begun) return begun;
    Status launched = Done{};
    for (const Launch& stage : stages) {
        // A later stage reads what the one before it wrote, so it starts when that one has ended.
        const bool early = &stage == &stages.front() && executor_->kernel_may_start_early();
        launched = stage.kernel->launch(stage.grid, stream, *stage.arguments, early);
        if (!launched) break;
    }
    const Status ended = end_call(stream, static_cast<bool>(launched));
    return launched ? ended : launched;
}

Status FusedOp::end_call(CudaStream stream, bool ran) {
    if (!calling_) {
        return Error{fmt::format("op '{}': end_call without begin_call", options_.name),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    calling_ = false;
    const CopyList copies(outputs_);
    const Status ended = executor_->end(stream, copies.all(), ran);
    if (ended) return ended;
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : ended;
}

Status FusedOp::check() const {
    Result<FaultRecord> record = executor_->read_fault();
    if (!record) return record.error();
    return record->any() ? Status(error_of(*record)) : Status(Done{});
}

Status FusedOp::poll() const {
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : Status(Done{});
}

Status FusedOp::synchronize() { return executor_->synchronize(); }

Status FusedOp::destroy() {
    if (destroyed_) return Done{};
    destroyed_ = true;
    Status idle = executor_->synchronize();
    Result<std::vector<Bytes>> all =
        agree(heap_->rendezvous(), fmt::format("op-{}-destroy", options_.name),
              idle ? Result<Bytes>("") : Result<Bytes>(idle.error()), options_.timeout);
    if (!all) return all.error();
    for (const std::uint64_t offset : tensor_offsets_) heap_->free(offset);
    heap_->free(control_offset_);
    return Done{};
}

}  // namespace syncopate::runtime

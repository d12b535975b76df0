// What fuse makes: for each rank, which tile runs in which slot, what it waits for, which transfers run, and
// which signals guard the reuse of memory by the next call. The schedule is data: the emitted kernel and the
// executors read it from tables, so that one compiled kernel serves every plan, rank and order.
//
// One call on one rank, seen from the side (time goes right):
//
//   main stream   | begin: epoch += 1, begin_posts, begin_waits | fused kernel …… kernel_posts | end_waits,
//                                                               |   its tiles make chunks → posts  end_posts
//                                                               |
//   copy stream                                                 | transfers, each with waits → data → posts |
//   sums                                                        |      the same: waits → sum → posts |
//
// Transfers that the kernel carries out itself are not in the list: a chunk's tiles say where they are stored
// (inline.hpp), and the chunk's posts include theirs; a slot says where its tile loads (inline_reads.hpp).
//
// What signals and waits mean: [P1, P3, P4] of docs/protocol.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/head_start.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

/// A block until signal `signal` of this rank's control block has reached this call's epoch minus `lag`.
struct Wait {
    std::int32_t signal = 0;
    std::int32_t lag = 0;  ///< 0: posted in this call; 1: posted in the previous call or later
    auto operator<=>(const Wait&) const = default;
};

/// Sets signal `signal` of `rank`'s control block to the poster's epoch.
struct Post {
    std::int32_t rank = 0;
    std::int32_t signal = 0;
    auto operator<=>(const Post&) const = default;
};

/// What a signal stands for; for messages ("chunk A[0:128, :] from rank 2, op 0, has not arrived").
struct SignalMeaning {
    enum class Kind : std::uint8_t {
        arrived,   ///< op `op` has written its destination
        consumed,  ///< rank `op.rank`'s kernel (or call) no longer reads what was sent to it
        ready,     ///< rank `op.rank` has begun the call: what it holds initially may be read
        fetched,   ///< op `op`, a pull, has read its source
        made,      ///< rank `op.rank`'s kernel has made its chunk `op.index` (RankSchedule::chunks)
    };
    Kind kind = Kind::arrived;
    plan::OpRef op;  ///< index -1 when the signal is about a whole rank
};

/// Where a tile's value goes, or comes from: `rows` after the same row of `tensor` (as rows of the kernel's
/// own tensor), in `rank`'s memory. A tensor's rows are numbered through all axes before the last but one.
struct Place {
    std::int32_t rank = 0;
    std::int32_t tensor = 0;
    std::int64_t rows = 0;
    auto operator<=>(const Place&) const = default;
};

/// A part of a tile's loop that may run once `waits` are over: iterations [iteration_begin, iteration_end).
struct Phase {
    std::int32_t loop = 0;  ///< of the kernel's
    std::int64_t iteration_begin = 0;
    std::int64_t iteration_end = 0;
    std::vector<Wait> waits{};
};

/// The n-th unit of work that the kernel takes.
struct Slot {
    std::int64_t tile = 0;            ///< the kernel's own linear tile id
    std::vector<Wait> waits;          ///< before the tile starts
    std::vector<Phase> phases;        ///< loop by loop, in the order in which they run; of a stage that is
                                      ///< not phased: empty
    std::vector<std::int32_t> makes;  ///< the chunks that the tile writes into, rising
    std::optional<Place> from{};      ///< where it loads what is fetched inline; nullopt: the own place
};

/// How a stage's tiles reach one of the kernel's tensors at other places than the kernel's own.
struct Reach {
    std::int32_t tensor = 0;  ///< the kernel's own
    bool by_row = false;      ///< by coordinates of a descriptor that spans all heaps; else by pointers
    bool own = false;         ///< loads: only what the rank itself was given, through a parameter of its own
    auto operator<=>(const Reach&) const = default;
};

/// A chunk that a rank's kernel makes. Each program that writes into it counts once it has stored its last
/// tile of it; the last one to count posts.
struct MadeChunk {
    plan::Chunk chunk;
    std::vector<std::int32_t> counting{};  ///< slots, rising, whose tiles are their programs' last of it
    std::vector<Post> posts{};
    std::vector<Place> stores{};  ///< of its tiles; empty: the kernel's own place
    /// They count as soon as they are stored, not when their program stores its next tile: the program stands
    /// still for its stores, but the chunk leaves a tile's time earlier.
    bool at_once = false;
    /// Ranks at which its tiles store it by themselves (kernel::Param::sent), wherever that is.
    std::vector<std::int32_t> sent{};

    [[nodiscard]] bool counts(std::int64_t slot) const { return std::ranges::binary_search(counting, slot); }
};

/// A region in the memory of a rank.
struct Source {
    std::int32_t rank = 0;
    plan::Chunk chunk;
    bool operator==(const Source&) const = default;
};

/// A collective that is carried out as one call, or by the ranks together (collective.hpp).
struct Collective {
    struct Member {
        plan::OpRef op;
        plan::Chunk src;  ///< in the memory of op.rank
        plan::Chunk dst;
        bool operator==(const Member&) const = default;
    };
    plan::CollectiveKind kind = plan::CollectiveKind::all_gather;
    plan::Reduce reduce = plan::Reduce::none;
    std::int32_t number = 0;  ///< among those of the plan; all participants' is the same
    /// In the order of the plan's list of ranks; a broadcast comes from the first.
    std::vector<Member> members;
    bool operator==(const Collective&) const = default;
};

inline constexpr std::int32_t kMostCopyStreams = 6;  ///< of a rank

/// Where in a call a transfer is launched that a stream carries out.
enum class Launch : std::uint8_t {
    none,    ///< by no stream: the chunk engine's, or device host's
    local,   ///< a copy within the rank before the kernel, in the kernel's stream: its multiprocessors may do
             ///< it
    before,  ///< a collective before the kernel, in the kernel's stream
    early,   ///< a copy before the kernel's launch
    late,    ///< a copy or a collective after it
    sums,    ///< a sum, in a stream of its own
};

/// The streams beside the caller's, by number: one of copies, before whose late ones come what runs before
/// the kernel and early copies; one of sums; the other copy streams.
inline constexpr std::size_t kCopies = 0;
inline constexpr std::size_t kSums = 1;

/// A transfer as its stream carries it out (launch.hpp).
struct StreamStep {
    Launch launch = Launch::none;
    std::size_t stream = kCopies;  ///< its number
    /// Made chunks of this rank; one that the stream has passed is left out.
    std::vector<std::int32_t> gates;
    std::vector<std::size_t> after;  ///< transfers of other streams that it follows
    std::vector<Wait> awaited;       ///< of a sum: polled before it
    std::vector<Wait> relayed;       ///< of a copy: by the relay
    std::int32_t relay = -1;         ///< its number, rising with the transfers; -1: none
    /// Of a sum: the transfer whose gates open before the sum's kernel that waits may start.
    std::optional<std::size_t> await_after{};
    bool awaits_gate = false;  ///< of a sum: that kernel waits for its gate, too
    bool operator==(const StreamStep&) const = default;
    /// It is launched after the kernel, on a stream beside it.
    [[nodiscard]] bool follows_kernel() const { return launch == Launch::late || launch == Launch::sums; }
};

/// Moves the source to the destination.
struct Copy {
    std::int32_t stream = 0;  ///< the one of its rank's copy streams that it goes by (place.hpp)
    bool operator==(const Copy&) const = default;
};

/// Adds up in the memory of its own rank (lower.hpp): the slots of the source, a box of [slots, …], `own` of
/// them, then what the destination holds, then the rest.
struct Sum {
    plan::Reduce reduce = plan::Reduce::sum;
    std::int32_t own = -1;  ///< -1: the destination holds nothing yet
    /// Not empty: these are the slots, wherever they are; the source is what of them is staged, or the
    /// destination where nothing is.
    std::vector<Source> sources{};
    std::vector<std::int32_t> peers{};  ///< ranks at which it is stored too, in the same place
    bool operator==(const Sum&) const = default;
};

/// One side of what goes from node to node: the source's rank sends, the destination's receives (passes/channel.hpp).
/// Both sides are transfers, of one number.
struct Channel {
    bool sends = false;
    std::int32_t number = 0;  ///< of the pair, over all ranks
    /// A rank's sides of one round begin together, once all that they wait for is there, and end together. Rounds
    /// follow each other in rising order, on all ranks.
    std::int32_t round = 0;
    bool operator==(const Channel&) const = default;
};

/// What a rank does beside its kernel: a copy, a sum, its part in a collective, or a side of a channel, ready to run on
/// the rank that executes it. Both ranks of a sum and of a collective are that one.
struct Transfer {
    plan::OpRef op;
    plan::Backend backend = plan::Backend::host;
    std::int32_t src_rank = 0;
    std::int32_t dst_rank = 0;
    plan::Chunk src;
    plan::Chunk dst;
    std::variant<Copy, Sum, Collective, Channel> work{};
    std::vector<Wait> waits{};  ///< signals of the executing rank
    std::vector<Post> posts{};  ///< after the data is visible at the destination
    StreamStep step{};          ///< as a stream carries it out

    /// What it does, if it is that; else null.
    [[nodiscard]] const Copy* copy() const { return std::get_if<Copy>(&work); }
    [[nodiscard]] const Sum* sum() const { return std::get_if<Sum>(&work); }
    [[nodiscard]] const Collective* collective() const { return std::get_if<Collective>(&work); }
    [[nodiscard]] const Channel* channel() const { return std::get_if<Channel>(&work); }
};

/// Which of the chunk engine's kernels carries out what is its own on a rank (engine.hpp).
enum class EngineKernel : std::uint8_t { none, relays, bulk, pieces, sums, at_once, counted };

/// A signal that is added to [P5], and how often in a call; the others are set to the call's number.
struct CountedSignal {
    std::int32_t signal = 0;
    std::int32_t posts = 1;
    auto operator<=>(const CountedSignal&) const = default;
};

struct RankSchedule {
    std::vector<SignalMeaning> signals;  ///< of this rank's control block; a signal is its index here
    std::vector<Slot> slots;
    std::vector<MadeChunk> chunks;
    std::vector<Transfer> transfers;  ///< in the order in which they are to start
    /// Where tiles read what the rank was given where the user has it (Reach::own): what of it has to be in
    /// the heap nevertheless, for tiles that read beside it, too.
    std::vector<plan::Chunk> borders{};
    std::vector<Post> begin_posts;
    std::vector<Wait> begin_waits;
    std::vector<Post> kernel_posts;  ///< by the last program of the fused kernel to finish
    std::vector<Wait> end_waits;
    std::vector<Post> end_posts;
    std::size_t num_streams = 2;
    std::int32_t num_relays = 0;
    std::vector<CountedSignal> counted{};  ///< of this rank, rising
    EngineKernel engine = EngineKernel::none;
    bool takes_turns = false;         ///< calls of one GPU follow each other [P24]
    bool copies_start_first = false;  ///< early copies need not wait for local ones
    bool ends_with_sum = false;       ///< what end_posts tell is true once the last transfer, a sum, is done

    /// Whether the wait is over once the call has begun: it has waited for that, or for more.
    [[nodiscard]] bool has_begun(const Wait& wait) const {
        return std::ranges::any_of(begin_waits, [&](const Wait& begun) {
            return begun.signal == wait.signal && begun.lag <= wait.lag;
        });
    }

    /// Where the slot's tile is stored, each place once; empty: in the kernel's own place.
    [[nodiscard]] std::vector<Place> stores_of(const Slot& slot) const {
        std::vector<Place> places;
        for (const std::int32_t chunk : slot.makes) {
            for (const Place& place : chunks[at(chunk)].stores) {
                if (std::ranges::find(places, place) == places.end()) places.push_back(place);
            }
        }
        return places;
    }
};

/// One stage, and its slots: each rank's slots are those of the first stage, then those of the next.
struct StageSlots {
    std::int64_t first = 0;
    std::int64_t count = 0;  ///< of the rank that has most; of several stages equal on all ranks
    bool phased = false;     ///< some slot has phases: the kernel is emitted with nested loops
    /// It starts once every program of the stage before has started, and its slots wait for that one's tiles;
    /// else when that one has ended.
    bool overlaps = false;
    std::int32_t loops = 1;  ///< of the kernel, that phases are of
    HeadStart head_start{};  ///< of its first programs
    std::int64_t tiles = 0;  ///< of the kernel, where ranks run only some of them; else 0
    /// Then, of a kernel that runs one tile a program: x and y of its own grid. It is launched with as many
    /// programs as the rank has slots, along x.
    std::vector<std::int64_t> own_grid{};
    /// Not 0: the slots are groups of slots that a call makes, all together at most so many (emit/layout.hpp).
    std::int64_t most_slots = 0;
    // These are of programs of one stage only.
    std::optional<Reach> stores{};  ///< of tiles whose chunks say where (inline.hpp); nullopt: of none
    std::optional<Reach> loads{};   ///< of tiles whose slots say where (inline_reads.hpp); nullopt: of none
    bool operator==(const StageSlots&) const = default;

    [[nodiscard]] bool is_partial() const { return tiles > 0; }
    [[nodiscard]] bool program_a_slot() const { return !own_grid.empty(); }
};

/// An op's piece of each rank's symmetric heap (heap.hpp). Offsets in bytes, from where the piece begins.
struct Heap {
    std::vector<std::uint64_t> tensors;  ///< where each is
    std::uint64_t control = 0;           ///< where the control block is
    std::int64_t control_words = 0;      ///< of 32 bits
    std::uint64_t bytes = 0;             ///< of the piece
    std::uint64_t alignment = 1;  ///< the piece begins, and heaps are apart, by multiples of so many bytes
    bool operator==(const Heap&) const = default;
};

/// Of a schedule of one node's ranks: which these are, and what of all ranks the kernels, their tables and the heap follow.
struct Part {
    std::int32_t first = 0;
    std::int32_t end = 0;  ///< behind the last one
    struct Stage {
        bool makes = false;   ///< some tile makes a chunk
        bool awaits = false;  ///< some tile waits for one
        std::int32_t most_stores = 1;
        bool operator==(const Stage&) const = default;
    };
    std::vector<Stage> stages;
    bool can_wait = false;                    ///< some chunk is not counted at once
    std::vector<std::int32_t> channel_ranks;  ///< who sends to other nodes, or receives from there; rising
    /// Of what it was made, piece by piece: nodes whose parts say the same have parts of one schedule.
    std::string made_of;
    bool operator==(const Part&) const = default;
};

struct Schedule {
    plan::Mesh mesh;
    std::vector<plan::Tensor> tensors;             ///< those of the plan; each rank's heap holds all of each
    std::vector<StageSlots> stages{StageSlots{}};  ///< at least one
    std::vector<RankSchedule> ranks;
    Heap heap{};
    std::int32_t engine_blocks = 8;  ///< multiprocessors of each rank's chunk engine
    std::optional<Part> part{};      ///< nullopt: it is of all ranks; else `ranks` says nothing of the others

    /// Of all stages; equal on all ranks.
    [[nodiscard]] std::int64_t num_slots() const { return stages.back().first + stages.back().count; }
    /// A rank's slots of one stage.
    [[nodiscard]] std::span<const Slot> slots_of(const RankSchedule& rank, std::size_t stage) const {
        const auto first = static_cast<std::size_t>(stages[stage].first);
        return std::span(rank.slots)
            .subspan(first,
                     std::min(static_cast<std::size_t>(stages[stage].count), rank.slots.size() - first));
    }
    /// How many places the tile of the stage is stored at that is stored at most.
    [[nodiscard]] std::int32_t most_stores(std::size_t stage) const {
        if (part) return part->stages[stage].most_stores;
        std::size_t most = 1;
        for (const RankSchedule& rank : ranks) {
            for (const Slot& slot : slots_of(rank, stage)) most = std::max(most, rank.stores_of(slot).size());
        }
        return static_cast<std::int32_t>(most);
    }
    /// What only the stage of a program of one stage may have.
    [[nodiscard]] const std::optional<Reach>& stores() const { return stages.front().stores; }
    [[nodiscard]] const std::optional<Reach>& loads() const { return stages.front().loads; }
    /// Some rank's tiles of the stage make chunks: its kernel gets a post after a tile's last store.
    [[nodiscard]] bool produces(std::size_t stage) const {
        if (part) return part->stages[stage].makes;
        return std::ranges::any_of(ranks, [&](const RankSchedule& rank) {
            return std::ranges::any_of(slots_of(rank, stage),
                                       [](const Slot& slot) { return !slot.makes.empty(); });
        });
    }
};

}  // namespace syncopate::fuse
